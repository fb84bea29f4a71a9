package cell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// lateTime is how long somebody waits for figures, which take a cell a moment. Of one that is late
// the last ones stay, and nobody else waits for what it owes.
const lateTime = 250 * time.Millisecond

// silenceTime is after how long a cell does not answer that owes figures.
const silenceTime = 5 * time.Second

// ErrSilent reports a cell that does not answer. One that the host has stopped may go on later.
var ErrSilent = errors.New("the process that it lives in does not answer")

// errSilent is ErrSilent for people: which process that is.
func (c *Cell) errSilent() error { return fmt.Errorf("%w (process %d)", ErrSilent, c.PID) }

// round is a request for figures, which all share who ask before it is sent. It is a cell's sign of
// life, too.
type round struct {
	vms  map[uint64]bool
	all  bool
	sent time.Time     // guarded by Cell.mu
	done chan struct{} // closed when the figures are there, or the cell is gone
}

// Refresh asks for the figures of some machines of the cell, or of all, and waits for them unless
// the cell is late. One that does not answer is asked once.
func (c *Cell) Refresh(vms ...*VM) {
	ids := make([]uint64, len(vms))
	for i, v := range vms {
		ids[i] = v.id
	}
	c.mu.Lock()
	r := c.askLocked(ids)
	sent := c.asked.sent
	c.mu.Unlock()
	r.await(context.Background(), time.Until(sent.Add(lateTime)))
}

// Refresh asks all cells for all figures, at the same time. Nobody calls it who holds a lock.
func (h *Host) Refresh() {
	var all sync.WaitGroup
	for _, c := range h.Cells() {
		all.Go(func() { c.Refresh() })
	}
	all.Wait()
}

// Answers waits for a sign of life, which takes a cell a moment: also one of which nobody knows yet that
// it goes on. The error wraps ErrSilent if there is none in time, or is that of ctx.
func (c *Cell) Answers(ctx context.Context) error {
	r, sent := c.sign()
	if r.await(ctx, max(lateTime, time.Until(sent.Add(silenceTime)))) {
		return nil
	}
	return cmp.Or(context.Cause(ctx), c.errSilent())
}

// sign returns the round that the cell owes, and since when.
func (c *Cell) sign() (r *round, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.askLocked([]uint64{nobody})
	}
	return c.asked, c.asked.sent
}

// nobody is the number of no machine: what there is to tell of it costs nothing.
const nobody = 0

// Silent reports whether it is known that the cell does not answer.
func (c *Cell) Silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked != nil && time.Since(c.asked.sent) >= silenceTime
}

// Watch returns a context for something that the cell does. It ends, with an ErrSilent as its cause,
// when it turns out after so long, or later, that the cell does not answer. After stop it is not
// watched any more, and ends with ctx.
func (c *Cell) Watch(ctx context.Context, after time.Duration) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	timer := c.watch(watched, cancel, after, over)
	return watched, sync.OnceFunc(func() {
		timer.Stop()
		close(over)
	})
}

// WatchUntil is Watch for somebody who needs the context no longer than until cancel is called, and may have it be
// watched for less: until over is closed.
func (c *Cell) WatchUntil(ctx context.Context, after time.Duration, over <-chan struct{}) (watched context.Context, cancel func()) {
	watched, end := context.WithCancelCause(ctx)
	timer := c.watch(watched, end, after, over)
	return watched, func() {
		timer.Stop()
		end(nil)
	}
}

// watch has a context end when it turns out after so long, or later, and before over is closed, that the cell does not answer.
func (c *Cell) watch(ctx context.Context, end context.CancelCauseFunc, after time.Duration, over <-chan struct{}) *time.Timer {
	return time.AfterFunc(after, func() {
		for {
			err := c.Answers(ctx)
			select {
			case <-over:
				return
			default:
			}
			if errors.Is(err, ErrSilent) {
				end(err)
				return
			}
			select {
			case <-over:
				return
			case <-ctx.Done():
				return
			case <-time.After(silenceTime):
			}
		}
	})
}

// Timeout returns a context that ends after a time, with context.DeadlineExceeded as its cause. The time
// begins anew when it was over, and the cell goes on that has not answered: what lives in it was not
// able to use it.
func (c *Cell) Timeout(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(within, func() {
		for errors.Is(c.Answers(ctx), ErrSilent) {
			if !c.goesOn(ctx) {
				return
			}
			select {
			case <-time.After(within):
			case <-ctx.Done():
				return
			}
		}
		cancel(context.DeadlineExceeded)
	})
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// goesOn waits until the cell gives a sign of life, however long that takes, or is gone. It reports
// false if ctx ends first.
func (c *Cell) goesOn(ctx context.Context) bool {
	owed, _ := c.sign()
	select {
	case <-owed.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// await waits for the figures of a round, for a time. It reports whether they are there.
func (r *round) await(ctx context.Context, within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-r.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// askLocked has the next round be about some machines, or about all, too. The caller holds c.mu.
func (c *Cell) askLocked(vms []uint64) *round {
	if c.next == nil {
		c.next = &round{vms: make(map[uint64]bool), done: make(chan struct{})}
	}
	r := c.next
	for _, id := range vms {
		r.vms[id] = true
	}
	r.all = r.all || len(vms) == 0
	if c.asked == nil {
		c.beginLocked()
		go c.refresh(r)
	}
	return r
}

// beginLocked has the next round be the one that is asked for now. The caller holds c.mu.
func (c *Cell) beginLocked() *round {
	if c.asked, c.next = c.next, nil; c.asked != nil {
		c.asked.sent = time.Now()
	}
	return c.asked
}

// refresh asks for figures, one round after the other, until nobody wants more.
func (c *Cell) refresh(r *round) {
	for r != nil {
		c.figures(r)
		c.mu.Lock()
		next := c.beginLocked()
		c.mu.Unlock()
		close(r.done)
		r = next
	}
}

// figures asks for the figures of a round, and waits for them as long as the cell is there.
func (c *Cell) figures(r *round) {
	var ask wire.Stats
	if !r.all {
		for id := range r.vms {
			ask.VMs = append(ask.VMs, id)
		}
	}
	var stats []wire.Stat
	_, err := c.call(context.Background(), request{op: wire.OpStats, body: ask, within: forever}, &stats)
	for errors.Is(err, ErrSilent) { // it has not even taken up what came before
		select {
		case <-c.gone:
		case <-time.After(lateTime):
		}
		_, err = c.call(context.Background(), request{op: wire.OpStats, body: ask, within: forever}, &stats)
	}
	if err != nil {
		return // the last ones stay
	}
	for _, st := range stats {
		if v := c.vm(st.ID); v != nil {
			v.told(st)
		}
	}
}
