package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/celltest"
	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// has returns what a cell has, once it has answered all that it was asked.
func (l *lab) has(c *Cell) (s wire.State) {
	l.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		left := len(c.calls)
		c.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			l.t.Fatalf("%d requests have no answer", left)
		}
	}
	if _, err := c.call(l.t.Context(), request{op: wire.OpList, body: wire.List{}}, &s); err != nil {
		l.t.Fatal(err)
	}
	return s
}

// TestToldWhileStopped: who tells a stopped cell something does not wait for it, it is not lost
// by what it was told, and it knows that when it goes on.
func TestToldWhileStopped(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.counting()
	c := v.Cell()
	celltest.Stop(t, c.PID)
	const notes = 3000 // far more than a socket takes
	for i := range notes {
		if err := v.SetNote(json.RawMessage(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(v.Refresh)
	}
	asking.Wait()
	c.mu.Lock()
	if len(c.calls) > 1 {
		t.Errorf("it was asked %d times for figures", len(c.calls))
	}
	c.mu.Unlock()
	celltest.Continue(t, c.PID)
	has := l.has(c)
	if len(has.VMs) != 1 {
		t.Fatalf("it has %+v", has.VMs)
	}
	if note, err := c.seal.open(v.subject(), has.VMs[0].Note); string(note) != fmt.Sprint(notes-1) {
		t.Errorf("it has %s, %v", note, err)
	}
	v.Refresh()
	l.executed(v, v.Counters().Instructions+1)
}

// TestGivenUpCell: a cell that was told far too much that it does not take up is lost, for that
// reason.
func TestGivenUpCell(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.boot(machinetest.Count)
	celltest.Stop(t, v.Cell().PID)
	refused, blob := false, make([]byte, 8<<20)
	for range 100 {
		if _, err := v.cell.call(t.Context(), request{op: wire.OpStart, body: wire.Ref{ID: v.id}, within: time.Millisecond}, nil); errors.Is(err, wire.ErrBehind) {
			refused = true
		}
		if v.cell.tell(wire.OpNote, wire.Note{VM: v.id}, blob) != nil {
			break
		}
	}
	if !refused {
		t.Error("it is asked for more all the time")
	}
	if e := awaitEnd(t, v); !errors.Is(e.Err, ErrLost) || !errors.Is(e.Err, wire.ErrBehind) {
		t.Errorf("ended with %v", e)
	}
}

// TestSilentCell: a cell that does not answer is not the one for its key as long as that is so, a
// machine in it that is closed is forgotten at once, and the cell hears of it when it goes on.
func TestSilentCell(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	s, _ := l.seed()
	c := l.shared("x")
	vms := l.fork(c, s, "stays", "goes")
	celltest.Stop(t, c.PID)
	if err := c.Answers(t.Context()); !errors.Is(err, ErrSilent) {
		t.Errorf("a stopped cell: %v", err)
	}
	another := l.shared("x")
	if another == c {
		t.Error("it is still the one for its key")
	}
	if again := l.shared("x"); again != another {
		t.Error("there is a third one")
	}
	vms[1].Close()
	if c.vm(vms[1].id) != nil {
		t.Error("the machine is still known")
	}
	celltest.Continue(t, c.PID)
	awaitMachines(t, c, 1)
	if has := l.has(c); has.VMs[0].ID != vms[0].id {
		t.Errorf("it has %+v", has.VMs)
	}
	if err := c.Answers(t.Context()); err != nil {
		t.Error(err)
	}
	if again := l.shared("x"); again != c {
		t.Error("it is not the one for its key again")
	}
}

// TestWatch: what is watched ends if the cell does not answer, and not if it does, or after stop.
func TestWatch(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	c := l.boot(machinetest.Count).Cell()
	begin := func() (ctx context.Context, stop func()) { return c.Watch(t.Context(), time.Millisecond) }
	long, stopLong := begin()
	stopLong()
	stopLong()
	watched, stop := begin()
	defer stop()
	over, never := make(chan struct{}), make(chan struct{})
	brief, cancelBrief := c.WatchUntil(t.Context(), time.Millisecond, over)
	defer cancelBrief()
	close(over)
	lasting, cancel := c.WatchUntil(t.Context(), time.Millisecond, never)
	defer cancel()
	if err := c.Answers(t.Context()); err != nil || watched.Err() != nil {
		t.Errorf("while it answers: %v, %v", err, context.Cause(watched))
	}
	celltest.Stop(t, c.PID)
	select {
	case <-watched.Done():
	case <-time.After(time.Minute):
	}
	if err := context.Cause(watched); !errors.Is(err, ErrSilent) {
		t.Errorf("ended with %v", err)
	}
	<-lasting.Done()
	if err := context.Cause(lasting); !errors.Is(err, ErrSilent) {
		t.Errorf("what is watched until something else happens ended with %v", err)
	}
	if long.Err() != nil || brief.Err() != nil {
		t.Errorf("what is not watched any more has ended with %v, %v", context.Cause(long), context.Cause(brief))
	}
	if cancelBrief(); brief.Err() == nil {
		t.Error("it has not ended when it was not needed any more")
	}
}

// TestTimeoutOfASilentCell: the time for something is not over because the cell could not use it.
func TestTimeoutOfASilentCell(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	c := l.boot(machinetest.Count).Cell()
	celltest.Stop(t, c.PID)
	timed, cancel := c.Timeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := c.Answers(t.Context()); !errors.Is(err, ErrSilent) || timed.Err() != nil {
		t.Errorf("a stopped cell: %v; the time: %v", err, timed.Err())
	}
	celltest.Continue(t, c.PID)
	select {
	case <-timed.Done():
	case <-time.After(time.Minute):
	}
	if err := context.Cause(timed); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ended with %v", err)
	}
}

// TestLateCuts: a cut that comes when nobody waits for it any more is dropped.
func TestLateCuts(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.counting()
	celltest.Stop(t, v.Cell().PID)
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := v.Branch(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("branched: %v", err)
		}
		cancel()
	}
	celltest.Continue(t, v.Cell().PID)
	time.Sleep(100 * time.Millisecond) // for those that would stay to come
	if has := l.has(v.Cell()); len(has.Sources) != 0 {
		t.Errorf("%d cuts stay", len(has.Sources))
	}
}

