package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// losses are why what an earlier daemon has left was not taken over.
type losses struct {
	cells map[string]error // by name
	mu    sync.Mutex
	boxes map[string]error // by id; guarded by mu
}

// add notes why a sandbox in a cell was not taken over. If the cell is gone that is why.
func (l *losses) add(home *cell.Cell, id string, err error) {
	if why := home.Gone(); why != nil {
		err = why
	} else {
		err = fmt.Errorf("it could not be taken over: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boxes[id] = err
}

var (
	errNotTold  = errors.New("the process that it lived in does not tell of it what it was told")
	errNoRecord = fmt.Errorf("%w: there is no record of it", cell.ErrLost)
)

// reason tells why a sandbox was not taken over, in which none of the cells that were counts.
func (l *losses) reason(e *listing, cells []*cell.Cell) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.boxes[e.id]; err != nil {
		return err
	}
	if err := l.cells[e.Cell]; err != nil {
		return err
	}
	if slices.ContainsFunc(cells, func(c *cell.Cell) bool { return c.Name == e.Cell }) {
		return errNotTold
	}
	return errNoRecord
}

// mourn has sandboxes be listed as ended, with the reason, that an earlier daemon knew and no cell
// has brought back.
func (m *Manager) mourn(lost *losses) {
	cells := m.cells.Cells()
	for _, has := range m.journal.sandboxes() {
		if m.lookup(has.id) != nil {
			continue
		}
		saved, kept := m.saved(has.id)
		if kept && saved.PausedAt.After(has.Restored) {
			m.journal.gone("", has.id) // it was paused when the daemon ended
			continue
		}
		state, reason := has.state, has.reason
		if state == "" {
			state, reason = Crashed, shortReason(lost.reason(has, cells).Error())
			m.opts.Log.Warn("a sandbox of an earlier daemon is lost", "id", has.id, "reason", reason)
		}
		c := birth{id: has.id, tag: has.Tag, source: &has.Source, workspace: has.Workspace, created: has.Created}
		if kept {
			c = saved.birth()
		}
		m.remember(has, c, state, reason)
	}
}

// remember lists a sandbox that has ended, of which nothing is left but what the journal tells, and
// what is kept of its last pause.
func (m *Manager) remember(e *listing, c birth, state State, reason string) {
	man := &snapshot.Manifest{VCPUs: e.VCPUs, MemoryMiB: e.MemoryMiB}
	man.Scratch.Pages = page.Number(e.DiskMiB) << (20 - page.Shift)
	b := m.newBox(man, c)
	b.expires = time.Time{}
	b.restored, b.relic, b.reason = e.Restored, state, reason
	b.machine = cell.Bygone(e.PID, machine.Ending{Err: errors.New(reason)})
	b.agent = agent.NewClient(b.machine.Open)
	// It has had its life: it is not started, nor closed once more.
	b.over = true
	b.closeOnce.Do(func() { close(b.closed) })
	b.wakeOnce.Do(func() { b.wakeErr = b.dead() })
	close(b.awake)
	m.mu.Lock()
	m.boxes[b.id] = b
	m.mu.Unlock()
	m.retire(b)
}
