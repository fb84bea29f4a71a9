//go:build linux && amd64

package jit

import (
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// TestLoopCarries: a loop that computes is done again without loading what it has in
// registers; one that anything can come between is done as ever.
func TestLoopCarries(t *testing.T) {
	for name, c := range map[string]struct {
		program func(a *isa.Asm)
		carried [len(visitors)]uint8
	}{
		"a jump": {count, [...]uint8{20, 0}},
		"a branch": {func(a *isa.Asm) {
			a.Label("loop")
			a.R(isa.ADD, 20, 20, 21)
			a.I(isa.ADDI, 10, 10, -1)
			a.B(isa.BNE, 10, 0, "loop")
		}, [...]uint8{20, 21}},
		"branches out of it": {func(a *isa.Asm) {
			a.Label("loop")
			a.B(isa.BEQ, 20, 10, "out")
			a.R(isa.XOR, 10, 10, 18)
			a.B(isa.BEQ, 10, 11, "out")
			a.I(isa.ADDI, 20, 20, 1)
			a.J(0, "loop")
			a.Label("out")
		}, [...]uint8{20, 18}},
		"what it writes first": {func(a *isa.Asm) {
			a.Label("loop")
			a.R(isa.ADD, 5, 20, 10)
			a.R(isa.XOR, 10, 10, 5)
			a.J(0, "loop")
		}, [...]uint8{20, 0}},
		"an access": {func(a *isa.Asm) {
			a.Label("loop")
			a.I(isa.LD, 10, 11, 0)
			a.R(isa.ADD, 20, 20, 10)
			a.J(0, "loop")
		}, [...]uint8{0, 0}},
		"a division": {func(a *isa.Asm) {
			a.Label("loop")
			a.R(isa.DIV, 20, 20, 10)
			a.J(0, "loop")
		}, [...]uint8{0, 0}},
		"a way in": {func(a *isa.Asm) {
			a.Label("loop")
			a.B(isa.BEQ, 10, 0, "in")
			a.I(isa.ADDI, 20, 20, 1)
			a.Label("in")
			a.I(isa.ADDI, 20, 20, 2)
			a.J(0, "loop")
		}, [...]uint8{0, 0}},
		"no loop": {func(a *isa.Asm) {
			a.R(isa.ADD, 20, 20, 21)
			a.B(isa.BEQ, 10, 0, "end")
			a.R(isa.ADD, 20, 20, 21)
			a.Label("end")
		}, [...]uint8{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			tr := &newFixture(t, NewCache(0), func(a *isa.Asm) {
				c.program(a)
				a.Op(isa.ECALL)
			}).cache.tr
			if tr.loop.carried != c.carried {
				t.Errorf("it carries %d, want %d", tr.loop.carried, c.carried)
			}
		})
	}
}

// TestLoopLoadsOnce: the jump at the end of a loop leads behind the loads at its start.
func TestLoopLoadsOnce(t *testing.T) {
	f := newFixture(t, NewCache(0), count)
	tr, a := &f.cache.tr, f.cache.arena.Load()
	start := f.code.entry(0)
	again := int(start) + tr.Offset(tr.loop.again) - tr.Offset(tr.seq[0].label)
	const short = 0xEB
	jump := again + slices.Index(a.writable[again:a.used], short)
	if to := jump + 2 + int(int8(a.writable[jump+1])); jump < again || to != again || again == int(start) {
		t.Errorf("the loop at %#x loads until %#x, and begins again at %#x", start, again, to)
	}
}
