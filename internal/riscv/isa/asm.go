package isa

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Asm assembles short programs: test stubs and the like. It is for trusted
// callers: an unknown label or an operand that does not fit panics.
type Asm struct {
	base   uint64
	code   []byte
	labels map[string]uint64
	fixups []fixup
}

type fixup struct {
	at    int
	label string
	in    Inst
}

// NewAsm returns an assembler for code that will lie at address base.
func NewAsm(base uint64) *Asm {
	return &Asm{base: base, labels: make(map[string]uint64)}
}

// PC returns the address of the next instruction.
func (a *Asm) PC() uint64 { return a.base + uint64(len(a.code)) }

// Emit appends instructions of 32 bits.
func (a *Asm) Emit(ins ...Inst) {
	for _, in := range ins {
		raw := Encode(in)
		if got := Decode(raw); got.Op != in.Op || got.Imm != in.Imm {
			panic(fmt.Sprintf("BUG: %v has an operand that does not fit", in))
		}
		a.Raw32(raw)
	}
}

// Raw16 and Raw32 append bits as they are.
func (a *Asm) Raw16(raw uint16) { a.code = binary.LittleEndian.AppendUint16(a.code, raw) }
func (a *Asm) Raw32(raw uint32) { a.code = binary.LittleEndian.AppendUint32(a.code, raw) }

// Op appends an instruction without operands.
func (a *Asm) Op(op Op) { a.Emit(Inst{Op: op}) }

// R appends op rd, rs1, rs2; atomics take their address in rs1.
func (a *Asm) R(op Op, rd, rs1, rs2 uint8) { a.Emit(Inst{Op: op, Rd: rd, Rs1: rs1, Rs2: rs2}) }

// I appends op rd, rs1, imm, which is also the form of loads and JALR.
func (a *Asm) I(op Op, rd, rs1 uint8, imm int32) { a.Emit(Inst{Op: op, Rd: rd, Rs1: rs1, Imm: imm}) }

// S appends the store op rs2, imm(rs1).
func (a *Asm) S(op Op, rs2 uint8, imm int32, rs1 uint8) {
	a.Emit(Inst{Op: op, Rs1: rs1, Rs2: rs2, Imm: imm})
}

// CSR appends op rd, csr, rs1; the immediate forms take the immediate as rs1.
func (a *Asm) CSR(op Op, rd uint8, csr int32, rs1 uint8) {
	a.Emit(Inst{Op: op, Rd: rd, Rs1: rs1, Imm: csr})
}

// LI loads a constant into rd.
func (a *Asm) LI(rd uint8, v uint64) {
	low := int32(v<<52>>32) >> 20
	switch high := v - uint64(int64(low)); {
	case int64(v) == int64(low):
		a.I(ADDI, rd, 0, low)
	case int64(v) >= math.MinInt32 && int64(v) <= math.MaxInt32:
		a.Emit(Inst{Op: LUI, Rd: rd, Imm: int32(high)})
		a.I(ADDIW, rd, rd, low)
	default:
		a.LI(rd, uint64(int64(high)>>12))
		a.I(SLLI, rd, rd, 12)
		a.I(ADDI, rd, rd, low)
	}
}

// Label names the next instruction.
func (a *Asm) Label(name string) { a.labels[name] = a.PC() }

// B appends the branch op rs1, rs2 to a label.
func (a *Asm) B(op Op, rs1, rs2 uint8, label string) {
	a.toLabel(Inst{Op: op, Rs1: rs1, Rs2: rs2}, label)
}

// J appends JAL rd to a label.
func (a *Asm) J(rd uint8, label string) { a.toLabel(Inst{Op: JAL, Rd: rd}, label) }

// LA loads the address of a label into rd; the label lies within 2 KiB.
func (a *Asm) LA(rd uint8, label string) {
	a.Emit(Inst{Op: AUIPC, Rd: rd})
	a.toLabel(Inst{Op: ADDI, Rd: rd, Rs1: rd}, label)
}

func (a *Asm) toLabel(in Inst, label string) {
	a.fixups = append(a.fixups, fixup{len(a.code), label, in})
	a.Raw32(0)
}

// Bytes returns the program.
func (a *Asm) Bytes() []byte {
	for _, f := range a.fixups {
		target, ok := a.labels[f.label]
		if !ok {
			panic("BUG: no label " + f.label)
		}
		in, from := f.in, a.base+uint64(f.at)
		if in.Op == ADDI {
			from -= 4 // the AUIPC before it
		}
		in.Imm = int32(target - from)
		raw := Encode(in)
		if Decode(raw) != withSize(in) {
			panic("BUG: label out of reach: " + f.label)
		}
		binary.LittleEndian.PutUint32(a.code[f.at:], raw)
	}
	a.fixups = nil
	return a.code
}

func withSize(in Inst) Inst {
	in.Size = 4
	return in
}
