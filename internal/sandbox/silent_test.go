package sandbox

import (
	"context"
	"errors"
	"testing"
	"time"
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
