package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/cell/celltest"
	"github.com/forkd-dev/forkd/internal/journal"
)

// stopped forks sandboxes, and has another manager find their process stopped after something was done.
func stopped(t *testing.T, m *Manager, spec ForkSpec, do func()) (later *Manager, ids []string, pid int) {
	t.Helper()
	hurry(t)
	results, err := m.Fork(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		ids = append(ids, r.Sandbox.ID)
	}
	b := m.lookup(ids[0])
	b.machine.Refresh() // it has heard all notes
	pid = b.machine.Cell().PID
	later = meanwhile(t, m, func() {
		silence(t, b)
		do()
	})
	return later, ids, pid
}

func nothing() {}

// TestLateArrival: a daemon that starts does not wait for a process that the host has stopped. It lists what
// lives there, refuses what is asked of that, keeps what that stands on, and has it go on when the process
// does: but for what was killed.
func TestLateArrival(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 3, Metadata: map[string]string{"app": "desk"}, Lifetime: time.Hour}, nothing)
	kept, killed := ids[0], ids[1]
	for daemons := range 2 {
		for _, id := range ids {
			if daemons > 0 && id == killed {
				continue
			}
			info, err := m.Sandbox(id)
			if err != nil || info.State != Running || info.Reason == "" || info.SnapshotTag != "x" || info.PID != pid || info.VCPUs != 1 {
				t.Errorf("it is %+v, %v", info, err)
			}
		}
		if n := m.debts().boxes; n != len(ids)-daemons {
			t.Errorf("%d sandboxes count", n)
		}
		ctx := t.Context()
		for what, err := range map[string]error{
			"a command":       second(m.Exec(ctx, kept, Command{Args: []string{"true"}})),
			"an evaluation":   second(m.Eval(ctx, kept, "1", 0)),
			"a pause":         second(m.Pause(ctx, kept)),
			"a branch":        second(m.Branch(ctx, kept, BranchSpec{})),
			"a rollback":      second(m.Rollback(ctx, kept, "x")),
			"another life":    second(m.SetLifetime(ctx, kept, time.Minute)),
			"its environment": second(m.Environment(kept)),
			"a resume":        second(m.Resume(ctx, kept, 0)),
		} {
			wantCode(t, what, err, Timeout, "does not answer")
			if !errors.Is(err, cell.ErrSilent) || strings.Count(err.Error(), fmt.Sprint("process ", pid)) != 1 {
				t.Errorf("%s: %v", what, err)
			}
		}
		wantCode(t, "removing its snapshot", second(m.RemoveSnapshots([]string{"x"}, RemoveOptions{})), InUse, kept)
		if another := forkBare(t, m, "x"); another.machine.Cell().PID == pid {
			t.Error("it gets children")
		} else if err := m.Kill(another.id); err != nil {
			t.Error(err)
		}
		if daemons == 0 {
			if err := m.Kill(killed); err != nil {
				t.Error(err)
			}
		}
		wantCode(t, "what was killed", second(m.Sandbox(killed)), NotFound, reasonKilled)
		if daemons == 0 {
			m = meanwhile(t, m, nothing)
		}
	}
	celltest.Continue(t, pid)
	for _, id := range []string{kept, ids[2]} {
		b := arrived(t, m, id)
		for end := time.Now().Add(time.Minute); b.info().Reason != "" && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // it has told of its machines, and may owe other answers
		}
		if info := b.info(); info.State != Running || info.Reason != "" || info.Metadata["app"] != "desk" || info.ExpiresAt.IsZero() || info.PID != pid {
			t.Errorf("it is %+v", info)
		}
	}
	wantCode(t, "what was killed", second(m.Sandbox(killed)), NotFound, reasonKilled)
}

