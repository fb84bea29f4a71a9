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

// TestDepartedAreBounded: the last ones are remembered, and of what a cell may not have heard all, within bounds.
func TestDepartedAreBounded(t *testing.T) {
	var d departed
	deaf := map[string]bool{"deaf": true}
	const first = 500
	id := func(i int) string { return fmt.Sprintf("sb%012x", i) }
	forget := func(from, to int) {
		for i := from; i < to; i++ {
			cell := "well"
			if i < first && i%2 == 0 {
				cell = "deaf"
			}
			for range 2 {
				d.add(id(i), departure{fmt.Sprint("reason ", i), cell})
			}
			d.add(id(i), departure{reasonKilled, ""})
		}
	}
	has := func(i int) bool { return d.reason(id(i)) == reasonKilled }
	forget(0, maxDeparted+first)
	if len(d.order) != maxDeparted+first {
		t.Errorf("before anybody knows which cells there are %d are remembered", len(d.order))
	}
	d.forgetting(func() map[string]bool { return deaf })
	last := maxDeparted + first + 2*departedAtOnce
	forget(maxDeparted+first, last)
	if len(d.order) > maxDeparted+2*departedAtOnce || !has(0) || has(1) || !has(first-2) || has(first-1) || has(first) || !has(last-1) {
		t.Errorf("of %d that have gone %d are remembered", last, len(d.order))
	}
	deaf = nil // it has heard it all
	forget(last, last+2*departedAtOnce)
	if len(d.order) > maxDeparted+departedAtOnce || has(0) || len(d.known) != len(d.order) {
		t.Errorf("of %d that have gone %d are remembered, and %d reasons", last, len(d.order), len(d.known))
	}
	deaf = map[string]bool{"deaf": true}
	for i := range 2 * maxDepartedText / len(id(0)) {
		d.add(id(i), departure{"x", "deaf"})
	}
	text := 0
	for id, why := range d.known {
		text += len(id) + len(why.reason)
	}
	if text > maxDepartedText || text < maxDepartedText/2 || text != d.text || len(d.known) != len(d.order) {
		t.Errorf("%d bytes of %d are remembered, and are taken for %d", text, len(d.known), d.text)
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
	e := &entry{Event: gone, Reason: reasonClosed}
	for range maxDeparted + 2*departedAtOnce {
		e.IDs = append(e.IDs, newID())
	}
	m.journal.add(e)
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
	if m.journal.reason(killed.id) != reasonKilled {
		t.Error("it is forgotten")
	}
	celltest.Continue(t, home.PID)
	if err := home.Answers(t.Context()); err != nil {
		t.Error(err)
	}
	crowdOut(m)
	if m.journal.reason(killed.id) != "" {
		t.Error("it is remembered for ever")
	}
}
