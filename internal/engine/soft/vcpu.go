package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft/sched"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/sbi"
)

// slice is how many instructions execute between looks at the outside world:
// some 100 microseconds.
const slice = 20_000

// chunk is how many of them execute, where there are several vCPUs, between looks
// at whether another one wants this one to stop: some 10 microseconds of native
// code, some 30 of interpreted.
const chunk = 8_000

// vcpu is one hart and what comes to it from elsewhere.
type vcpu struct {
	vm      *vm
	hart    *hart.Hart     // of the goroutine in Run; of whoever has the machine paused
	machine interp.Machine // as this hart sees it
	view    *memory.View   // executing while it holds vm.world for reading
	permit  *sched.VCPU    // of the goroutine in Run
	timer   *time.Timer    // of the goroutine in Run

	begun     bool            // it has run; of the goroutine in Run
	seeds     seeds           // of the goroutine in Run
	turns     uint64          // hart.Retired up to which it takes turns, or 0; of the goroutine in Run
	lesson    *lesson         // nil: there is none under way; of the goroutine in Run
	ahead     *interp.Workset // what to make ahead, or nil; of the goroutine in Run
	restarted bool            // the hart is not as its context knows it; of the goroutine in Run

	attention atomic.Bool   // somebody has something for it: end the slice
	wake      chan struct{} // a token: likewise
	attend    func() bool   // immutable: calledAway

	kicked   atomic.Bool
	external atomic.Bool           // level of the interrupt controller's output
	software atomic.Bool           // a software interrupt was sent
	start    atomic.Pointer[start] // it was asked to start

	fenced  atomic.Bool // fences has something
	fenceMu sync.Mutex
	fences  []sbi.Fence // guarded by fenceMu; from other harts, not yet executed

	instructions atomic.Uint64
	asleep       atomic.Uint64 // time up to which it waits, if nothing comes, in ticks; 0: it does not wait
}

// start is a request to a stopped hart.
type start struct{ entry, opaque uint64 }

func newVCPU(m *vm, h *hart.Hart) *vcpu {
	v := &vcpu{vm: m, hart: h, view: m.memory.View(h.ID), wake: make(chan struct{}, 1)}
	v.permit = m.group.VCPU()
	v.attend = v.calledAway
	v.machine = interp.Machine{Memory: m.memory, Bus: v, Codes: m.codes}
	if m.seeds != nil {
		h.Seed = v.seed
	}
	return v
}

