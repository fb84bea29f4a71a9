package cell

import (
	"context"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// statsTime is how long somebody waits for figures. Then the last ones stay.
const statsTime = time.Second

// round is a request for figures, which all share who ask before it is sent.
type round struct {
	vms  map[uint64]bool
	all  bool
	done chan struct{} // closed when the figures are there, or the cell is gone
}

// Refresh asks for the figures of some machines of the cell, or of all. One that does not
// answer is asked once.
func (c *Cell) Refresh(vms ...*VM) {
	c.mu.Lock()
	if c.next == nil {
		c.next = &round{vms: make(map[uint64]bool), done: make(chan struct{})}
	}
	r := c.next
	for _, v := range vms {
		r.vms[v.id] = true
	}
	r.all = r.all || len(vms) == 0
	if !c.asking {
		c.asking = true
		go c.refresh()
	}
	c.mu.Unlock()
	timer := time.NewTimer(statsTime)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
	}
}

// refresh asks for figures, one round after the other, until nobody wants more.
func (c *Cell) refresh() {
	for {
		c.mu.Lock()
		r := c.next
		c.next, c.asking = nil, r != nil
		c.mu.Unlock()
		if r == nil {
			return
		}
		c.figures(r)
		close(r.done)
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
	if _, err := c.call(context.Background(), request{op: wire.OpStats, body: ask, within: -1}, &stats); err != nil {
		return // the last ones stay
	}
	for _, st := range stats {
		if v := c.vm(st.ID); v != nil {
			v.told(st)
		}
	}
}
