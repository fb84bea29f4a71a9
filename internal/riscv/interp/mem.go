package interp

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// load is a load of size bytes that missed the TLB. The value is
// zero-extended. ok is false after recording a trap.
func (c *CPU) load(va uint64, size int) (v uint64, ok bool) {
	if va&offsetMask+uint64(size) > page.Size {
		return c.loadAcross(va, size)
	}
	p, gpa, f := c.m.FillLoad(va)
	switch {
	case f != mmu.NoFault:
		return 0, c.trap(f.Cause(mmu.Load), va)
	case p == nil:
		return c.loadDevice(va, gpa, size)
	}
	return loadBytes(p, va, size), true
}

func loadBytes(p *page.Page, va uint64, size int) uint64 {
	h := mmu.HostOf(p, va)
	switch size {
	case 1:
		return uint64(load8(h, va))
	case 2:
		return uint64(load16(h, va))
	case 4:
		return uint64(load32(h, va))
	}
	return load64(h, va)
}

// loadAcross is a load that crosses into the next page.
func (c *CPU) loadAcross(va uint64, size int) (v uint64, ok bool) {
	next := (va | offsetMask) + 1
	var b [16]byte
	for i, at := range [...]uint64{va, next} {
		p, _, f := c.m.FillLoad(at)
		if f == mmu.NoFault && p == nil {
			f = mmu.AccessFault // a device takes no access of a part
		}
		if f != mmu.NoFault {
			return 0, c.trap(f.Cause(mmu.Load), at)
		}
		if i == 0 {
			copy(b[:], p[va&offsetMask:])
		} else {
			copy(b[next-va:size], p[:])
		}
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

func (c *CPU) loadDevice(va, gpa uint64, size int) (v uint64, ok bool) {
	if gpa%uint64(size) == 0 {
		c.accessDevice()
		if v, ok = c.bus.Read(gpa, size); ok {
			return v, true
		}
	}
	return 0, c.trap(hart.LoadAccess, va)
}

// accessDevice precedes every access to the bus. The instruction touches no guest
// memory after it, and Run returns with it, whatever comes of the access: whoever
// runs the hart may have let others change memory meanwhile.
func (c *CPU) accessDevice() {
	c.yield = true
	// unpriv 14.3: a reservation may be lost at any time but within a loop that
	// touches nothing else.
	c.h.ClearReservation()
}

// store is a store of the low size bytes of v that missed the TLB.
func (c *CPU) store(va uint64, size int, v uint64) bool {
	if va&offsetMask+uint64(size) > page.Size {
		return c.storeAcross(va, size, v)
	}
	p, gpa, f := c.m.FillStore(va)
	switch {
	case f != mmu.NoFault:
		return c.trap(f.Cause(mmu.Store), va)
	case p == nil:
		return c.storeDevice(va, gpa, size, v)
	}
	h := mmu.HostOf(p, va)
	switch size {
	case 1:
		store8(h, va, uint8(v))
	case 2:
		store16(h, va, uint16(v))
	case 4:
		store32(h, va, uint32(v))
	default:
		store64(h, va, v)
	}
	return true
}

// storeAcross is a store that crosses into the next page. Both pages are
// translated before either is written.
func (c *CPU) storeAcross(va uint64, size int, v uint64) bool {
	next := (va | offsetMask) + 1
	var parts [2]*page.Page
	for i, at := range [...]uint64{va, next} {
		p, _, f := c.m.FillStore(at)
		if f == mmu.NoFault && p == nil {
			f = mmu.AccessFault
		}
		if f != mmu.NoFault {
			return c.trap(f.Cause(mmu.Store), at)
		}
		parts[i] = p
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	n := copy(parts[0][va&offsetMask:], b[:size])
	copy(parts[1][:], b[n:size])
	return true
}

func (c *CPU) storeDevice(va, gpa uint64, size int, v uint64) bool {
	if gpa%uint64(size) == 0 {
		if size < 8 {
			v &= 1<<(8*size) - 1
		}
		c.accessDevice()
		if c.bus.Write(gpa, size, v) {
			return true
		}
	}
	return c.trap(hart.StoreAccess, va)
}

// zeroBlock is CBO.ZERO of the aligned block of hart.BlockSize bytes around va.
func (c *CPU) zeroBlock(rs1 uint64) bool {
	va := rs1 &^ (hart.BlockSize - 1)
	e := c.m.Stores.At(va)
	p := e.To.Page(va)
	if e.Tag != mmu.Tag(va, 1, c.m.Space) {
		var f mmu.Fault
		p, _, f = c.m.FillStore(va)
		if f == mmu.NoFault && p == nil {
			f = mmu.AccessFault
		}
		if f != mmu.NoFault {
			return c.trap(f.Cause(mmu.Store), rs1)
		}
	}
	clear(p[va&offsetMask:][:hart.BlockSize])
	return true
}
