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

// openApart is openBare with a process for each machine, so that one can be stopped.
func openApart(t *testing.T) *Manager {
	t.Helper()
	home, err := os.MkdirTemp("", "apart") // the names of sockets in it must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	each := softEngine
	each.Each = true
	m, err := Open(context.Background(), Options{
		Home: home, Engine: each, Log: slog.New(slog.DiscardHandler),
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
	m := openApart(t)
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	silence(t, b)
	m.admission.mu.Lock()
	m.admission.last = reading{} // as if some time had passed
	m.admission.mu.Unlock()
	forked := make(chan error, 1)
	go func() { forked <- second(m.Fork(context.Background(), ForkSpec{Tag: "base", N: 1})) }()
	asked := func() *question {
		m.figures.mu.Lock()
		defer m.figures.mu.Unlock()
		return m.figures.asked[b.machine.Cell()]
	}
	q := asked()
	for ; q == nil; q = asked() {
		select {
		case err := <-forked:
			t.Fatalf("forked without a look at the host: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	m.admission.mu.Lock()
	select {
	case <-q.over:
		t.Error("whoever else wants something has waited until the cell was given up")
	default:
	}
	m.admission.mu.Unlock()
	if err := <-forked; err != nil {
		t.Error(err)
	}
	m.figures.mu.Lock()
	late := q.late
	m.figures.mu.Unlock()
	select {
	case <-q.over:
	default:
		if !late {
			t.Error("the next one waits for the same answer")
		}
	}
}

// What is asked of a silent cell holds up those who want something of it, and nobody else.
func TestNotesForASilentCell(t *testing.T) {
	m := openApart(t)
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
	m := openApart(t)
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
