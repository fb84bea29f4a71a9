package vsock

import (
	"context"
	"errors"
	"net"
	"sync"
)

// ErrPortTaken reports that another Listener has the port.
var ErrPortTaken = errors.New("port is taken")

// Dial connects to a port that a program in the guest listens on. It waits for
// the guest's answer, also while the guest still boots, until ctx is done. If
// nobody listens, the error wraps ErrRefused.
func (m *Mux) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	c, err := m.dial(ctx, port)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "vsock", Addr: Addr{Port: port}, Err: err}
	}
	return c, nil
}

func (m *Mux) dial(ctx context.Context, port uint32) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := m.request(port, 0, false, nil)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		c.readable.Broadcast()
	})
	defer stop()

	m.mu.Lock()
	defer m.unlock()
	for c.status == connecting && ctx.Err() == nil {
		c.readable.Wait()
	}
	switch c.status {
	case connecting:
		c.abandon(ctx.Err())
		return nil, ctx.Err()
	case ended:
		return nil, c.err
	default:
		return c, nil
	}
}

// request makes a connection and has the guest asked for it.
func (m *Mux) request(port, credit uint32, line bool, to Receiver) (*Conn, error) {
	m.mu.Lock()
	defer m.unlock()
	if m.gone != nil {
		return nil, m.gone
	}
	p, err := m.freePair(port)
	if err != nil {
		return nil, err
	}
	c := m.add(p, connecting)
	c.to, c.line, c.due = to, line, dueRequest
	c.peerAlloc = credit
	m.sending.push(c)
	return c, nil
}

// Listener takes connections that programs in the guest make to a port of the
// host (net.Listener). It goes on listening when the guest's driver is reset.
type Listener struct {
	mux  *Mux   // immutable
	port uint32 // immutable

	arrived sync.Cond // L is mux.mu
	waiting []*Conn   // guarded by mux.mu
	err     error     // why it listens no more; guarded by mux.mu
}

// Listen takes connections to a port of the host. A connection to any other
// port is refused.
func (m *Mux) Listen(port uint32) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.gone
	if err == nil && m.listeners[port] != nil {
		err = ErrPortTaken
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "vsock", Addr: Addr{Host: true, Port: port}, Err: err}
	}
	l := &Listener{mux: m, port: port}
	l.arrived.L = &m.mu
	if m.listeners == nil {
		m.listeners = make(map[uint32]*Listener)
	}
	m.listeners[port] = l
	return l, nil
}

// Addr returns the port that is listened on.
func (l *Listener) Addr() net.Addr { return Addr{Host: true, Port: l.port} }

func (l *Listener) error(op string, err error) error {
	return &net.OpError{Op: op, Net: "vsock", Addr: l.Addr(), Err: err}
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	l.mux.mu.Lock()
	defer l.mux.mu.Unlock()
	for len(l.waiting) == 0 {
		if l.err != nil {
			return nil, l.error("accept", l.err)
		}
		l.arrived.Wait()
	}
	c := l.waiting[0]
	if l.waiting = l.waiting[1:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	return c, nil
}

// Close stops listening and resets the connections that were not accepted.
func (l *Listener) Close() error {
	l.mux.mu.Lock()
	defer l.mux.unlock()
	if l.err != nil {
		return l.error("close", net.ErrClosed)
	}
	l.end(net.ErrClosed)
	return nil
}

func (l *Listener) end(err error) {
	l.err = err
	delete(l.mux.listeners, l.port)
	for _, c := range l.waiting {
		c.abandon(err)
	}
	l.waiting = nil
	l.arrived.Broadcast()
}
