package interp

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

const (
	// slots is the number of halfwords in a page, each of which may begin an
	// instruction.
	slots = page.Size / 2
	// firstStub is where the slots that are not in the page begin. There are
	// two before it that hold opLeave, so that running off the end of the page
	// needs no check.
	firstStub = slots + 2
	// allSlots fills one of the sizes that Go allocates.
	allSlots = 18<<10/opSize - 4
)

// Code is a decoded page: the instruction that begins at each of its halfwords,
// and stubs through which conditional branches leave the page. It depends on
// nothing but the contents of the page, and does not change but for the native
// code that is hung on it, so that machines share it.
type Code struct {
	ops   [allSlots]op
	stubs uint32 // in use
	id    uint32 // see Cache

	native translation
}

// decode decodes the page p as it is now.
func decode(p *page.Page) *Code {
	c := new(Code)
	c.native.source = p
	narrow := narrowOps()
	for i := range slots {
		h := binary.LittleEndian.Uint16(p[2*i:])
		switch {
		case h&3 != 3:
			c.place(i, narrow[h])
		case i == slots-1:
			c.ops[i] = op{code: opCross}
		default:
			c.place(i, lower(isa.Decode(binary.LittleEndian.Uint32(p[2*i:]))))
		}
	}
	c.fuse()
	return c
}

// place puts o into slot i and makes its offset, if it has one, fit the place.
// Jumps within the page get the distance between ops. Those that leave the page,
// and AUIPC, get the distance from the page's start, which is 12 bits of address
// away and so still fits.
func (c *Code) place(i int, o op) {
	switch o.code {
	case opAuipc:
		o.imm += int32(2 * i)
	case opCJ, opJ, opJal:
		if !o.jumpWithin(i) {
			o.imm += int32(2 * i)
			o.code = map[code]code{opCJ: opJFar, opJ: opJFar, opJal: opJalFar}[o.code]
		}
	}
	if o.code.branches() && !o.jumpWithin(i) {
		o.imm += int32(2 * i)
		if stub, ok := c.stub(o.imm); ok {
			o.imm = int32(stub-i) * opSize
		} else {
			o.code, o.rd = opFarBranch, uint8(o.code)
		}
	}
	c.ops[i] = o
}

// branches reports whether an op is a conditional branch whose target is an op.
func (code code) branches() bool {
	switch code {
	case opCBeqz, opCBnez, opBeq, opBne, opBlt, opBge, opBltu, opBgeu:
		return true
	}
	return false
}

// jumpWithin turns the offset of a jump in slot i into a distance between ops if
// the jump may stay in this page. An instruction that ends in the next page is
// alone in its Code and must leave it.
func (o *op) jumpWithin(i int) bool {
	target := i + int(o.imm)/2
	if target < 0 || target >= slots || i+int(o.code.length()) > slots {
		return false
	}
	o.imm = int32(target-i) * opSize
	return true
}

// stub returns the slot that leads to the distance imm from the page's start.
func (c *Code) stub(imm int32) (slot int, ok bool) {
	for slot = firstStub; slot < firstStub+int(c.stubs); slot++ {
		if c.ops[slot].imm == imm {
			return slot, true
		}
	}
	if slot == allSlots {
		return 0, false
	}
	c.ops[slot] = op{code: opFar, imm: imm}
	c.stubs++
	return slot, true
}
