package machine_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
	rv "github.com/forkd-dev/forkd/internal/riscv/isa"
)

const ramPages = board.MinRAMBytes / page.Size

// lab makes machines out of one arena and notices what they leave behind.
type lab struct {
	t     *testing.T
	arena *page.Arena
	root  *page.Stack
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, arena: page.NewArena(), root: page.NewStack(16)}
	t.Cleanup(func() {
		if n := l.arena.InUse(); n != 0 {
			t.Errorf("%d pages were not freed", n)
		}
	})
	return l
}

func (l *lab) overlay(base *page.Stack, limit page.Number) *page.Overlay {
	if base == nil {
		base = page.NewStack(limit)
	} else {
		base.Retain()
	}
	defer base.Release()
	return page.NewOverlay(base, l.arena, 0)
}

func (l *lab) config() machine.Config {
	return machine.Config{
		Engine: soft.New(0), VCPUs: 1, Root: l.root,
		Entropy: rand.Reader, Console: io.Discard,
	}
}

func (l *lab) boot(program func(*rv.Asm)) (*machine.Machine, *page.Overlay) {
	l.t.Helper()
	cfg := l.config()
	cfg.Memory, cfg.Scratch = l.overlay(nil, ramPages), l.overlay(nil, 16)
	cfg.Boot = &machine.Boot{Kernel: machinetest.Kernel(program)}
	return l.make(cfg), cfg.Memory.(*page.Overlay)
}

func (l *lab) restore(f *machine.Frozen, id byte) (*machine.Machine, *page.Overlay) {
	l.t.Helper()
	cfg := l.config()
	cfg.Memory, cfg.Scratch = l.overlay(f.Memory, 0), l.overlay(f.Scratch, 0)
	cfg.State, cfg.GenerationID = f.State, [16]byte{id}
	return l.make(cfg), cfg.Memory.(*page.Overlay)
}