// TestLateArrivalStandsOn: what a sandbox stands on is what the journal says that it runs from, not what its
// user knows it to be of.
func TestLateArrivalStandsOn(t *testing.T) {
	hurry(t)
	m := openApart(t, false)
	bare(t, m, "x", "")
	bare(t, m, "own", "")
	src, err := m.source("own")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Release()
	c := birthOf(ForkSpec{Tag: "own"})
	c.base = "x" // as of one that was resumed
	b, err := m.spawn(t.Context(), src, c)
	if err == nil {
		err = m.register(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	m = meanwhile(t, m, func() { silence(t, b) })
	if info, err := m.Sandbox(b.id); err != nil || info.SnapshotTag != "x" || m.lookup(b.id).arrival == nil {
		t.Errorf("it is %+v, %v", info, err)
	}
	wantCode(t, "removing what it runs from", second(m.RemoveSnapshots([]string{"own"}, RemoveOptions{})), InUse, b.id)
	if _, err := m.RemoveSnapshots([]string{"x"}, RemoveOptions{Force: true}); err != nil {
		t.Error(err)
	}
	if _, err := m.RemoveSnapshots([]string{"own"}, RemoveOptions{Force: true}); err != nil {
		t.Error(err)
	}
	wantCode(t, "it is gone with that", second(m.Sandbox(b.id)), NotFound, reasonRemoved)
}

// TestWaitForALateArrival: who uses a sandbox whose process goes on a moment later does not notice.
func TestWaitForALateArrival(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 1}, nothing)
	done := make(chan error, 1)
	go func() { done <- second(m.SetLifetime(context.Background(), ids[0], time.Hour)) }()
	select {
	case err := <-done:
		t.Fatalf("it is not waited for: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	celltest.Continue(t, pid)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if info, err := m.Sandbox(ids[0]); err != nil || info.ExpiresAt.IsZero() {
		t.Errorf("it is %+v, %v", info, err)
	}
}

// TestResumeOfALateArrival: that something runs is said of a sandbox, and of a workspace, when its process has told so.
func TestResumeOfALateArrival(t *testing.T) {
	hurry(t)
	m := openApart(t, false)
	bare(t, m, "x", "")
	if err := m.spaces.Put(spaceRecord{Version: spaceVersion, Name: "desk", BaseTag: "x", kept: kept{SnapshotTag: "x"}, CreatedAt: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
	b := occupy(t, m, "desk")
	b.machine.Refresh() // it has heard all notes
	pid := b.machine.Cell().PID
	m = meanwhile(t, m, func() { silence(t, b) })
	wantCode(t, "a workspace", second(m.ResumeWorkspace(t.Context(), "desk")), Timeout, "does not answer")
	done := make(chan error, 2)
	go func() { done <- second(m.ResumeWorkspace(context.Background(), "desk")) }()
	go func() { done <- second(m.Resume(context.Background(), b.id, 0)) }()
	select {
	case err := <-done:
		t.Fatalf("it is not waited for: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	celltest.Continue(t, pid)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestWhatIsNotKnownOfALateArrival: who asks for a sandbox of which its process has not told yet is told that, and who needs
// to know more waits for it.
func TestWhatIsNotKnownOfALateArrival(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 2, Metadata: map[string]string{"app": "desk"}, Front: json.RawMessage(`{"token":"t"}`)}, nothing)
	info, err := m.Sandbox(ids[0])
	if err != nil || !info.Untold || info.Front != nil {
		t.Errorf("it is %+v, %v", info, err)
	}
	wantCode(t, "who needs to know", second(m.Known(t.Context(), ids[0])), Timeout, "does not answer")
	if err := m.Kill(ids[1]); err != nil {
		t.Error(err)
	}
	wantCode(t, "what was killed", second(m.Known(t.Context(), ids[1])), NotFound, reasonKilled)
	celltest.Continue(t, pid)
	if info, err = m.Known(t.Context(), ids[0]); err != nil || info.Untold || info.Metadata["app"] != "desk" || string(info.Front) != `{"token":"t"}` {
		t.Errorf("it is %+v, %v", info, err)
	}
	pauseBare(t, m, m.lookup(ids[0]))
	if info, err := m.Known(t.Context(), ids[0]); err != nil || info.State != Paused || info.Untold {
		t.Errorf("paused it is %+v, %v", info, err)
	}
}

// TestLateArrivalThatEnds: what was to be taken over is listed as any other that was lost, once its process
// has ended; what was paused once can be resumed as it was then.
func TestLateArrivalThatEnds(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 2}, nothing)
	pausedOnce(t, m, ids[1])
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-m.arrivals.done
	info, err := m.Sandbox(ids[0])
	if err != nil || info.State != Crashed || !strings.Contains(info.Reason, "has ended") {
		t.Errorf("it is %+v, %v", info, err)
	}
	wantCode(t, "who uses it", second(m.Eval(t.Context(), ids[0], "1", 0)), SandboxDead, info.Reason)
	if info, err := m.Sandbox(ids[1]); err != nil || info.State != Crashed || info.PausedAt.IsZero() {
		t.Errorf("what was paused once is %+v, %v", info, err)
	}
	m = meanwhile(t, m, nothing)
	if info, err := m.Sandbox(ids[1]); err != nil || info.State != Crashed || info.PausedAt.IsZero() {
		t.Errorf("what was paused once is %+v, %v to the next daemon", info, err)
	}
	if again, err := m.Sandbox(ids[0]); err != nil || again.State != Crashed || again.Reason != info.Reason && info.Reason != "" {
		t.Errorf("to the next daemon it is %+v, %v", again, err)
	}
}

// pausedOnce has a sandbox be one that was paused before it was resumed.
func pausedOnce(t *testing.T, m *Manager, id string) {
	t.Helper()
	r := goldenPaused
	r.ID, r.BaseTag, r.kept, r.PausedAt = id, "x", kept{SnapshotTag: "x"}, time.Now().Add(-time.Hour)
	if err := m.paused.Put(r); err != nil {
		t.Fatal(err)
	}
}

// TestLateArrivalThatLacksSome: what a process does not tell of when it goes on is lost, but for what it was
// when it was paused, and what it tells of is not.
func TestLateArrivalThatLacksSome(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	b := forkBare(t, m, "x")
	lost, again := newID(), newID()
	m.journal.Began(journal.Siblings{IDs: []string{lost, again}, Origin: originOf(b)})
	pausedOnce(t, m, again)
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 1}, nothing)
	used := make(chan error, 1)
	go func() { used <- second(m.SetLifetime(context.Background(), lost, time.Hour)) }()
	for _, id := range []string{b.id, lost, again, ids[0]} {
		if info, err := m.Sandbox(id); err != nil || info.State != Running || info.PID != pid {
			t.Errorf("it is %+v, %v", info, err)
		}
	}
	celltest.Continue(t, pid)
	<-m.arrivals.done
	wantCode(t, "who has waited for what is lost", <-used, SandboxDead, errNotTold.Error())
	for id, want := range map[string]State{b.id: Running, ids[0]: Running, lost: Crashed, again: Crashed} {
		if info, err := m.Sandbox(id); err != nil || info.State != want || info.PausedAt.IsZero() == (id == again) {
			t.Errorf("it is %+v, %v; want %s", info, err, want)
		}
	}
}

