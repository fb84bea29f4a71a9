//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// Host registers with a fixed role while native code runs. The rest of them
// holds guest registers; see pinned.
const (
	t0 = amd64.RAX // scratch
	t1 = amd64.RDX // scratch, or a guest register inside of a block
	gp = amd64.RCX // host address of the active group, else as t1
	hp = amd64.RBX // the hart, plus bias
	cx = amd64.RBP // the Context
	nr = amd64.R15 // instructions that may still be executed
)

// bias lets one-byte displacements reach all integer registers.
const bias = 128

// pinned are the guest registers that live in host registers at the borders of
// blocks, everywhere. They are those that compilers use most, and that compressed
// instructions can name.
var pinned = [32]amd64.Reg{
	2:  amd64.R14,
	8:  amd64.R12,
	9:  amd64.R13,
	10: amd64.RSI,
	11: amd64.RDI,
	12: amd64.R8,
	13: amd64.R9,
	14: amd64.R10,
	15: amd64.R11,
}

// isPinned reports whether guest register r lives in a host register at the borders
// of blocks. (RAX, the zero value, never holds one.)
func isPinned(r uint8) bool { return pinned[r&31] != amd64.RAX }

// x is where a guest register lies in memory.
func x(r uint8) amd64.Mem { return amd64.At(hp, 8*int32(r)-bias) }

// read returns a host register with the value of guest register r, scratch if
// it has to be loaded.
func (t *translator) read(r uint8, scratch amd64.Reg) amd64.Reg {
	t.whole(r)
	return t.half(r, scratch)
}

// half is read for who needs only the lower half.
func (t *translator) half(r uint8, scratch amd64.Reg) amd64.Reg {
	switch {
	case r == 0:
		t.MovRI(scratch, 0)
		return scratch
	case t.isHeld(r) || t.fetch(r):
		return t.where[r].reg
	}
	t.MovRM(amd64.W64, scratch, x(r))
	return scratch
}

// readInto moves the value of guest register r to a host register.
func (t *translator) readInto(dst amd64.Reg, r uint8) {
	t.whole(r)
	t.halfInto(dst, r)
}

// halfInto is readInto for who needs only the lower half.
func (t *translator) halfInto(dst amd64.Reg, r uint8) {
	if s := t.half(r, dst); s != dst {
		t.MovRR(amd64.W64, dst, s)
	}
}

// with applies op to dst and guest register r.
func (t *translator) with(op amd64.ALU, w amd64.Width, dst amd64.Reg, r uint8) {
	if w == amd64.W64 {
		t.whole(r)
	}
	switch {
	case r == 0:
		t.ALURI(op, w, dst, 0)
	case t.isHeld(r) || t.fetch(r):
		t.ALURR(op, w, dst, t.where[r].reg)
	default:
		t.ALURM(op, w, dst, x(r))
	}
}

// sum leaves guest register r plus imm in dst.
func (t *translator) sum(dst amd64.Reg, r uint8, imm int32) {
	t.whole(r)
	switch {
	case imm != 0 && (t.isHeld(r) || t.fetch(r)) && t.where[r].reg != dst:
		t.Lea(amd64.W64, dst, amd64.At(t.where[r].reg, imm))
	default:
		t.readInto(dst, r)
		if imm != 0 {
			t.ALURI(amd64.ADD, amd64.W64, dst, imm)
			t.flagged(dst)
		}
	}
}

// sum32 is sum for the lower half.
func (t *translator) sum32(dst amd64.Reg, r uint8, imm int32) {
	switch {
	case r == 0:
		t.MovRI(dst, int64(uint32(imm)))
	case (t.isHeld(r) || t.fetch(r)) && t.where[r].reg == dst && imm != 0:
		t.ALURI(amd64.ADD, amd64.W32, dst, imm)
		t.flagged(dst)
	case t.isHeld(r) && imm != 0:
		t.Lea(amd64.W32, dst, amd64.At(t.where[r].reg, imm))
	case t.isHeld(r):
		t.MovRR(amd64.W32, dst, t.where[r].reg)
	default:
		t.MovRM(amd64.W32, dst, x(r))
		if imm != 0 {
			t.ALURI(amd64.ADD, amd64.W32, dst, imm)
		}
	}
}

// compare sets the flags for guest registers a and b.
func (t *translator) compare(a, b uint8) {
	w := amd64.W64
	if t.isWord(a) && t.isWord(b) && (t.where[a].low || t.where[b].low) {
		w = amd64.W32 // the order is the same
	} else {
		t.whole(a)
		t.whole(b)
	}
	switch {
	case b == 0 && t.isHeld(a):
		t.TestRR(w, t.where[a].reg, t.where[a].reg)
	case b == 0 && a != 0:
		t.ALUMI(amd64.CMP, w, x(a), 0)
	case !t.isHeld(a) && a != 0 && t.isHeld(b):
		t.ALUMR(amd64.CMP, w, x(a), t.where[b].reg)
	default:
		t.with(amd64.CMP, w, t.half(a, t0), b)
	}
}

// flags is what the host's flags say.
type flags struct {
	of amd64.Reg // they are those of this host register's value against zero, but for carry and overflow
	at int       // if no instruction has been emitted since
}

// flagged notes that the instruction emitted last has set the flags by its result in d.
func (t *translator) flagged(d amd64.Reg) { t.flags = flags{d, t.Len()} }

// compareFor is compare for a condition, and returns what that is in terms of the flags.
// After an instruction that has computed a, there is nothing to compare with zero.
func (t *translator) compareFor(c amd64.Cond, a, b uint8) amd64.Cond {
	if b == 0 && t.isHeld(a) && t.flags == (flags{t.where[a].reg, t.Len()}) {
		switch c {
		case amd64.E, amd64.NE:
			return c
		case amd64.L:
			return amd64.S
		case amd64.GE:
			return amd64.NS
		}
	}
	t.compare(a, b)
	return c
}