func (l *lab) make(cfg machine.Config) *machine.Machine {
	l.t.Helper()
	m, err := machine.New(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(m.Close)
	return m
}

func (l *lab) freeze(m *machine.Machine) *machine.Frozen {
	l.t.Helper()
	f := l.frozen(m)
	l.t.Cleanup(f.Memory.Release)
	l.t.Cleanup(f.Scratch.Release)
	return f
}

func word(o *page.Overlay, gpa uint64) uint64 {
	off := gpa - board.RAMBase
	return binary.LittleEndian.Uint64(o.Read(page.Number(off / page.Size))[off%page.Size:])
}

// setWord writes to the RAM of a machine that is paused.
func setWord(t *testing.T, o *page.Overlay, gpa, v uint64) {
	t.Helper()
	if _, err := o.WriteAt(binary.LittleEndian.AppendUint64(nil, v), int64(gpa-board.RAMBase)); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for something that the guest does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 5000 {
		if ok() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s: it never happened", what)
}

func ended(t *testing.T, m *machine.Machine) machine.Ending {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the machine does not end")
	}
	return m.Ending()
}

func TestGuestEndsItself(t *testing.T) {
	for _, tc := range []struct {
		value uint64
		exit  engine.Exit
	}{{board.PowerOff, engine.Off}, {board.PowerReset, engine.Reset}, {0x3333, engine.Failed}} {
		m, _ := newLab(t).boot(func(a *rv.Asm) { machinetest.PowerOff(a, tc.value) })
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		if e := ended(t, m); e.Exit != tc.exit || e.Err != nil || e.String() == "" {
			t.Errorf("value %#x: ended with %v (%s)", tc.value, e, e.Exit)
		}
		if err := m.Start(); !errors.Is(err, machine.ErrEnded) {
			t.Errorf("starting again: %v", err)
		}
		if _, err := m.Freeze(); err == nil {
			t.Error("a machine that has ended was frozen")
		}
		if _, err := m.Dial(t.Context(), 1); !errors.Is(err, machine.ErrEnded) {
			t.Errorf("dialing: %v", err)
		}
	}
}

// A child starts where its parent was frozen, goes its own way, and neither
// sees the other.
func TestForkGoesItsOwnWay(t *testing.T) {
	l := newLab(t)
	parent, parentRAM := l.boot(machinetest.Count)
	parent.Start()
	eventually(t, "counting", func() bool { return parent.Counters().Instructions > 1<<20 })
	f := l.freeze(parent)
	frozen := word(parentRAM, machinetest.Counter)

	child, childRAM := l.restore(f, 1)
	if got := word(childRAM, machinetest.Counter); got != frozen || childRAM.Pages() != 0 {
		t.Fatalf("child starts at %d with %d pages, want %d with none", got, childRAM.Pages(), frozen)
	}
	child.Start()
	eventually(t, "counting in the child", func() bool { return child.Counters().Instructions > 1<<20 })
	child.Pause()
	if word(childRAM, machinetest.Counter) <= frozen {
		t.Error("the child does not count")
	}
	if word(parentRAM, machinetest.Counter) != frozen {
		t.Error("the child counts in its parent")
	}

	sibling, siblingRAM := l.restore(f, 2)
	if got := word(siblingRAM, machinetest.Counter); got != frozen {
		t.Errorf("sibling starts at %d, want %d", got, frozen)
	}
	for _, m := range []struct {
		*machine.Machine
		ram *page.Overlay
	}{{parent, parentRAM}, {child, childRAM}, {sibling, siblingRAM}} {
		m.Pause()
		setWord(t, m.ram, machinetest.StopFlag, 1)
		m.Start()
		if e := ended(t, m.Machine); e.Exit != engine.Off {
			t.Errorf("ended with %v", e)
		}
	}
}

// A machine whose RAM is packed over and over counts on as if it were not.
func TestPackIsInvisible(t *testing.T) {
	l := newLab(t)
	parent, _ := l.boot(machinetest.Count)
	parent.Start()
	eventually(t, "counting", func() bool { return parent.Counters().Instructions > 1<<20 })
	if parent.CodeBytes() == 0 {
		t.Error("the parent executes code of its own, and no memory is taken for that")
	}
	child, ram := l.restore(l.freeze(parent), 1)
	last := word(ram, machinetest.Counter)
	child.Start()
	for range 50 {
		before := child.Counters().Instructions
		eventually(t, "going on", func() bool { return child.Counters().Instructions > before })
		child.Pack()
	}
	child.Pause()
	if now := word(ram, machinetest.Counter); now <= last {
		t.Errorf("counter at %d", now)
	}
	if child.PrivateBytes() == 0 {
		t.Error("the child owns nothing")
	}
}

func TestFreezeNeedsPause(t *testing.T) {
	m, _ := newLab(t).boot(machinetest.Count)
	m.Start()
	if _, err := m.Freeze(); err == nil {
		t.Error("a running machine was frozen")
	}
}

// Saving, restoring and saving again gives the same bytes, except for what a
// restore is to change: the generation ID and the guest's connections.
func TestRestoreIsFaithful(t *testing.T) {
	l := newLab(t)
	m, _ := l.boot(machinetest.Count)
	m.Start()
	eventually(t, "counting", func() bool { return m.Counters().Instructions > 1<<16 })
	f := l.freeze(m)
	again, _ := l.restore(f, 0)
	if g := l.freeze(again); !bytes.Equal(f.State, g.State) {
		t.Error("a machine that was restored and not run saves another state")
	}
}

func TestDamagedStateIsRefused(t *testing.T) {
	l := newLab(t)
	m, _ := l.boot(machinetest.Count)
	f := l.freeze(m)
	for _, damage := range []struct {
		name string
		do   func([]byte) []byte
	}{
		{"empty", func(b []byte) []byte { return nil }},
		{"cut", func(b []byte) []byte { return b[:len(b)/2] }},
		{"flipped", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
	} {
		cfg := l.config()
		cfg.Memory, cfg.Scratch = l.overlay(f.Memory, 0), l.overlay(f.Scratch, 0)
		cfg.State = damage.do(bytes.Clone(f.State))
		if _, err := machine.New(cfg); err == nil {
			t.Errorf("%s state was accepted", damage.name)
		}
	}
}

func TestBootRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, message string
		boot          machine.Boot
	}{
		{"no kernel", "header", machine.Boot{}},
		{"not a kernel", "", machine.Boot{Kernel: make([]byte, 4096)}},
		{"initramfs too large", "do not fit", machine.Boot{Kernel: machinetest.Kernel(machinetest.Count), Initrd: make([]byte, board.MinRAMBytes)}},
		{"command line too long", "command line", machine.Boot{Kernel: machinetest.Kernel(machinetest.Count), CommandLine: strings.Repeat("x", 4096)}},
	} {
		l := newLab(t)
		cfg := l.config()
		cfg.Memory, cfg.Scratch = l.overlay(nil, ramPages), l.overlay(nil, 16)
		cfg.Boot = &tc.boot
		if _, err := machine.New(cfg); err == nil || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// What New has taken over is freed, too, when a page below it cannot be read.
func TestNewOverATruncatedFile(t *testing.T) {
	l := newLab(t)
	path := filepath.Join(t.TempDir(), "raw")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, ramPages*page.Size)); err != nil {
		t.Fatal(err)
	}
	raw, err := page.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Release()
	empty := page.NewStack(ramPages)
	defer empty.Release()
	base := empty.Push(raw)
	defer base.Release()
	cfg := l.config()
	cfg.Memory, cfg.Scratch = page.NewOverlay(base, page.NewArena(), 0), l.overlay(nil, 16)
	cfg.Boot = &machine.Boot{Kernel: machinetest.Kernel(machinetest.Count)}
	if _, err := cfg.Scratch.WriteAt([]byte{1}, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	err = page.Guard(func() error {
		_, err := machine.New(cfg)
		return err
	})
	if !errors.Is(err, page.ErrCorrupt) {
		t.Errorf("made over a file that is gone: %v", err)
	}
}

// A host that has no page left ends the machine, with the reason.
func TestMemoryQuotaEndsTheMachine(t *testing.T) {
	l := newLab(t)
	parent, _ := l.boot(machinetest.Count)
	f := l.freeze(parent)
	cfg := l.config()
	cfg.Memory = page.NewOverlay(f.Memory, l.arena, 1)
	cfg.Scratch = l.overlay(f.Scratch, 0)
	cfg.State = f.State
	if _, _, err := cfg.Memory.Write(0); err != nil { // the whole quota
		t.Fatal(err)
	}
	m := l.make(cfg)
	m.Start()
	if e := ended(t, m); !errors.Is(e.Err, page.ErrQuota) {
		t.Errorf("ended with %v", e)
	}
}

// BenchmarkRestore is what a fork costs per child, without the sandbox around
// it.
func BenchmarkRestore(b *testing.B) {
	arena, root, eng := page.NewArena(), page.NewStack(16), soft.New(0)
	blank := func(limit page.Number) *page.Overlay {
		s := page.NewStack(limit)
		defer s.Release()
		return page.NewOverlay(s, arena, 0)
	}
	cfg := machine.Config{Engine: eng, VCPUs: 1, Root: root, Entropy: rand.Reader, Console: io.Discard}
	cfg.Memory, cfg.Scratch = blank(ramPages), blank(16)
	cfg.Boot = &machine.Boot{Kernel: machinetest.Kernel(machinetest.Count)}
	parent, err := machine.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer parent.Close()
	f, err := parent.Freeze()
	if err != nil {
		b.Fatal(err)
	}
	cfg.Boot, cfg.State = nil, f.State
	b.ReportAllocs()
	for b.Loop() {
		cfg.Memory, cfg.Scratch = page.NewOverlay(f.Memory, arena, 0), page.NewOverlay(f.Scratch, arena, 0)
		m, err := machine.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		m.Close()
	}
}

// BenchmarkPause reports how long it takes until a machine in a hot loop, beside others, has
// stopped, in microseconds.
func BenchmarkPause(b *testing.B) {
	for _, others := range []int{0, 1, 4} {
		b.Run(fmt.Sprintf("beside%d", others), func(b *testing.B) {
			arena, root, eng := page.NewArena(), page.NewStack(16), soft.New(0)
			blank := func(limit page.Number) *page.Overlay {
				s := page.NewStack(limit)
				defer s.Release()
				return page.NewOverlay(s, arena, 0)
			}
			boot := func() *machine.Machine {
				m, err := machine.New(machine.Config{
					Engine: eng, VCPUs: 1, Root: root, Entropy: rand.Reader, Console: io.Discard,
					Memory: blank(ramPages), Scratch: blank(16), Boot: &machine.Boot{Kernel: machinetest.Kernel(machinetest.Count)},
				})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(m.Close)
				if err := m.Start(); err != nil {
					b.Fatal(err)
				}
				return m
			}
			for range others {
				boot()
			}
			m := boot()
			var took []time.Duration
			for b.Loop() {
				b.StopTimer()
				time.Sleep(time.Millisecond)
				b.StartTimer()
				start := time.Now()
				m.Pause()
				took = append(took, time.Since(start))
				if err := m.Start(); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(took)
			for _, p := range []int{50, 99} {
				b.ReportMetric(float64(took[len(took)*p/100].Microseconds()), fmt.Sprintf("p%d-µs", p))
			}
		})
	}
}

// frozenCount returns what the program count had counted in a frozen machine.
func frozenCount(f *machine.Frozen) uint64 {
	const off = machinetest.Counter - board.RAMBase
	return binary.LittleEndian.Uint64(f.Memory.Get(off / page.Size)[off%page.Size:])
}

// branch branches a machine and returns what it had counted.
func branch(t *testing.T, m *machine.Machine) (f *machine.Frozen, at uint64) {
	t.Helper()
	f, err := m.Branch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Memory.Release()
		f.Scratch.Release()
	})
	return f, frozenCount(f)
}

