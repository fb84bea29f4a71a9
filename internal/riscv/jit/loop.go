//go:build linux && amd64

package jit

import (
	"slices"

	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// At the borders of blocks memory has the guest registers without a home, and any block
// may count on that. What is stored at the end of one block and loaded at the beginning
// of the next comes some cycles late, though, which in a short loop is a good part of a
// round. So host registers that are nobody's home may have copies from block to block
// where nothing else can come between: behind a branch that is not taken, and from the
// end of a loop to its start.

// visitors are the host registers that have copies from block to block.
var visitors = [...]amd64.Reg{t1, gp}

// loop is a stretch of the region that control leaves or does again from the start.
type loop struct {
	start, end int                  // indexes of the first and last instruction; end is negative: there is none
	carried    [len(visitors)]uint8 // the guest registers of which visitors have copies when it is done again; zero: none
	again      amd64.Label          // where it starts then
}

// carry begins a loop at the instruction at hand, which is jumped to, if it is the first of
// one.
func (t *translator) carry() {
	for _, h := range visitors {
		t.evict(h)
	}
	t.loop = loop{start: t.i, end: t.loopEnd()}
	if t.loop.end < 0 {
		return
	}
	t.loop.readFirst(t.seq)
	for k, r := range t.loop.carried {
		if r != 0 {
			t.put(r, visitors[k])
			t.MovRM(amd64.W64, visitors[k], x(r))
		}
	}
	t.loop.again = t.NewLabel()
	t.Bind(t.loop.again)
}

// loopEnd returns the index of the last instruction of the loop that begins at the one at
// hand; negative if there is none, or what it does takes the visitors.
func (t *translator) loopEnd() (end int) {
	end = -1
	start := int32(t.seq[t.i].off)
	for i := t.i; i < len(t.seq); i++ {
		in := &t.seq[i]
		if in.leader && i > t.i || !movable(in) || accesses[in.Op].width != 0 {
			break
		}
		if in.last && in.jump == start || kindOf(in.Op) == kindBranch && int32(in.off)+in.Imm == start {
			end = i
		}
		if in.last {
			break
		}
	}
	return end
}

// readFirst chooses what is carried: the first guest registers without a home that the loop
// reads before it writes them.
func (l *loop) readFirst(seq []inst) {
	n, seen := 0, uint32(1)
	for i := l.start; i <= l.end; i++ {
		r1, r2 := reads(&seq[i])
		for _, r := range [...]uint8{r1, r2} {
			if seen>>r&1 == 0 && !isPinned(r) && n < len(l.carried) {
				l.carried[n] = r
				n++
			}
			seen |= 1 << r
		}
		if writesX(&seq[i]) {
			seen |= 1 << seq[i].Rd
		}
	}
}

// entrance returns the label to jump to the instruction at an index in the region with
// everything where it is now.
func (t *translator) entrance(i int) amd64.Label {
	if i != t.loop.start || t.loop.end < t.i {
		return t.seq[i].label
	}
	for k, r := range t.loop.carried {
		if r != 0 && t.where[r].reg != visitors[k] {
			return t.seq[i].label
		}
	}
	return t.loop.again
}

// copies returns the set of guest registers of which visitors have what will be read after
// the end of the block that ends at hand.
func (t *translator) copies() (set uint64) {
	for _, h := range visitors {
		if r := t.holder[h]; r != 0 && r != former && !isPinned(r) && t.readLater(r, h) {
			set |= 1 << r
		}
	}
	return set
}

// readLater reports whether guest register r is read after the end of the block that ends
// at hand, and until then nothing takes the host register h.
func (t *translator) readLater(r uint8, h amd64.Reg) bool {
	if t.i <= t.loop.end && slices.Contains(t.loop.carried[:], r) {
		return true
	}
	for i := t.i + 1; i < len(t.seq) && !t.seq[i-1].last; i++ {
		in := &t.seq[i]
		if in.leader || !movable(in) {
			return false
		}
		if r1, r2 := reads(in); r1 == r || r2 == r {
			return true
		}
		if h == t1 && accesses[in.Op].width != 0 || writesX(in) && in.Rd == r {
			return false
		}
	}
	return false
}