// notify wakes the vCPU if it waits, and ends its slice if it executes.
func (v *vcpu) notify() {
	v.attention.Store(true)
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Kick implements engine.VCPU.
func (v *vcpu) Kick() {
	v.kicked.Store(true)
	v.notify()
}

// Counters implements engine.VCPU. What the vCPUs of a machine do together counts
// as the first one's.
func (v *vcpu) Counters() engine.Counters {
	c := engine.Counters{Instructions: v.instructions.Load()}
	if v.hart.ID == 0 {
		codes := v.vm.codes
		c.PagesDecoded, c.PagesInherited, c.Translated = codes.Decoded.Load(), codes.Inherited.Load(), codes.Translated.Load()
		c.Busy = v.vm.group.Used()
	}
	return c
}

// Run implements engine.VCPU.
func (v *vcpu) Run() (exit engine.Exit, err error) {
	defer recoverAlloc(&err)
	v.vm.begin()
	v.first()
	for {
		if v.kicked.Swap(false) {
			v.ahead = nil // memory may be sealed or packed meanwhile
			if v.hart.Power == hart.Waiting {
				v.endLesson(many)
			}
			return engine.Kicked, nil
		}
		deadline, idle := v.prepare()
		if idle {
			v.park(deadline)
			continue
		}
		if out, err := v.execute(); out != sbi.Continue || err != nil {
			return exits[out], err
		}
	}
}

// recoverAlloc turns the panic of a page look-up that found no memory into an
// error. The instruction that met it has changed nothing yet.
func recoverAlloc(err *error) {
	switch r := recover().(type) {
	case nil:
	case *page.AllocError:
		*err = r
	default:
		panic(r)
	}
}

var exits = [...]engine.Exit{sbi.Off: engine.Off, sbi.Reset: engine.Reset, sbi.Failed: engine.Failed}

// prepare runs posted functions and tells whether the hart has nothing to do,
// and if so when its timer fires, in ticks.
func (v *vcpu) prepare() (deadline uint64, idle bool) {
	v.vm.runPosts()
	v.restart()
	v.refresh()
	switch v.hart.Power {
	case hart.Waiting:
		return v.hart.Deadline(), true
	case hart.Stopped:
		return hart.NeverTimer, true
	}
	return 0, false
}

// restart starts the hart, which is stopped, if it was asked to.
func (v *vcpu) restart() {
	if s := v.start.Swap(nil); s != nil {
		v.hart.Start(s.entry, s.opaque)
		v.restarted = true
	}
}

// refresh brings to the hart what has come for it, and ends its wait if an
// interrupt is pending.
func (v *vcpu) refresh() {
	h := v.hart
	if v.software.Load() {
		v.software.Store(false)
		h.SetSoftware(true)
	}
	h.SetExternal(v.external.Load())
	if h.TimerArmed() {
		h.UpdateTimer(h.Time())
	}
	if h.Power == hart.Waiting && h.Wake() {
		h.Power = hart.Started
	}
}

// park blocks until something may have changed or the deadline has passed.
func (v *vcpu) park(deadline uint64) {
	v.asleep.Store(deadline)
	defer v.asleep.Store(0)
	if deadline == hart.NeverTimer {
		<-v.wake
		return
	}
	now := v.vm.ticks()
	if now >= deadline {
		return
	}
	d := span(deadline - now)
	if v.timer == nil {
		v.timer = time.NewTimer(d)
	} else {
		v.timer.Reset(d)
	}
	select {
	case <-v.wake:
		v.timer.Stop()
	case <-v.timer.C:
	}
}

// calledAway is what a vCPU that waits for a permit does when somebody has something
// for it. It tells whether that was a kick.
func (v *vcpu) calledAway() bool {
	v.vm.runPosts()
	return v.kicked.Load()
}

// execute runs guest code until the hart has nothing to do, was kicked, ended the
// machine, or has to make room for others. It returns sbi.Continue unless the machine
// ended. It is apart from Run so that a parked goroutine does not keep the run loop's
// stack.
//
//go:noinline
func (v *vcpu) execute() (sbi.Outcome, error) {
	m := v.vm
	if !v.permit.Enter(v.wake, v.attend) {
		return sbi.Continue, nil
	}
	defer v.permit.Leave()
	context, whole := m.engine.pool.get(v), false
	defer func() { m.engine.pool.put(context, whole) }()
	out, err := v.slices(&context)
	whole = true
	return out, err
}

// slices is execute with a permit and a context.
func (v *vcpu) slices(context *lent) (sbi.Outcome, error) {
	defer v.leave()
	if context.owner != v || v.restarted {
		v.attach(context)
	}
	v.lookAhead(context.cpu)
	for {
		spins, out, err := v.slice(context.cpu)
		if out != sbi.Continue || err != nil {
			return out, err
		}
		v.endLesson(enough)
		v.endTurns()
		if v.hart.Power != hart.Started || v.kicked.Load() || v.permit.Over(spins) {
			return sbi.Continue, nil
		}
	}
}

// attach makes a context serve v.
func (v *vcpu) attach(context *lent) {
	context.cpu.Attach(&v.machine, v.hart)
	context.owner, v.restarted = v, false
	if v.lesson != nil {
		context.cpu.Record(&v.lesson.touches)
	}
}

// enter and leave begin and end a slice.
func (v *vcpu) enter() {
	v.vm.world.RLock()
	v.view.Enter()
}

func (v *vcpu) leave() {
	if v.view.Executing() {
		v.view.Leave()
		v.vm.world.RUnlock()
	}
}

// slice executes a slice and what it asks for. spins tells that the hart has
// nothing better to do than wait for another one.
func (v *vcpu) slice(cpu *interp.CPU) (spins bool, _ sbi.Outcome, _ error) {
	v.attention.Store(false)
	if v.kicked.Load() {
		return false, sbi.Continue, nil
	}
	if v.vm.posts.Pending() {
		v.vm.runPosts()
		v.refresh()
	}
	before := v.hart.Retired
	event := v.run(cpu)
	v.instructions.Add(v.hart.Retired - before)

	switch event {
	case interp.Wait:
		v.hart.Power = hart.Waiting
	case interp.Call:
		if out := v.call(); out != sbi.Continue {
			return false, out, nil
		}
	case interp.Blocked:
		var err error
		v.vm.exclusively(func() { err = cpu.Unblock() })
		if err != nil {
			return false, sbi.Continue, v.failure(err)
		}
	case interp.Failed:
		return false, sbi.Continue, v.failure(cpu.Err())
	}
	v.refresh()
	return event == interp.Pause, sbi.Continue, nil
}

func (v *vcpu) failure(err error) error {
	return fmt.Errorf("executing at %#x: %w", v.hart.PC, err)
}

// run executes guest code, at first what others have for this hart's caches.
func (v *vcpu) run(cpu *interp.CPU) (event interp.Event) {
	v.enter()
	cpu.Sync()
	if v.fenced.Load() {
		for _, f := range v.takeFences() {
			applyFence(cpu, f)
		}
	}
	// A device access leaves the world, and is the last thing in a chunk.
	for n := 0; n < slice && event == interp.Budget && v.view.Executing(); n += v.vm.chunk {
		if n > 0 && v.attention.Load() {
			break
		}
		event = cpu.Run(v.vm.chunk)
	}
	v.leave()
	return event
}

// call answers the firmware call that the hart has made. It returns sbi.Continue
// unless the machine ends.
func (v *vcpu) call() (out sbi.Outcome) {
	v.vm.atDevices(func() { out = v.vm.sbi.Call(v.hart) })
	switch out {
	case sbi.Wait:
		v.hart.Power = hart.Waiting
		return sbi.Continue
	case sbi.Stop:
		v.hart.Power = hart.Stopped
		return sbi.Continue
	}
	return out
}

// Read and Write are the hart's way to devices (interp.Bus).

func (v *vcpu) Read(gpa uint64, width int) (value uint64, ok bool) {
	v.leave()
	v.vm.atDevices(func() { value, ok = v.vm.bus.Read(gpa, width) })
	return value, ok
}

func (v *vcpu) Write(gpa uint64, width int, value uint64) (ok bool) {
	v.leave()
	v.vm.atDevices(func() { ok = v.vm.bus.Write(gpa, width, value) })
	return ok
}

// maxFences bounds what is remembered for a hart that does not run.
const maxFences = 32

func (v *vcpu) addFence(f sbi.Fence) {
	v.fenceMu.Lock()
	defer v.fenceMu.Unlock()
	if len(v.fences) >= maxFences {
		v.fences = v.fences[:0]
		v.fences = append(v.fences, sbi.Fence{}, sbi.Fence{Code: true}) // everything
	} else {
		v.fences = append(v.fences, f)
	}
	v.fenced.Store(true)
}

func (v *vcpu) takeFences() []sbi.Fence {
	v.fenceMu.Lock()
	defer v.fenceMu.Unlock()
	fences := v.fences
	v.fences = nil
	v.fenced.Store(false)
	return fences
}

// maxFencePages is how many pages are flushed one by one.
const maxFencePages = 64

func applyFence(cpu *interp.CPU, f sbi.Fence) {
	const pageSize = 4096
	switch {
	case f.Code:
		cpu.FlushCode()
	case f.Size == 0 && f.HasASID:
		cpu.FlushSpace(f.ASID)
	case f.Size == 0 || f.Size > maxFencePages*pageSize:
		cpu.FlushAll()
	default:
		first, last := f.Start/pageSize, (f.Start+f.Size-1)/pageSize // the sum of a range that ends with the last address is 0
		for n := first; n <= last; n++ {
			cpu.FlushPage(n * pageSize)
		}
	}
}
