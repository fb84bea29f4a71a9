//go:build linux && amd64

package jit

import (
	"math/bits"

	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// Between two borders of blocks, guest registers are where they are best kept. A
// result that is read again stays in a host register if one can be had, and what it
// replaces is not stored if nothing can see it. All that the guest could tell is
// made up for where control leaves: by settle before the end of a block, and out of
// line, in the returns to Go, for where it hardly ever leaves. Those that come back
// from there come by way of code that loads again what was in host registers.

// place is where the value of a guest register is.
type place struct {
	reg   amd64.Reg // holds it; RAX: none does
	stale bool      // in memory there is something else
	word  bool      // it is the sign-extension of its lower half
	low   bool      // only the lower half of reg is valid; it is a word
	shift pending   // or it is still to be computed from another register
}

// places are the places of all guest registers. The one beyond them is for the old
// value of one that pending shifts are of.
type places [former + 1]place

// state is where everything is.
type state struct {
	where places
	moved uint64 // the guest registers whose places may differ from border
}

// former is the register for an old value.
const former = 32

// never is an index in the region for what does not happen.
const never = 0xff

// border is where everything is at the borders of blocks.
var border = func() (p places) {
	for r, reg := range pinned {
		p[r] = place{reg: reg, stale: reg != amd64.RAX}
	}
	return p
}()

// holders are the guest registers that host registers hold at the borders of blocks.
var holders = func() (h [16]uint8) {
	for r, reg := range pinned {
		if reg != amd64.RAX {
			h[reg] = uint8(r)
		}
	}
	return h
}()

// allocator knows where guest registers are.
type allocator struct {
	state
	holder [16]uint8            // guest register that a host register holds; zero: none
	taken  uint16               // host registers that the instruction at hand uses
	next   [former + 1]uint8    // where the value of a guest register is read next
	until  int                  // index behind the run
	access [maxRegion + 1]uint8 // where memory is accessed next, by index
	frozen bool                 // nothing may move
	shifts [former + 1]uint8    // how many pending shifts are of a guest register
	states []state
}

// reset has everything where it is at the borders of blocks.
func (t *translator) reset() {
	t.state, t.holder, t.taken = state{where: border}, holders, 0
	t.shifts = [former + 1]uint8{}
	t.until = t.i
	for r := range t.next {
		t.next[r] = never
	}
}

// isHeld reports whether a host register holds guest register r.
func (t *translator) isHeld(r uint8) bool { return t.where[r].reg != amd64.RAX }

// isWord reports whether guest register r is known to be the sign-extension of its
// lower half.
func (t *translator) isWord(r uint8) bool { return r == 0 || t.where[r].word }

// whole makes the upper half of the host register valid that holds guest register r.
func (t *translator) whole(r uint8) {
	if p := &t.where[r]; p.low {
		t.MovSX(amd64.W32, p.reg, p.reg)
		p.low = false
	}
}

// movable reports whether guest registers may be anywhere for an instruction.
func movable(in *inst) bool {
	op := in.Op
	if a := accesses[op]; a.width != 0 {
		return !a.float
	}
	switch op {
	case isa.JAL:
		return in.Rd == 0
	case isa.LUI, isa.AUIPC, isa.ADDI, isa.ADDIW, isa.SLTI, isa.SLTIU, isa.XORI, isa.ORI, isa.ANDI,
		isa.ADD, isa.ADDW, isa.SUB, isa.SUBW, isa.SLT, isa.SLTU, isa.XOR, isa.OR, isa.AND, isa.MUL, isa.MULW,
		isa.ADD_UW, isa.SH1ADD, isa.SH2ADD, isa.SH3ADD, isa.SH1ADD_UW, isa.SH2ADD_UW, isa.SH3ADD_UW, isa.SLLI_UW,
		isa.ANDN, isa.SEXT_B, isa.SEXT_H, isa.ZEXT_H, isa.REV8:
		return true
	}
	return kindOf(op) == kindBranch || shifts[op].width != 0 && !(shifts[op].rotate && !shifts[op].immediate)
}

// plan finds out, for the run of instructions at hand during which guest registers may
// move, where each value is read next.
func (t *translator) plan() {
	end := t.i
	for end < len(t.seq) && (end == t.i || !t.seq[end].start) {
		in := &t.seq[end]
		if !movable(in) {
			break
		}
		end++
		if in.last {
			break
		}
	}
	t.until = end
	for r := range t.next {
		t.next[r] = never
	}
	if t.i <= t.loop.end {
		for _, r := range t.loop.carried {
			t.next[r] = uint8(end) // at the earliest
		}
	}
	t.access[end] = never
	for i := end - 1; i >= t.i; i-- {
		in := &t.seq[i]
		t.access[i] = t.access[i+1]
		if accesses[in.Op].width != 0 {
			t.access[i] = uint8(i)
		}
		in.nextD, in.next1, in.next2 = never, never, never
		if writesX(in) {
			in.nextD = t.next[in.Rd]
			t.next[in.Rd] = never
		}
		r1, r2 := reads(in)
		in.next1, in.next2 = t.next[r1], t.next[r2]
		if r1 != 0 {
			t.next[r1] = uint8(i)
		}
		if r2 != 0 {
			t.next[r2] = uint8(i)
		}
	}
}

// reads returns the integer registers that an instruction of a run reads; x0 for none.
func reads(in *inst) (r1, r2 uint8) {
	switch op := in.Op; {
	case op == isa.LUI || op == isa.AUIPC:
		return 0, 0
	case accesses[op].store, kindOf(op) == kindBranch, op >= isa.ADD && op <= isa.AND, op >= isa.ADDW && op <= isa.SRAW,
		op == isa.MUL, op == isa.MULW, op >= isa.ADD_UW && op <= isa.SH3ADD_UW && op != isa.SLLI_UW, op == isa.ANDN:
		return in.Rs1, in.Rs2
	}
	return in.Rs1, 0
}

// begin prepares the instruction at hand.
func (t *translator) begin(in *inst) {
	t.taken = 0
	if t.i >= t.until {
		t.plan()
	}
	if t.i >= t.until { // it is not in a run
		t.settle(0)
		in.nextD, in.next1, in.next2 = never, never, never
		return
	}
	r1, r2 := reads(in)
	t.next[r1], t.next[r2] = in.next1, in.next2
	t.next[0] = never
	t.take(r1)
	t.take(r2)
}

// prepare has no shift pending that concerns the instruction at hand.
func (t *translator) prepare(in *inst) {
	r1, r2 := reads(in)
	t.compute(r1)
	t.compute(r2)
	switch {
	case !writesX(in) || t.shifts[in.Rd] == 0:
	case in.Rd == r1 || in.Rd == r2:
		t.computeOf(in.Rd)
	default:
		t.part(in.Rd)
	}
}

// take has the host register that holds guest register r stay with it until the
// instruction at hand is done.
func (t *translator) take(r uint8) {
	if t.isHeld(r) {
		t.taken |= 1 << t.where[r].reg
	}
}

// put has the host register h hold guest register r.
func (t *translator) put(r uint8, h amd64.Reg) {
	t.holder[h] = r
	t.where[r].reg = h
	t.moved |= 1 << r
	t.taken |= 1 << h
}

// fetch loads guest register r from memory into a host register, if it is read again
// later and one can be had.
func (t *translator) fetch(r uint8) bool {
	if t.next[r] == never || t.frozen {
		return false
	}
	return t.hold(r, t.next[r])
}

// hold loads guest register r from memory into a host register if one can be had for
// what is read at the index next.
func (t *translator) hold(r, next uint8) bool {
	h, ok := t.room(r, next)
	if ok {
		t.put(r, h)
		t.MovRM(amd64.W64, h, x(r))
	}
	return ok
}

// second returns a host register with the value of guest register r beside t0, of which
// the lower half is valid.
func (t *translator) second(r uint8) amd64.Reg {
	if r == 0 || !t.isHeld(r) && !t.fetch(r) {
		t.vacate(t1)
	}
	return t.half(r, t1)
}

// eager is how many instructions must be left of a run for a pinned register to make
// room for another one, which costs a store and a load.
const eager = 32

// room returns a host register that can hold guest register r, whose value is read
// next at an index in the region.
func (t *translator) room(r, next uint8) (amd64.Reg, bool) {
	if own := pinned[r&31]; own != amd64.RAX && t.isFree(own) {
		return own, true
	}
	victim, farthest := amd64.RAX, next
	for _, h := range spare {
		r := t.holder[h]
		switch {
		case t.taken&(1<<h) != 0:
		case h == t1 && next >= t.access[t.i+1]: // looking into the TLB takes it
		case h == gp && t.group.active:
		case isHome(h) && t.until-t.i < eager && (r == 0 || pinned[r&31] == h):
		case t.isFree(h):
			return h, true
		case r != former && t.next[r] > farthest:
			victim, farthest = h, t.next[r]
		}
	}
	if victim == amd64.RAX {
		return 0, false
	}
	t.evict(victim)
	return victim, true
}

// spare are the host registers that may hold any guest register, those first that hold
// none at the borders of blocks.
var spare = func() []amd64.Reg {
	regs := []amd64.Reg{t1, gp}
	for h, r := range holders {
		if r != 0 {
			regs = append(regs, amd64.Reg(h))
		}
	}
	return regs
}()

// isHome reports whether the host register h holds a guest register at the borders of
// blocks.
func isHome(h amd64.Reg) bool { return holders[h] != 0 }

// isFree reports whether the host register h holds nothing that is needed.
func (t *translator) isFree(h amd64.Reg) bool {
	if t.holder[h] == former && t.shifts[former] == 0 {
		t.drop(former)
	}
	return t.holder[h] == 0 && t.taken&(1<<h) == 0
}

// evict has the host register h hold nothing.
func (t *translator) evict(h amd64.Reg) {
	r := t.holder[h]
	if r == 0 {
		return
	}
	if r == former {
		t.computeOf(former)
		return
	}
	t.save(r)
	t.drop(r)
}

// drop has no host register hold guest register r.
func (t *translator) drop(r uint8) {
	p := &t.where[r]
	t.holder[p.reg] = 0 // also of RAX, which holds nothing
	p.reg, p.low = amd64.RAX, false
	t.moved |= 1 << r
}

// save makes the value of guest register r in memory what a host register holds.
func (t *translator) save(r uint8) {
	if p := &t.where[r]; p.stale {
		t.whole(r)
		t.MovMR(amd64.W64, x(r), p.reg)
		p.stale = false
	}
}

// vacate moves what the host register h holds elsewhere.
func (t *translator) vacate(h amd64.Reg) {
	if r := t.holder[h]; r != 0 && r != former && t.next[r] != never {
		t.taken |= 1 << h
		if to, ok := t.room(r, t.next[r]); ok {
			t.MovRR(amd64.W64, to, h)
			t.holder[h] = 0
			t.put(r, to)
		}
	}
	t.taken |= 1 << h
	t.evict(h)
}

// dest returns the host register to compute guest register r in.
func (t *translator) dest(r uint8, scratch amd64.Reg) amd64.Reg {
	if t.isHeld(r) {
		t.take(r)
		return t.where[r].reg
	}
	next := t.seq[t.i].nextD
	if own := pinned[r]; next == never && !(own != amd64.RAX && t.isFree(own)) {
		return scratch
	}
	h, ok := t.room(r, next)
	if !ok {
		return scratch
	}
	t.holder[h] = r
	t.taken |= 1 << h
	return h
}

// write makes s the value of guest register r.
func (t *translator) write(r uint8, s amd64.Reg) { t.writeAs(r, s, place{}) }

// writeWord makes s the value of guest register r, which is the sign-extension of its
// lower half.
func (t *translator) writeWord(r uint8, s amd64.Reg) { t.writeAs(r, s, place{word: true}) }

// writeLow makes the sign-extension of the lower half of s the value of guest register r.
func (t *translator) writeLow(r uint8, s amd64.Reg) { t.writeAs(r, s, place{word: true, low: true}) }

func (t *translator) writeAs(r uint8, s amd64.Reg, is place) {
	if r == 0 {
		return
	}
	if t.holder[s] != r {
		if d := t.dest(r, s); d != s {
			t.MovRR(amd64.W64, d, s)
			s = d
		}
	}
	t.forget(r)
	is.reg, is.stale = s, true
	if t.holder[s] != r {
		if is.low {
			t.MovSX(amd64.W32, s, s)
		}
		t.MovMR(amd64.W64, x(r), s)
		is = place{word: is.word}
	}
	t.where[r] = is
	t.moved |= 1 << r
	t.next[r] = t.seq[t.i].nextD
}

// wrote notes that memory has the value of guest register r, which no host register
// holds.
func (t *translator) wrote(r uint8, word bool) {
	t.forget(r)
	t.where[r] = place{word: word}
	t.moved |= 1 << r
	t.next[r] = t.seq[t.i].nextD
}

// settle has everything where it is at the borders of blocks. It leaves the flags,
// unless shifts are pending. Of the guest registers in the set copied, which have no
// home, the host registers that hold them keep copies.
func (t *translator) settle(copied uint64) {
	if t.moved == 0 {
		return
	}
	t.computeAll()
	if t.isHeld(former) {
		t.drop(former)
	}
	t.moved &^= 1 << former
	for m := t.moved; m != 0; m &= m - 1 {
		r := uint8(bits.TrailingZeros64(m))
		p := &t.where[r]
		switch {
		case p.reg == pinned[r]:
			t.whole(r)
			*p = border[r]
		case p.reg != amd64.RAX:
			t.save(r)
			if copied>>r&1 == 0 {
				t.drop(r)
			}
		}
		p.word = false
	}
	for m := t.moved &^ copied; m != 0; m &= m - 1 {
		r := uint8(bits.TrailingZeros64(m))
		if h := pinned[r]; t.where[r].reg != h {
			t.MovRM(amd64.W64, h, x(r))
			t.where[r] = border[r]
			t.holder[h] = r
		}
	}
	t.moved &= copied
}

// unsettle is the way back from where everything is at the borders of blocks to s.
// Memory has all values by then.
func (t *translator) unsettle(s *state) {
	for m := s.moved; m != 0; m &= m - 1 {
		r := uint8(bits.TrailingZeros64(m))
		if h := s.where[r].reg; h != border[r].reg && h != amd64.RAX {
			t.MovRM(amd64.W64, h, x(r))
		}
	}
}

// snapshot returns where everything is, as an index in states; settled if it is where
// it is at the borders of blocks.
func (t *translator) snapshot() int {
	for m := t.moved; m != 0; m &= m - 1 {
		r := bits.TrailingZeros64(m)
		if p := &t.where[r]; p.reg != border[r].reg || p.low || p.shift.of != 0 {
			t.states = append(t.states, t.state)
			return len(t.states) - 1
		}
	}
	return settled
}

// settled stands for a state that needs none.
const settled = -1

// restore makes what was found by snapshot the present state.
func (t *translator) restore(at int) {
	t.reset()
	t.state = t.states[at]
	for m := t.moved; m != 0; m &= m - 1 {
		t.holder[border[bits.TrailingZeros64(m)].reg] = 0
	}
	for m := t.moved; m != 0; m &= m - 1 {
		r := uint8(bits.TrailingZeros64(m))
		p := &t.where[r]
		if p.reg != amd64.RAX {
			t.holder[p.reg] = r
		}
		if p.shift.of != 0 {
			t.shifts[p.shift.of]++
		}
	}
}
