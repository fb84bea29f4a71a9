package interp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// The oracle tests run the same program in qemu-riscv64 (user mode) and here,
// and compare all of the memory that the program may write. A program is one
// image at imageBase that ends with write(1, data) and exit.
const (
	imageBase = 0x10000
	dataBase  = 0x40_0000
	dataSize  = 0x10_0000
	imageSize = dataBase + dataSize - imageBase
)

// Registers that generated code does not write to.
const (
	regStack   = 2  // in the middle of the scratch area, for compressed accesses
	regScratch = 8  // likewise, and reachable for compressed accesses as well
	regAligned = 9  // 64-byte aligned
	regData    = 31 // where the program reads operands and puts results
)

const (
	scratchBase = dataBase
	scratchSize = 0x4000
	resultBase  = dataBase + scratchSize
)

// program builds an image.
type program struct {
	code []byte
	data []byte // at dataBase
}

func newProgram() *program { return &program{data: make([]byte, dataSize)} }

func (p *program) pc() uint64 { return imageBase + uint64(len(p.code)) }

func (p *program) emit(ins ...isa.Inst) {
	for _, in := range ins {
		p.raw(isa.Encode(in))
	}
}

func (p *program) raw(raw uint32) {
	if isa.Length(uint16(raw)) == 2 {
		p.code = binary.LittleEndian.AppendUint16(p.code, uint16(raw))
	} else {
		p.code = binary.LittleEndian.AppendUint32(p.code, raw)
	}
}

// li loads a 32-bit constant that is not negative.
func (p *program) li(rd uint8, v uint32) {
	low := int32(v<<20) >> 20
	p.emit(isa.Inst{Op: isa.LUI, Rd: rd, Imm: int32(v) - low}, isa.Inst{Op: isa.ADDIW, Rd: rd, Rs1: rd, Imm: low})
}

// loadState fills all registers from a block of 65 words at addr: x, f, fcsr.
func (p *program) loadState(addr uint32) {
	p.li(regData, addr)
	p.emit(isa.Inst{Op: isa.LD, Rd: 1, Rs1: regData, Imm: 64 * 8}, isa.Inst{Op: isa.CSRRW, Rs1: 1, Imm: hart.CSRFcsr})
	for r := uint8(0); r < 32; r++ {
		p.emit(isa.Inst{Op: isa.FLD, Rd: r, Rs1: regData, Imm: 32*8 + int32(r)*8})
	}
	for r := uint8(1); r < regData; r++ {
		p.emit(isa.Inst{Op: isa.LD, Rd: r, Rs1: regData, Imm: int32(r) * 8})
	}
}

// saveState is the inverse.
func (p *program) saveState(addr uint32) {
	p.li(regData, addr)
	for r := uint8(0); r < 32; r++ {
		p.emit(isa.Inst{Op: isa.FSD, Rs2: r, Rs1: regData, Imm: 32*8 + int32(r)*8})
	}
	for r := uint8(0); r < regData; r++ {
		p.emit(isa.Inst{Op: isa.SD, Rs2: r, Rs1: regData, Imm: int32(r) * 8})
	}
	p.emit(isa.Inst{Op: isa.CSRRS, Rd: 1, Imm: hart.CSRFcsr}, isa.Inst{Op: isa.SD, Rs2: 1, Rs1: regData, Imm: 64 * 8})
}

const stateSize = 66 * 8

func (p *program) putState(addr uint32, words func(i int) uint64) {
	for i := range 65 {
		binary.LittleEndian.PutUint64(p.data[int(addr)-dataBase+8*i:], words(i))
	}
}

func (p *program) finish() {
	p.li(10, 1)
	p.li(11, dataBase)
	p.li(12, dataSize)
	p.li(17, 64) // write
	p.emit(isa.Inst{Op: isa.ECALL})
	p.li(10, 0)
	p.li(17, 94) // exit_group
	p.emit(isa.Inst{Op: isa.ECALL})
}

