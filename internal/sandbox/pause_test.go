package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/journal"
)

// forkOne makes a sandbox of the borrowed snapshot.
func forkOne(t *testing.T, m *Manager, spec ForkSpec) string {
	t.Helper()
	spec.Tag, spec.N = benchTag, 1
	r, err := m.Fork(t.Context(), spec)
	if err != nil || r[0].Err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	return r[0].Sandbox.ID
}

func sh(t *testing.T, m *Manager, id, script string) string {
	t.Helper()
	var out bytes.Buffer
	r, err := m.Exec(t.Context(), id, Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("%s: %+v, %v: %s", script, r, err, &out)
	}
	return strings.TrimSpace(out.String())
}

func describe(t *testing.T, m *Manager, id string) Info {
	t.Helper()
	info, err := m.Sandbox(id)
	if err != nil {
		t.Fatal(err)
	}
	return *info
}

// ownTags lists the snapshots that pauses have left.
func ownTags(t *testing.T, m *Manager) (tags []string) {
	t.Helper()
	list, err := m.Snapshots()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if strings.HasPrefix(s.Tag, "paused-") {
			tags = append(tags, s.Tag)
		}
	}
	return tags
}

// reopen opens the home again, as the next daemon does. With crash the former one
// gets no chance to save anything.
func reopen(t *testing.T, m *Manager, crash bool) *Manager {
	t.Helper()
	if crash {
		abandon(m)
	} else if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := Open(context.Background(), m.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { next.Close() })
	return next
}

// abandon ends a manager as a crash does: what runs is gone, and nothing is saved.
func abandon(m *Manager) {
	m.mu.Lock()
	m.closed = true
	boxes := maps.Clone(m.boxes)
	clear(m.boxes)
	m.mu.Unlock()
	closeAll(boxes)
	m.lock.Close()
}