// TestLatePauses: a machine that stands still when nobody waits for that any more goes on.
func TestLatePauses(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.counting()
	celltest.Stop(t, v.Cell().PID)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := v.Suspend(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("suspended: %v", err)
	}
	celltest.Continue(t, v.Cell().PID)
	l.has(v.Cell()) // so it has stood still
	v.Refresh()
	l.executed(v, v.Counters().Instructions+10_000)
	if err := v.Suspend(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLateForks: machines that are made when nobody waits for them any more are closed.
func TestLateForks(t *testing.T) {
	before := forkTime
	forkTime = 20 * time.Millisecond
	defer func() { forkTime = before }()
	l := newLab(t, shortDir(t), nil)
	s, _ := l.seed()
	c := l.shared("x")
	celltest.Stop(t, c.PID)
	for range 5 {
		if _, errs := c.Fork(t.Context(), s, noNote, Spec{Children: make([]Child, 4)}); !errors.Is(errs[0], ErrSilent) {
			t.Errorf("forked: %v", errs[0])
		}
	}
	celltest.Continue(t, c.PID)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		n := len(l.has(c).VMs)
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d machines stay", n)
		}
	}
}

// TestStubbornCell: a cell that does not end when it is told to is ended.
func TestStubbornCell(t *testing.T) {
	before := quitTime
	quitTime = 50 * time.Millisecond
	defer func() { quitTime = before }()
	l := newLab(t, shortDir(t), nil)
	v := l.boot(machinetest.Count)
	celltest.Stop(t, v.Cell().PID)
	v.Cell().Quit()
	if e := awaitEnd(t, v); !errors.Is(e.Err, errStubborn) {
		t.Errorf("ended with %v", e)
	}
	<-v.Cell().gone
	if v.Cell().proc.lives() {
		t.Error("the process is there")
	}
}