// image returns the program's memory.
func (p *program) image(t testing.TB) []byte {
	if len(p.code) > dataBase-imageBase {
		t.Fatalf("program of %d bytes is too large", len(p.code))
	}
	img := make([]byte, imageSize)
	copy(img, p.code)
	copy(img[dataBase-imageBase:], p.data)
	return img
}

// elf wraps the image in an executable with one segment.
func elf(img []byte) []byte {
	var b bytes.Buffer
	put := func(vs ...any) {
		for _, v := range vs {
			binary.Write(&b, binary.LittleEndian, v)
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	put(uint16(2), uint16(243), uint32(1), uint64(imageBase), uint64(64), uint64(0))
	put(uint32(5), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0)) // RVC, double-float ABI
	put(uint32(1), uint32(7), uint64(0x1000), uint64(imageBase), uint64(imageBase), uint64(len(img)), uint64(len(img)), uint64(0x1000))
	b.Write(make([]byte, 0x1000-b.Len()))
	b.Write(img)
	return b.Bytes()
}

// qemu runs the program in the oracle and returns its data.
func (p *program) qemu(t testing.TB) []byte {
	path, err := exec.LookPath("qemu-riscv64")
	if err != nil {
		t.Skip("qemu-riscv64 is not installed (Debian package qemu-user)")
	}
	file := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(file, elf(p.image(t)), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-cpu", "rv64,zba=true,zbb=true,zbs=true", file)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("qemu: %v\n%s", err, stderr.String())
	}
	if out.Len() != dataSize {
		t.Fatalf("qemu wrote %d bytes, want %d", out.Len(), dataSize)
	}
	return out.Bytes()
}

// here runs the program in this package's CPU and returns its data.
func (p *program) here(t testing.TB) []byte {
	m, h := newTestMachine(t, imageBase, imageSize)
	if err := m.Memory.Write(imageBase, p.image(t)); err != nil {
		t.Fatal(err)
	}
	h.PC = imageBase
	h.Status |= hart.StatusFS
	var c CPU
	c.Attach(m, h)
	for {
		// Odd slices, so that they end in all places.
		switch ev := c.Run(1 + rand.IntN(1000)); ev {
		case Budget:
			if h.Mode != hart.Supervisor || h.PC == 0 {
				t.Fatalf("trapped: %s", describeTrap(h))
			}
			continue
		case Call:
		default:
			t.Fatalf("event %d at %#x", ev, h.PC)
		}
		break
	}
	data := make([]byte, dataSize)
	if err := m.Memory.Read(dataBase, data); err != nil {
		t.Fatal(err)
	}
	return data
}

func describeTrap(h *hart.Hart) string {
	cause, _ := h.ReadCSR(hart.CSRScause)
	epc, _ := h.ReadCSR(hart.CSRSepc)
	tval, _ := h.ReadCSR(hart.CSRStval)
	return fmt.Sprintf("cause %d at %#x, stval %#x", cause, epc, tval)
}

// testArena is shared, since its memory comes in large pieces.
var testArena = page.NewArena()

// newTestMachine returns a machine with RAM only, all zero.
func newTestMachine(t testing.TB, base, size uint64) (*Machine, *hart.Hart) {
	t.Helper()
	stack := page.NewStack(page.Number(size / page.Size))
	defer stack.Release()
	return newTestMachineOver(t, base, stack, NewCache(64))
}

func newTestMachineOver(t testing.TB, base uint64, stack *page.Stack, shared *Cache) (*Machine, *hart.Hart) {
	t.Helper()
	overlay := page.NewOverlay(stack, testArena, 0)
	t.Cleanup(overlay.Close)
	mem, err := memory.NewSpace(memory.Slot{Base: base, Pages: overlay})
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Memory: mem, Bus: new(bus.Bus), Codes: NewCodes(mem, shared)}
	h := hart.New(0, func() uint64 { return 0 })
	h.Power = hart.Started
	return m, h
}

