package vsock

import (
	"net"
	"time"
)

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
		c.readDeadline.Set(t, &c.readable)
	}
	if write {
		c.writeDeadline.Set(t, &c.writable)
	}
	return nil
}
