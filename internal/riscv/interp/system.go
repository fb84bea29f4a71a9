package interp

import (
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// system executes what has to do with privilege, and CBO.ZERO.
func (c *CPU) system(o *op, n int) stepped {
	switch o.code {
	case opCSR:
		c.retire(n + 1)
		return c.csr(o)
	case opEbreak, opCEbreak:
		c.trap(hart.Breakpoint, c.h.PC)
		return stepTrap
	case opCboZero:
		if !c.h.CanZeroBlock() {
			c.illegal()
			return stepTrap
		}
		if !c.zeroBlock(get(&c.h.X, o.rs1)) {
			return stepTrap
		}
		return stepNext
	case opFenceI:
		c.FlushCode()
		return c.resumeAt(c.h.PC + 4)
	}
	return c.supervisor(o)
}

// supervisor executes what user mode may not.
func (c *CPU) supervisor(o *op) stepped {
	if c.h.Mode != hart.Supervisor {
		if o.code == opEcall {
			c.trap(hart.UserCall, 0)
		} else {
			c.illegal()
		}
		return stepTrap
	}
	next := c.h.PC + 4
	switch o.code {
	case opEcall:
		c.h.PC = next
		return stepCall
	case opWfi:
		c.h.PC = next
		return stepWait
	case opSret:
		c.h.Return()
		c.modeChanged()
		return stepResume
	case opSfence:
		c.sfence(o)
		return c.resumeAt(next)
	}
	panic("BUG: op without a case")
}

func (c *CPU) resumeAt(pc uint64) stepped {
	c.h.PC = pc
	return stepResume
}

// csr executes a CSR instruction (unpriv 7.1). The hart's Retired is up to
// date.
func (c *CPU) csr(o *op) stepped {
	csr, kind := uint32(o.imm&0xfff), isa.Op(o.imm>>16)
	operand := uint64(o.rs1)
	if kind <= isa.CSRRC {
		operand = get(&c.h.X, o.rs1)
	}
	exchange := kind == isa.CSRRW || kind == isa.CSRRWI
	write := exchange || o.rs1 != 0

	if !write && hart.WriteOnly(csr) {
		c.illegal()
		return stepTrap
	}
	old, ok := c.h.ReadCSR(csr)
	result := stepNext
	if ok && write {
		v := operand
		switch kind {
		case isa.CSRRS, isa.CSRRSI:
			v = old | operand
		case isa.CSRRC, isa.CSRRCI:
			v = old &^ operand
		}
		var effect hart.Effect
		effect, ok = c.h.WriteCSR(csr, v)
		result = c.csrEffect(effect)
	}
	if !ok {
		c.illegal()
		return stepTrap
	}
	if o.rd != 0 {
		c.h.X[o.rd] = old
	}
	return result
}

func (c *CPU) csrEffect(effect hart.Effect) stepped {
	switch effect {
	case hart.NoEffect:
		return stepNext
	case hart.Permissions:
		c.modeChanged()
	case hart.Translation:
		c.satpChanged()
		return c.resumeAt(c.h.PC + 4)
	}
	if c.h.Interruptible() {
		return c.resumeAt(c.h.PC + 4)
	}
	return stepNext
}

// farBranch is a conditional branch out of the page for which there was no room
// in the decoded page; rd has what it would have been.
func (c *CPU) farBranch(o *op) stepped {
	a, b := get(&c.h.X, o.rs1), get(&c.h.X, o.rs2)
	taken := false
	switch code(o.rd) {
	case opCBeqz, opBeq:
		taken = a == b
	case opCBnez, opBne:
		taken = a != b
	case opBlt:
		taken = int64(a) < int64(b)
	case opBge:
		taken = int64(a) >= int64(b)
	case opBltu:
		taken = a < b
	case opBgeu:
		taken = a >= b
	}
	if taken {
		return c.resumeAt(c.h.PC&^offsetMask + uint64(int64(o.imm)))
	}
	return c.resumeAt(c.h.PC + 2*code(o.rd).length())
}

// sfence is SFENCE.VMA in its four forms (priv 12.2.1).
func (c *CPU) sfence(o *op) {
	c.h.ClearReservation()
	va, asid := get(&c.h.X, o.rs1), get(&c.h.X, o.rs2)
	switch {
	case o.rs1 != 0:
		c.FlushPage(va) // in every address space, which covers the fourth form
	case o.rs2 != 0:
		c.FlushSpace(asid)
	default:
		c.FlushAll()
	}
}
