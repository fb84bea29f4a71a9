package interp

import (
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// atomic executes the A extension (unpriv 14). The harts of a machine execute in
// parallel, so each instruction is one atomic operation of the host, whose order
// is as strict as with aq and rl set both.
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
		old := amo32(word32(p, va), kind-isa.LR_W+isa.LR_D, uint32(operand))
		set(&c.h.X, o.rd, sext32(uint64(old)))
	} else {
		set(&c.h.X, o.rd, amo64(word64(p, va), kind, operand))
	}
	return true
}

// amo64 replaces a memory word by its combination with the operand, and returns
// what it was.
func amo64(w *uint64, kind isa.Op, operand uint64) (old uint64) {
	switch kind {
	case isa.AMOADD_D:
		return atomic.AddUint64(w, operand) - operand
	case isa.AMOSWAP_D:
		return atomic.SwapUint64(w, operand)
	case isa.AMOAND_D:
		return atomic.AndUint64(w, operand)
	case isa.AMOOR_D:
		return atomic.OrUint64(w, operand)
	}
	for {
		old = atomic.LoadUint64(w)
		if atomic.CompareAndSwapUint64(w, old, amo(kind, old, operand)) {
			return old
		}
	}
}

// amo32 is amo64 for 32 bits; kind is of the 64-bit instruction.
func amo32(w *uint32, kind isa.Op, operand uint32) (old uint32) {
	switch kind {
	case isa.AMOADD_D:
		return atomic.AddUint32(w, operand) - operand
	case isa.AMOSWAP_D:
		return atomic.SwapUint32(w, operand)
	case isa.AMOAND_D:
		return atomic.AndUint32(w, operand)
	case isa.AMOOR_D:
		return atomic.OrUint32(w, operand)
	}
	for {
		old = atomic.LoadUint32(w)
		v := uint32(amo(kind, sext32(uint64(old)), sext32(uint64(operand))))
		if atomic.CompareAndSwapUint32(w, old, v) {
			return old
		}
	}
}

// amo combines a memory word with the operand, where the host has no operation for
// it. Sign-extended words compare as words do, also unsigned.
func amo(kind isa.Op, old, operand uint64) uint64 {
	switch kind {
	case isa.AMOXOR_D:
		return old ^ operand
	case isa.AMOMIN_D:
		return uint64(min(int64(old), int64(operand)))
	case isa.AMOMAX_D:
		return uint64(max(int64(old), int64(operand)))
	case isa.AMOMINU_D:
		return min(old, operand)
	case isa.AMOMAXU_D:
		return max(old, operand)
	}
	panic("BUG: atomic instruction without a case")
}

// atomicPage returns the page of an aligned word for reading and writing.
// Atomics are for RAM: on a device they are an access fault (priv 3.6.3).
func (c *CPU) atomicPage(va, size uint64) (p *page.Page, ok bool) {
	if va%size != 0 {
		return nil, c.trap(hart.StoreMisaligned, va)
	}
	if e := c.m.Stores.At(va); e.Tag == mmu.Tag(va, 1, c.m.Space) {
		return e.To.Page(va), true
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
	p := e.To.Page(va)
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
		v = sext32(uint64(atomic.LoadUint32(word32(p, va))))
	} else {
		v = atomic.LoadUint64(word64(p, va))
	}
	set(&c.h.X, o.rd, v)
	c.h.Reserve(va, uint8(size), v)
	return true
}

// storeConditional writes if the reservation of an earlier LR stands, and ends
// it in any case. What other harts and devices did since LR is told by the value:
// the word must hold what LR read. One that was changed and changed back counts
// as never written, which programs cannot rely on to fail by any means but their
// own (as in QEMU); traps, SRET, changes of translation and device accesses do
// end the reservation.
func (c *CPU) storeConditional(o *op, va, size uint64) bool {
	p, ok := c.atomicPage(va, size)
	if !ok {
		return false
	}
	old, reserved := c.h.Reserved(va, uint8(size))
	c.h.ClearReservation()
	v := get(&c.h.X, o.rs2)
	switch {
	case !reserved:
	case size == 4:
		reserved = atomic.CompareAndSwapUint32(word32(p, va), uint32(old), uint32(v))
	default:
		reserved = atomic.CompareAndSwapUint64(word64(p, va), old, v)
	}
	set(&c.h.X, o.rd, truth(!reserved))
	return true
}
