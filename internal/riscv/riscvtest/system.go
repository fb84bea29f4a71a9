package riscvtest

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// The machine in which privileged programs run: RAM of RAMSize bytes at RAMBase,
// and a device of DeviceSize bytes.
const (
	RAMBase    = 0x8000_0000
	RAMSize    = 0x10_0000
	DeviceBase = 0x1000_0000
	DeviceSize = 0x100

	codeSize = 0x8000
	dataAt   = RAMBase + 0x1_0000
	vectorAt = RAMBase + 0x3_0000
	tablesAt = RAMBase + 0x4_0000
)

// Bits of page-table entries.
const (
	pteV = 1 << iota
	pteR
	pteW
	pteX
	pteU
	pteG
	pteA
	pteD
)

// Hostile fills memory with code as instructions, data and page tables alike,
// and sets the hart to run it in a mode and with registers chosen by seed.
func Hostile(mem *memory.Space, h *hart.Hart, code []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	fill(mem, code)
	// Page tables: entries that lead into RAM, with random permission bits.
	for i := uint64(0); i < 3*512; i++ {
		pte := (RAMBase+rng.Uint64N(RAMSize))>>12<<10 | rng.Uint64()&0xff | 1
		if i < 1024 {
			pte = (tablesAt + 0x1000*(1+i/512) + 0x1000*rng.Uint64N(2)) >> 12 << 10
			pte |= []uint64{pteV, pteV, pteV, rng.Uint64() & 0x3ff}[rng.IntN(4)]
		}
		put64(mem, tablesAt+8*i, pte)
	}
	for r := 1; r < hart.Discard; r++ {
		h.X[r] = []uint64{rng.Uint64(), RAMBase + rng.Uint64N(RAMSize), rng.Uint64N(0x10000), DeviceBase + rng.Uint64N(0x200), RAMBase + 0xff8}[rng.IntN(5)]
		h.F[r] = rng.Uint64()
	}
	h.PC = RAMBase + rng.Uint64N(0x4000)&^1
	h.WriteCSR(hart.CSRStvec, RAMBase+rng.Uint64N(0x8000))
	h.WriteCSR(hart.CSRSstatus, rng.Uint64())
	h.WriteCSR(hart.CSRSie, rng.Uint64())
	if rng.IntN(2) == 0 {
		h.WriteCSR(hart.CSRSatp, 8<<60|tablesAt>>12)
		h.PC = rng.Uint64() >> 25 &^ 1
	}
	h.Mode = hart.Mode(rng.IntN(2))
}

// fill repeats code over the part of memory that programs begin in.
func fill(mem *memory.Space, code []byte) {
	if len(code) == 0 {
		code = []byte{0}
	}
	for at := uint64(RAMBase); at < RAMBase+codeSize; at += uint64(len(code)) {
		_ = mem.Write(at, code) // all of it is RAM
	}
}

func put64(mem *memory.Space, gpa, v uint64) { _ = mem.PutUint64(gpa, v) }

// Trapping sets the hart to run code over and over, in a mode, with page tables
// and registers chosen by seed. Instructions that trap are skipped by a handler,
// and a timer interrupts now and then, so that a program gets far.
func Trapping(mem *memory.Space, h *hart.Hart, code []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	code = code[:min(len(code), codeSize-4)]
	back := isa.Encode(isa.Inst{Op: isa.JAL, Imm: -int32(len(code))})
	fill(mem, binary.LittleEndian.AppendUint32(code[:len(code):len(code)], back))
	_ = mem.Write(vectorAt, handler())

	h.Mode = hart.Mode(rng.IntN(2))
	h.PC = RAMBase
	for r := 1; r < hart.Discard; r++ {
		h.X[r], h.F[r] = Integer(rng), Float(rng)
	}
	h.X[RegStack], h.X[RegScratch], h.X[RegAligned] = dataAt+0x1800, dataAt+0x4000-rng.Uint64N(64), dataAt+0x8000
	h.WriteCSR(hart.CSRStvec, vectorAt)
	h.WriteCSR(hart.CSRSstatus, hart.StatusFS|hart.StatusSUM|hart.StatusSIE)
	h.WriteCSR(hart.CSRSie, hart.TimerInterrupt)
	h.WriteCSR(hart.CSRFrm, rng.Uint64N(5))
	if rng.IntN(4) != 0 {
		mapAll(mem, rng, h.Mode == hart.User)
		h.WriteCSR(hart.CSRSatp, 8<<60|tablesAt>>12)
	}
}

// mapAll maps all of RAM at its own addresses. The pages of data lack a
// permission now and then.
func mapAll(mem *memory.Space, rng *rand.Rand, user bool) {
	const middle, leaves = tablesAt + 0x1000, tablesAt + 0x2000
	put64(mem, tablesAt+8*(RAMBase>>30), middle>>12<<10|pteV)
	put64(mem, middle, leaves>>12<<10|pteV)
	for i := uint64(0); i < RAMSize>>12; i++ {
		gpa := RAMBase + i<<12
		bits := uint64(pteV | pteR | pteW | pteX | pteA | pteD)
		if user && gpa < vectorAt {
			bits |= pteU
		}
		if gpa >= dataAt && gpa < vectorAt && rng.IntN(8) == 0 {
			bits &^= 1 << rng.IntN(8)
		}
		put64(mem, leaves+8*i, gpa>>12<<10|bits)
	}
}

