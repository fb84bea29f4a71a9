package interp

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// fetchPage returns the page of instructions at pc for reading and its GPA, or
// false after recording the trap.
func (c *CPU) fetchPage(pc uint64) (p *page.Page, gpa uint64, ok bool) {
	gpa, f := c.m.Translate(pc, mmu.Fetch)
	if f == mmu.NoFault {
		if p = c.m.Page(gpa); p != nil {
			return p, gpa, true
		}
		f = mmu.AccessFault // instructions are fetched from RAM only
	}
	return nil, 0, c.trap(f.Cause(mmu.Fetch), pc)
}

// fillFetch enters the page of pc into the fetch bank.
func (c *CPU) fillFetch(pc uint64) bool {
	c.m.Note(pc, mmu.Fetch)
	p, gpa, ok := c.fetchPage(pc)
	if !ok {
		return false
	}
	code, found := c.codes.find(c.m.View(), gpa, p)
	if found.decoded {
		c.effort += effortDecode
	}
	if found.watch {
		c.m.DropStores(p)
	}
	c.dropSwept()
	c.fleeting = c.fleeting || found.fleeting
	e := c.pages.At(pc)
	e.Tag, e.To = mmu.Tag(pc, 1, c.m.Space), code
	return true
}

// fetchCross prepares the four-byte instruction that begins in the last
// halfword of the current page. It is put where it would be in a decoded page,
// alone: whatever comes next leaves that page.
func (c *CPU) fetchCross() bool {
	raw, ok := c.raw(c.base + 2*(slots-1))
	if ok {
		c.cross.stubs = 0
		c.cross.place(slots-1, lower(isa.Decode(raw)))
	}
	return ok
}

// raw returns the bits of the instruction at pc. Only a fault of the second
// half, in the next page, is reported with that page's address (priv 12.1.9).
func (c *CPU) raw(pc uint64) (uint32, bool) {
	p, _, ok := c.fetchPage(pc)
	if !ok {
		return 0, false
	}
	low := binary.LittleEndian.Uint16(p[pc%page.Size:])
	if isa.Length(low) == 2 {
		return uint32(low), true
	}
	if p, _, ok = c.fetchPage(pc + 2); !ok {
		return 0, false
	}
	high := binary.LittleEndian.Uint16(p[(pc+2)%page.Size:])
	return uint32(low) | uint32(high)<<16, true
}

// illegal records an illegal-instruction trap for the instruction at PC, with
// its bits in stval.
func (c *CPU) illegal() bool {
	raw, ok := c.raw(c.h.PC)
	return ok && c.trap(hart.IllegalInst, uint64(raw))
}
