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
	entry  bool   // a leader that the page's table leads to
	start  bool   // first of a basic block
	last   bool   // the next in the layout does not follow it
	left   uint8  // instructions from here to the end of the block
	jump   int32  // where control goes after it if last, as an offset in the page; or nowhere
	label  amd64.Label
}

// nowhere is the jump of an instruction that control does not run off.
const nowhere = -1 << 31

// next returns the offset behind the instruction.
func (i *inst) next() int32 { return int32(i.off) + int32(i.Size) }

// region is a part of a page: what control can reach from an entry through
// branches and jumps in the page, laid out in traces.
type region struct {
	page    *page.Page
	native  *Page
	seq     []inst
	at      [page.Size / 2]uint16 // 1 + index in seq of the instruction at a halfword, or 0
	pending []uint16              // offsets of leaders to be laid out
}

// discover lays out the region of an entry.
func (r *region) discover(p *page.Page, native *Page, off uint16) {
	for i := range r.seq {
		r.at[r.seq[i].off/2] = 0
	}
	r.page, r.native, r.seq, r.pending = p, native, r.seq[:0], r.pending[:0]
	r.trace(int32(off))
	r.mark(int32(off), true)
	for len(r.pending) > 0 && len(r.seq) < maxRegion {
		off := r.pending[len(r.pending)-1]
		r.pending = r.pending[:len(r.pending)-1]
		if r.at[off/2] == 0 && !r.native.has(off) {
			r.trace(int32(off))
		}
	}
	r.blocks()
}

// mark notes that the instruction at off, if it is in the region, is jumped to.
func (r *region) mark(off int32, entry bool) {
	if i := r.find(off); i >= 0 {
		r.seq[i].leader = true
		r.seq[i].entry = r.seq[i].entry || entry
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

// follow returns where the layout goes on after an instruction, nowhere if
// control does not, and remembers where else it may go.
func (r *region) follow(i *inst) int32 {
	switch kindOf(i.Op) {
	case kindBranch:
		r.want(int32(i.off) + i.Imm)
	case kindJump:
		if i.Rd != 0 {
			r.want(i.next())
		}
		return int32(i.off) + i.Imm
	case kindIndirect:
		if i.Rd != 0 {
			r.want(i.next())
		}
		return nowhere
	case kindLeave:
		if i.Op != isa.ILLEGAL && i.Op != isa.EBREAK && i.Op != isa.SRET {
			r.want(i.next())
		}
		return nowhere
	}
	return i.next()
}

// want remembers a leader.
func (r *region) want(off int32) {
	if inPage(off) {
		r.pending = append(r.pending, uint16(off))
	}
}

// blocks finds the leaders and counts the instructions of each basic block.
func (r *region) blocks() {
	for i := range r.seq {
		in := &r.seq[i]
		switch kind := kindOf(in.Op); {
		case kind == kindBranch:
			r.mark(int32(in.off)+in.Imm, false)
		case kind == kindJump && in.Rd != 0, kind == kindIndirect && in.Rd != 0, kind == kindLeave:
			r.mark(in.next(), true)
		}
		if in.last {
			r.mark(in.jump, false)
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
		in.start = in.leader || i == 0 || r.seq[i-1].last || kindOf(r.seq[i-1].Op) == kindBranch
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
