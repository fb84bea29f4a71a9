package soft

import (
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// Machines that begin with the same memory begin with the same steps. The first over a
// stack that execute have their misses recorded, for the others; see interp.Workset. And
// as long as several are at it, they take turns, so that the code and the pages which one
// has brought into the processor's cache serve the next, too. It is a matter of speed only.
// Machines with several vCPUs do without.

// lesson is the record of a machine.
type lesson struct {
	stack   *page.Stack
	touches []mmu.Touch
	begun   uint64 // hart.Retired
}

// A lesson takes in a first contact, which is some 300,000 instructions. It ends when
// the machine is stopped, for whatever reason, while its guest has nothing to do, and there have been
// many; or when there have been more than a first contact can be.
const (
	enough = 1_000_000
	many   = 150_000
)

// contact is how many instructions a first contact usually is, or few more.
const contact = 400_000

// first precedes all else that a vCPU does: it begins a lesson, or finds what others have
// taught, and has the vCPU take turns.
func (v *vcpu) first() {
	if v.begun {
		return
	}
	v.begun = true
	stack := v.vm.memory.Untouched()
	if stack == nil || v.view.Shared() {
		return
	}
	v.permit.TakeTurns(true)
	v.turns = v.hart.Retired + contact
	cache := v.vm.engine.code
	set, wanted := cache.Workset(stack)
	if wanted {
		v.lesson = &lesson{stack, interp.Touches(), v.hart.Retired}
		return
	}
	v.ahead = set
}

// lookAhead makes use of what others have taught, if that is still to be done: not before there
// is a permit to execute, so that what was copied is in the processor's cache then. While others had
// their turns it would leave that, and be packed again.
func (v *vcpu) lookAhead(cpu *interp.CPU) {
	if v.ahead == nil {
		return
	}
	v.enter()
	defer v.leave()
	cpu.LookAhead(v.vm.memory, v.ahead)
	v.ahead = nil
}

// endLesson ends a lesson, if there is one, of at least so many instructions.
func (v *vcpu) endLesson(atLeast uint64) {
	if l := v.lesson; l != nil && v.hart.Retired-l.begun >= atLeast {
		touches := l.touches
		v.closeLesson()
		if !v.vm.memory.Over(l.stack) {
			touches = nil // what it would tell is of pages in other places
		}
		v.vm.engine.code.Learn(l.stack, v.vm.memory, touches)
	}
}

// endTurns has the vCPU take turns no longer when it has got through a first contact.
func (v *vcpu) endTurns() {
	if v.turns > 0 && v.hart.Retired >= v.turns {
		v.turns = 0
		v.permit.TakeTurns(false)
	}
}

// giveUp ends a lesson, if there is one, for another machine to begin one.
func (v *vcpu) giveUp() {
	if l := v.lesson; l != nil {
		v.closeLesson()
		v.vm.engine.code.Learn(l.stack, v.vm.memory, nil)
	}
}

func (v *vcpu) closeLesson() {
	v.lesson.touches = nil // whoever still records finds no room
	v.lesson = nil
}
