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
	"github.com/forkd-dev/forkd/internal/riscv/riscvtest"
)

// The oracle tests run the same program in qemu-riscv64 (user mode) and here,
// and compare all of the memory that the program may write. A program ends with
// write(1, data) and exit.

// finish appends that end.
func finish(p *riscvtest.Program) {
	p.LI(10, 1)
	p.LI(11, riscvtest.DataBase)
	p.LI(12, riscvtest.DataSize)
	p.LI(17, 64) // write
	p.Emit(isa.Inst{Op: isa.ECALL})
	p.LI(10, 0)
	p.LI(17, 94) // exit_group
	p.Emit(isa.Inst{Op: isa.ECALL})
}

func image(t testing.TB, p *riscvtest.Program) []byte {
	t.Helper()
	img, err := p.Image()
	if err != nil {
		t.Fatal(err)
	}
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
	put(uint16(2), uint16(243), uint32(1), uint64(riscvtest.ImageBase), uint64(64), uint64(0))
	put(uint32(5), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0)) // RVC, double-float ABI
	put(uint32(1), uint32(7), uint64(0x1000), uint64(riscvtest.ImageBase), uint64(riscvtest.ImageBase), uint64(len(img)), uint64(len(img)), uint64(0x1000))
	b.Write(make([]byte, 0x1000-b.Len()))
	b.Write(img)
	return b.Bytes()
}

// inQEMU runs the program in the oracle and returns its data.
func inQEMU(t testing.TB, p *riscvtest.Program) []byte {
	path, err := exec.LookPath("qemu-riscv64")
	if err != nil {
		t.Skip("qemu-riscv64 is not installed (Debian package qemu-user)")
	}
	file := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(file, elf(image(t, p)), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-cpu", "rv64,zba=true,zbb=true,zbs=true", file)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("qemu: %v\n%s", err, stderr.String())
	}
	if out.Len() != riscvtest.DataSize {
		t.Fatalf("qemu wrote %d bytes, want %d", out.Len(), riscvtest.DataSize)
	}
	return out.Bytes()
}

// here runs the program in this package's CPU and returns its data.
func here(t testing.TB, p *riscvtest.Program) []byte {
	m, h := newTestMachine(t, riscvtest.ImageBase, riscvtest.ImageSize)
	if err := m.Memory.Write(riscvtest.ImageBase, image(t, p)); err != nil {
		t.Fatal(err)
	}
	h.PC = riscvtest.ImageBase
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
	data := make([]byte, riscvtest.DataSize)
	if err := m.Memory.Read(riscvtest.DataBase, data); err != nil {
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
	return newTestMachineOver(t, base, stack, NewCache(64, testNative()))
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

var errDiffer = errors.New("results differ")

// compare runs the program in both and reports the first difference. where
// names the result at an offset in the data.
func compare(t *testing.T, p *riscvtest.Program, where func(offset int) string) {
	t.Helper()
	want, got := inQEMU(t, p), here(t, p)
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
	p := riscvtest.NewProgram()
	var cases []string
	at := uint32(riscvtest.ResultBase)
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
			block := []uint64{riscvtest.Integer(rng), riscvtest.Integer(rng), riscvtest.Float(rng), riscvtest.Float(rng), riscvtest.Float(rng), uint64(rng.IntN(5))<<5 | uint64(rng.IntN(2)*rng.IntN(32)), 0, 0, 0, 0}
			for i, v := range block {
				binary.LittleEndian.PutUint64(p.Data[int(at)-riscvtest.DataBase+8*i:], v)
			}
			p.LI(riscvtest.RegData, at)
			p.Emit(
				isa.Inst{Op: isa.LD, Rd: 5, Rs1: riscvtest.RegData, Imm: 40}, isa.Inst{Op: isa.CSRRW, Rs1: 5, Imm: hart.CSRFcsr},
				isa.Inst{Op: isa.LD, Rd: 5, Rs1: riscvtest.RegData}, isa.Inst{Op: isa.LD, Rd: 6, Rs1: riscvtest.RegData, Imm: 8},
				isa.Inst{Op: isa.FLD, Rd: 5, Rs1: riscvtest.RegData, Imm: 16}, isa.Inst{Op: isa.FLD, Rd: 6, Rs1: riscvtest.RegData, Imm: 24},
				isa.Inst{Op: isa.FLD, Rd: 7, Rs1: riscvtest.RegData, Imm: 32},
			)
			p.Raw(enc)
			p.Emit(
				isa.Inst{Op: isa.SD, Rs2: 10, Rs1: riscvtest.RegData, Imm: 48}, isa.Inst{Op: isa.FSD, Rs2: 10, Rs1: riscvtest.RegData, Imm: 56},
				isa.Inst{Op: isa.CSRRS, Rd: 11, Imm: hart.CSRFcsr}, isa.Inst{Op: isa.SD, Rs2: 11, Rs1: riscvtest.RegData, Imm: 64},
			)
			cases = append(cases, fmt.Sprintf("%v with %#x", in, block[:6]))
			at += 80
		}
	}
	if int(at) > riscvtest.DataBase+riscvtest.DataSize {
		t.Fatal("too many cases for the data area")
	}
	finish(p)
	compare(t, p, func(offset int) string {
		i := offset - (riscvtest.ResultBase - riscvtest.DataBase)
		return fmt.Sprintf("%s, result %d", cases[i/80], i%80/8)
	})
}
