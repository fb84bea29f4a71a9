package sandbox

import (
	"errors"
	"fmt"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/journal"
	"github.com/forkd-dev/forkd/internal/machine"
)

var errNoRecord = fmt.Errorf("%w: there is no record of it", cell.ErrLost)

// mourn has a sandbox be listed as ended that an earlier daemon knew and no cell brings back, for a reason
// unless it had ended before. was is what is listed in its place; if that is not any more it was killed.
func (m *Manager) mourn(has journal.Sandbox, was *box, why error) {
	if m.pausedSince(has) {
		m.journal.Gone("", has.ID)
		return
	}
	if _, ok := m.spaces.Get(has.Workspace); has.State == "" && has.Workspace != "" && !ok {
		m.journal.Gone(reasonSpace, has.ID)
		return
	}
	state, reason := State(has.State), has.Reason
	if state == "" {
		state, reason = Crashed, journal.ShortReason(why.Error())
	}
	if m.remember(has, was, state, reason) && has.State == "" {
		m.opts.Log.Warn("a sandbox of an earlier daemon is lost", "id", has.ID, "reason", reason)
	}
}

// pausedSince reports whether a sandbox was paused after it had begun to run, and did not run again.
func (m *Manager) pausedSince(has journal.Sandbox) bool {
	r, ok := m.saved(has.ID)
	return ok && r.PausedAt.After(has.Restored)
}

// remember lists a sandbox that has ended, of which nothing is left but what the journal tells, and what is kept of
// its last pause, in the place of what is listed of it. It reports false if that is not any more.
func (m *Manager) remember(has journal.Sandbox, was *box, state State, reason string) bool {
	b := m.outline(has)
	b.relic, b.reason = state, reason
	if last, ok := m.saved(has.ID); ok {
		b.terms, b.front = last.terms(), last.Front
	}
	b.inhabit(cell.Bygone(has.PID, machine.Ending{Err: errors.New(reason)}))
	// It has had its life: it is not started, nor closed once more.
	b.over = true
	b.closeOnce.Do(func() { close(b.closed) })
	b.wakeOnce.Do(func() { b.wakeErr = b.dead() })
	close(b.awake)
	if !m.swap(was, b) {
		return false
	}
	if was != nil {
		was.close()
	}
	m.retire(b)
	return true
}
