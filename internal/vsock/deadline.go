package vsock

import (
	"net"
	"sync"
	"time"
)

// deadline is one of the two of a connection. Its fields are guarded by
// Mux.mu.
type deadline struct {
	timer  *time.Timer
	passed bool
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// set replaces the deadline; when it passes, those who wait at cond look.
func (d *deadline) set(t time.Time, cond *sync.Cond) {
	d.stop()
	wait := time.Until(t)
	if d.passed = !t.IsZero() && wait <= 0; d.passed {
		cond.Broadcast()
	}
	if t.IsZero() || d.passed {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		if d.timer == timer { // else it was replaced just now
			d.timer, d.passed = nil, true
			cond.Broadcast()
		}
	})
	d.timer = timer
}

// SetDeadline sets both deadlines. The zero time means none.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets the deadline of Read, also of those in progress.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets the deadline of Write, also of those in progress.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

func (c *Conn) setDeadlines(t time.Time, read, write bool) error {
	c.mux.mu.Lock()
	defer c.mux.mu.Unlock()
	if c.closed {
		return c.error("set", net.ErrClosed)
	}
	if read {
		c.readDeadline.set(t, &c.readable)
	}
	if write {
		c.writeDeadline.set(t, &c.writable)
	}
	return nil
}