// TestCloseEndsCells: when Close has returned there is no cell for a later daemon to find, even
// if one of them does not listen.
func TestCloseEndsCells(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.boot(machinetest.Count)
	celltest.Stop(t, v.Cell().PID)
	l.Host.Close(true)
	if v.Cell().proc.lives() {
		t.Error("the process is there")
	}
	if left, _, err := l.records(); err != nil || len(left) != 0 {
		t.Errorf("left %+v, %v", left, err)
	}
}

// slowCut is a cut whose stacks come when they may, or not at all.
type slowCut struct {
	snapshot.Cut
	may chan error
}

func (c slowCut) Stacks(ctx context.Context) (memory, scratch *page.Stack, err error) {
	if err := <-c.may; err != nil {
		return nil, nil, err
	}
	return c.Cut.Stacks(ctx)
}

// TestForkOfASilentCut: who forks a branch whose cell does not answer may leave, and what could not
// be had is asked for again.
func TestForkOfASilentCut(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	parent := l.counting()
	cut, _ := l.branch(parent)
	slow := slowCut{retain(cut), make(chan error)}
	root, err := snapshot.OpenRoot(l.root())
	if err != nil {
		t.Fatal(err)
	}
	s := snapshot.InMemory(&snapshot.Manifest{VCPUs: 1}, cut.State(), slow, root)
	defer s.Release()
	c := l.shared("x")
	fork := func(ctx context.Context) error {
		_, errs := c.Fork(ctx, s, noNote, Spec{Children: make([]Child, 1)})
		return errs[0]
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := fork(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("forked: %v", err)
		}
		cancel()
	}
	slow.may <- ErrSilent // to the one who asks for both
	for known := true; known; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		_, known = c.sources[s]
		c.mu.Unlock()
	}
	go func() { slow.may <- nil }()
	if err := fork(t.Context()); err != nil {
		t.Errorf("forked again: %v", err)
	}
}

// TestToldBeforeTheDaemonWent: what a cell was told and has not heard yet is done before the next
// daemon finds it.
func TestToldBeforeTheDaemonWent(t *testing.T) {
	dir := shortDir(t)
	l := newLab(t, dir, nil)
	s, _ := l.seed()
	vms := l.fork(l.shared("x"), s, "stays", "goes")
	c := vms[0].Cell()
	celltest.Stop(t, c.PID)
	const notes = 100
	for i := range notes {
		if err := vms[0].SetNote(json.RawMessage(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.tell(wire.OpClose, wire.Ref{ID: vms[1].id}, nil); err != nil {
		t.Fatal(err)
	}
	if err := vms[0].SetNote(json.RawMessage(`"last"`)); err != nil {
		t.Fatal(err)
	}
	l.Host.Close(false)
	l.store.Close()

	l = newLab(t, dir, nil)
	time.AfterFunc(50*time.Millisecond, func() { _ = syscall.Kill(c.PID, syscall.SIGCONT) })
	found, _ := l.recover()
	for _, f := range found {
		if f.Cell.Name == c.Name && (len(f.VMs) != 1 || string(f.VMs[0].Note) != `"last"`) {
			for _, v := range f.VMs {
				t.Errorf("it has %s", v.Note)
			}
		}
	}
}

// TestBygoneMachine: of a machine that was lost nothing can be asked, and nobody waits for it.
func TestBygoneMachine(t *testing.T) {
	why := errors.New("it was lost")
	v := Bygone(7, machine.Ending{Err: why})
	select {
	case <-v.Done():
	default:
		t.Error("it has not ended")
	}
	if v.Ending().Err != why || v.Cell().PID != 7 || v.Started() || v.PrivateBytes() != 0 {
		t.Errorf("it is %+v of process %d", v.Ending(), v.Cell().PID)
	}
	v.Refresh()
	v.Pause()
	v.Close()
	_, pinned := v.Pin()
	_, cut := v.Branch(t.Context())
	_, opened := v.Open(t.Context(), 1)
	_, dialed := v.Dial(t.Context(), 1)
	for what, err := range map[string]error{"starting": v.Start(), "pinning": pinned, "branching": cut} {
		if !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{"opening": opened, "dialing": dialed} {
		if !errors.Is(err, machine.ErrEnded) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
