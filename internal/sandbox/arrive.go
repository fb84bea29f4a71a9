package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/journal"
)

// A cell of an earlier daemon is taken over when it tells what it has. Until then the journal tells which
// sandboxes live in it: they are listed, wait for it, and can be killed. So a cell that the host
// has stopped keeps nobody waiting but who uses it, and loses nothing.

// arrival is a cell of an earlier daemon that is taken over.
type arrival struct {
	cell  *cell.Cell
	boxes map[string]expected // by id, what the journal tells of it; not changed any more
	done  chan struct{}       // closed when it was taken over, or is gone

	mu    sync.Mutex
	lacks map[string]error // why sandboxes were not taken over, by id; guarded by mu
}

// expected is a sandbox that a cell is to tell of, and what is listed until then.
type expected struct {
	journal.Sandbox
	box *box
}

// arrivals are the cells of an earlier daemon.
type arrivals struct {
	list []*arrival
	ctx  context.Context // ends when no more is taken over
	stop context.CancelFunc
	done chan struct{} // closed when all are taken over or gone, or it was stopped
}

// graceTime is how long a daemon that starts waits for the cells of an earlier one: those that answer are
// taken over before anybody asks. Tests make it shorter.
var graceTime = 2 * time.Second

// recover takes over the sandboxes that an earlier daemon has left in their cells. Those of a cell that
// takes its time are listed when it returns, and taken over later.
func (m *Manager) recover(ctx context.Context) error {
	cells, lost, err := m.cells.Recover()
	if err != nil {
		return err
	}
	all := arrivals{list: m.expect(cells, lost), done: make(chan struct{})}
	all.ctx, all.stop = context.WithCancel(context.Background())
	m.arrivals = all
	var work sync.WaitGroup
	for _, a := range all.list {
		work.Go(func() { m.arrive(a) })
	}
	go func() {
		defer close(all.done)
		work.Wait()
		if all.ctx.Err() == nil { // what there is, and what it stands on, is known
			m.journal.Complete()
			m.sweepKept()
		}
	}()
	select {
	case <-all.done:
	case <-time.After(graceTime):
		for _, a := range all.pending() {
			m.opts.Log.Warn("a process of an earlier daemon does not answer; it is taken over when it does",
				"cell", a.cell.Name, "process", a.cell.PID, "sandboxes", len(a.boxes))
			m.forsake(a)
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// expect lists the sandboxes that an earlier daemon knew. It returns the cells that are to tell of them.
func (m *Manager) expect(cells []*cell.Cell, lost map[string]error) (list []*arrival) {
	named := make(map[string]*arrival, len(cells))
	for _, c := range cells {
		a := &arrival{cell: c, boxes: make(map[string]expected), done: make(chan struct{}), lacks: make(map[string]error)}
		list, named[c.Name] = append(list, a), a
	}
	for _, has := range m.journal.Sandboxes() {
		a := named[has.Cell]
		if a != nil && m.awaits(has) {
			m.await(has, a)
		} else if why := lost[has.Cell]; why != nil {
			m.mourn(has, nil, why)
		} else {
			m.mourn(has, nil, errNoRecord)
		}
		if b := m.lookup(has.ID); a != nil && b != nil {
			a.boxes[has.ID] = expected{has, b}
		}
	}
	return list
}

// awaits reports whether a sandbox is to be told of by its cell. One that was paused is not, nor one of
// a workspace that there is not, which nobody could end.
func (m *Manager) awaits(has journal.Sandbox) bool {
	if has.State != "" {
		return false
	}
	if _, ok := m.spaces.Get(has.Workspace); has.Workspace != "" && !ok {
		return false
	}
	return !m.pausedSince(has)
}

// await lists a sandbox that a cell is yet to tell of.
func (m *Manager) await(has journal.Sandbox, a *arrival) {
	b := m.outline(has)
	b.arrival = a
	b.inhabit(a.cell.Untold())
	m.swap(nil, b)
}

// arrive takes a cell over. What the journal tells of it and it does not is lost.
func (m *Manager) arrive(a *arrival) {
	found, err := a.cell.TakeOver(m.arrivals.ctx)
	if err == nil {
		m.takeOver(m.arrivals.ctx, found, a)
	}
	if m.arrivals.ctx.Err() != nil {
		return // it is there for another daemon
	}
	for id, e := range a.boxes {
		if e.box.arrival != nil {
			m.mourn(e.Sandbox, e.box, a.reason(id, err))
		}
	}
	close(a.done)
}

// lack notes why a sandbox was not taken over.
func (a *arrival) lack(id string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lacks[id] = err
}

var errNotTold = errors.New("the process that it lived in does not tell of it what it was told")

// reason tells why a sandbox was not taken over from a cell, which could not be for err. If the cell
// is gone that is why.
func (a *arrival) reason(id string, err error) error {
	why := a.cell.Gone()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case why != nil:
		return why
	case err != nil:
		return err
	case a.lacks[id] != nil:
		return fmt.Errorf("it could not be taken over: %w", a.lacks[id])
	}
	return errNotTold
}

// pending returns those that are not taken over yet.
func (s *arrivals) pending() (list []*arrival) {
	for _, a := range s.list {
		select {
		case <-a.done:
		default:
			list = append(list, a)
		}
	}
	return list
}

// errUntold is a cell that may answer, and that has not told what it has.
var errUntold = fmt.Errorf("%w, or has not told yet which sandboxes it has", cell.ErrSilent)

// untold is errUntold for people: which process that is.
func untold(c *cell.Cell) error { return fmt.Errorf("%w (process %d)", errUntold, c.PID) }

// await waits for a cell that is taken over, unless it turns out not to answer, or takes its time.
func (s *arrivals) await(ctx context.Context, a *arrival) error {
	ctx, cancel := context.WithTimeoutCause(ctx, silentTime, untold(a.cell))
	defer cancel()
	ctx, stop := a.cell.Watch(ctx, 0)
	defer stop()
	select {
	case <-a.done:
		return nil
	case <-s.ctx.Done():
		return untold(a.cell)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end has nothing be taken over any more. With wait cells that answer have the time for it. What is not
// taken over by then stays as it is.
func (s *arrivals) end(wait bool) {
	if s.done == nil { // nothing has begun
		return
	}
	if wait {
		list := s.pending()
		var all sync.WaitGroup
		for _, a := range list {
			all.Go(func() { _ = s.await(s.ctx, a) }) // what it says is seen in what is left
		}
		all.Wait()
	}
	s.stop()
	<-s.done
}

// here returns the sandbox of an id that is not paused. Of one whose cell is to tell of it yet it waits
// for that.
func (m *Manager) here(ctx context.Context, id string) (*box, error) {
	for {
		b, err := m.box(id)
		if err != nil || b.arrival == nil {
			return b, err
		}
		waiting, end := b.untilClosed(ctx)
		err = m.arrivals.await(waiting, b.arrival)
		end()
		if err != nil && m.owns(b) {
			return nil, wrap(err, "waiting until sandbox %s is taken over", id)
		}
	}
}

// forsake ends a cell that is not taken over yet once nothing is known to live in it: nobody would see
// that it still holds memory. If the journal lacks something that is not done, as others may live there.
func (m *Manager) forsake(a *arrival) {
	if m.journal.Whole() && !m.inhabited(a.cell) {
		a.cell.Quit()
	}
}

// inhabited reports whether a sandbox is known that lives in a cell.
func (m *Manager) inhabited(c *cell.Cell) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		if b.machine.Cell() == c && b.state() == Running {
			return true
		}
	}
	return false
}

// deaf returns the names of the cells that may not have heard yet what has ended in them.
func (m *Manager) deaf() map[string]bool {
	names := make(map[string]bool)
	for _, c := range m.cells.Cells() {
		if c.Silent() {
			names[c.Name] = true
		}
	}
	for _, a := range m.arrivals.pending() {
		names[a.cell.Name] = true
	}
	return names
}

// dark returns a cell that is yet to tell what it has, if the journal cannot say what that is; else nil.
func (m *Manager) dark() *cell.Cell {
	if list := m.arrivals.pending(); len(list) > 0 && !m.journal.Whole() {
		return list[0].cell
	}
	return nil
}

// certain refuses to make a sandbox run again that may run where nobody knows.
func (m *Manager) certain(id string) error {
	c := m.dark()
	if c == nil {
		return nil
	}
	return wrap(fmt.Errorf("it may run in process %d, and the journal, which would tell, is damaged or lacks something: %w", c.PID, errUntold), "making sandbox %s run again", id)
}
