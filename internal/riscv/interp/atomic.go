package interp

import (
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// atomic executes the A extension (unpriv 14). The harts of a machine take
// turns, so that plain reads and writes are atomic; nothing else writes to RAM
// while one of them runs.
func (c *CPU) atomic(o *op) bool {
	kind, size := isa.Op(o.imm), uint64(8)
	if kind <= isa.AMOMAXU_W {
		size = 4
	}
	va := get(&c.h.X, o.rs1)
	switch kind {
	case isa.LR_W, isa.LR_D:
		return c.loadReserved(o, va, size)
	case isa.SC_W, isa.SC_D:
		return c.storeConditional(o, va, size)
	}
	p, ok := c.atomicPage(va, size)
	if !ok {
		return false
	}
	operand := get(&c.h.X, o.rs2)
	if size == 4 {
		old := load32(p, va)
		store32(p, va, uint32(amo(kind-isa.LR_W+isa.LR_D, sext32(uint64(old)), sext32(operand))))
		set(&c.h.X, o.rd, sext32(uint64(old)))
	} else {
		old := load64(p, va)
		store64(p, va, amo(kind, old, operand))
		set(&c.h.X, o.rd, old)
	}
	return true
}

// amo combines a memory word with the operand. Sign-extended words compare as
// words do, also unsigned.
func amo(kind isa.Op, old, operand uint64) uint64 {
	switch kind {
	case isa.AMOADD_D:
		return old + operand
	case isa.AMOXOR_D:
		return old ^ operand
	case isa.AMOAND_D:
		return old & operand
	case isa.AMOOR_D:
		return old | operand
	case isa.AMOMIN_D:
		return uint64(min(int64(old), int64(operand)))
	case isa.AMOMAX_D:
		return uint64(max(int64(old), int64(operand)))
	case isa.AMOMINU_D:
		return min(old, operand)
	case isa.AMOMAXU_D:
		return max(old, operand)
	}
	return operand // AMOSWAP
}

// atomicPage returns the page of an aligned word for reading and writing.
// Atomics are for RAM: on a device they are an access fault (priv 3.6.3).
func (c *CPU) atomicPage(va, size uint64) (p *page.Page, ok bool) {
	if va%size != 0 {
		return nil, c.trap(hart.StoreMisaligned, va)
	}
	if e := c.m.Stores.At(va); e.Tag == mmu.Tag(va, 1, c.m.Space) {
		return e.To, true
	}
	p, _, f := c.m.FillStore(va)
	if f == mmu.NoFault && p == nil {
		f = mmu.AccessFault
	}
	if f != mmu.NoFault {
		return nil, c.trap(f.Cause(mmu.Store), va)
	}
	return p, true
}

func (c *CPU) loadReserved(o *op, va, size uint64) bool {
	if va%size != 0 {
		return c.trap(hart.LoadMisaligned, va)
	}
	e := c.m.Loads.At(va)
	p := e.To
	if e.Tag != mmu.Tag(va, 1, c.m.Space) {
		var f mmu.Fault
		p, _, f = c.m.FillLoad(va)
		if f == mmu.NoFault && p == nil {
			f = mmu.AccessFault
		}
		if f != mmu.NoFault {
			return c.trap(f.Cause(mmu.Load), va)
		}
	}
	var v uint64
	if size == 4 {
		v = sext32(uint64(load32(p, va)))
	} else {
		v = load64(p, va)
	}
	set(&c.h.X, o.rd, v)
	c.h.Reserve(va, uint8(size))
	return true
}

// storeConditional writes if the reservation of an earlier LR stands, and ends
// it in any case.
func (c *CPU) storeConditional(o *op, va, size uint64) bool {
	p, ok := c.atomicPage(va, size)
	if !ok {
		return false
	}
	reserved := c.h.Reserved(va, uint8(size))
	c.h.ClearReservation()
	if !reserved {
		set(&c.h.X, o.rd, 1)
		return true
	}
	if size == 4 {
		store32(p, va, uint32(get(&c.h.X, o.rs2)))
	} else {
		store64(p, va, get(&c.h.X, o.rs2))
	}
	set(&c.h.X, o.rd, 0)
	return true
}
