package soft

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// table is where in RAM the page table of a family lies, which maps RAM to itself.
const table = 8 * page.Size

// family makes machines over one stack, which holds a program.
func family(t *testing.T, e *Engine, program func(a *isa.Asm)) (stack *page.Stack, another func() (*vm, *page.Overlay)) {
	t.Helper()
	a := isa.NewAsm(ramBase)
	program(a)
	empty := page.NewStack(16)
	parent := page.NewOverlay(empty, testArena, 0)
	empty.Release()
	defer parent.Close()
	const gigapage, all = 1 << 30, 0xcf
	leaf := binary.LittleEndian.AppendUint64(nil, ramBase>>12<<10|all)
	_, err := parent.WriteAt(a.Bytes(), 0)
	_, err2 := parent.WriteAt(leaf, table+ramBase/gigapage*8)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	stack = parent.Seal()
	t.Cleanup(stack.Release)
	start := time.Now()
	return stack, func() (*vm, *page.Overlay) {
		overlay := page.NewOverlay(stack, testArena, 0)
		t.Cleanup(overlay.Close)
		mem, err := memory.NewSpace(memory.Slot{Base: ramBase, Pages: overlay})
		if err != nil {
			t.Fatal(err)
		}
		m, err := e.NewVM(engine.Config{
			VCPUs: 1, Memory: mem, Bus: new(bus.Bus), Boot: &engine.Boot{Entry: ramBase},
			Clock: func() time.Duration { return time.Since(start) },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m.(*vm), overlay
	}
}

// errand is a guest that executes some instructions, of which one writes a page, and sleeps then.
func errand(instructions uint64) func(a *isa.Asm) {
	return func(a *isa.Asm) {
		a.LI(5, 8<<60|(ramBase+table)>>12)
		a.CSR(isa.CSRRW, 0, hart.CSRSatp, 5)
		a.LI(5, instructions/2)
		a.LI(6, ramBase+4*page.Size)
		a.S(isa.SD, 5, 0, 6)
		a.Label("loop")
		a.I(isa.ADDI, 5, 5, -1)
		a.B(isa.BNE, 5, 0, "loop")
		a.Label("wait")
		a.Op(isa.WFI)
		a.J(0, "wait")
	}
}

// runUntilIdle has a machine execute until its guest sleeps.
func runUntilIdle(t *testing.T, m *vm, instructions uint64) {
	t.Helper()
	v := m.vcpus[0]
	ended := make(chan error, 1)
	go func() {
		_, err := v.Run()
		ended <- err
	}()
	for v.Counters().Instructions <= instructions { // the last ones before it sleeps
		time.Sleep(time.Millisecond)
	}
	v.Kick()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// TestFirstContactIsALesson: what a machine does that evaluates something once and rests is enough to learn from,
// and what is less than that is not.
func TestFirstContactIsALesson(t *testing.T) {
	for n, enough := range map[uint64]bool{100_000: false, 260_000: true} {
		e := New(64)
		stack, another := family(t, e, errand(n))
		first, _ := another()
		runUntilIdle(t, first, n)
		first.Close()
		if set, _ := e.code.Workset(stack); (set != nil) != enough {
			t.Errorf("%d instructions have taught: %v", n, set != nil)
		}
	}
}

// TestLessonGoesOnBehindAStop: a machine that is stopped in the middle of a first contact, to be packed say, has not taught
// what comes behind that.
func TestLessonGoesOnBehindAStop(t *testing.T) {
	for range 100 { // until one is stopped in time
		e := New(64)
		stack, another := family(t, e, errand(10_000_000))
		m, _ := another()
		v := m.vcpus[0]
		go func() {
			for v.Counters().Instructions < many {
			}
			v.Kick()
		}()
		if _, err := v.Run(); err != nil {
			t.Fatal(err)
		}
		if v.Counters().Instructions >= enough {
			continue
		}
		if set, _ := e.code.Workset(stack); set != nil {
			t.Errorf("%d instructions of 10 million have taught", v.Counters().Instructions)
		}
		return
	}
	t.Error("no machine was stopped in time")
}

// TestHelpComesWithTheFirstSlice: the pages that a machine will write are copied when it begins to execute,
// not while it waits for that; and not if it was stopped before, as its memory may be another then.
func TestHelpComesWithTheFirstSlice(t *testing.T) {
	const n = 260_000
	e := New(64)
	_, another := family(t, e, errand(n))
	for range 3 { // lessons
		m, _ := another()
		runUntilIdle(t, m, n)
		m.Close()
	}
	m, overlay := another()
	v := m.vcpus[0]
	v.Kick()
	if _, err := v.Run(); err != nil || overlay.Pages() != 0 || v.ahead != nil {
		t.Errorf("before it executes it has %d pages, and help to come: %v (%v)", overlay.Pages(), v.ahead != nil, err)
	}
	m, overlay = another()
	m.vcpus[0].first()
	if m.vcpus[0].ahead == nil || overlay.Pages() != 0 {
		t.Errorf("a machine that waits has %d pages, and help to come: %v", overlay.Pages(), m.vcpus[0].ahead != nil)
	}
	runUntilIdle(t, m, n)
	if overlay.Pages() != 1 || m.vcpus[0].ahead != nil {
		t.Errorf("it has %d pages", overlay.Pages())
	}
}
