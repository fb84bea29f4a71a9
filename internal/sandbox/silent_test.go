package sandbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// A guest that does not answer is not branched, and goes on as soon as it can be
// told so.
func TestBranchOfASilentGuest(t *testing.T) {
	m := borrow(t)
	before := holdTime
	holdTime = 300 * time.Millisecond
	t.Cleanup(func() { holdTime = before })
	id := spawnOne(t, m)
	if got := evalIn(t, m, id, "x = 21; x"); got != "21" {
		t.Fatal(got)
	}
	b, err := m.box(id)
	if err != nil {
		t.Fatal(err)
	}
	b.machine.Pause() // the agent cannot answer now
	_, err = m.Branch(t.Context(), id, BranchSpec{Tag: "silent"})
	wantCode(t, "a guest that does not answer", err, Timeout, "goes on")
	_, err = m.ForkSandbox(t.Context(), id, ForkSpec{N: 2})
	wantCode(t, "forking it", err, Timeout, "goes on")
	if m.store.Exists("silent") || len(m.Sandboxes()) != 1 {
		t.Error("something was left")
	}
	if err := b.machine.Start(); err != nil {
		t.Fatal(err)
	}
	if got := evalIn(t, m, id, "x"); got != "21" {
		t.Errorf("x is %s", got)
	}
	holdTime = before
	// Whichever of the requests reached the guest is called off before long.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := m.Branch(ctx, id, BranchSpec{Tag: "silent", Wait: true})
		if err == nil {
			break
		}
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != Unavailable || ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	// One that is killed in the middle ends the branch too.
	b.machine.Pause()
	time.AfterFunc(50*time.Millisecond, func() { m.Kill(id) })
	_, err = m.Branch(t.Context(), id, BranchSpec{})
	wantCode(t, "one that was killed meanwhile", err, SandboxDead, reasonKilled)
}

// A guest that does not end a command at its time limit is not waited for without end.
func TestTimeLimitInASilentGuest(t *testing.T) {
	before := stuckTime
	stuckTime = 50 * time.Millisecond
	defer func() { stuckTime = before }()
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	actor{wire.OpExec: func(in *wire.Reader, _ *wire.Writer) {
		for err := error(nil); err == nil; { // it listens, and does not answer
			_, _, err = in.Next()
		}
	}}.play(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := m.Exec(ctx, b.id, Command{Args: []string{"true"}, Timeout: time.Millisecond})
	wantCode(t, "a command that it does not end", err, Timeout, "after a time limit")
}

// A guest that stands still and never says that it goes on holds nobody up but itself: it takes no
// place among the branches that are being written from others, and is not waited for for ever.
func TestBranchOfAGuestThatDoesNotGoOn(t *testing.T) {
	before := holdTime
	holdTime = 50 * time.Millisecond
	t.Cleanup(func() { holdTime = before })
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	hostile, other := forkBare(t, m, "base"), forkBare(t, m, "base")
	asked := make(chan struct{}, 2*maxWriting)
	actor{wire.OpResume: agree, wire.OpBranch: func(in *wire.Reader, out *wire.Writer) {
		asked <- struct{}{}
		out.Frame(wire.TypeOK, nil)
		for err := error(nil); err == nil; { // it listens, and does not answer
			_, _, err = in.Next()
		}
	}}.play(t, hostile)
	actor{wire.OpBranch: standStill}.play(t, other)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	failed := make(chan error, 2*maxWriting)
	for range cap(failed) {
		go func() { failed <- second(m.Branch(context.Background(), hostile.id, BranchSpec{})) }()
	}
	<-asked
	if _, err := m.Branch(ctx, other.id, BranchSpec{Tag: "other", Wait: true}); err != nil {
		t.Error("branching another one meanwhile:", err)
	}
	for range cap(failed) {
		select {
		case err := <-failed:
			wantCode(t, "a guest that does not go on", err, Timeout, "goes on")
		case <-ctx.Done():
			t.Fatal("it is waited for")
		}
	}
	if n := len(m.writers.slots); n > 0 {
		t.Errorf("%d branches are being written that have failed", n)
	}
	m.admission.mu.Lock()
	defer m.admission.mu.Unlock()
	for _, p := range m.admission.promises {
		if p.kept.IsZero() {
			t.Errorf("%s is still promised something", p.what)
		}
	}
}
