package sandbox

import (
	"context"
	"net"
	"sync"
	"time"
)

// askTime bounds how long a guest may take to say whether something runs in it.
const askTime = 10 * time.Second

// idling is whether somebody uses a sandbox that has an idle lifetime.
type idling struct {
	users int       // commands, evaluations, attachments, watches and connections under way
	last  time.Time // when the last of them ended; at first, when its machine was made
}

// using notes that somebody uses a sandbox until end is called, which may be more
// than once.
func (m *Manager) using(b *box) (end func()) {
	if b.limits.Idle == 0 {
		return func() {}
	}
	m.count(b, 1)
	return sync.OnceFunc(func() { m.count(b, -1) })
}

func (m *Manager) count(b *box, users int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idling.users += users
	b.idling.last = time.Now()
	m.arm(b)
}

// deadline returns when a sandbox's life is over, and why; zero is never. The caller
// holds b.mu.
func (b *box) deadline() (at time.Time, reason string) {
	at, reason = b.expires, reasonExpired
	if b.limits.Idle == 0 || b.idling.users > 0 {
		return at, reason
	}
	if idle := b.idling.last.Add(b.limits.Idle); at.IsZero() || idle.Before(at) {
		return idle, reasonIdle
	}
	return at, reason
}

// over returns why a sandbox's life is over, or nothing if that was put off.
func (m *Manager) over(b *box) (reason string) {
	b.mu.Lock()
	at, reason := b.deadline()
	b.mu.Unlock()
	switch {
	case at.IsZero() || time.Now().Before(at) || !m.owns(b):
		return ""
	case reason == reasonIdle && m.works(b):
		m.using(b)()
		return ""
	}
	return reason
}

// works reports whether a process that was started to live on its own runs in a
// sandbox: that nobody listens to it does not mean that nobody wants what it does.
func (m *Manager) works(b *box) bool {
	if !b.isAwake() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	processes, err := b.agent.Processes(ctx)
	if err != nil {
		return false
	}
	for _, p := range processes {
		if p.Exit == nil {
			return true
		}
	}
	return false
}

// suspendIdle suspends a workspace that nobody uses.
func (m *Manager) suspendIdle(b *box) {
	w, free, err := m.enterSpace(context.Background(), b.workspace)
	if err != nil {
		return // it was removed
	}
	defer free()
	if m.over(b) == "" {
		return
	}
	if err := m.leave(context.Background(), w); err != nil {
		m.postpone(b, "suspending a workspace that nobody uses; it goes on until that works", err)
	}
}

// postpone has what could not be done at the end of a sandbox's life be tried again.
func (m *Manager) postpone(b *box, what string, err error) {
	if b.state() != Running {
		return
	}
	m.opts.Log.Warn(what, "id", b.id, "error", err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil && !b.over {
		b.timer.Reset(pauseAgain)
	}
}

// usedConn is a connection into a sandbox, which uses it as long as it is open.
type usedConn struct {
	net.Conn
	end func()
}

func (c usedConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// CloseWrite ends the direction into the sandbox.
func (c usedConn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }
