package sandbox

import (
	"errors"
	"fmt"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

var errNoRecord = fmt.Errorf("%w: there is no record of it", cell.ErrLost)

// mourn has a sandbox be listed as ended that an earlier daemon knew and no cell brings back, for a reason
// unless it had ended before. was is what is listed in its place; if that is not any more it was killed.
func (m *Manager) mourn(has listing, was *box, why error) {
	if m.pausedSince(has) {
		m.journal.gone("", has.id)
		return
	}
	if _, ok := m.spaces.get(has.Workspace); has.state == "" && has.Workspace != "" && !ok {
		m.journal.gone(reasonSpace, has.id)
		return
	}
	state, reason := has.state, has.reason
	if state == "" {
		state, reason = Crashed, shortReason(why.Error())
	}
	if m.remember(has, was, state, reason) && has.state == "" {
		m.opts.Log.Warn("a sandbox of an earlier daemon is lost", "id", has.id, "reason", reason)
	}
}

// pausedSince reports whether a sandbox was paused after it had begun to run, and did not run again.
func (m *Manager) pausedSince(has listing) bool {
	r, ok := m.saved(has.id)
	return ok && r.PausedAt.After(has.Restored)
}

// outline returns a sandbox of which is only known what the journal tells, and when it was paused, if ever.
func (m *Manager) outline(e listing) *box {
	man := &snapshot.Manifest{VCPUs: e.VCPUs, MemoryMiB: e.MemoryMiB, BranchedFrom: e.Source}
	man.Scratch.Pages = page.Number(e.DiskMiB) << (20 - page.Shift)
	last, _ := m.saved(e.id)
	b := m.newBox(man, birth{id: e.id, tag: e.runs(), base: e.Tag, workspace: e.Workspace, created: e.Created, pausedAt: last.PausedAt})
	b.restored = e.Restored
	return b
}

// remember lists a sandbox that has ended, of which nothing is left but what the journal tells, and what is kept of
// its last pause, in the place of what is listed of it. It reports false if that is not any more.
func (m *Manager) remember(e listing, was *box, state State, reason string) bool {
	b := m.outline(e)
	b.relic, b.reason = state, reason
	if last, ok := m.saved(e.id); ok {
		b.terms, b.front = last.terms(), last.Front
	}
	b.inhabit(cell.Bygone(e.PID, machine.Ending{Err: errors.New(reason)}))
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