// handler skips the instruction that trapped, or begins anew if that cannot be
// fetched, and puts the timer off. It clobbers x3 and x4.
func handler() []byte {
	const x3, x4 = 3, 4
	a := isa.NewAsm(vectorAt)
	a.CSR(isa.CSRRS, x3, hart.CSRScause, 0)
	a.B(isa.BLT, x3, 0, "timer")
	for _, cause := range []uint64{hart.FetchAccess, hart.FetchPageFault} {
		a.LI(x4, cause)
		a.B(isa.BEQ, x3, x4, "restart")
	}
	a.CSR(isa.CSRRS, x3, hart.CSRSepc, 0)
	a.I(isa.LHU, x4, x3, 0)
	a.I(isa.ANDI, x4, x4, 3)
	a.I(isa.ADDI, x4, x4, -3)
	a.R(isa.SLTU, x4, 0, x4) // 1 if compressed
	a.R(isa.SUB, x3, x3, x4)
	a.R(isa.SUB, x3, x3, x4)
	a.I(isa.ADDI, x3, x3, 4)
	a.CSR(isa.CSRRW, 0, hart.CSRSepc, x3)
	a.Op(isa.SRET)
	a.Label("restart")
	a.LI(x3, RAMBase)
	a.CSR(isa.CSRRW, 0, hart.CSRSepc, x3)
	a.Op(isa.SRET)
	a.Label("timer")
	a.CSR(isa.CSRRS, x4, hart.CSRTime, 0)
	a.I(isa.ADDI, x4, x4, 40)
	a.CSR(isa.CSRRW, 0, hart.CSRStimecmp, x4)
	a.Op(isa.SRET)
	return a.Bytes()
}

// CSRs that Instructions uses, those that end a program's sense seldom.
var csrs = [...]int32{
	hart.CSRFflags, hart.CSRFrm, hart.CSRFcsr, hart.CSRSscratch, hart.CSRSepc, hart.CSRScause, hart.CSRStval,
	hart.CSRSip, hart.CSRStimecmp, hart.CSRCycle, hart.CSRTime, hart.CSRInstret, hart.CSRSstatus, hart.CSRSie,
	hart.CSRFflags, hart.CSRFrm, hart.CSRFcsr, hart.CSRSscratch, hart.CSRSepc, hart.CSRScause, hart.CSRStval,
	hart.CSRSip, hart.CSRStimecmp, hart.CSRCycle, hart.CSRTime, hart.CSRInstret, hart.CSRSenvcfg, hart.CSRScounteren,
	hart.CSRSenvcfg, hart.CSRScounteren, hart.CSRSatp, hart.CSRStvec,
}

// Instructions makes code for Trapping of any bytes, an instruction of every four.
// Most are legal, branch to nearby, and load and store where there is memory.
func Instructions(b []byte) (code []byte) {
	for ; len(b) >= 4; b = b[4:] {
		raw := binary.LittleEndian.Uint32(b)
		switch {
		case b[0] < 64:
			code = binary.LittleEndian.AppendUint16(code, uint16(raw>>16))
		case b[0] >= 248:
			code = binary.LittleEndian.AppendUint32(code, raw)
		default:
			op := isa.Op(1 + (int(b[0]-64)+int(b[1]&0x80))%(int(isa.NumOps)-1))
			code = binary.LittleEndian.AppendUint32(code, instruction(op, raw>>8))
		}
	}
	return code
}

// instruction returns an instruction with operation op and operands made of 24
// bits.
func instruction(op isa.Op, operands uint32) uint32 {
	mask, bits := op.Pattern()
	raw := bits | (operands<<7|operands<<28)&^mask
	in := isa.Decode(raw)
	if in.Op != op {
		return raw // a reserved rounding mode, for instance
	}
	choice := operands >> 19
	switch {
	case op == isa.JAL, op >= isa.BEQ && op <= isa.BGEU:
		in.Imm = int32(operands<<8) >> 24 &^ 1
	case op >= isa.CSRRW && op <= isa.CSRRCI:
		in.Imm = csrs[choice]
	case op >= isa.LB && op <= isa.SD, op == isa.FLW || op == isa.FLD || op == isa.FSW || op == isa.FSD,
		op >= isa.LR_W && op <= isa.AMOMAXU_D, op == isa.CBO_ZERO:
		if choice&7 != 0 {
			in.Rs1 = [...]uint8{RegStack, RegScratch, RegAligned, RegAligned}[choice>>3]
		}
	default:
		if rd, _, _ := op.Float(); !rd && (in.Rd == RegStack || in.Rd == RegScratch || in.Rd == RegAligned) {
			in.Rd += 8
		}
	}
	return isa.Encode(in)
}

// Bytes is a source of randomness that is read from bytes, and from a generator
// once they are used up: what a fuzzer finds becomes a program.
type Bytes struct {
	Left []byte
	rand.PCG
}

// Uint64 implements rand.Source.
func (b *Bytes) Uint64() uint64 {
	if len(b.Left) == 0 {
		return b.PCG.Uint64()
	}
	var word [8]byte
	n := copy(word[:], b.Left)
	b.Left = b.Left[n:]
	return binary.LittleEndian.Uint64(word[:])
}
