//go:build linux && amd64

package jit

import (
	"math/bits"

	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// Compilers for a guest without Zbb rotate by two shifts and an OR. Neither shift is
// computed until it is needed, which it seldom is: the OR is one rotation, and what
// the shifts have been written to is soon written again.

// pending is a shift by a constant that has not been computed.
type pending struct {
	of    uint8 // guest register that is shifted; zero: none
	count uint8
	right bool
	width amd64.Width
}

// isRotation reports whether a | b is a rotation of one register.
func isRotation(a, b pending) bool {
	return a.of != 0 && a.of == b.of && a.width == b.width && a.right != b.right && int(a.count)+int(b.count) == 8*int(a.width)
}

// pendingOf returns what is pending once in is, if it is a shift by a constant.
func pendingOf(in *inst) (p pending, ok bool) {
	switch in.Op {
	case isa.SLLI, isa.SRLI, isa.SLLIW, isa.SRLIW:
		s := shifts[in.Op]
		return pending{of: in.Rs1, count: uint8(in.Imm), right: s.op == amd64.SHR, width: s.width}, in.Rs1 != 0 && in.Imm != 0
	}
	return pending{}, false
}

// deferShift leaves a shift pending that will be part of a rotation, and reports whether
// it has.
func (t *translator) deferShift(in *inst) bool {
	p, ok := pendingOf(in)
	if !ok || !t.rotates(in, p) || !t.isHeld(p.of) && !t.hold(p.of, uint8(t.i+1)) {
		return false
	}
	if p.width == amd64.W64 {
		t.whole(p.of)
	}
	if in.Rd == in.Rs1 || t.shifts[in.Rd] > 0 {
		t.part(in.Rd)
	}
	if in.Rd == in.Rs1 {
		p.of = former
	}
	t.forget(in.Rd)
	t.drop(in.Rd)
	t.where[in.Rd] = place{stale: true, word: p.width == amd64.W32, shift: p}
	t.moved |= 1 << in.Rd
	t.shifts[p.of]++
	t.next[in.Rd] = in.nextD
	return true
}

// rotates reports whether the shift p, which is the instruction at hand, will be part of
// a rotation: the other shift is pending, or will be.
func (t *translator) rotates(in *inst, p pending) bool {
	if int(in.nextD) >= t.until || t.where[p.of].shift.of != 0 {
		return false
	}
	or := &t.seq[in.nextD]
	if or.Op != isa.OR || or.Rs1 == or.Rs2 {
		return false
	}
	other := or.Rs1 ^ or.Rs2 ^ in.Rd
	if t.next[other] == in.nextD && isRotation(t.where[other].shift, p) {
		return true
	}
	for j := t.i + 1; j < int(in.nextD) && in.Rd != in.Rs1; j++ {
		at := &t.seq[j]
		if q, ok := pendingOf(at); ok && at.Rd == other && at.nextD == in.nextD && isRotation(p, q) {
			return true
		}
		if writesX(at) && at.Rd == in.Rs1 {
			break
		}
	}
	return false
}

// rotate emits an OR that makes a rotation of two pending shifts, and reports whether it is
// such a one.
func (t *translator) rotate(in *inst) bool {
	if in.Op != isa.OR || !isRotation(t.where[in.Rs1].shift, t.where[in.Rs2].shift) {
		return false
	}
	if t.shifts[in.Rd] > 0 {
		if !t.isHeld(in.Rd) || t.where[in.Rs1].shift.of == former {
			return false
		}
		t.part(in.Rd)
	}
	p := t.where[in.Rs1].shift
	if !p.right {
		p = t.where[in.Rs2].shift
	}
	if p.width == amd64.W64 {
		t.whole(p.of)
	}
	t.take(p.of)
	s := t.where[p.of].reg
	if s == amd64.RAX {
		s = t0
		t.MovRM(p.width, s, x(p.of))
	}
	d := t.dest(in.Rd, t0)
	t.Rorx(p.width, d, s, p.count)
	if p.width == amd64.W32 {
		t.writeLow(in.Rd, d)
	} else {
		t.write(in.Rd, d)
	}
	return true
}

// part makes the value of guest register r a former one for the shifts that are pending
// of it, since it is about to be written. It may compute them.
func (t *translator) part(r uint8) {
	if !t.isHeld(r) {
		t.computeOf(r)
		return
	}
	t.take(r)
	t.computeOf(former)
	p := &t.where[r]
	t.where[former] = place{reg: p.reg, word: p.word, low: p.low}
	t.holder[p.reg] = former
	p.reg, p.low = amd64.RAX, false
	t.moved |= 1<<r | 1<<former
	t.shifts[former], t.shifts[r] = t.shifts[r], 0
	for q := range t.where {
		if s := &t.where[q].shift; s.of == r {
			s.of = former
		}
	}
}

// forget has no shift pending for guest register r.
func (t *translator) forget(r uint8) {
	if s := &t.where[r].shift; s.of != 0 {
		t.shifts[s.of]--
		*s = pending{}
	}
}

// compute computes guest register r if a shift is pending for it, in a host register if
// it is read again and one can be had.
func (t *translator) compute(r uint8) {
	if t.where[r].shift.of == 0 {
		return
	}
	t.take(t.where[r].shift.of)
	d := t0
	if t.next[r] != never {
		if h, ok := t.room(r, t.next[r]); ok {
			d = h
		}
	}
	t.computeIn(d, r)
}

// computeOf computes all pending shifts of guest register s.
func (t *translator) computeOf(s uint8) {
	for r := uint8(1); r < 32 && t.shifts[s] > 0; r++ {
		if t.where[r].shift.of == s {
			t.compute(r)
		}
	}
	if s == former && t.isHeld(former) {
		t.drop(former)
	}
}

// computeAll computes all pending shifts, where the results must be at the borders of
// blocks.
func (t *translator) computeAll() {
	for m := t.moved; m != 0; m &= m - 1 {
		r := uint8(bits.TrailingZeros64(m))
		if r == former {
			return
		}
		switch own := pinned[r]; {
		case t.where[r].shift.of == 0:
		case own != amd64.RAX && t.holder[own] == 0:
			t.computeIn(own, r)
		default:
			t.computeIn(t0, r)
		}
	}
}

// computeIn computes guest register r, for which a shift is pending, in d. If that is t0,
// memory gets the result.
func (t *translator) computeIn(d amd64.Reg, r uint8) {
	p := t.where[r].shift
	if p.width == amd64.W64 {
		t.whole(p.of)
	}
	if t.isHeld(p.of) {
		t.MovRR(p.width, d, t.where[p.of].reg)
	} else {
		t.MovRM(p.width, d, x(p.of))
	}
	op := amd64.SHL
	if p.right {
		op = amd64.SHR
	}
	t.ShiftRI(op, p.width, d, p.count)
	t.forget(r)
	low, word := p.width == amd64.W32 && !p.right, p.width == amd64.W32
	if d != t0 {
		t.where[r] = place{stale: true, word: word, low: low}
		t.put(r, d)
		return
	}
	if low {
		t.MovSX(amd64.W32, d, d)
	}
	t.MovMR(amd64.W64, x(r), d)
	t.where[r] = place{word: word}
	t.moved |= 1 << r
}