// A branch is of one instant; the machine goes on after it, and so does what was
// made of the branch, each on its own.
func TestBranchOfARunningMachine(t *testing.T) {
	l := newLab(t)
	m, _ := l.boot(machinetest.Count)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	_, last := branch(t, m)
	for range 10 {
		m.Pack()
		if err := m.Prepare(); err != nil {
			t.Fatal(err)
		}
		before := last
		eventually(t, "the source counts on", func() bool {
			_, last = branch(t, m)
			return last > before
		})
	}
	f, at := branch(t, m)
	child, _ := l.restore(f, 2)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child counts on", func() bool { _, n := branch(t, child); return n > at })
	if frozenCount(f) != at {
		t.Error("the branch has changed")
	}
	// One that stands still is frozen as it is and does not start.
	m.Pause()
	_, at = branch(t, m)
	time.Sleep(5 * time.Millisecond)
	if _, again := branch(t, m); again != at {
		t.Errorf("a machine that was paused has gone on from %d to %d", at, again)
	}
	m.Close()
	if _, err := m.Branch(); !errors.Is(err, machine.ErrEnded) {
		t.Errorf("branch of a closed machine: %v", err)
	}
	if err := m.Prepare(); !errors.Is(err, machine.ErrEnded) {
		t.Errorf("unpacking a closed machine: %v", err)
	}
}
