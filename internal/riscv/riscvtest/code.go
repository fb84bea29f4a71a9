package riscvtest

import (
	"math/rand/v2"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Coder appends random code to a program.
type Coder struct {
	*Program
	Rand *rand.Rand
	// Ops are what may be drawn; nil stands for Unprivileged.
	Ops []isa.Op
	// Kept are registers that are not written, besides those that all code keeps.
	Kept []uint8
}

// Unprivileged are all operations of user mode but ECALL, EBREAK and what only
// some machines have.
var Unprivileged = func() (ops []isa.Op) {
	for op := isa.ILLEGAL + 1; op < isa.CBO_ZERO; op++ {
		if op != isa.ECALL && op != isa.EBREAK {
			ops = append(ops, op)
		}
	}
	return ops
}()

// Straight appends n instructions, compressed ones included. They load and
// store in the scratch area, and branch only forward, and not beyond the end.
func (c *Coder) Straight(n int) {
	ops := c.Ops
	if ops == nil {
		ops = Unprivileged
	}
	for n > 0 {
		if c.Rand.IntN(3) == 0 {
			if raw, ok := c.compressed(); ok {
				c.Raw(uint32(raw))
				n--
			}
		} else if c.wide(ops[c.Rand.IntN(len(ops))]) {
			n--
		}
	}
}

// keeps tells whether the integer register is not to be written.
func (c *Coder) keeps(r uint8) bool {
	switch r {
	case RegStack, RegScratch, RegAligned, RegData:
		return true
	}
	for _, kept := range c.Kept {
		if r == kept {
			return true
		}
	}
	return false
}

// regLink is a register that wide uses for addresses of code.
const regLink = 29

// wide appends an instruction with operation op, or nothing if its random
// operands will not do.
func (c *Coder) wide(op isa.Op) bool {
	mask, bits := op.Pattern()
	in := isa.Decode(bits | c.Rand.Uint32()&^mask)
	if in.Op != op {
		return false
	}
	if rd, _, _ := op.Float(); !rd && c.keeps(in.Rd) {
		return false
	}
	switch {
	case op >= isa.BEQ && op <= isa.BGEU, op == isa.JAL:
		c.skip(in)
		return true
	case op == isa.JALR:
		// By way of a register that has the address of the AUIPC.
		c.Emit(isa.Inst{Op: isa.AUIPC, Rd: regLink})
		in.Rs1 = regLink
		c.skip(in)
		return true
	case op >= isa.CSRRW && op <= isa.CSRRCI:
		// The flags take any value; the rounding mode only legal ones, lest what
		// comes after is illegal.
		in.Imm = hart.CSRFflags
		if op == isa.CSRRWI && c.Rand.IntN(2) == 0 {
			in.Imm, in.Rs1 = hart.CSRFrm, uint8(c.Rand.IntN(5))
		}
	case op >= isa.LR_W && op <= isa.AMOMAXU_D:
		c.atomic(&in)
	case op >= isa.LB && op <= isa.SD || op == isa.FLW || op == isa.FLD || op == isa.FSW || op == isa.FSD:
		in.Rs1 = [...]uint8{RegStack, RegScratch, RegAligned}[c.Rand.IntN(3)]
	}
	c.Emit(in)
	return true
}

// atomic gives an atomic instruction an address, and an SC its LR: without one,
// whether it succeeds is the implementation's choice.
func (c *Coder) atomic(in *isa.Inst) {
	in.Rs1 = RegAligned
	switch in.Op {
	case isa.SC_W:
		c.Emit(isa.Inst{Op: isa.LR_W, Rd: 5, Rs1: RegAligned})
	case isa.SC_D:
		c.Emit(isa.Inst{Op: isa.LR_D, Rd: 5, Rs1: RegAligned})
	}
}

// skip appends a branch or jump over none to three compressed instructions.
func (c *Coder) skip(in isa.Inst) {
	skipped := Coder{Program: new(Program), Rand: c.Rand, Kept: c.Kept}
	for range c.Rand.IntN(4) {
		raw, ok := c.compressed()
		if !ok {
			raw = 1 // C.NOP
		}
		skipped.Raw(uint32(raw))
	}
	in.Imm = 4 + int32(len(skipped.Code))
	if in.Op == isa.JALR {
		in.Imm += 4
	}
	c.Emit(in)
	c.Code = append(c.Code, skipped.Code...)
}

// compressed returns a compressed instruction that writes no kept register,
// does not jump, and touches no memory but the scratch area.
func (c *Coder) compressed() (uint16, bool) {
	raw := uint16(c.Rand.Uint32())
	if raw&3 == 3 {
		return 0, false
	}
	in := isa.Decode(uint32(raw))
	switch in.Op {
	case isa.ILLEGAL, isa.JAL, isa.JALR, isa.EBREAK, isa.BEQ, isa.BNE:
		return 0, false
	case isa.LW, isa.LD, isa.FLD, isa.SW, isa.SD, isa.FSD:
		if in.Rs1 != RegStack && in.Rs1 != RegScratch && in.Rs1 != RegAligned {
			return 0, false
		}
	}
	if rd, _, _ := in.Op.Float(); !rd && c.keeps(in.Rd) {
		return 0, false
	}
	return raw, true
}
