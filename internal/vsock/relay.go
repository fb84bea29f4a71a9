package vsock

import (
	"errors"
	"net"
)

// RelayWindow is how many bytes may be written to a Relay and not be Taken.
const RelayWindow = sendBuffer

// ErrWindow reports a write beyond RelayWindow.
var ErrWindow = errors.New("more was written than there is room for")

// Receiver is told what happens to a relayed connection, in this order. Its methods are
// called with the locks of the device and of the Mux held, so they must return at
// once, and must not use the Relay.
type Receiver interface {
	// Opened tells that the guest has taken the connection.
	Opened()
	// Data hands over what the guest sends; b may not be kept.
	Data(b []byte)
	// Taken tells that the guest has taken so many more bytes of what was written, or
	// does not listen any more, so that they are lost.
	Taken(n int)
	// EOF tells that the guest sends no more.
	EOF()
	// Ended tells why the connection has ended, unless that was by Close. Nothing follows.
	Ended(err error)
}

// Relay is a connection to a program in the guest for somebody who carries its bytes on
// and waits for nothing. Its methods may be called from any goroutine.
type Relay struct{ c *Conn }

// presumedCredit is how many bytes may follow the request for a connection before
// the guest has told how many it has room for. Linux takes them: it has made the
// connection when it answers, with room for 256 KiB unless the program that listens
// has asked for less.
const presumedCredit = 16 << 10

// RelayOptions tells how a Relay is made.
type RelayOptions struct {
	// With Wait, what is written waits until the guest has taken the connection. Without, as much as may
	// be presumed to find room follows the request, which spares a guest that knows what it is about to
	// be asked a wake-up; the program that listens must leave its receive buffer as it is.
	Wait bool
	// Line has the connection be a line: see the package comment.
	Line bool
}

// Relay makes a connection to a port of the guest.
func (m *Mux) Relay(port uint32, how RelayOptions, to Receiver) (*Relay, error) {
	if how.Line {
		if c := m.takeSpare(port, to); c != nil {
			return &Relay{c}, nil
		}
	}
	credit := uint32(presumedCredit)
	if how.Wait {
		credit = 0
	}
	c, err := m.request(port, credit, how.Line, to)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "vsock", Addr: Addr{Port: port}, Err: err}
	}
	return &Relay{c}, nil
}

// Write sends b to the guest. Who writes more than there is room for gets ErrWindow, and
// nothing of b is sent. What is written to a connection that has ended is lost.
func (r *Relay) Write(b []byte) error {
	c := r.c
	c.mux.mu.Lock()
	defer c.mux.unlock()
	switch {
	case c.status == ended:
		return nil // its Receiver knows
	case c.closed || c.shut:
		return c.error("write", net.ErrClosed)
	case len(b) > RelayWindow-c.out.Len():
		return c.error("write", ErrWindow)
	case c.peerDeaf:
		c.to.Taken(len(b))
		return nil
	}
	c.out.Write(b)
	if c.sendable() {
		c.mux.sending.push(c)
	}
	return nil
}

// Consumed tells that n bytes of Data are of the past, so that the guest may send as many
// more.
func (r *Relay) Consumed(n int) {
	c := r.c
	c.mux.mu.Lock()
	defer c.mux.unlock()
	if n >= 0 && uint32(n) <= c.received-c.consumed {
		c.consume(n)
	}
}

// CloseWrite tells the guest, after what was written, that no more comes.
func (r *Relay) CloseWrite() { _ = r.c.CloseWrite() } // one that has ended needs no end

// Close ends the connection as Conn.Close does.
func (r *Relay) Close() { _ = r.c.Close() } // as above
