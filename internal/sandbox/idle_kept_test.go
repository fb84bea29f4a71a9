package sandbox

import (
	"testing"
	"time"
)

// used forks a sandbox with an idle lifetime of an hour and has it be used.
func used(t *testing.T, m *Manager) (b *box, end func()) {
	t.Helper()
	r, err := m.Fork(t.Context(), ForkSpec{Tag: "base", N: 1, Limits: Limits{Idle: time.Hour}})
	if err != nil || r[0].Err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	b = m.lookup(r[0].Sandbox.ID)
	end, ok := m.using(b)
	if !ok {
		t.Fatal("it cannot be used")
	}
	return b, end
}

// ago has a sandbox be used last so long ago, of which its cell was told.
func (b *box) ago(d time.Duration) {
	b.mu.Lock()
	b.idling.last = time.Now().Add(-d)
	b.idling.told = b.idling.last
	b.mu.Unlock()
	b.note()
}

// The idle lifetime goes on when a later daemon takes a sandbox over.
func TestIdleLifetimeGoesOn(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b, end := used(t, m)
	end()
	b.ago(50 * time.Minute)
	long, end := used(t, m)
	end()
	long.ago(5 * time.Hour)
	busy, end := used(t, m)
	defer end()
	m, said := takeOver(t, m)
	for id, left := range map[string]time.Duration{b.id: 10 * time.Minute, long.id: 2 * releaseTime, busy.id: time.Hour} {
		again := m.lookup(id)
		if again == nil {
			t.Fatalf("%s is lost: %s", id, said)
		}
		again.mu.Lock()
		at, reason := again.deadline()
		again.mu.Unlock()
		if got := time.Until(at); got > left || got < left-time.Minute || reason != reasonIdle {
			t.Errorf("it has %s left, not %s: %s", got, left, reason)
		}
	}
}

// Whoever used a sandbox before the daemon was started again has time to come back, however short its idle lifetime is.
func TestShortIdleLifetimeLeavesTimeToComeBack(t *testing.T) {
	const idle = 2 * time.Second
	for what, used := range map[string]time.Time{
		"long ago": time.Now().Add(-time.Hour), "just now": time.Now(), "as told ahead": time.Now().Add(idle), "unknown": {},
	} {
		started := time.Now()
		b := &box{idling: foundIdle(used, idle)}
		b.limits.Idle = idle
		at, reason := b.deadline()
		if at.Before(started.Add(2*releaseTime)) || time.Until(at) > 2*releaseTime || reason != reasonIdle {
			t.Errorf("used %s, it has %s left: %s", what, time.Until(at), reason)
		}
	}
}

// A cell is not told of every use, but is never behind by more than it may be.
func TestUseIsToldSeldom(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b, end := used(t, m)
	told := func() time.Time {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.idling.told
	}
	first := told()
	if ahead := time.Until(first); ahead <= 0 || ahead > time.Hour/leaseShare {
		t.Errorf("the cell is told for %s", ahead)
	}
	end()
	for range 1000 {
		end, _ := m.using(b)
		end()
	}
	if !told().Equal(first) {
		t.Error("the cell is told again of what it knows")
	}
	// One that is used for long is used again and again.
	end, _ = m.using(b)
	b.mu.Lock()
	b.idling.told = time.Now()
	b.mu.Unlock()
	b.renew()
	if until := told(); !until.After(first) {
		t.Errorf("a use that lasts is told until %s, and was until %s", until, first)
	}
	end()
	before := told()
	b.mu.Lock()
	b.idling.told = time.Now()
	b.mu.Unlock()
	b.renew()
	if told().After(before) {
		t.Error("what nobody uses is told to be used")
	}
}