// interesting are operands at the edges of what instructions distinguish.
var interesting = []uint64{
	0, 1, 2, 3, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff,
	0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1_0000_0000,
	0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0000, 0xffff_ffff_ffff_ffff, 0xffff_ffff_8000_0000,
	0x0123_4567_89ab_cdef, 0x00ff_0000_1100_0001,
}

// interestingFloats are doubles and boxed singles.
var interestingFloats = []uint64{
	0, 1 << 63, // zeros
	0x3ff0_0000_0000_0000, 0xbff0_0000_0000_0000, 0x3fe0_0000_0000_0000, 0x4004_0000_0000_0000, // 1, -1, 0.5, 2.5
	0x7ff0_0000_0000_0000, 0xfff0_0000_0000_0000, // infinities
	0x7ff8_0000_0000_0000, 0x7ff0_0000_0000_0001, 0xffff_ffff_ffff_ffff, // NaNs: quiet, signalling, boxed
	0x0000_0000_0000_0001, 0x000f_ffff_ffff_ffff, 0x0010_0000_0000_0000, 0x7fef_ffff_ffff_ffff, // extremes
	0x41df_ffff_ffc0_0000, 0x41e0_0000_0000_0000, 0x41ef_ffff_ffe0_0000, 0x43e0_0000_0000_0000, 0xc3e0_0000_0000_0000, 0x43f0_0000_0000_0000, // 2^31-1, 2^31, 2^32-1, +-2^63, 2^64
	0x3ff5_5555_5555_5555, 0x4009_21fb_5444_2d18, 0x36a0_0000_0000_0000, 0x47ef_ffff_e000_0000, // 4/3, pi, smallest single, largest single
	0xffff_ffff_0000_0000, 0xffff_ffff_8000_0000, 0xffff_ffff_3f80_0000, 0xffff_ffff_bf80_0000, 0xffff_ffff_3f00_0000, 0xffff_ffff_4020_0000,
	0xffff_ffff_7f80_0000, 0xffff_ffff_ff80_0000, 0xffff_ffff_7fc0_0000, 0xffff_ffff_7f80_0001,
	0xffff_ffff_0000_0001, 0xffff_ffff_007f_ffff, 0xffff_ffff_0080_0000, 0xffff_ffff_7f7f_ffff,
	0xffff_ffff_4f00_0000, 0xffff_ffff_cf00_0000, 0xffff_ffff_4f80_0000, 0xffff_ffff_5f00_0000, 0xffff_ffff_df00_0000,
	0xffff_ffff_3faa_aaab, 0xffff_ffff_4049_0fdb,
	0x0000_0000_3f80_0000, // a single that is not boxed
}

var errDiffer = errors.New("results differ")

// compare runs the program in both and reports the first difference. where
// names the result at an offset in the data.
func (p *program) compare(t *testing.T, where func(offset int) string) {
	t.Helper()
	want, got := p.qemu(t), p.here(t)
	bad := 0
	for i := 0; i < len(want) && bad < 8; i += 8 {
		w, g := binary.LittleEndian.Uint64(want[i:]), binary.LittleEndian.Uint64(got[i:])
		if w != g {
			t.Errorf("%v: %s: got %#x, qemu %#x", errDiffer, where(i), g, w)
			bad++
		}
	}
}

// TestOracleOperands executes every computational instruction on pairs of edge
// operands and random ones.
func TestOracleOperands(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var ops []isa.Op
	for op := isa.ILLEGAL + 1; op < isa.NumOps; op++ {
		if computes(op) {
			ops = append(ops, op)
		}
	}
	for len(ops) > 0 {
		n := min(len(ops), 20)
		part := ops[:n]
		ops = ops[n:]
		t.Run(part[0].String(), func(t *testing.T) {
			testOperands(t, rng, part)
		})
	}
}

