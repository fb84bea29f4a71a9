package interp

import (
	"math/bits"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

// stepped is what follows after step.
type stepped uint8

const (
	stepNext   stepped = iota // the next instruction
	stepResume                // at the hart's PC, which is advanced
	stepTrap                  // the exception that was recorded
	stepWait                  // as stepResume, but Run returns Wait
	stepCall                  // as stepResume, but Run returns Call
	stepPause                 // as stepResume, but Run returns Pause
)

// step executes what the run loop does not: loads and stores that miss the TLB,
// floating point, atomics, and whatever has to do with privilege. The hart's PC
// is that of the instruction; n instructions of the budget are left after it.
func (c *CPU) step(o *op, n int) stepped {
	ok := true
	switch o.code {
	case opCLw, opCLd, opLb, opLh, opLw, opLd, opLbu, opLhu, opLwu:
		ok = c.slowLoad(o)
	case opCSw, opCSd, opSb, opSh, opSw, opSd:
		ok = c.slowStore(o)
	case opCFld, opFlw, opFld:
		ok = c.floatOn() && c.slowLoad(o)
	case opCFsd, opFsw, opFsd:
		ok = c.floatOn() && c.slowStore(o)
	case opFloat:
		ok = c.floatOn() && c.float(o)
	case opAtomic:
		ok = c.atomic(o)
	case opCpop:
		c.setX(o.rd, uint64(bits.OnesCount64(get(&c.h.X, o.rs1))))
	case opCpopw:
		c.setX(o.rd, uint64(bits.OnesCount32(uint32(get(&c.h.X, o.rs1)))))
	case opFarBranch:
		return c.farBranch(o)
	case opFence:
		fence()
	case opPause:
		if c.m.View().Shared() {
			c.resumeAt(c.h.PC + 4)
			return stepPause
		}
	case opIllegal:
		ok = c.trap(hart.IllegalInst, uint64(uint32(o.imm)))
	default:
		return c.system(o, n)
	}
	if !ok {
		return stepTrap
	}
	return stepNext
}

// floatOn reports whether floating-point instructions are legal now, and
// records the trap if not.
func (c *CPU) floatOn() bool { return !c.h.FloatOff() || c.illegal() }

// length returns the length of the instruction in halfwords; of a pair, that of
// the first.
func (code code) length() uint64 {
	if firstOf[code] >= opNop {
		return 2
	}
	return 1
}

// slowLoad is a load that missed the TLB.
func (c *CPU) slowLoad(o *op) bool {
	a := get(&c.h.X, o.rs1) + uint64(int64(o.imm))
	size := 8
	switch o.code {
	case opLb, opLbu:
		size = 1
	case opLh, opLhu:
		size = 2
	case opCLw, opLw, opLwu, opFlw:
		size = 4
	}
	v, ok := c.load(a, size)
	if !ok {
		return false
	}
	switch o.code {
	case opLb:
		v = uint64(int64(int8(v)))
	case opLh:
		v = uint64(int64(int16(v)))
	case opCLw, opLw:
		v = uint64(int64(int32(v)))
	case opFlw:
		c.setF(o.rd, fp.Box32(uint32(v)))
		return true
	case opCFld, opFld:
		c.setF(o.rd, v)
		return true
	}
	set(&c.h.X, o.rd, v)
	return true
}

// slowStore is a store that missed the TLB.
func (c *CPU) slowStore(o *op) bool {
	a := get(&c.h.X, o.rs1) + uint64(int64(o.imm))
	v := get(&c.h.X, o.rs2)
	switch o.code {
	case opSb:
		return c.store(a, 1, v)
	case opSh:
		return c.store(a, 2, v)
	case opCSw, opSw:
		return c.store(a, 4, v)
	case opFsw:
		return c.store(a, 4, c.h.F[o.rs2])
	case opCFsd, opFsd:
		return c.store(a, 8, c.h.F[o.rs2])
	}
	return c.store(a, 8, v)
}

// setX and setF write a register from outside of the run loop.
func (c *CPU) setX(rd uint8, v uint64) {
	if rd != 0 {
		set(&c.h.X, rd, v)
	}
}

func (c *CPU) setF(rd uint8, v uint64) {
	c.h.F[rd] = v
	c.h.FloatDirty()
}
