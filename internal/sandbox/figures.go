package sandbox

import (
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
)

// figuresTime is how long a cell may take to tell what its machines use. It takes a
// moment; of one that takes longer the figures of before stay.
const figuresTime = 250 * time.Millisecond

// figures has what machines use be known, without anybody waiting for cells that are
// silent: one that owes an answer for longer than figuresTime is waited for by nobody.
type figures struct {
	mu    sync.Mutex
	asked map[*cell.Cell]*question // guarded by mu
}

// question is one that a cell has not answered yet.
type question struct {
	over chan struct{} // closed when it has, or will not
	late bool          // guarded by figures.mu
}

// refreshAll has the figures of all sandboxes be those of now. It may wait for
// figuresTime, so nobody calls it who holds a lock.
func (m *Manager) refreshAll() {
	asked := m.figures.ask(m.cells.Cells())
	timer := time.NewTimer(figuresTime)
	defer timer.Stop()
	for i, q := range asked {
		select {
		case <-q.over:
		case <-timer.C:
			m.figures.giveUp(asked[i:])
			return
		}
	}
}

// ask asks all cells at once, and returns the questions that are worth waiting for.
func (f *figures) ask(cells []*cell.Cell) (asked []*question) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range cells {
		q := f.asked[c]
		if q == nil {
			q = &question{over: make(chan struct{})}
			if f.asked == nil {
				f.asked = make(map[*cell.Cell]*question)
			}
			f.asked[c] = q
			go f.await(c, q)
		}
		if !q.late {
			asked = append(asked, q)
		}
	}
	return asked
}

func (f *figures) await(c *cell.Cell, q *question) {
	c.Refresh()
	f.mu.Lock()
	delete(f.asked, c)
	f.mu.Unlock()
	close(q.over)
}

func (f *figures) giveUp(asked []*question) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range asked {
		q.late = true
	}
}
