package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/cell/celltest"
	"github.com/forkd-dev/forkd/internal/cell/inside"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
)

// cellEnv has a test binary be a cell.
const cellEnv = "SANDBOX_TEST_CELL"

// TestMain lets the tests start themselves as a cell.
func TestMain(m *testing.M) {
	if os.Getenv(cellEnv) == "" {
		os.Exit(m.Run())
	}
	if err := serveCell(); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

func serveCell() error {
	l, err := net.FileListener(os.NewFile(cell.ListenerFD, "listener"))
	if err != nil {
		return err
	}
	s, err := inside.New(inside.Config{
		Name: os.Args[1], Listener: l.(*net.UnixListener), NewEngine: func() engine.Engine { return soft.New(1) },
		Scratch: os.NewFile(cell.ScratchFD, "scratch"), Idle: time.Second, Alone: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	return s.Serve()
}

// openApart is openBare with processes of their own for machines, so that one can be stopped: with
// each, one for each machine.
func openApart(t *testing.T, each bool) *Manager {
	t.Helper()
	home, err := os.MkdirTemp("", "apart") // the names of sockets in it must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	kind := softEngine
	kind.Each = each
	m, err := Open(context.Background(), Options{
		Home: home, Engine: kind, Log: slog.New(slog.DiscardHandler),
		Cells: &cell.Program{Args: []string{"cell"}, Env: []string{cellEnv + "=1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// silence stops the process that a sandbox lives in, until the test ends.
func silence(t *testing.T, b *box) {
	t.Helper()
	pid := b.machine.Cell().PID
	celltest.Stop(t, pid)
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGCONT) }) // if it is there
}

// Figures of a silent cell are those of before: nobody waits for them who decides what may be
// begun, and a fork beside it waits no longer than for an answer that is on its way.
func TestAdmissionBesideASilentCell(t *testing.T) {
	m := openApart(t, true)
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	silence(t, b)
	m.admission.mu.Lock()
	m.admission.last = reading{} // as if some time had passed
	m.admission.mu.Unlock()
	forked := make(chan error, 1)
	go func() { forked <- second(m.Fork(context.Background(), ForkSpec{Tag: "base", N: 1})) }()
	for others := 0; ; others++ {
		select {
		case err := <-forked:
			if err != nil {
				t.Error(err)
			}
			if others < 3 {
				t.Error("whoever else wants something has waited until the cell was late")
			}
			return
		case <-time.After(time.Millisecond):
		}
		m.admission.mu.Lock()
		m.admission.mu.Unlock() //lint:ignore SA2001 only to have had it
	}
}

// A cell that does not answer gets no more children: others begin in a new one, and it has some again
// when it goes on. What it makes then of those that were asked of it is closed.
func TestForkBesideASilentCell(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "base", "")
	first := forkBare(t, m, "base")
	home := first.machine.Cell()
	if again := forkBare(t, m, "base"); again.machine.Cell() != home {
		t.Fatal("children of a snapshot live apart")
	}
	silence(t, first)
	forked := make(chan []ForkResult, 1)
	for range 2 {
		go func() {
			r, _ := m.Fork(context.Background(), ForkSpec{Tag: "base", N: 2})
			forked <- r
		}()
		select {
		case r := <-forked:
			for _, r := range r {
				if r.Err != nil || m.lookup(r.Sandbox.ID).machine.Cell() == home {
					t.Errorf("a child is in the cell that does not answer, or %v", r.Err)
				}
			}
			if len(r) != 2 {
				t.Errorf("%d children", len(r))
			}
		case <-time.After(cell.AnswerTime):
			t.Fatal("a fork waits for the cell that does not answer")
		}
	}
	celltest.Continue(t, home.PID)
	if err := home.Answers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := forkBare(t, m, "base"); again.machine.Cell() != home {
		t.Error("it has no children any more although it answers")
	}
}

// What a cell that did not answer makes of a fork, when whoever wanted that is long gone with its
// daemon, is no sandbox of the next one: not in the place of one that was made elsewhere instead and
// runs, was paused or killed since, nor one that nobody was told of.
func TestForksThatWereGivenUp(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "base", "")
	first := forkBare(t, m, "base")
	home := first.machine.Cell()
	silence(t, first)
	r, err := m.Fork(t.Context(), ForkSpec{Tag: "base", N: 3})
	if err != nil {
		t.Fatal(err)
	}
	var boxes [3]*box
	for i := range r {
		if r[i].Err != nil {
			t.Fatal(r[i].Err)
		}
		boxes[i] = m.lookup(r[i].Sandbox.ID)
	}
	runs, paused, killed := boxes[0], boxes[1], boxes[2]
	if err := m.Kill(killed.id); err != nil {
		t.Fatal(err)
	}
	if err := m.paused.Put(recordOf(paused, kept{SnapshotTag: "base"})); err != nil || !m.remove(paused) {
		t.Fatal(err)
	}
	m.journal.Gone("", paused.id)
	m.end(paused, reasonPaused) // as a pause does; there is no agent that could have a part in it
	src, err := m.source("base")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Release()
	refused, spec := make([]*box, 1), ForkSpec{Tag: "base", N: 1}
	births := []birth{birthOf(spec)}
	errs, err := m.spawnIn(t.Context(), home, src, births, refused) // as if it could be nowhere else
	if err != nil || !errors.Is(errs[0], cell.ErrSilent) {
		t.Fatal(errs, err)
	}
	m.giveUp(births, errs)
	elsewhere := runs.machine.Cell().Name
	m = meanwhile(t, m, func() {
		celltest.Continue(t, home.PID)
		time.Sleep(200 * time.Millisecond) // for the fork to be made
	})
	if b := m.lookup(runs.id); b == nil || b.machine.Cell().Name != elsewhere {
		t.Error("one that runs has another machine now")
	}
	if info, err := m.Sandbox(paused.id); err != nil || info.State != Paused {
		t.Errorf("one that was paused is %+v, %v", info, err)
	}
	if _, err := m.Sandbox(killed.id); err == nil || !strings.Contains(err.Error(), reasonKilled) {
		t.Errorf("one that was killed: %v", err)
	}
	known := map[string]bool{first.id: true, runs.id: true, paused.id: true}
	for _, info := range m.Sandboxes() {
		if !known[info.ID] {
			t.Errorf("nobody was told of %+v", info)
		}
	}
}

// Who is killed in a silent cell is gone at once, and the cell hears of it when it goes on.
func TestKillInASilentCell(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "base", "")
	killed, other := forkBare(t, m, "base"), forkBare(t, m, "base")
	silence(t, killed)
	ctx, cancel := context.WithTimeout(t.Context(), cell.AnswerTime/2)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.Kill(killed.id) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Fatal("a kill waits for it")
	}
	if _, err := m.Sandbox(killed.id); !hasCode(err, NotFound) {
		t.Errorf("after it: %v", err)
	}
	if s := other.state(); s != Running {
		t.Errorf("its neighbour is %s", s)
	}
}

// What has a time limit ends at that if the sandbox's cell does not answer, and what has none and
// takes a moment after a time; a branch is not even begun.
func TestTimeLimitsInASilentCell(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	b.manifest.Runtime = "python"
	silence(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), cell.AnswerTime)
	defer cancel()
	end := func(what string, do func() error) {
		err := do()
		wantCode(t, what, err, Timeout, "does not answer")
		if !errors.Is(err, cell.ErrSilent) || strings.Count(err.Error(), b.id) != 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
	limit := 50 * time.Millisecond
	before := silentTime
	defer func() { silentTime = before }()
	silentTime = time.Hour
	for what, do := range map[string]func() error{
		"exec": func() error { return second(m.Exec(ctx, b.id, Command{Args: []string{"true"}, Timeout: limit})) },
		"eval": func() error { return second(m.Eval(ctx, b.id, "1", limit)) },
		"run": func() error {
			return second(m.RunCode(ctx, b.id, RunSpec{Code: "1", Timeout: limit}, func(RunEvent) error { return nil }))
		},
		"process": func() error {
			return second(m.StartProcess(ctx, b.id, ProcessSpec{Args: []string{"true"}, Timeout: limit}))
		},
	} {
		end(what, do)
	}
	silentTime = limit
	for what, do := range map[string]func() error{
		"first":  func() error { return second(m.Eval(ctx, b.id, "1", 0)) }, // with the refresh, which is what is watched
		"ping":   func() error { return second(m.Ping(ctx, b.id)) },
		"port":   func() error { return second(m.DialPort(ctx, b.id, 80)) },
		"usage":  func() error { return second(m.Metrics(ctx, b.id)) },
		"stat":   func() error { return second(m.StatFile(ctx, b.id, "/")) },
		"branch": func() error { return second(m.Branch(ctx, b.id, BranchSpec{})) },
		"pause":  func() error { return second(m.Pause(ctx, b.id)) },
	} {
		end(what, do)
	}
	if b.state() != Running {
		t.Errorf("it has ended: %s", b.endReason())
	}
	if info, err := m.Sandbox(b.id); err != nil || info.State != Running || info.Reason != cell.ErrSilent.Error() {
		t.Errorf("it is told to be %+v, %v", info, err)
	}
}

// An idle lifetime does not end in a silent cell: what works there may be wanted.
func TestIdleInASilentCell(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	actor{}.play(t, b)
	b.mu.Lock()
	b.limits.Idle, b.idling.last = time.Hour, time.Now().Add(-2*time.Hour)
	b.mu.Unlock()
	silence(t, b)
	if reason, _ := m.over(b); reason != "" {
		t.Errorf("its life is over: %s", reason)
	}
}

// What is asked of a silent cell holds up those who want something of it, and nobody else.
func TestNotesForASilentCell(t *testing.T) {
	m := openApart(t, true)
	bare(t, m, "base", "")
	b, other := forkBare(t, m, "base"), forkBare(t, m, "base")
	silence(t, b)
	// As many notes as its connection takes, and more.
	front, err := json.Marshal(strings.Repeat("x", MaxFront-2))
	if err != nil {
		t.Fatal(err)
	}
	var noting sync.WaitGroup
	for range 16 {
		noting.Go(func() {
			m.SetFront(context.Background(), b.id, func(json.RawMessage) (json.RawMessage, error) { return front, nil })
		})
	}
	time.Sleep(100 * time.Millisecond) // until one of them waits
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := m.ExtendLifetime(context.Background(), other.id, time.Hour); err != nil {
			t.Error(err)
		}
		m.dependents("base")
		m.occupant("nobody")
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("others wait for it")
	}
	celltest.Continue(t, b.machine.Cell().PID)
	noting.Wait()
	<-done
}

// Cells end together when the daemon does, silent ones too: none is left behind, and each is
// waited for once, not once for each of its machines.
func TestCloseWithSilentCells(t *testing.T) {
	m := openApart(t, true)
	bare(t, m, "base", "")
	var pids []int
	for range 4 {
		b := forkBare(t, m, "base")
		silence(t, b)
		pids = append(pids, b.machine.Cell().PID)
	}
	boxes := m.Sandboxes()
	last := m.lookup(boxes[0].ID)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is still there: %v", pid, err)
		}
	}
	wantCode(t, "a call that was under way", last.dead(), SandboxDead, reasonClosed)
}
