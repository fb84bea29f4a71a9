package sandbox

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"
)

// Whoever uses a paused sandbox that resumes by itself finds it running, with the
// lifetime that it had.
func TestAutoResume(t *testing.T) {
	m := borrow(t)
	id := forkOne(t, m, ForkSpec{AutoResume: true, Lifetime: time.Hour})
	evalIn(t, m, id, "x = 1; x")
	for range 3 {
		if _, err := m.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		var users sync.WaitGroup
		for range 4 {
			users.Go(func() {
				if r, err := m.Eval(context.Background(), id, "x += 1; x", 0); err != nil || r.Error != nil {
					t.Errorf("%+v, %v", r, err)
				}
			})
			users.Go(func() {
				if _, err := m.Exec(context.Background(), id, Command{Args: []string{"true"}}); err != nil {
					t.Error(err)
				}
			})
		}
		users.Wait()
		if info := describe(t, m, id); info.State != Running || time.Until(info.ExpiresAt) < 59*time.Minute {
			t.Errorf("%+v", info)
		}
	}
	if got := evalIn(t, m, id, "x"); got != "13" {
		t.Errorf("x is %s", got)
	}
}

// The end of a lifetime kills or pauses, can be put off, and is nothing to a paused
// sandbox (field cases 011, 117, 125).
func TestLifetimes(t *testing.T) {
	m := borrow(t)
	ctx := t.Context()
	wait := func(id string, done func(*Info, error) bool) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for info, err := m.Sandbox(id); !done(info, err); info, err = m.Sandbox(id) {
			if time.Now().After(deadline) {
				t.Fatalf("waited too long: %+v, %v", info, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	gone := func(_ *Info, err error) bool { return hasCode(err, NotFound) }
	isPaused := func(i *Info, err error) bool { return err == nil && i.State == Paused }

	killed := forkOne(t, m, ForkSpec{Lifetime: 50 * time.Millisecond})
	wait(killed, gone)
	wantCode(t, "extending what is over", second(m.ExtendLifetime(ctx, killed, time.Hour)), NotFound, killed)

	id := forkOne(t, m, ForkSpec{Lifetime: 50 * time.Millisecond, OnTimeout: PauseOnTimeout, AutoResume: true})
	wait(id, isPaused)
	info, err := m.SetLifetime(ctx, id, time.Hour)
	if err != nil || info.State != Paused || !info.ExpiresAt.IsZero() {
		t.Errorf("%+v, %v", info, err)
	}
	sh(t, m, id, "true")
	end := describe(t, m, id).ExpiresAt
	if d := time.Until(end); d < 59*time.Minute || d > time.Hour {
		t.Errorf("it lives for %s", d)
	}
	for _, d := range []time.Duration{time.Second, 59 * time.Minute} {
		if info, err := m.ExtendLifetime(ctx, id, d); err != nil || !info.ExpiresAt.Equal(end) {
			t.Errorf("extending by %s: %+v, %v", d, info, err)
		}
	}
	if info, err := m.ExtendLifetime(ctx, id, 2*time.Hour); err != nil || info.ExpiresAt.Sub(end) < 59*time.Minute {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := m.SetLifetime(ctx, id, 0); err != nil || !info.ExpiresAt.IsZero() {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := m.ExtendLifetime(ctx, id, time.Hour); err != nil || !info.ExpiresAt.IsZero() {
		t.Errorf("extending what has no end: %+v, %v", info, err)
	}
	if _, err := m.SetLifetime(ctx, id, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	wait(id, isPaused)
	// The child of one with a lifetime has its own, or none.
	children, err := m.ForkSandbox(ctx, id, ForkSpec{N: 1})
	if err != nil || !children[0].Sandbox.ExpiresAt.IsZero() {
		t.Errorf("%+v, %v", children, err)
	}
	if info, err := m.Resume(ctx, id, 30*time.Millisecond); err != nil || info.ExpiresAt.IsZero() {
		t.Errorf("%+v, %v", info, err)
	}
	wait(id, isPaused)

	for what, err := range map[string]error{
		"a negative lifetime":  second(m.SetLifetime(ctx, id, -1)),
		"too long a lifetime":  second(m.SetLifetime(ctx, id, MaxLifetime+1)),
		"extending by nothing": second(m.ExtendLifetime(ctx, id, 0)),
		"resuming for less":    second(m.Resume(ctx, id, -time.Second)),
		"forking for less":     second(m.Fork(ctx, ForkSpec{Tag: benchTag, N: 1, Lifetime: -1})),
	} {
		wantCode(t, what, err, InvalidArgument, "")
	}
}

// What a front end keeps changes in whatever state a sandbox is, and is durable if
// it is paused.
func TestFront(t *testing.T) {
	m := borrow(t)
	ctx := t.Context()
	id := forkOne(t, m, ForkSpec{Front: json.RawMessage(`{"n":0}`)})
	set := func(want, next string) {
		t.Helper()
		err := m.SetFront(ctx, id, func(b json.RawMessage) (json.RawMessage, error) {
			if string(b) != want {
				t.Errorf("it is %s, not %s", b, want)
			}
			return json.RawMessage(next), nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	set(`{"n":0}`, `{"n":1}`)
	if _, err := m.Pause(ctx, id); err != nil {
		t.Fatal(err)
	}
	set(`{"n":1}`, `{"n":2}`)
	m = reopen(t, m, true)
	set(`{"n":2}`, `{"n":3}`)
	if _, err := m.Resume(ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	set(`{"n":3}`, `{"n":4}`)
	if got := string(describe(t, m, id).Front); got != `{"n":4}` {
		t.Error(got)
	}
	big := make(json.RawMessage, MaxFront+1)
	keep := func(b json.RawMessage) error {
		return m.SetFront(ctx, id, func(json.RawMessage) (json.RawMessage, error) { return b, nil })
	}
	wantCode(t, "too much", keep(big), CapacityExceeded, "")
	wantCode(t, "no JSON", keep(json.RawMessage("{")), InvalidArgument, "")
	wantCode(t, "of nothing", m.SetFront(ctx, "sb000000000000", nil), NotFound, "")
}
