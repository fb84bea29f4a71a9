package soft

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// TestCostlyInstructionsEndSlices: a slice is over when it has taken its time, however
// few instructions that was; somebody else may be waiting.
func TestCostlyInstructionsEndSlices(t *testing.T) {
	repeat := func(in func(a *isa.Asm)) func(a *isa.Asm) {
		return func(a *isa.Asm) {
			a.Label("again")
			for range 100 {
				in(a)
			}
			a.J(0, "again")
		}
	}
	const target = ramBase + 0x1000
	for name, test := range map[string]struct {
		program func(a *isa.Asm)
		most    uint64 // instructions of a slice
		native  bool   // it is translating that costs
	}{
		"sfence.vma": {repeat(func(a *isa.Asm) { a.Op(isa.SFENCE_VMA) }), slice / 1000, false},
		"fence.i":    {repeat(func(a *isa.Asm) { a.Op(isa.FENCE_I) }), slice / 500, false},
		"satp": {func(a *isa.Asm) {
			a.LI(5, 1<<44) // an address space, translation off
			repeat(func(a *isa.Asm) { a.CSR(isa.CSRRW, 5, hart.CSRSatp, 5) })(a)
		}, slice, false},
		"code that changes": {func(a *isa.Asm) {
			a.LI(6, ramBase+0x800)
			a.Label("again")
			a.S(isa.SD, 0, 0, 6)
			a.Op(isa.FENCE_I)
			a.J(0, "again")
		}, slice / 500, false},
		"much code": {func(a *isa.Asm) {
			a.LI(9, target)
			a.LI(8, target+4*1000)
			a.Label("again")
			a.R(isa.ADD, 10, 9, 0)
			a.Label("next")
			a.I(isa.JALR, 1, 10, 0)
			a.I(isa.ADDI, 10, 10, 4)
			a.B(isa.BNE, 10, 8, "next")
			a.S(isa.SD, 0, 0xff0-4*1000, 8)
			a.Op(isa.FENCE_I)
			a.J(0, "again")
			for a.PC() < target {
				a.Raw32(0)
			}
			for range 1000 {
				a.B(isa.BNE, 9, 0, "return")
			}
			a.Label("return")
			a.I(isa.JALR, 0, 1, 0)
		}, slice / 20, true},
	} {
		t.Run(name, func(t *testing.T) {
			if executor, _ := Executor(); test.native && executor != NativeCode {
				t.Skip("nothing is translated here")
			}
			vm := newGuest(t, New(64), test.program)
			v := vm.vcpus[0]
			context := vm.engine.pool.get(v)
			v.attach(&context)
			for range 10 {
				before := v.hart.Retired
				if _, _, err := v.slice(context.cpu); err != nil {
					t.Fatal(err)
				}
				switch n := v.hart.Retired - before; {
				case n == 0:
					t.Error("a slice executes nothing")
				case n > test.most:
					t.Errorf("a slice is %d instructions, want %d at most", n, test.most)
				}
			}
			vm.engine.pool.put(context, true)
		})
	}
}

// TestContextOfAPanicIsNotLentAgain: what a panic has left half-way goes on in nobody.
func TestContextOfAPanicIsNotLentAgain(t *testing.T) {
	vm := newGuest(t, New(64), spin)
	pool := &vm.engine.pool
	v := vm.vcpus[0]
	v.attend = func() bool { return false }
	vm.posts.Add(func() { panic("half-way") })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		v.execute()
	}()
	if pool.made != 0 || len(pool.idle) != 0 {
		t.Errorf("%d contexts are made, and %d wait", pool.made, len(pool.idle))
	}
	if !v.permit.Enter(v.wake, v.attend) {
		t.Fatal("no permit")
	}
	v.permit.Leave()
}
