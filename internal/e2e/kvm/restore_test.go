//go:build linux && amd64

package kvm

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/engine/kvm"
	"github.com/forkd-dev/forkd/internal/hosttest"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// steps are what a fork consists of, in order, with a program's start to compare with.
var steps = []string{"fork+exec of true", "map memory", "make machine", "start to refreshed", "first eval", "second eval", "branch"}

// events are what is counted in each step, where that is possible.
var events = []string{
	"raw_syscalls:sys_enter", "syscalls:sys_enter_ioctl", "syscalls:sys_enter_mmap", "page-faults", "kvm:kvm_exit", "kvm:kvm_page_fault", "kvm:kvm_userspace_exit",
}

// restorer forks a snapshot within this process, step by step.
type restorer struct {
	t      testing.TB
	engine *kvm.Engine
	memory *page.Arena
	disk   *page.Arena
	snap   *snapshot.Snapshot
	counts *hosttest.Events // nil: the host does not count

	times   map[string]time.Duration // by step, summed
	counted map[string][]uint64
	copied  int // bytes that a machine had to itself when it was made, summed
	private int // and after two evaluations
}

func newRestorer(t testing.TB, home, tag string) *restorer {
	t.Helper()
	r := &restorer{t: t, disk: page.NewArena(), times: make(map[string]time.Duration), counted: make(map[string][]uint64)}
	store, err := snapshot.OpenStore(home)
	if err == nil {
		r.snap, err = store.Open(tag)
	}
	if err == nil {
		t.Cleanup(r.snap.Release)
		r.engine, err = kvm.New()
	}
	if err == nil {
		t.Cleanup(func() { r.engine.Close() })
		r.memory, err = r.engine.NewArena()
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.counts, err = hosttest.CountEvents(events...); err != nil {
		t.Logf("events are not counted: %v", err)
	} else {
		t.Cleanup(r.counts.Close)
	}
	return r
}

// step does a step, and notes how long it takes and what happens meanwhile.
func (r *restorer) step(name string, do func() error) {
	r.t.Helper()
	before := r.read()
	start := time.Now()
	err := do()
	r.times[name] += time.Since(start)
	if err != nil {
		r.t.Fatalf("%s: %v", name, err)
	}
	sums := r.counted[name]
	if sums == nil {
		sums = make([]uint64, len(before))
		r.counted[name] = sums
	}
	for i, n := range r.read() {
		sums[i] += n - before[i]
	}
}

func (r *restorer) read() []uint64 {
	if r.counts == nil {
		return nil
	}
	counts, err := r.counts.Read()
	if err != nil {
		r.t.Fatal(err)
	}
	return counts
}

// fork goes through the steps once.
func (r *restorer) fork(ctx context.Context) {
	man := r.snap.Manifest
	var memory page.Top
	var m *machine.Machine
	r.step(steps[0], func() error { return exec.Command("/bin/true").Run() })
	r.step(steps[1], func() (err error) {
		memory, err = r.engine.NewMemory(r.snap.Memory, r.memory, 0)
		return err
	})
	r.step(steps[2], func() (err error) {
		cfg := machine.Config{
			Engine: r.engine, VCPUs: man.VCPUs, Memory: memory, Root: r.snap.Root,
			Scratch: page.NewOverlay(r.snap.Scratch, r.disk, 0), Entropy: rand.Reader, Console: io.Discard, State: r.snap.State,
		}
		rand.Read(cfg.GenerationID[:])
		m, err = machine.New(cfg)
		return err
	})
	defer m.Close()
	r.copied += m.PrivateBytes()
	guest := agent.NewClient(m.Dial)
	defer guest.Close()
	guest.Adopt(wire.RuntimeInfo{Name: man.Runtime, Port: man.RuntimePort, Starts: max(1, man.RuntimeStarts), Alive: true})
	r.step(steps[3], func() error {
		if err := m.Start(); err != nil {
			return err
		}
		id := wire.Refresh{
			Generation: uint64(time.Now().UnixNano()), WallNS: m.ClockZero().UnixNano(), Hostname: "measured",
			MachineID: strings.Repeat("1", 32), BootID: "11111111-1111-1111-1111-111111111111",
		}
		rand.Read(id.Entropy[:])
		return guest.Refresh(ctx, &id)
	})
	eval := func() error {
		out, err := guest.Eval(ctx, agent.EvalRequest{Runtime: man.Runtime, Code: "numpy.zeros(5).tolist()"})
		if err == nil && string(out.Value) != "[0.0, 0.0, 0.0, 0.0, 0.0]" {
			err = fmt.Errorf("the value is %q", out.Value)
		}
		return err
	}
	r.step(steps[4], eval)
	r.step(steps[5], eval)
	r.private += m.PrivateBytes()
	if err := m.Prepare(); err != nil {
		r.t.Fatal(err)
	}
	var frozen *machine.Frozen
	r.step(steps[6], func() (err error) {
		frozen, err = m.Branch()
		return err
	})
	frozen.Memory.Release()
	frozen.Scratch.Release()
}

// table prints what a fork takes, as a mean of n.
func (r *restorer) table(n int) string {
	var b strings.Builder
	b.WriteString("| step | time | of true | system calls | ioctl | mmap | page faults | exits | for pages | to this process |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	unit := r.times[steps[0]]
	for _, name := range steps {
		fmt.Fprintf(&b, "| %s | %v | %.2f |", name, (r.times[name] / time.Duration(n)).Round(time.Microsecond), float64(r.times[name])/float64(unit))
		for _, c := range r.counted[name] {
			fmt.Fprintf(&b, " %.1f |", float64(c)/float64(n))
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "bytes that were a child's own: %d when it was made, %d after two evaluations\n", r.copied/n, r.private/n)
	return b.String()
}

// testRestore prints what the parts of a fork take. That no page is copied, nothing is
// read and nothing waits for a clock shows in what is counted.
func testRestore(t *testing.T) {
	r := newRestorer(t, home(), "py")
	const forks = 10
	for range forks {
		r.fork(t.Context())
	}
	t.Logf("means of %d forks:\n%s", forks, r.table(forks))
}

// BenchmarkRestore forks the snapshot FORKD_BENCH_TAG, by default py, of the home that
// FORKD_HOME names, on this host's own KVM.
func BenchmarkRestore(b *testing.B) {
	hosttest.Need(b)
	where, tag := os.Getenv("FORKD_HOME"), cmp.Or(os.Getenv("FORKD_BENCH_TAG"), "py")
	if where == "" {
		b.Skip("set FORKD_HOME to a home that has a snapshot for the engine kvm")
	}
	r := newRestorer(b, where, tag)
	n := 0
	for b.Loop() {
		r.fork(b.Context())
		n++
	}
	for _, name := range steps {
		b.ReportMetric(float64(r.times[name].Nanoseconds())/float64(n), strings.ReplaceAll(name, " ", "-")+"-ns")
	}
	var use unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &use) == nil {
		b.ReportMetric(float64(use.Minflt)/float64(n), "faults/op")
	}
	b.Logf("means of %d forks:\n%s", n, r.table(n))
}