// TestKillWhileItIsWaitedFor: who waits for a sandbox that is yet to be taken over does not hold up a kill.
func TestKillWhileItIsWaitedFor(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	m, ids, _ := stopped(t, m, ForkSpec{Tag: "x", N: 2}, nothing)
	home := m.lookup(ids[0]).machine.Cell()
	used := make(chan error, 1)
	go func() { used <- second(m.SetLifetime(context.Background(), ids[0], time.Hour)) }()
	time.Sleep(50 * time.Millisecond)
	if err := m.Kill(ids[0]); err != nil {
		t.Error(err)
	}
	wantCode(t, "who has waited", <-used, NotFound, reasonKilled)
	if home.Silent() {
		t.Error("they have waited until it was known not to answer")
	}
}

// awaitEnd waits until a process has ended.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d stays", pid)
		}
	}
}

// TestKillAllThatIsLate: a process that does not answer ends with the last sandbox that it has, and with
// the daemon.
func TestKillAllThatIsLate(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 2}, nothing)
	for _, id := range ids {
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("it has ended before the last one was killed: %v", err)
		}
		if err := m.Kill(id); err != nil {
			t.Error(err)
		}
	}
	awaitEnd(t, pid)
	if all := m.Sandboxes(); len(all) != 0 {
		t.Errorf("listed are %+v", all)
	}
	m, ids, pid = stopped(t, m, ForkSpec{Tag: "x", N: 2}, nothing)
	last := m.lookup(ids[0])
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, pid)
	wantCode(t, "a call that was under way", last.dead(), SandboxDead, reasonClosed)
}

// TestLateArrivalOfNothing: a process in which nothing is known to live is ended when it does not answer a daemon that starts;
// one of which the journal does not tell what lives there is not.
func TestLateArrivalOfNothing(t *testing.T) {
	hurry(t)
	m := openApart(t, false)
	bare(t, m, "x", "")
	b := forkBare(t, m, "x")
	pid := b.machine.Cell().PID
	if err := m.Kill(b.id); err != nil {
		t.Fatal(err)
	}
	m = meanwhile(t, m, func() {
		silence(t, b)
		if err := os.Remove(filepath.Join(m.opts.Home, "journal")); err != nil {
			t.Fatal(err)
		}
	})
	if list := m.arrivals.pending(); len(list) != 1 || list[0].cell.PID != pid || list[0].cell.Gone() != nil || m.journal.Whole() {
		t.Fatalf("late are %v", list)
	}
	celltest.Continue(t, pid)
	<-m.arrivals.done

	m = meanwhile(t, m, func() { silence(t, b) })
	awaitEnd(t, pid)
	<-m.arrivals.done
}

