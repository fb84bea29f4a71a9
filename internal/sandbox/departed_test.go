package sandbox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestWhyASandboxIsNotThere: who asks for a sandbox that was there is told what became of it.
func TestWhyASandboxIsNotThere(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	fork := func(spec ForkSpec) string {
		t.Helper()
		spec.Tag, spec.N = "base", 1
		r, err := m.Fork(context.Background(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return r[0].Sandbox.ID
	}
	// gone waits until a sandbox is not there any more, and wants to be told why.
	gone := func(id, why string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			_, err := m.Sandbox(id)
			if err == nil && time.Now().Before(deadline) {
				continue
			}
			if !hasCode(err, NotFound) || !strings.Contains(fmt.Sprint(err), why) {
				t.Errorf("sandbox %s: %v; want that %s", id, err, why)
			}
			return
		}
	}
	gone(fork(ForkSpec{Lifetime: time.Millisecond}), reasonExpired)
	gone(fork(ForkSpec{Limits: Limits{Idle: time.Millisecond}}), reasonIdle)
	killed := fork(ForkSpec{})
	if err := m.Kill(killed); err != nil {
		t.Fatal(err)
	}
	gone(killed, reasonKilled)
	if err := m.Kill(killed); !hasCode(err, NotFound) || !strings.Contains(err.Error(), reasonKilled) {
		t.Errorf("killing it again: %v", err)
	}
	if _, err := m.Sandbox("nosuch"); !hasCode(err, NotFound) || strings.Contains(err.Error(), "any more") {
		t.Errorf("one that never was: %v", err)
	}
}

// TestDepartedAreBounded: the last ones are remembered.
func TestDepartedAreBounded(t *testing.T) {
	var d departed
	for i := range maxDeparted + 2 {
		for range 2 {
			d.add(fmt.Sprint(i), fmt.Sprint("reason ", i))
		}
	}
	for i, want := range map[int]string{0: "", 1: "", 2: "reason 2", maxDeparted + 1: fmt.Sprint("reason ", maxDeparted+1)} {
		if got := d.reason(fmt.Sprint(i)); got != want {
			t.Errorf("the reason of %d is %q, want %q", i, got, want)
		}
	}
	if len(d.reasons) != maxDeparted || len(d.order) != maxDeparted {
		t.Errorf("%d reasons of %d are kept", len(d.reasons), len(d.order))
	}
}

// A sandbox that ended by itself and was put back from what was saved is not forgotten when many
// others have ended.
func TestWhatWasPutBackIsNotForgotten(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	m.retire(b) // while it was paused
	m.remove(b)
	src, err := m.source("base")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Release()
	next, err := m.spawn(t.Context(), src, birth{id: b.id, tag: "base", created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.register(next); err != nil {
		t.Fatal(err)
	}
	others, err := m.Fork(t.Context(), ForkSpec{Tag: "base", N: maxEnded})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range others {
		m.retire(m.lookup(r.Sandbox.ID))
	}
	if m.lookup(b.id) != next {
		t.Error("it is gone")
	}
	m.retire(forkBare(t, m, "base"))
	if m.lookup(others[0].Sandbox.ID) != nil || m.lookup(others[1].Sandbox.ID) == nil {
		t.Error("not the oldest was forgotten")
	}
}
