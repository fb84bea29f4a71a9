package sandbox

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
)

// askTime bounds how long a guest may take to say whether something runs in it.
const askTime = 10 * time.Second

// idling is whether somebody uses a sandbox that has an idle lifetime.
type idling struct {
	users int       // commands, evaluations, attachments, watches and connections under way
	last  time.Time // when the last of them ended; at first, when its machine was made

	told     time.Time // until when its cell takes it to be used
	renewing bool      // it is looked at then whether it still is
}

// using notes that somebody uses a sandbox until end is called, which may be more
// than once. If it is about to leave, that is too late: ok is false, and end does
// nothing.
func (m *Manager) using(b *box) (end func(), ok bool) {
	if b.limits.Idle == 0 {
		return func() {}, true
	}
	if !m.count(b, 1) {
		return func() {}, false
	}
	return sync.OnceFunc(func() { m.count(b, -1) }), true
}

// count notes that so many more use a sandbox as of now. Nobody begins to use one that
// is about to leave.
func (m *Manager) count(b *box, users int) bool {
	b.mu.Lock()
	if users > 0 && b.leaving != nil {
		b.mu.Unlock()
		return false
	}
	b.idling.users += users
	b.idling.last = time.Now()
	m.arm(b)
	tell := b.lease()
	b.mu.Unlock()
	if tell {
		b.notes.soon(b)
	}
	return true
}

// A later daemon is to know when a sandbox was used last, and its cell is not to be told of each
// use. So it is told ahead, for a sixteenth of the idle lifetime or a second: what it is told is
// never too early, and too late by no more than that.
const (
	leaseShare = 16
	leaseLeast = time.Second
)

// lease reports whether a sandbox's cell has to be told that it is used. The caller holds b.mu.
func (b *box) lease() (tell bool) {
	i, now := &b.idling, time.Now()
	if tell = !now.Before(i.told); tell {
		i.told = now.Add(max(b.limits.Idle/leaseShare, leaseLeast))
	}
	if i.users > 0 && !i.renewing {
		i.renewing = true
		time.AfterFunc(i.told.Sub(now), b.renew)
	}
	return tell
}

// renew has the cell of a sandbox that is still used be told so.
func (b *box) renew() {
	b.mu.Lock()
	b.idling.renewing = false
	tell := b.idling.users > 0 && !b.over && b.lease()
	b.mu.Unlock()
	if tell {
		b.notes.soon(b)
	}
}

// usedUntil returns when the sandbox was used last as its cell is to know it; zero if it has no
// idle lifetime. The caller holds b.mu.
func (b *box) usedUntil() time.Time {
	if b.limits.Idle == 0 {
		return time.Time{}
	}
	if b.idling.told.After(b.idling.last) {
		return b.idling.told
	}
	return b.idling.last
}

// foundIdle is how idle a sandbox is that an earlier daemon has left, which has noted used. It is
// left the time that it may take until the guest can be asked whether something runs in it, also
// if that is more than its whole idle lifetime.
func foundIdle(used time.Time, idle time.Duration) idling {
	now := time.Now()
	if used.IsZero() || used.After(now) { // it did not say, or said it ahead
		used = now
	}
	if least := now.Add(2*releaseTime - idle); used.Before(least) {
		used = least
	}
	return idling{last: used}
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

// due returns why a sandbox's life is over by now, or nothing. The caller holds b.mu.
func (b *box) due() (reason string) {
	at, reason := b.deadline()
	if at.IsZero() || time.Now().Before(at) {
		return ""
	}
	return reason
}

// over returns why a sandbox's life is over, and has nobody begin to use it until end
// is called; or nothing if its end was put off, for which its timer is armed.
func (m *Manager) over(b *box) (reason string, end func()) {
	if !m.owns(b) {
		return "", nil
	}
	b.mu.Lock()
	idle := b.due() == reasonIdle
	b.mu.Unlock()
	if idle && m.works(b) {
		m.count(b, 0)
	}
	// Somebody may have come meanwhile.
	b.mu.Lock()
	defer b.mu.Unlock()
	if reason = b.due(); reason == "" || reason == reasonIdle && !idle {
		m.arm(b)
		return "", nil
	}
	return reason, b.leaveLocked()
}

// works reports whether a process that was started to live on its own runs in a
// sandbox: that nobody listens to it does not mean that nobody wants what it does. Of one
// whose cell does not answer nobody knows that it does not.
func (m *Manager) works(b *box) bool {
	if !b.isAwake() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	if errors.Is(b.machine.Cell().Answers(ctx), cell.ErrSilent) {
		return true
	}
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
	reason, end := m.over(b)
	if reason == "" {
		return
	}
	defer end()
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
