package inside

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// First steps of machines that were asked something before they have ever run.
//
// They are short, and bound by the processor and its caches: many at once only make all of
// them late, and a guest that has to share its processor takes more steps, for its clock
// ticks meanwhile. But two that have the same way to go, and go it side by side, have one
// another's code and pages in the cache. So machines are started in pairs, one for each
// processor, and the others when these have answered.

// together is how many machines are started at once, and take first steps, for each
// processor.
const together = 2

const (
	// firstTime is after which others need not wait for a machine any more, unless it is at its first
	// steps still: where the host gives it little time, all would be at them at once otherwise, and each
	// late by what the others need.
	firstTime = 20 * time.Millisecond
	// firstLooks is how often that is looked at.
	firstLooks = 10
	// firstSteps is how many instructions are more than first steps.
	firstSteps = 500_000
)

// beginners are the machines that take their first steps, and those that wait for it.
//
// Lock order: vm.starting and whatever starting takes, or the locks of a machine's sockets;
// beginners.mu.
type beginners struct {
	mu      sync.Mutex
	waiting []*beginner // guarded by mu
	busy    int         // machines that take their first steps; guarded by mu
}

// beginner is a machine that is to be started. It is vm.first until it has taken its first
// steps.
type beginner struct {
	of  *beginners
	vm  *vm
	run func() error // starts it; called once
	at  func() bool  // whether it is at its first steps

	streams []*stream // that it was asked on and has not answered; guarded by of.mu
	started bool      // guarded by of.mu
	over    bool      // guarded by of.mu
}

// add has the machine be started when it is its turn, unless nobody waits for that any
// more.
func (b *beginner) add() {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.over {
		return
	}
	b.of.waiting = append(b.of.waiting, b)
	b.of.nextLocked()
}

// nextLocked starts who may take first steps now. The caller holds a.mu.
func (a *beginners) nextLocked() {
	for len(a.waiting) > 0 {
		n := min(together, len(a.waiting))
		if a.busy+n > together*runtime.GOMAXPROCS(0) {
			return
		}
		for _, b := range a.waiting[:n] {
			b.started = true
			go b.start()
		}
		a.busy += n
		a.waiting = slices.Delete(a.waiting, 0, n)
	}
}

func (b *beginner) start() {
	if err := b.begin(); err != nil {
		b.of.mu.Lock()
		streams := slices.Clone(b.streams)
		b.of.mu.Unlock()
		for _, st := range streams {
			st.Ended(err)
		}
	}
	b.lookLater(firstLooks)
}

// lookLater has others wait for the machine for a while, and as long as it is at its first steps, but not
// for ever.
func (b *beginner) lookLater(looks int) {
	time.AfterFunc(firstTime, func() {
		if looks > 1 && b.waited() && b.at() {
			b.lookLater(looks - 1)
		} else {
			b.end()
		}
	})
}

// waited reports whether others wait for it.
func (b *beginner) waited() bool {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	return !b.over
}

// atFirstSteps reports whether the guest executes, or would if there was a processor for it, and has not
// executed much.
func (v *vm) atFirstSteps() bool {
	return v.machine.Busy() && v.machine.Counters().Instructions < firstSteps
}

// begin starts the machine, unless nobody waits for that any more.
func (b *beginner) begin() error {
	b.vm.starting.Lock()
	defer b.vm.starting.Unlock()
	b.of.mu.Lock()
	over := b.over
	b.of.mu.Unlock()
	if over {
		return nil
	}
	return b.run()
}

// asked notes that the machine is asked something on a stream.
func (b *beginner) asked(st *stream) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.streams = append(b.streams, st)
}

// answered notes that it has answered on a stream.
func (b *beginner) answered(st *stream) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.streams = slices.DeleteFunc(b.streams, func(s *stream) bool { return s == st }); len(b.streams) == 0 {
		b.endLocked()
	}
}

// begun has the machine wait for others no longer, nor them for it. One that was not
// started by its streams is not afterwards. The caller holds no lock.
func (v *vm) begun() {
	v.starting.Lock()
	defer v.starting.Unlock()
	if b := v.first.Load(); b != nil {
		b.end()
	}
}

// end has nobody wait for the machine any more.
func (b *beginner) end() {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.endLocked()
}

func (b *beginner) endLocked() {
	if b.over {
		return
	}
	b.over = true
	b.vm.first.Store(nil)
	if b.started {
		b.of.busy--
	} else {
		b.of.waiting = slices.DeleteFunc(b.of.waiting, func(w *beginner) bool { return w == b })
	}
	b.of.nextLocked()
}