// computes tells whether an operation only reads and writes registers.
func computes(op isa.Op) bool {
	switch {
	case oracleWrong(op):
		return false
	case op == isa.LUI, op >= isa.ADDI && op <= isa.SRAW, op >= isa.MUL && op <= isa.REMUW:
		return true
	case op >= isa.ADD_UW && op <= isa.BSETI:
		return true
	case op == isa.FLW || op == isa.FSW || op == isa.FLD || op == isa.FSD:
		return false
	}
	return op >= isa.FLW && op <= isa.FCVT_S_D
}

// oracleWrong tells whether QEMU 7.2 gets an operation wrong: its CTZW counts on
// into the upper half of a register whose lower half is zero. TestCountTrailingZeros
// covers it.
func oracleWrong(op isa.Op) bool { return op == isa.CTZW }

func testOperands(t *testing.T, rng *rand.Rand, ops []isa.Op) {
	p := newProgram()
	var cases []string
	at := uint32(resultBase)
	float := func() uint64 {
		if rng.IntN(4) == 0 {
			return rng.Uint64()
		}
		return interestingFloats[rng.IntN(len(interestingFloats))]
	}
	integer := func() uint64 {
		if rng.IntN(4) == 0 {
			return rng.Uint64()
		}
		return interesting[rng.IntN(len(interesting))]
	}
	const perOp = 320
	for _, op := range ops {
		mask, bits := op.Pattern()
		for range perOp {
			in := isa.Decode(bits | rng.Uint32()&^mask)
			for in.Op != op { // a reserved rounding mode
				in = isa.Decode(bits | rng.Uint32()&^mask)
			}
			// Operands in fixed places: x5 to x7 and f5 to f7, the result in 10.
			in.Rd, in.Rs1, in.Rs2, in.Rs3 = 10, 5, 6, 7
			enc := isa.Encode(in)
			in = isa.Decode(enc)
			if in.Op != op {
				enc, in = bits|enc&^mask, isa.Decode(bits|enc&^mask)
			}
			// A block of eight words: x5, x6, f5, f6, f7, fcsr, then x10 and f10
			// with the flags.
			block := []uint64{integer(), integer(), float(), float(), float(), uint64(rng.IntN(5))<<5 | uint64(rng.IntN(2)*rng.IntN(32)), 0, 0, 0, 0}
			for i, v := range block {
				binary.LittleEndian.PutUint64(p.data[int(at)-dataBase+8*i:], v)
			}
			p.li(regData, at)
			p.emit(
				isa.Inst{Op: isa.LD, Rd: 5, Rs1: regData, Imm: 40}, isa.Inst{Op: isa.CSRRW, Rs1: 5, Imm: hart.CSRFcsr},
				isa.Inst{Op: isa.LD, Rd: 5, Rs1: regData}, isa.Inst{Op: isa.LD, Rd: 6, Rs1: regData, Imm: 8},
				isa.Inst{Op: isa.FLD, Rd: 5, Rs1: regData, Imm: 16}, isa.Inst{Op: isa.FLD, Rd: 6, Rs1: regData, Imm: 24},
				isa.Inst{Op: isa.FLD, Rd: 7, Rs1: regData, Imm: 32},
			)
			p.raw(enc)
			p.emit(
				isa.Inst{Op: isa.SD, Rs2: 10, Rs1: regData, Imm: 48}, isa.Inst{Op: isa.FSD, Rs2: 10, Rs1: regData, Imm: 56},
				isa.Inst{Op: isa.CSRRS, Rd: 11, Imm: hart.CSRFcsr}, isa.Inst{Op: isa.SD, Rs2: 11, Rs1: regData, Imm: 64},
			)
			cases = append(cases, fmt.Sprintf("%v with %#x", in, block[:6]))
			at += 80
		}
	}
	if int(at) > dataBase+dataSize {
		t.Fatal("too many cases for the data area")
	}
	p.finish()
	p.compare(t, func(offset int) string {
		i := offset - (resultBase - dataBase)
		return fmt.Sprintf("%s, result %d", cases[i/80], i%80/8)
	})
}
