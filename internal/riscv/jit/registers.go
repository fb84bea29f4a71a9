//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// Host registers with a fixed role while native code runs. The rest of them
// holds guest registers; see pinned.
const (
	t0 = amd64.RAX // scratch
	t1 = amd64.RDX // scratch
	gp = amd64.RCX // host address of the active group, else scratch
	hp = amd64.RBX // the hart, plus bias
	cx = amd64.RBP // the Context
	nr = amd64.R15 // instructions that may still be executed
)

// bias lets one-byte displacements reach all integer registers.
const bias = 128

// pinned are the guest registers that live in host registers, everywhere: code
// thus has no state at the borders of blocks. They are those that compilers use
// most, and that compressed instructions can name.
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

// isPinned reports whether guest register r lives in a host register. (RAX, the
// zero value, never holds one.)
func isPinned(r uint8) bool { return pinned[r&31] != amd64.RAX }

// x is where a guest register lies in memory.
func x(r uint8) amd64.Mem { return amd64.At(hp, 8*int32(r)-bias) }

// read returns a host register with the value of guest register r, scratch if
// it has to be loaded.
func (t *translator) read(r uint8, scratch amd64.Reg) amd64.Reg {
	switch {
	case r == 0:
		t.MovRI(scratch, 0)
	case isPinned(r):
		return pinned[r]
	default:
		t.MovRM(amd64.W64, scratch, x(r))
	}
	return scratch
}

// readInto moves the value of guest register r to a host register.
func (t *translator) readInto(dst amd64.Reg, r uint8) {
	if s := t.read(r, dst); s != dst {
		t.MovRR(amd64.W64, dst, s)
	}
}

// dest returns the host register to compute guest register r in.
func dest(r uint8, scratch amd64.Reg) amd64.Reg {
	if isPinned(r) {
		return pinned[r]
	}
	return scratch
}

// write makes s the value of guest register r.
func (t *translator) write(r uint8, s amd64.Reg) {
	switch {
	case r == 0 || isPinned(r) && pinned[r] == s:
	case isPinned(r):
		t.MovRR(amd64.W64, pinned[r], s)
	default:
		t.MovMR(amd64.W64, x(r), s)
	}
}

// with applies op to dst and guest register r.
func (t *translator) with(op amd64.ALU, w amd64.Width, dst amd64.Reg, r uint8) {
	switch {
	case r == 0:
		t.ALURI(op, w, dst, 0)
	case isPinned(r):
		t.ALURR(op, w, dst, pinned[r])
	default:
		t.ALURM(op, w, dst, x(r))
	}
}

// sum leaves guest register r plus imm in dst.
func (t *translator) sum(dst amd64.Reg, r uint8, imm int32) {
	switch {
	case isPinned(r) && imm != 0:
		t.Lea(amd64.W64, dst, amd64.At(pinned[r], imm))
	default:
		t.readInto(dst, r)
		if imm != 0 {
			t.ALURI(amd64.ADD, amd64.W64, dst, imm)
		}
	}
}

// compare sets the flags for guest registers a and b.
func (t *translator) compare(a, b uint8) {
	switch {
	case b == 0 && isPinned(a):
		t.TestRR(amd64.W64, pinned[a], pinned[a])
	case b == 0 && a != 0:
		t.ALUMI(amd64.CMP, amd64.W64, x(a), 0)
	case !isPinned(a) && a != 0 && isPinned(b):
		t.ALUMR(amd64.CMP, amd64.W64, x(a), pinned[b])
	default:
		t.with(amd64.CMP, amd64.W64, t.read(a, t0), b)
	}
}
