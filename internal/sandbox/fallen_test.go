package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/machine"
)

// pauseBare pauses a sandbox without an agent.
func pauseBare(t *testing.T, m *Manager, b *box) {
	t.Helper()
	actor{wire.OpBranch: standStill}.play(t, b)
	if _, err := m.Pause(t.Context(), b.id); err != nil {
		t.Fatal(err)
	}
}

// refuseBusy is the answer to OpBranch of a guest that is never at a safe point.
func refuseBusy(_ *wire.Reader, out *wire.Writer) {
	out.JSON(wire.TypeError, wire.Error{Code: wire.CodeRuntimeBusy, Message: "busy"})
}

// resumeBare does to a paused sandbox without an agent what a resume does.
func resumeBare(t *testing.T, m *Manager, id string) *box {
	t.Helper()
	r, ok := m.pausedOf(id)
	if !ok {
		t.Fatalf("%s is not paused", id)
	}
	src, err := m.source(r.SnapshotTag)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Release()
	b, err := m.spawn(t.Context(), src, r.birth())
	if err == nil {
		err = m.register(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFallenAfterAPause: a sandbox that was paused, resumed, and has ended is told to have ended, in the
// same words before and after whatever end of the daemon; its state of the pause stays, and nothing but
// a resume has it go on from there.
func TestFallenAfterAPause(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	r, err := m.Fork(t.Context(), ForkSpec{Tag: "x", N: 2, AutoResume: true, Metadata: map[string]string{"who": "me"}})
	if err != nil {
		t.Fatal(err)
	}
	fell, runs := r[0].Sandbox.ID, r[1].Sandbox.ID
	for _, id := range []string{fell, runs} {
		pauseBare(t, m, m.lookup(id))
	}
	b, at := resumeBare(t, m, fell), describe(t, m, fell).PausedAt
	if !at.IsZero() {
		t.Errorf("one that runs is paused since %s", at)
	}
	b.giveUp("it fell over")
	m.retire(b)
	resumeBare(t, m, runs)
	told := func(when, id, reason string) {
		t.Helper()
		info := describe(t, m, id)
		words := reason + "; it can be resumed as it was paused at " + info.PausedAt.Format(time.RFC3339)
		if info.State != Crashed || !strings.HasPrefix(info.Reason, words) || info.Metadata["who"] != "me" || info.SnapshotTag != "x" {
			t.Errorf("%s: %+v", when, info)
		}
		if infos := m.Sandboxes(); len(infos) != 2 {
			t.Errorf("%s: listed are %+v", when, infos)
		}
		wantCode(t, when, second(m.Eval(t.Context(), id, "1", 0)), SandboxDead, words)
		wantCode(t, when, second(m.Pause(t.Context(), id)), SandboxDead, words)
		k, _ := m.saved(id)
		wantCode(t, when, second(m.RemoveSnapshots([]string{k.SnapshotTag}, RemoveOptions{Force: true})), InUse, id)
	}
	told("now", fell, "it fell over")
	m = meanwhile(t, m, func() {})
	told("after a crash", fell, "it fell over")
	if info := describe(t, m, runs); info.State != Running || info.Reason != "" {
		t.Errorf("after a crash the other one is %+v", info)
	}
	// An orderly end does not make it what it was not.
	actor{wire.OpBranch: refuseBusy}.play(t, m.lookup(runs)) // which is not to be paused
	if err := m.Close(); err == nil {
		t.Error("a guest that cannot be paused was")
	}
	if m, err = Open(t.Context(), m.opts); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	told("after an orderly end", fell, "it fell over")
	told("one that could not be paused then", runs, reasonUnsaved)

	k, _ := m.saved(fell)
	if err := os.Truncate(filepath.Join(m.store.Dir(k.SnapshotTag), "state.bin"), 1); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "resuming what is damaged", second(m.Resume(t.Context(), fell, 0)), NotBootable, "")
	told("after a resume that failed", fell, "it fell over")
	if err := m.Kill(fell); err != nil {
		t.Error(err)
	}
	wantCode(t, "what was killed", second(m.Sandbox(fell)), NotFound, reasonKilled)
	if tags := ownTags(t, m); len(tags) != 1 {
		t.Errorf("kept are %q", tags)
	}
}

// TestPauseThatFailedIsNone: a pause that fails, or is cut short, is not when the sandbox was paused, so that
// the next daemon has what runs go on.
func TestPauseThatFailedIsNone(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	id := forkBare(t, m, "x").id
	pauseBare(t, m, m.lookup(id))
	at := describe(t, m, id).PausedAt
	b := resumeBare(t, m, id)
	actor{wire.OpBranch: standStill}.play(t, b)
	b.machine.Pause()
	before, _ := m.saved(id)
	full := fail(NoSpace, "", "the disk is full")
	_, err := m.save(t.Context(), b, "paused-"+id, b.base, before.kept, func(k kept) error {
		if k.SnapshotTag != before.SnapshotTag {
			return full
		}
		return m.paused.Put(m.pauseOf(b, k))
	})
	wantCode(t, "pausing it", err, NoSpace, "full")
	if r, _ := m.saved(id); !r.PausedAt.Equal(at) {
		t.Errorf("it was paused at %s, and is said to have been at %s", at, r.PausedAt)
	}
	m = meanwhile(t, m, func() {})
	if info := describe(t, m, id); info.State != Running {
		t.Errorf("the next daemon has it as %+v", info)
	}
	actor{}.play(t, m.lookup(id)) // so that nobody waits for it in the end
}

// TestFallenByItself: why and how a sandbox has ended by itself is what the next daemon tells, too, if this one
// ends in order.
func TestFallenByItself(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	b := forkBare(t, m, "x")
	pauseBare(t, m, b)
	b = resumeBare(t, m, b.id)
	b.inhabit(cell.Bygone(1, machine.Ending{Err: errors.New("its own fault")}))
	m.retire(b)
	want := describe(t, m, b.id)
	m = reopen(t, m, false)
	if now := describe(t, m, b.id); now.Reason != want.Reason || now.State != want.State {
		t.Errorf("it was %s, %q, and is %s, %q", want.State, want.Reason, now.State, now.Reason)
	}
}

// TestAutoResumeOfWhatFell: who waits for a paused sandbox, while somebody resumes it and it ends, does not have it
// go on from its pause once more.
func TestAutoResumeOfWhatFell(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	made, err := m.Fork(t.Context(), ForkSpec{Tag: "x", N: 1, AutoResume: true})
	if err != nil {
		t.Fatal(err)
	}
	id := made[0].Sandbox.ID
	pauseBare(t, m, m.lookup(id))
	free, err := m.turn(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	used := make(chan error, 1)
	go func() { used <- second(m.Eval(t.Context(), id, "1", 0)) }()
	time.Sleep(50 * time.Millisecond)
	b := resumeBare(t, m, id)
	b.giveUp("it fell over")
	m.retire(b)
	kept, _ := m.saved(id) // a resume would be seen
	if err := os.Truncate(filepath.Join(m.store.Dir(kept.SnapshotTag), "state.bin"), 1); err != nil {
		t.Fatal(err)
	}
	m.cool(kept.SnapshotTag)
	free()
	wantCode(t, "who uses it", <-used, SandboxDead, "it fell over")
}
