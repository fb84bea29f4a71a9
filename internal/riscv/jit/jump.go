//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// away is a jump to where no code may be yet, out of line.
type away struct {
	label amd64.Label
	off   int32 // from the start of the page
}

// link is a jump to where no code was yet when the jump was translated.
type link struct {
	slot amd64.Label // holds the address to jump to
	miss amd64.Label // which is this until there is code
	off  uint16      // in the page
}

// emitMisses emits what links lead to until there is code.
func (t *translator) emitMisses() {
	for _, l := range t.links {
		t.Bind(l.miss)
		t.MovRI(gp, int64(l.off))
		t.JmpTo(t.arena.miss)
	}
}

// emitSlots makes room for the addresses of links.
func (t *translator) emitSlots() {
	const slotSize = 8
	for _, l := range t.links {
		t.Bind(l.slot)
		t.Nop(slotSize)
	}
}

// jumpTo jumps to an offset from the page's start.
func (t *translator) jumpTo(off int32) {
	if i := t.find(off); i >= 0 {
		t.Jmp(t.entrance(i))
		return
	}
	if inPage(off) && t.native.has(uint16(off)) {
		t.JmpTo(t.arena.address(t.native.entry(uint16(off))))
		return
	}
	t.jumpAway(off)
}

// branchTo is jumpTo under a condition.
func (t *translator) branchTo(c amd64.Cond, off int32) {
	if i := t.find(off); i >= 0 {
		t.Jcc(c, t.entrance(i))
		return
	}
	if inPage(off) && t.native.has(uint16(off)) {
		t.JccTo(c, t.arena.address(t.native.entry(uint16(off))))
		return
	}
	l := t.NewLabel()
	t.aways = append(t.aways, away{l, off})
	t.Jcc(c, l)
}

// jumpAway jumps to where there was no code when this was translated. Inside of
// the page that may change.
func (t *translator) jumpAway(off int32) {
	if inPage(off) {
		l := link{t.NewLabel(), t.NewLabel(), uint16(off)}
		t.links = append(t.links, l)
		t.JmpMLabel(l.slot)
		return
	}
	t.MovRM(amd64.W64, t0, amd64.At(cx, offBase))
	t.ALURI(amd64.ADD, amd64.W64, t0, off&-page.Size)
	t.MovRI(gp, int64(off&(page.Size-1)))
	t.jumpFar()
}

// jumpFar jumps to the offset in gp in the page at the guest-virtual address in t0,
// through the bank of pages with native code.
func (t *translator) jumpFar() {
	t.bankEntry(offNatives)
	t.MovMR(amd64.W64, amd64.At(cx, offBase), t0)
	t.ALURM(amd64.OR, amd64.W64, t0, amd64.At(cx, offSpace))
	t.ALURM(amd64.CMP, amd64.W64, t0, amd64.At(t1, entryTag))
	t.JccTo(amd64.NE, t.arena.miss)
	t.MovRM(amd64.W64, t1, amd64.At(t1, entryTo))
	t.MovRM(amd64.W32, t1, amd64.AtIndex(t1, gp, 2, 0))
	t.ALURM(amd64.ADD, amd64.W64, t1, amd64.At(cx, offCode))
	t.JmpR(t1)
}

// link sets rd to the address behind the instruction.
func (t *translator) link(in *inst) {
	d := t.dest(in.Rd, t1)
	t.MovRM(amd64.W64, d, amd64.At(cx, offBase))
	t.ALURI(amd64.ADD, amd64.W64, d, in.next())
	t.write(in.Rd, d)
}

// indirect is JALR.
func (t *translator) indirect(in *inst) {
	t.sum(t0, in.Rs1, in.Imm)
	if in.Rd != 0 {
		t.link(in)
	}
	t.MovRR(amd64.W32, gp, t0)
	t.ALURI(amd64.AND, amd64.W32, gp, page.Size-2)
	t.ALURI(amd64.AND, amd64.W64, t0, -page.Size)
	t.jumpFar()
}

var conditions = [isa.NumOps]amd64.Cond{
	isa.BEQ: amd64.E, isa.BNE: amd64.NE, isa.BLT: amd64.L, isa.BGE: amd64.GE, isa.BLTU: amd64.B, isa.BGEU: amd64.AE,
}

func (t *translator) branch(in *inst) {
	t.prepare(in)
	t.computeAll()
	c := t.compareFor(conditions[in.Op], in.Rs1, in.Rs2)
	t.settle(t.copies())
	t.branchTo(c, int32(in.off)+in.Imm)
}
