package sandbox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/celltest"
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

// crowdOut has more sandboxes go than are usually remembered.
func crowdOut(m *Manager) {
	ids := make([]string, 2*(maxBoxes+maxEnded))
	for i := range ids {
		ids[i] = newID()
	}
	m.journal.Gone(reasonClosed, ids...)
}

// TestKilledStaysKilled: what was killed in a process that has not heard of it does not come back when that goes on, however
// many others have gone meanwhile, and however many daemons.
func TestKilledStaysKilled(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	m, ids, pid := stopped(t, m, ForkSpec{Tag: "x", N: 3}, nothing)
	killed := ids[:2]
	for _, id := range killed {
		if err := m.Kill(id); err != nil {
			t.Error(err)
		}
		crowdOut(m)
		m = meanwhile(t, m, nothing)
	}
	crowdOut(m)
	celltest.Continue(t, pid)
	<-m.arrivals.done
	for _, id := range killed {
		wantCode(t, "what was killed", second(m.Sandbox(id)), NotFound, reasonKilled)
	}
	if info, err := m.Sandbox(ids[2]); err != nil || info.State != Running {
		t.Errorf("their neighbour is %+v, %v", info, err)
	}
}

// TestKilledInSilenceIsRemembered: so is what the daemon itself has told a process that does not take it up, until it does.
func TestKilledInSilenceIsRemembered(t *testing.T) {
	m := openApart(t, false)
	bare(t, m, "x", "")
	killed, home := forkBare(t, m, "x"), forkBare(t, m, "x").machine.Cell()
	silence(t, killed)
	if err := m.Kill(killed.id); err != nil {
		t.Error(err)
	}
	crowdOut(m)
	if m.journal.Reason(killed.id) != reasonKilled {
		t.Error("it is forgotten")
	}
	celltest.Continue(t, home.PID)
	if err := home.Answers(t.Context()); err != nil {
		t.Error(err)
	}
	crowdOut(m)
	if m.journal.Reason(killed.id) != "" {
		t.Error("it is remembered for ever")
	}
}
