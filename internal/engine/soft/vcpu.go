package soft

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/sbi"
)

// slice is how many instructions execute between looks at the outside world:
// some 100 microseconds.
const slice = 20_000

// share is how many slices a vCPU executes before it makes room for another that
// waits for a context: some milliseconds.
const share = 50

// vcpu is one hart and what wakes it.
type vcpu struct {
	vm   *vm
	hart *hart.Hart // guarded by vm.turn

	fences []sbi.Fence // guarded by vm.turn; from other harts, not yet executed
	timer  *time.Timer // of the goroutine in Run

	wake     chan struct{} // a token: something may have changed
	kicked   atomic.Bool
	external atomic.Bool // level of the interrupt controller's output

	instructions, decoded, inherited atomic.Uint64
}

// notify wakes the vCPU if it waits.
func (v *vcpu) notify() {
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

// Counters implements engine.VCPU.
func (v *vcpu) Counters() engine.Counters {
	return engine.Counters{
		Instructions:   v.instructions.Load(),
		PagesDecoded:   v.decoded.Load(),
		PagesInherited: v.inherited.Load(),
	}
}

// Run implements engine.VCPU.
func (v *vcpu) Run() (exit engine.Exit, err error) {
	defer recoverAlloc(&err)
	v.enter()
	defer v.leave()
	for {
		if v.kicked.Swap(false) {
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

// enter and leave notice whether pages moved while no vCPU ran: memory was
// sealed or packed, and what was decoded from its old pages is of no use.
func (v *vcpu) enter() {
	m := v.vm
	m.turn.Lock()
	defer m.turn.Unlock()
	if m.inRun == 0 && m.machine.Memory.Moves() != m.moves {
		m.machine.Codes.Forget()
	}
	m.inRun++
}

func (v *vcpu) leave() {
	m := v.vm
	m.turn.Lock()
	defer m.turn.Unlock()
	m.inRun--
	m.moves = m.machine.Memory.Moves()
}

var exits = [...]engine.Exit{sbi.Off: engine.Off, sbi.Reset: engine.Reset, sbi.Failed: engine.Failed}

// prepare runs posted functions and tells whether the hart has nothing to do,
// and if so when its timer fires, in ticks.
func (v *vcpu) prepare() (deadline uint64, idle bool) {
	m := v.vm
	m.turn.Lock()
	defer m.turn.Unlock()
	m.runPosts()
	v.refresh()
	switch v.hart.Power {
	case hart.Waiting:
		return v.hart.Deadline(), true
	case hart.Stopped:
		return hart.NeverTimer, true
	}
	return 0, false
}

// refresh brings the hart's interrupt inputs up to date, and ends its wait if
// one is pending. The caller holds the turn.
func (v *vcpu) refresh() {
	h := v.hart
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
	if deadline == hart.NeverTimer {
		<-v.wake
		return
	}
	now := v.vm.ticks()
	if now >= deadline {
		return
	}
	d := time.Duration(min(deadline-now, math.MaxInt64/uint64(tick))) * tick
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

// execute runs guest code until the hart has nothing to do, was kicked, ended the
// machine, or has had its share while others wait for a context. It returns
// sbi.Continue unless the machine ended. It is apart from Run so that a parked
// goroutine does not keep the run loop's stack.
//
//go:noinline
func (v *vcpu) execute() (sbi.Outcome, error) {
	m := v.vm
	context, ok := m.engine.pool.get(v)
	if !ok {
		return sbi.Continue, nil
	}
	defer func() { m.engine.pool.put(context) }()
	m.turn.Lock()
	defer m.turn.Unlock()
	if context.owner != v {
		context.cpu.Attach(&m.machine, v.hart)
		context.owner = v
	}
	for n := 1; ; n++ {
		out, err := v.slice(context.cpu)
		if out != sbi.Continue || err != nil {
			return out, err
		}
		if v.hart.Power != hart.Started || v.kicked.Load() || n >= share && m.engine.pool.wanted.Load() {
			return sbi.Continue, nil
		}
		if len(m.vcpus) > 1 {
			m.turn.Unlock()
			m.turn.Lock()
		}
	}
}

// slice executes a slice and what it asks of the firmware. The caller holds the
// turn.
func (v *vcpu) slice(cpu *interp.CPU) (sbi.Outcome, error) {
	v.takeTurn(cpu)
	before := v.hart.Retired
	event := cpu.Run(slice)
	v.count(v.hart.Retired - before)

	switch event {
	case interp.Wait:
		v.hart.Power = hart.Waiting
	case interp.Call:
		switch out := v.vm.sbi.Call(v.hart); out {
		case sbi.Wait:
			v.hart.Power = hart.Waiting
		case sbi.Stop:
			v.hart.Power = hart.Stopped
		case sbi.Off, sbi.Reset, sbi.Failed:
			return out, nil
		}
	case interp.Failed:
		return sbi.Continue, fmt.Errorf("executing at %#x: %w", v.hart.PC, cpu.Err())
	}
	v.refresh()
	return sbi.Continue, nil
}

// takeTurn prepares a slice: whatever happened since the last one, to memory,
// to other harts' views of it, or by posted functions, takes effect here.
func (v *vcpu) takeTurn(cpu *interp.CPU) {
	m := v.vm
	if m.last != v {
		// Another hart may have written where this one holds a reservation, or
		// may have decoded a page that this one would go on writing to.
		m.last = v
		v.hart.ClearReservation()
		cpu.FlushAll()
	}
	if m.posted.Load() {
		m.runPosts()
		v.hart.ClearReservation()
		v.refresh()
	}
	for _, f := range v.fences {
		applyFence(cpu, f)
	}
	v.fences = v.fences[:0]
	cpu.Sync()
}

func (v *vcpu) count(instructions uint64) {
	codes := v.vm.machine.Codes
	v.instructions.Add(instructions)
	v.decoded.Store(codes.Decoded)
	v.inherited.Store(codes.Inherited)
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
		for va := f.Start &^ (pageSize - 1); va < f.Start+f.Size; va += pageSize {
			cpu.FlushPage(va)
		}
	}
}
