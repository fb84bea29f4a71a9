//go:build linux && amd64

package jit

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// maxRegion bounds a region, in instructions. It bounds blocks, too, whose
// lengths are stored in bytes.
const maxRegion = 224

// inst is an instruction of a region.
type inst struct {
	isa.Inst
	off    uint16 // in the page
	leader bool   // something jumps here
	start  bool   // first of a basic block
	last   bool   // the next in the layout does not follow it
	left   uint8  // instructions from here to the end of the block
	jump   int32  // where control goes after it if last, as an offset in the page; or nowhere
	label  amd64.Label

	// Where the values of its registers are read next, as far as those may move.
	next1, next2, nextD uint8
}

// nowhere is the jump of an instruction that control does not run off.
const nowhere = -1 << 31

// next returns the offset behind the instruction.
func (i *inst) next() int32 { return int32(i.off) + int32(i.Size) }

// region is a trace through a page: what control reaches from an entry if no
// branch is taken.
type region struct {
	page   *page.Page
	native *Page
	seq    []inst
	at     [page.Size / 2]uint16 // 1 + index in seq of the instruction at a halfword, or 0
}

// discover lays out the region of an entry.
func (r *region) discover(p *page.Page, native *Page, off uint16) {
	for i := range r.seq {
		r.at[r.seq[i].off/2] = 0
	}
	r.page, r.native, r.seq = p, native, r.seq[:0]
	r.trace(int32(off))
	r.blocks()
}

// mark notes that the instruction at off, if it is in the region, is jumped to.
func (r *region) mark(off int32) {
	if i := r.find(off); i >= 0 {
		r.seq[i].leader = true
	}
}

// find returns the index in seq of the instruction at off, or -1.
func (r *region) find(off int32) int {
	if off < 0 || off >= page.Size {
		return -1
	}
	return int(r.at[off/2]) - 1
}

// inPage reports whether control may go to off without leaving the page.
func inPage(off int32) bool { return off >= 0 && off < page.Size }

// trace lays out instructions from off on, following jumps, until control must
// leave the layout.
func (r *region) trace(off int32) {
	for {
		i := r.place(uint16(off))
		next := r.follow(&r.seq[i])
		if next == nowhere {
			r.seq[i].last, r.seq[i].jump = true, nowhere
			return
		}
		if !inPage(next) || r.at[next/2] != 0 || r.native.has(uint16(next)) || len(r.seq) >= maxRegion {
			r.seq[i].last, r.seq[i].jump = true, next
			return
		}
		off = next
	}
}

// place decodes the instruction at off into the layout.
func (r *region) place(off uint16) int {
	raw := uint32(binary.LittleEndian.Uint16(r.page[off:]))
	switch {
	case raw&3 != 3:
		r.seq = append(r.seq, inst{Inst: isa.Decode(raw), off: off})
	case int(off) == page.Size-2:
		// It ends in the next page, which is not known here.
		r.seq = append(r.seq, inst{Inst: isa.Inst{Op: isa.ILLEGAL, Size: 4}, off: off})
	default:
		raw |= uint32(binary.LittleEndian.Uint16(r.page[off+2:])) << 16
		r.seq = append(r.seq, inst{Inst: isa.Decode(raw), off: off})
	}
	r.at[off/2] = uint16(len(r.seq))
	return len(r.seq) - 1
}

// follow returns where the layout goes on after an instruction; nowhere if control
// does not.
func (r *region) follow(i *inst) int32 {
	switch kindOf(i.Op) {
	case kindJump:
		return int32(i.off) + i.Imm
	case kindIndirect, kindLeave:
		return nowhere
	}
	return i.next()
}

// blocks finds the leaders and counts the instructions of each basic block.
func (r *region) blocks() {
	r.seq[0].leader = true
	for i := range r.seq {
		in := &r.seq[i]
		switch kindOf(in.Op) {
		case kindBranch:
			r.mark(int32(in.off) + in.Imm)
		case kindJump:
			if in.Rd != 0 {
				r.mark(in.next()) // where a call returns to
			}
		}
		if in.last {
			r.mark(in.jump)
		}
	}
	left := uint8(0)
	for i := len(r.seq) - 1; i >= 0; i-- {
		in := &r.seq[i]
		if in.last || kindOf(in.Op) == kindBranch || i+1 < len(r.seq) && r.seq[i+1].leader {
			left = 0
		}
		left++
		in.left = left
		in.start = in.leader || i == 0 || kindOf(r.seq[i-1].Op) == kindBranch
	}
}

// kind is what an instruction means for control.
type kind uint8

const (
	kindPlain    kind = iota
	kindBranch        // conditional
	kindJump          // JAL
	kindIndirect      // JALR
	kindLeave         // whatever comes next, the dispatcher decides
)

func kindOf(op isa.Op) kind {
	switch op {
	case isa.BEQ, isa.BNE, isa.BLT, isa.BGE, isa.BLTU, isa.BGEU:
		return kindBranch
	case isa.JAL:
		return kindJump
	case isa.JALR:
		return kindIndirect
	case isa.ILLEGAL, isa.EBREAK, isa.ECALL, isa.SRET, isa.WFI, isa.FENCE_I, isa.SFENCE_VMA:
		return kindLeave
	}
	return kindPlain
}
