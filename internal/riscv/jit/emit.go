//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// translator turns one region after another into code. It belongs to a Cache.
type translator struct {
	amd64.Asm
	region
	arena *arena

	i     int // index of the instruction at hand
	group group
	float bool // the block has checked that floating point may be used
	flags flags
	loop  loop
	stubs []stub
	aways []away
	links []link
	after []resumption
	backs []back

	allocator

	records int // offset of the first record

	// Where the parts end, in bytes from the region's start; see arena.
	hotEnd, coldEnd, slotEnd int
}

// group is a run of accesses through one base register whose host address is
// known to be in gp.
type group struct {
	active bool
	base   uint8 // guest register
	low    int32 // offset from the base register that gp stands for
	size   int32 // bytes from there to the end of the last access
	store  bool  // some are stores
	end    int   // index of the last access
}

// translate writes the code of a region to the arena's free space. An error is
// errFull, or a fault of this package.
func (t *translator) translate(a *arena, p *page.Page, native *Page, off uint16) error {
	t.arena = a
	t.Reset(a.free(), a.next())
	size := len(a.writable)
	t.Seek(0, coldStart(size)-a.used)
	t.discover(p, native, off)
	t.group, t.float, t.flags = group{}, false, flags{}
	t.stubs, t.aways, t.links, t.after = t.stubs[:0], t.aways[:0], t.links[:0], t.after[:0]
	t.backs, t.states = t.backs[:0], t.states[:0]
	t.i = 0
	t.loop = loop{end: -1}
	t.reset()
	for i := range t.seq {
		if t.seq[i].leader {
			t.seq[i].label = t.NewLabel()
		}
	}
	for i := range t.seq {
		t.i = i
		t.instruction(&t.seq[i])
	}
	for _, a := range t.aways {
		t.Bind(a.label)
		t.jumpAway(a.off)
	}
	if t.hotEnd = t.Len(); t.Overflow() {
		return errFull
	}
	t.Seek(a.cold-a.used, slotStart(size)-a.used)
	t.emitStubs()
	t.emitMisses()
	if t.coldEnd = t.Len(); t.Overflow() {
		return errFull
	}
	t.Seek(a.slots-a.used, size-a.used)
	t.emitSlots()
	if t.slotEnd = t.Len(); t.Overflow() {
		return errFull
	}
	if err := t.Finish(); err != nil {
		return err
	}
	t.emitSites()
	return nil
}

// instruction emits one instruction and what belongs before and after it.
func (t *translator) instruction(in *inst) {
	if in.leader {
		t.group, t.float = group{}, false
		t.Bind(in.label)
		t.carry()
	}
	if in.start {
		t.charge(in)
	}
	t.begin(in)
	t.execute(in)
	if (in.last || t.seq[t.i+1].start) && kindOf(in.Op) != kindBranch {
		t.settle(t.copies())
	}
	if t.group.active && t.i >= t.group.end {
		t.group.active = false
	}
	for k := range t.after {
		if r := &t.after[k]; r.index == t.i+1 && !r.bound {
			t.wayBack(r.label)
			r.bound = true
		}
	}
	if in.last && in.jump != nowhere {
		t.jumpTo(in.jump)
	}
}

// charge takes a block's instructions off the budget, or returns to Go.
func (t *translator) charge(in *inst) {
	t.ALURI(amd64.SUB, amd64.W64, nr, int32(in.left))
	t.Jcc(amd64.B, t.stop(site{off: in.off, before: in.left}, settled))
}

// bankEntry leaves the address of the bank's entry for the page of the address
// in t0 in t1.
func (t *translator) bankEntry(bank int32) {
	t.MovRR(amd64.W32, t1, t0)
	t.indexBank(bank)
}

// indexBank turns the address in t1 into that of the bank's entry for it.
func (t *translator) indexBank(bank int32) {
	t.ShiftRI(amd64.SHR, amd64.W32, t1, page.Shift-entryShift)
	t.ALURI(amd64.AND, amd64.W32, t1, bankMask)
	t.ALURM(amd64.ADD, amd64.W64, t1, amd64.At(cx, bank))
}

// execute emits the instruction proper.
func (t *translator) execute(in *inst) {
	switch kindOf(in.Op) {
	case kindBranch:
		t.branch(in)
	case kindJump:
		if in.Rd != 0 {
			t.link(in)
		}
	case kindIndirect:
		t.indirect(in)
	case kindLeave:
		t.Jmp(t.slow())
	default:
		t.plain(in)
	}
}