// TestCloseOfWhatWasToBeKept: what was paused once and cannot be now, because its process is yet to be
// taken over, is told when the daemon ends, and is as it was paused.
func TestCloseOfWhatWasToBeKept(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 1}, nothing)
	pausedOnce(t, m, ids[0])
	if err := m.Close(); err == nil || !strings.Contains(err.Error(), ids[0]) || !errors.Is(err, cell.ErrSilent) {
		t.Errorf("it ends with %v", err)
	}
	awaitEnd(t, pid)
	m, err := Open(t.Context(), m.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if info, err := m.Sandbox(ids[0]); err != nil || info.State != Paused {
		t.Errorf("it is %+v, %v", info, err)
	}
}

// TestLateArrivalWithoutAJournal: what the journal does not tell of a process that does not answer is listed
// when it does. Until then nothing has its place, and the process stays.
func TestLateArrivalWithoutAJournal(t *testing.T) {
	for what, spoil := range map[string]func(path string) error{
		"none":    os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{\"journal\":1}\nx\n"), 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			m := openApart(t, false)
			bare(t, m, "x", "")
			var b *box
			m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 2}, func() {
				if err := spoil(filepath.Join(m.opts.Home, "journal")); err != nil {
					t.Fatal(err)
				}
			})
			if all := m.Sandboxes(); len(all) != 0 {
				t.Errorf("listed are %+v", all)
			}
			pausedOnce(t, m, ids[0])
			wantCode(t, "resuming what may run there", second(m.Resume(t.Context(), ids[0], 0)), Timeout, "journal")
			if err := m.Kill(ids[1]); !hasCode(err, NotFound) {
				t.Errorf("killing what is not known: %v", err)
			}
			if err := m.paused.Remove(ids[0]); err != nil {
				t.Fatal(err)
			}
			celltest.Continue(t, pid)
			<-m.arrivals.done
			for _, id := range ids {
				if b = m.lookup(id); b == nil || b.state() != Running || b.machine.Cell().PID != pid {
					t.Errorf("sandbox %s is %+v", id, b)
				}
			}
		})
	}
}

// TestResumeThatWasGivenUp: what a process that did not answer makes of a resume, when its daemon is gone,
// is not what the next daemon finds: the sandbox is paused.
func TestResumeThatWasGivenUp(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	first, b := forkBare(t, m, "x"), forkBare(t, m, "x")
	if err := m.paused.Put(recordOf(b, kept{SnapshotTag: "x"})); err != nil || !m.remove(b) {
		t.Fatal(err)
	}
	m.journal.Gone("", b.id)
	m.end(b, reasonPaused) // as a pause does; there is no agent that could have a part in it
	silence(t, first)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := m.Resume(ctx, b.id, 0); err == nil {
		t.Fatal("it was resumed")
	}
	pid := first.machine.Cell().PID
	m = meanwhile(t, m, func() {
		celltest.Continue(t, pid)
		time.Sleep(200 * time.Millisecond) // for the machine to be made
	})
	if info, err := m.Sandbox(b.id); err != nil || info.State != Paused {
		t.Errorf("it is %+v, %v", info, err)
	}
	if info, err := m.Sandbox(first.id); err != nil || info.State != Running {
		t.Errorf("its neighbour is %+v, %v", info, err)
	}
}

// TestLateArrivalWithoutAJournalTwice: what the journal did not tell of a process that does not answer, nobody knows
// when the next daemon comes either, whatever this one has written; but when all have answered.
func TestLateArrivalWithoutAJournalTwice(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	unknown := forkBare(t, m, "x").id
	path := filepath.Join(m.opts.Home, "journal")
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 1}, func() {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Replace(text, []byte(unknown), []byte("a rotten one"), 1), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	pausedOnce(t, m, unknown)
	for range 2 {
		wantCode(t, "resuming what may run there", second(m.Resume(t.Context(), unknown, 0)), Timeout, "journal")
		m = meanwhile(t, m, nothing)
	}
	if err := m.Kill(ids[0]); err != nil {
		t.Error(err)
	}
	if err := m.paused.Remove(unknown); err != nil {
		t.Fatal(err)
	}
	celltest.Continue(t, pid)
	<-m.arrivals.done
	b := m.lookup(unknown)
	if b == nil || b.state() != Running || b.machine.Cell().PID != pid {
		t.Fatalf("what nobody has killed is %+v", b)
	}
	if m = meanwhile(t, m, func() { silence(t, b) }); m.dark() != nil {
		t.Error("it lacks something once all was known again")
	}
}
