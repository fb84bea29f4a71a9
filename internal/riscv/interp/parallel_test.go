package interp

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// second gives the rig's machine a second hart, and returns it attached.
func (r *rig) second(pc uint64) (*CPU, *hart.Hart) {
	r.m.Memory.Share(2, func(fn func()) { fn() })
	r.c.Attach(r.m, r.h)
	h := hart.New(1, func() uint64 { return 0 })
	h.Start(pc, 0)
	c := new(CPU)
	c.Attach(r.m, h)
	return c, h
}

// TestBlocked: an instruction that would move a page which another hart may hold is
// not executed, and executes whole after that.
func TestBlocked(t *testing.T) {
	const page = rigData + 0x8000 // never written
	for name, test := range map[string]struct {
		program func(a *isa.Asm)
		word    uint64
		a1      uint64
	}{
		"store": {func(a *isa.Asm) { a.S(isa.SD, a0, 8, s0) }, 7, 0},
		"store over two pages": {func(a *isa.Asm) {
			a.LI(t0, 0x1000)
			a.R(isa.SUB, t0, s0, t0)
			a.S(isa.SB, a0, 0, t0) // the page before may be written
			a.S(isa.SD, a0, -4, s0)
			a.S(isa.SD, a0, 8, s0)
		}, 7, 0},
		"amo": {func(a *isa.Asm) {
			a.I(isa.ADDI, s0, s0, 8)
			a.R(isa.AMOADD_D, a1, s0, a0)
			a.R(isa.AMOADD_D, a1, s0, a0)
		}, 14, 7},
		"sc": {func(a *isa.Asm) {
			a.I(isa.ADDI, s0, s0, 8)
			a.R(isa.LR_D, t0, s0, 0)
			a.R(isa.SC_D, a1, s0, a0)
		}, 7, 0},
		"cbo.zero": {func(a *isa.Asm) {
			a.Emit(isa.Inst{Op: isa.CBO_ZERO, Rs1: s0})
			a.S(isa.SD, a0, 8, s0)
		}, 7, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(a *isa.Asm) {
				a.LI(s0, page)
				a.LI(a0, 7)
				test.program(a)
			})
			r.h.Start(rigCode, 0)
			other, h := r.second(rigVector + 0x100)
			b := isa.NewAsm(rigVector + 0x100)
			b.LI(t0, page)
			b.I(isa.LD, t1, t0, 8)
			b.Op(isa.ECALL)
			b.I(isa.LD, t1, t0, 8)
			b.Op(isa.ECALL)
			r.put(rigVector+0x100, b.Bytes())
			if ev := other.Run(100); ev != Call {
				t.Fatalf("the other hart: event %d", ev)
			}

			blocked := 0
			for {
				r.c.Sync()
				ev := r.c.Run(100)
				if ev == Call {
					break
				}
				if ev != Blocked {
					t.Fatalf("event %d at %#x", ev, r.h.PC)
				}
				if blocked++; blocked > 2 {
					t.Fatal("blocked for ever")
				}
				if got := r.get64(page + 8); got != 0 {
					t.Errorf("blocked, but memory has %d", got)
				}
				if err := r.c.Unblock(); err != nil {
					t.Fatal(err)
				}
			}
			if blocked == 0 {
				t.Error("was not blocked")
			}
			if got := r.get64(page + 8); got != test.word || r.h.X[a1] != test.a1 {
				t.Errorf("memory has %d and a1 %d, want %d and %d", got, r.h.X[a1], test.word, test.a1)
			}
			other.Sync()
			if ev := other.Run(100); ev != Call || h.X[t1] != test.word {
				t.Errorf("the other hart sees %d, want %d (event %d)", h.X[t1], test.word, ev)
			}
		})
	}
}

// TestPause: PAUSE ends Run where there are several harts, and does nothing else.
func TestPause(t *testing.T) {
	r := newRig(t, func(a *isa.Asm) {
		a.LI(a0, 1)
		a.Emit(isa.Fence(isa.FenceW, 0))
		a.LI(a0, 2)
	})
	r.mustEnd()
	r.h.Start(rigCode, 0)
	r.second(rigCode)
	if ev := r.c.Run(100); ev != Pause || r.h.X[a0] != 1 || r.h.PC != rigCode+8 {
		t.Errorf("event %d, a0 %d, PC %#x", ev, r.h.X[a0], r.h.PC)
	}
	if ev := r.c.Run(100); ev != Call || r.h.X[a0] != 2 {
		t.Errorf("event %d, a0 %d", ev, r.h.X[a0])
	}
}

// TestFences: which fences the host has to do something for.
func TestFences(t *testing.T) {
	const r, w, i, o = isa.FenceR, isa.FenceW, isa.FenceI, isa.FenceO
	for _, test := range []struct {
		before, after int32
		want          code
	}{
		{r | w, r | w, opFence}, {w, r, opFence}, {i | o | r | w, i | o | r | w, opFence},
		{r, r | w, opNop}, {r | w, w, opNop}, {w, w, opNop}, {r, r, opNop}, {w, o, opNop}, {i, r, opNop}, {0, 0, opNop},
		{w, 0, opPause},
	} {
		if !strongOrder && test.want == opNop {
			test.want = opFence
		}
		if got := lower(isa.Decode(isa.Encode(isa.Fence(test.before, test.after)))); got.code != test.want {
			t.Errorf("fence %04b, %04b is lowered to %d, want %d", test.before, test.after, got.code, test.want)
		}
	}
}
