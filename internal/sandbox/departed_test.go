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