// A sandbox that is paused goes on with everything that it had: id, metadata, front,
// environment, memory, disk and processes.
func TestPauseAndResume(t *testing.T) {
	m := borrow(t)
	id := forkOne(t, m, ForkSpec{
		Metadata: map[string]string{"who": "me"}, Env: map[string]string{"A": "1", "B": "2"},
		Lifetime: time.Hour, Front: json.RawMessage(`{"x":1}`), OnTimeout: PauseOnTimeout,
	})
	if !journal.ValidID(id) {
		t.Errorf("id %q", id)
	}
	if got := evalIn(t, m, id, "x = 21; x"); got != "21" {
		t.Fatal(got)
	}
	if got := sh(t, m, id, "echo $A $B; nohup sh -c 'while :; do date >> /root/dates; sleep 0.05; done' > /dev/null 2>&1 & cat /etc/machine-id > /root/id"); got != "1 2" {
		t.Errorf("its environment is %q", got)
	}
	before := describe(t, m, id)
	paused, err := m.Pause(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if paused.State != Paused || paused.PausedAt.IsZero() || !paused.ExpiresAt.IsZero() || paused.SnapshotTag != benchTag ||
		!paused.CreatedAt.Equal(before.CreatedAt) || paused.Metadata["who"] != "me" || string(paused.Front) != `{"x":1}` ||
		paused.VCPUs != before.VCPUs || paused.MemoryMiB != before.MemoryMiB || paused.Engine != before.Engine {
		t.Errorf("%+v\nwas %+v", paused, before)
	}
	if list := m.Sandboxes(); len(list) != 1 || list[0].ID != id || list[0].State != Paused {
		t.Errorf("listed as %+v", list)
	}
	_, err = m.Exec(t.Context(), id, Command{Args: []string{"true"}})
	wantCode(t, "using it", err, SandboxPaused, "paused")
	wantCode(t, "pausing it again", second(m.Pause(t.Context(), id)), FailedPrecondition, "already")
	wantCode(t, "rolling it back", second(m.Rollback(t.Context(), id, benchTag)), SandboxPaused, "")

	info, err := m.Resume(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	if info.State != Running || info.ID != id || info.SnapshotTag != benchTag || info.BranchedFrom != "" || !info.PausedAt.IsZero() ||
		time.Until(info.ExpiresAt) < 59*time.Minute || info.Metadata["who"] != "me" || info.OnTimeout != PauseOnTimeout {
		t.Errorf("resumed as %+v", info)
	}
	if again, err := m.Resume(t.Context(), id, time.Minute); err != nil || !again.ExpiresAt.Equal(info.ExpiresAt) {
		t.Errorf("resumed twice: %+v, %v", again, err)
	}
	if got := evalIn(t, m, id, "x"); got != "21" {
		t.Errorf("x is %s", got)
	}
	if got := sh(t, m, id, `echo $A $B; n=$(wc -l < /root/dates); while [ $(wc -l < /root/dates) -le $n ]; do sleep 0.02; done; cmp /etc/machine-id /root/id`); got != "1 2" {
		t.Errorf("%q", got)
	}
	first := ownTags(t, m)
	wantCode(t, "removing what it resumes from", second(m.RemoveSnapshots(first, RemoveOptions{Force: true})), InUse, "in use by 1 resumed sandbox: "+id)
	wantCode(t, "removing all that it is of", second(m.RemoveSnapshots([]string{benchTag}, RemoveOptions{Cascade: true})), InUse, id)
	if _, err := m.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if tags := ownTags(t, m); len(tags) != 1 || tags[0] == first[0] {
		t.Errorf("after the second pause there are %q, there was %q", tags, first)
	}
	if s, err := m.Snapshot(ownTags(t, m)[0]); err != nil || s.KeptFor != id || s.ParentTag != benchTag {
		t.Errorf("%+v, %v", s, err)
	}
	if err := m.Kill(id); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "killing it again", m.Kill(id), NotFound, id)
	wantCode(t, "resuming what was killed", second(m.Resume(t.Context(), id, 0)), NotFound, id)
	if tags, all := ownTags(t, m), m.Sandboxes(); len(tags)+len(all)+len(m.paused.All()) > 0 {
		t.Errorf("left are %q, %+v", tags, all)
	}
}

// A paused sandbox can be forked from and branched, and stays as it is.
func TestForkAndBranchOfAPausedSandbox(t *testing.T) {
	m := borrow(t)
	id := forkOne(t, m, ForkSpec{Env: map[string]string{"A": "1", "B": "2"}, Limits: Limits{MemoryMiB: 100}})
	evalIn(t, m, id, "x = 21; x")
	if _, err := m.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	children, err := m.ForkSandbox(t.Context(), id, ForkSpec{N: 2, Env: map[string]string{"B": "3"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		if c.Err != nil || c.Sandbox.SnapshotTag != benchTag || c.Sandbox.BranchedFrom != id || c.Sandbox.Limits.MemoryMiB != 100 {
			t.Fatalf("%+v", c)
		}
	}
	child := children[0].Sandbox.ID
	if got := evalIn(t, m, child, "x += 1; x"); got != "22" {
		t.Errorf("x is %s", got)
	}
	if got := sh(t, m, child, "echo $A$B"); got != "13" {
		t.Errorf("the environment is %q", got)
	}
	for _, spec := range []BranchSpec{{Tag: "thin", Mode: BranchDiff, Wait: true}, {Tag: "fat", Mode: BranchFull, Wait: true}} {
		if s, err := m.Branch(t.Context(), id, spec); err != nil || !s.Bootable || s.BranchedFrom != id {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	if describe(t, m, id).State != Paused {
		t.Error("it is not paused any more")
	}
	// What was made of it does not need it.
	if err := m.Kill(id); err != nil {
		t.Fatal(err)
	}
	if tags := ownTags(t, m); len(tags) > 0 {
		t.Errorf("it has left %q", tags)
	}
	if got := evalIn(t, m, children[1].Sandbox.ID, "x"); got != "21" {
		t.Errorf("x is %s", got)
	}
	if _, err := m.Branch(t.Context(), child, BranchSpec{Tag: "later", Wait: true}); err != nil {
		t.Error(err)
	}
	for tag, want := range map[string]string{"thin": "21", "fat": "21", "later": "22"} {
		if err := m.Verify(t.Context(), tag, nil); err != nil {
			t.Error(err)
		}
		r, err := m.Fork(t.Context(), ForkSpec{Tag: tag, N: 1})
		if err != nil {
			t.Fatal(err)
		}
		if got := evalIn(t, m, r[0].Sandbox.ID, "x"); got != want {
			t.Errorf("%s: x is %s", tag, got)
		}
	}
}

// What was acknowledged as paused is there after a crash; a sandbox that was paused
// once is put back to its last pause; one that never was is gone. In an orderly end
// those that are to be kept are paused.
func TestPausedSandboxesOutliveTheDaemon(t *testing.T) {
	m := borrow(t)
	ctx := t.Context()
	paused, resumed, running := forkOne(t, m, ForkSpec{}), forkOne(t, m, ForkSpec{}), forkOne(t, m, ForkSpec{})
	for _, id := range []string{paused, resumed} {
		evalIn(t, m, id, "x = 1; x")
		if _, err := m.Pause(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Resume(ctx, resumed, 0); err != nil {
		t.Fatal(err)
	}
	evalIn(t, m, resumed, "x = 2; x")
	m = reopen(t, m, true)
	for id, state := range map[string]State{paused: Paused, resumed: Crashed} {
		if describe(t, m, id).State != state {
			t.Errorf("%s is %+v", id, describe(t, m, id))
		}
		if _, err := m.Resume(ctx, id, 0); err != nil {
			t.Fatal(err)
		}
		if got := evalIn(t, m, id, "x"); got != "1" {
			t.Errorf("x of %s is %s", id, got)
		}
	}
	_, err := m.Resume(ctx, running, 0)
	wantCode(t, "one that was never paused", err, SandboxDead, running)

	kept, dropped := forkOne(t, m, ForkSpec{OnTimeout: PauseOnTimeout}), forkOne(t, m, ForkSpec{})
	for _, id := range []string{resumed, kept, dropped} {
		evalIn(t, m, id, "x = 3; x")
	}
	m = reopen(t, m, false)
	for _, id := range []string{resumed, kept} {
		if _, err := m.Resume(ctx, id, 0); err != nil {
			t.Fatal(err)
		}
		if got := evalIn(t, m, id, "x"); got != "3" {
			t.Errorf("x of %s is %s", id, got)
		}
	}
	_, err = m.Sandbox(dropped)
	wantCode(t, "one that nobody wanted to keep", err, NotFound, dropped)
	if n := len(ownTags(t, m)); n != 3 {
		t.Errorf("there are %d states of 3 sandboxes", n)
	}
}

// Pauses, resumes, uses, branches, forks and a kill of one sandbox at the same time
// have an order: every call succeeds or tells why not, and nothing is left of what
// was killed (field cases 018, 019, 122).
func TestConcurrentPauses(t *testing.T) {
	m := borrow(t)
	for round := range 3 {
		id := forkOne(t, m, ForkSpec{AutoResume: round == 1, Lifetime: time.Hour})
		evalIn(t, m, id, "x = 1; x")
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		worker := func(name string, codes []Code, do func(i int) error) {
			all.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					err := do(i)
					ok := err == nil || ctx.Err() != nil
					for _, code := range append(codes, SandboxPaused, NotFound, SandboxDead) {
						ok = ok || hasCode(err, code)
					}
					if !ok {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
		worker("pausing", []Code{FailedPrecondition}, func(int) error { return second(m.Pause(ctx, id)) })
		worker("resuming", nil, func(int) error { return second(m.Resume(ctx, id, 0)) })
		worker("executing", nil, func(int) error { return second(m.Exec(ctx, id, Command{Args: []string{"true"}})) })
		worker("changing its end", nil, func(i int) error { return second(m.SetLifetime(ctx, id, time.Hour+time.Duration(i))) })
		worker("branching", []Code{CapacityExceeded}, func(i int) error {
			tag := fmt.Sprintf("b%d-%d", round, i)
			if _, err := m.Branch(ctx, id, BranchSpec{Tag: tag, Wait: i%2 == 0}); err != nil {
				return err
			}
			_, err := m.RemoveSnapshots([]string{tag}, RemoveOptions{Force: true})
			return err
		})
		worker("forking", nil, func(int) error {
			r, err := m.ForkSandbox(ctx, id, ForkSpec{N: 1})
			if err != nil {
				return err
			}
			defer m.Kill(r[0].Sandbox.ID)
			if got, err := m.Eval(ctx, r[0].Sandbox.ID, "x", 0); err != nil || string(got.Value) != "1" {
				return fmt.Errorf("x of a child is %+v, %w", got, err)
			}
			return nil
		})
		time.Sleep(time.Second)
		if err := m.Kill(id); err != nil {
			t.Error(err)
		}
		_, err := m.Sandbox(id)
		wantCode(t, "what was killed", err, NotFound, id)
		time.Sleep(50 * time.Millisecond)
		stop()
		all.Wait()
		if list := m.Sandboxes(); len(list)+len(m.paused.All()) > 0 {
			t.Errorf("left are %+v", list)
		}
		if tags := ownTags(t, m); len(tags) > 0 {
			t.Errorf("left are %q", tags)
		}
	}
}

// Who waits for a command or an evaluation is told of the pause. Both go on after the
// resume, unheard, as in a child.
func TestPauseEndsCalls(t *testing.T) {
	m := borrow(t)
	id := forkOne(t, m, ForkSpec{})
	sh(t, m, id, "nohup sleep 4321 > /dev/null 2>&1 &")
	ended := make(chan error, 2)
	go func() {
		_, err := m.Exec(context.Background(), id, Command{Args: []string{"sleep", "1234"}})
		ended <- err
	}()
	go func() {
		_, err := m.Eval(context.Background(), id, "import time; time.sleep(1000)", 0)
		ended <- err
	}()
	const count = "grep -lax 'sleep.%d.' /proc/[0-9]*/cmdline 2> /dev/null | wc -l"
	for sh(t, m, id, fmt.Sprintf(count, 1234)) != "1" {
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := m.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantCode(t, "a call that the pause has ended", <-ended, SandboxPaused, id)
	}
	if _, err := m.Resume(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1234, 4321} {
		if got := sh(t, m, id, fmt.Sprintf(count, n)); got != "1" {
			t.Errorf("there are %s of sleep %d", got, n)
		}
	}
	if err := m.Interrupt(t.Context(), id); err != nil {
		t.Error(err)
	}
	if got := evalIn(t, m, id, "1 + 1"); got != "2" {
		t.Error(got)
	}
}
