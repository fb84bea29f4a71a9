package soft

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/enginetest"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
	"github.com/forkd-dev/forkd/internal/riscv/sbi"
)

func TestEngine(t *testing.T) {
	enginetest.Run(t, func() engine.Engine { return New(64) })
}

const ramBase = 0x8000_0000

var testArena = page.NewArena()

// newGuest makes a machine that executes a program at the start of its RAM.
func newGuest(t testing.TB, e *Engine, program func(a *isa.Asm)) *vm {
	t.Helper()
	return newLimitedGuest(t, e, program, engine.Config{VCPUs: 1})
}

// newLimitedGuest is newGuest with what cfg says of vCPUs and their time.
func newLimitedGuest(t testing.TB, e *Engine, program func(a *isa.Asm), cfg engine.Config) *vm {
	t.Helper()
	stack := page.NewStack(16)
	overlay := page.NewOverlay(stack, testArena, 0)
	stack.Release()
	t.Cleanup(overlay.Close)
	mem, err := memory.NewSpace(memory.Slot{Base: ramBase, Pages: overlay})
	if err != nil {
		t.Fatal(err)
	}
	a := isa.NewAsm(ramBase)
	program(a)
	if err := mem.Write(ramBase, a.Bytes()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	cfg.Memory, cfg.Bus, cfg.Boot = mem, new(bus.Bus), &engine.Boot{Entry: ramBase}
	cfg.Clock = func() time.Duration { return time.Since(start) }
	m, err := e.NewVM(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m.(*vm)
}

func spin(a *isa.Asm) {
	a.Label("spin")
	a.J(0, "spin")
}

// wait is a guest that sleeps for ever, with or without a timer far ahead.
func wait(timer bool) func(a *isa.Asm) {
	return func(a *isa.Asm) {
		if timer {
			a.LI(5, hart.TimerInterrupt)
			a.CSR(isa.CSRRS, 0, hart.CSRSie, 5)
			a.LI(5, 1<<50)
			a.CSR(isa.CSRRW, 0, hart.CSRStimecmp, 5)
		}
		a.Label("wait")
		a.Op(isa.WFI)
		a.J(0, "wait")
	}
}

// TestFenceUpToTheLastAddress: a fence at the end of the address space ends.
func TestFenceUpToTheLastAddress(t *testing.T) {
	for _, size := range []uint64{0x800, 0x1000} {
		vm := newGuest(t, New(64), func(a *isa.Asm) {
			const rfence, sfenceVMA = 0x52464e43, 1
			a.LI(10, 1)
			a.LI(11, 0)
			a.LI(12, ^uint64(0xfff))
			a.LI(13, size)
			a.LI(16, sfenceVMA)
			a.LI(17, rfence)
			a.Op(isa.ECALL)
			a.Label("done")
			a.I(isa.ADDI, 31, 31, 1)
			a.J(0, "done")
		})
		v := vm.vcpus[0]
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			v.Run()
		}()
		for v.Counters().Instructions < 2*slice {
			time.Sleep(time.Millisecond)
		}
		v.Kick()
		<-ended
		if v.hart.X[31] == 0 || int64(v.hart.X[10]) != 0 {
			t.Errorf("a fence of %#x bytes: the guest is at %#x with the status %d", size, v.hart.PC, int64(v.hart.X[10]))
		}
	}
}

// TestBusyMachines: more machines than contexts all make progress, and all obey
// a kick, those that wait in line too.
func TestBusyMachines(t *testing.T) {
	e := New(64)
	var wg sync.WaitGroup
	var vcpus []*vcpu
	for range 24 {
		v := newGuest(t, e, spin).vcpus[0]
		vcpus = append(vcpus, v)
		wg.Go(func() {
			if exit, err := v.Run(); exit != engine.Kicked || err != nil {
				t.Errorf("Run returned %v, %v", exit, err)
			}
		})
	}
	for _, v := range vcpus {
		for v.Counters().Instructions == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	for _, v := range vcpus {
		v.Kick()
	}
	wg.Wait()
	if len(e.pool.idle) != e.pool.made {
		t.Errorf("%d of %d contexts are idle", len(e.pool.idle), e.pool.made)
	}
}

// TestIdleMachines: a machine that waits holds no context, and no timer if its
// guest has set none.
func TestIdleMachines(t *testing.T) {
	for _, timer := range []bool{false, true} {
		e := New(64)
		var wg sync.WaitGroup
		var vcpus []*vcpu
		for range 50 {
			m := newGuest(t, e, wait(timer))
			v := m.vcpus[0]
			vcpus = append(vcpus, v)
			wg.Go(func() { v.Run() })
			// Once it has executed its first slice, the function below runs when
			// the guest is asleep, or about to be.
			for v.Counters().Instructions == 0 {
				time.Sleep(time.Millisecond)
			}
			done := make(chan struct{})
			m.Post(func() { close(done) })
			<-done
		}
		for _, v := range vcpus {
			v.Kick()
		}
		wg.Wait()
		for i, v := range vcpus {
			if v.hart.Power != hart.Waiting {
				t.Errorf("guest %d does not wait", i)
			}
			if v.timer != nil != timer {
				t.Errorf("guest %d has a timer: %v, want %v", i, v.timer != nil, timer)
			}
		}
		if e.pool.made > len(vcpus)/2 || len(e.pool.idle) != e.pool.made {
			t.Errorf("%d contexts were made, %d are idle", e.pool.made, len(e.pool.idle))
		}
	}
}

// TestSleep: a guest tells until when it sleeps, and one that executes that it does not.
func TestSleep(t *testing.T) {
	for _, c := range []struct {
		name    string
		program func(a *isa.Asm)
		sleeps  bool
		longest time.Duration
	}{
		{"executes", spin, false, 0},
		{"waits for a timer", wait(true), true, 1 << 50 * tick},
		{"waits for nothing", wait(false), true, math.MaxInt64},
	} {
		m := newGuest(t, New(64), c.program)
		v := m.vcpus[0]
		if m.Sleep() != 0 {
			t.Errorf("%s: sleeps for %v before it has executed anything", c.name, m.Sleep())
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			v.Run()
		}()
		for v.Counters().Instructions == 0 || c.sleeps && m.Sleep() == 0 {
			time.Sleep(time.Millisecond)
		}
		if s := m.Sleep(); s > c.longest || s < c.longest/tick*tick-time.Hour {
			t.Errorf("%s: sleeps for %v", c.name, s)
		}
		v.Kick()
		<-ended
		if m.Sleep() != 0 {
			t.Errorf("%s: sleeps while nobody runs it", c.name)
		}
	}
}

// TestForgottenMachine: nothing of a closed machine stays in the engine's
// contexts.
func TestForgottenMachine(t *testing.T) {
	e := New(64)
	m := newGuest(t, e, spin)
	v := m.vcpus[0]
	v.Kick()
	v.Run()
	go func() {
		for v.Counters().Instructions == 0 {
			time.Sleep(time.Millisecond)
		}
		v.Kick()
	}()
	if _, err := v.Run(); err != nil {
		t.Fatal(err)
	}
	m.Close()
	for _, l := range e.pool.idle {
		if l.owner == v {
			t.Error("a context is still attached to the closed machine")
		}
	}
}

// TestFences: fences from other harts are remembered in order, and in bounds.
func TestFences(t *testing.T) {
	m := newGuest(t, New(64), spin)
	for range 10 * maxFences {
		m.Fence(1, fenceOf(0x1000))
	}
	if n := len(m.vcpus[0].fences); n > maxFences {
		t.Errorf("%d fences are remembered", n)
	}
}

func fenceOf(va uint64) sbi.Fence { return sbi.Fence{Start: va, Size: page.Size} }

// What code is executed with is what the environment says, where the host can.
func TestExecutor(t *testing.T) {
	best := Interpreter
	if jit.Supported() {
		best = NativeCode
	}
	for setting, want := range map[string]string{"": best, "on": best, "off": Interpreter, "0": "", "OFF": ""} {
		t.Setenv("FORKD_JIT", setting)
		if got, err := Executor(); got != want || (err == nil) != (want != "") {
			t.Errorf("FORKD_JIT=%s: %q %v", setting, got, err)
		}
	}
}
