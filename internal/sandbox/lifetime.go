package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// pauseAgain is when a sandbox that could not be paused at the end of its lifetime
// is tried again.
const pauseAgain = time.Minute

// life is what changes of a sandbox besides its machine.
type life struct {
	expires  time.Time     // zero: never
	lifetime time.Duration // that it was given last; zero: no limit
	front    json.RawMessage
}

// set limits a life from now on; zero is no limit.
func (l *life) set(d time.Duration, now time.Time) {
	l.lifetime, l.expires = d, time.Time{}
	if d > 0 {
		l.expires = now.Add(d)
	}
}

// extend is set, but does not shorten a life.
func (l *life) extend(d time.Duration, now time.Time) {
	if l.lifetime == 0 {
		return
	}
	l.lifetime = max(l.lifetime, d)
	if end := now.Add(d); end.After(l.expires) {
		l.expires = end
	}
}

func checkLifetime(d time.Duration) error {
	if d < 0 || d > MaxLifetime {
		return fail(InvalidArgument, "", "lifetime must be between zero and %s", MaxLifetime)
	}
	return nil
}

// SetLifetime limits how long a sandbox lives from now on; zero is no limit. Of a
// paused one it is the lifetime that a Resume gives it. A workspace has none.
func (m *Manager) SetLifetime(ctx context.Context, id string, d time.Duration) (*Info, error) {
	if err := checkLifetime(d); err != nil {
		return nil, err
	}
	return m.changeLife(ctx, id, func(l *life) error {
		l.set(d, time.Now())
		return nil
	})
}

// ExtendLifetime has a sandbox live for so long from now on at least. It never
// moves its end earlier; one without a limit stays so.
func (m *Manager) ExtendLifetime(ctx context.Context, id string, d time.Duration) (*Info, error) {
	if err := checkLifetime(d); err != nil {
		return nil, err
	}
	if d == 0 {
		return nil, fail(InvalidArgument, "", "there is no extending by nothing")
	}
	return m.changeLife(ctx, id, func(l *life) error {
		l.extend(d, time.Now())
		return nil
	})
}

// SetFront changes the record of the API that a sandbox was made through. update
// gets the one of now and returns the new one. It is durable if the sandbox is
// paused, and becomes so with its next pause if it runs.
func (m *Manager) SetFront(ctx context.Context, id string, update func(json.RawMessage) (json.RawMessage, error)) error {
	_, err := m.changeLife(ctx, id, func(l *life) error {
		front, err := update(l.front)
		if err == nil {
			err = checkFront(front)
		}
		if err == nil {
			l.front = slices.Clone(front)
		}
		return err
	})
	return err
}

func checkFront(front json.RawMessage) error {
	if len(front) > MaxFront {
		return fail(CapacityExceeded, "", "%d bytes are more than the %d that a front end may keep of a sandbox", len(front), MaxFront)
	}
	if len(front) > 0 && !json.Valid(front) {
		return fail(InvalidArgument, "", "what a front end keeps of a sandbox is not JSON")
	}
	return nil
}

// changeLife changes the life of a sandbox, be it running or paused.
func (m *Manager) changeLife(ctx context.Context, id string, change func(*life) error) (*Info, error) {
	free, err := m.turn(ctx, id)
	if err != nil {
		return nil, err
	}
	defer free()
	if r, ok := m.pausedOf(id); ok {
		l := life{lifetime: time.Duration(r.LifetimeMS) * time.Millisecond, front: r.Front}
		if err := change(&l); err != nil {
			return nil, err
		}
		r.LifetimeMS, r.Front = l.lifetime.Milliseconds(), l.front
		if err := m.paused.Put(r); err != nil {
			return nil, wrap(err, "changing paused sandbox %s", id)
		}
		info := r.info()
		return &info, nil
	}
	b, err := m.here(ctx, id)
	if err != nil {
		return nil, err
	}
	switch {
	case b.workspace != "":
		return nil, fail(FailedPrecondition, fmt.Sprintf("`forkd workspace suspend %s` ends it, and keeps its state", b.workspace),
			"sandbox %s is workspace %q, which has no lifetime", id, b.workspace)
	case b.state() != Running:
		return nil, b.dead()
	}
	if b, err = m.relive(b, change); err != nil {
		return nil, err
	}
	info := b.info()
	return &info, nil
}

// relive changes the life of a running sandbox, which may be rolled back at the
// same time.
func (m *Manager) relive(b *box, change func(*life) error) (*box, error) {
	now, err := m.change(b, change)
	if err != nil {
		return nil, err
	}
	now.note()
	return now, nil
}

// change changes the life of the box that has b's id now, of which its cell does not
// know yet.
func (m *Manager) change(b *box, change func(*life) error) (*box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.boxes[b.id]
	if now == nil {
		return nil, b.dead()
	}
	now.mu.Lock()
	defer now.mu.Unlock()
	if err := change(&now.life); err != nil {
		return nil, err
	}
	m.arm(now)
	return now, nil
}

// limitLife arms the timer of a sandbox that expires.
func (m *Manager) limitLife(b *box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.arm(b)
}

// arm sets the timer of a sandbox for the end of its life. The caller holds b.mu.
func (m *Manager) arm(b *box) {
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	if end, _ := b.deadline(); !end.IsZero() && !b.over {
		b.timer = time.AfterFunc(time.Until(end), func() { m.expire(b) })
	}
}

// expire does what is due at the end of a sandbox's life, unless that was put off.
func (m *Manager) expire(b *box) {
	if b.workspace != "" {
		m.suspendIdle(b)
		return
	}
	ctx := context.Background()
	free, err := m.turn(ctx, b.id)
	if err != nil {
		return
	}
	defer free()
	reason, end := m.over(b)
	if reason == "" {
		return
	}
	defer end()
	if b.onTimeout != PauseOnTimeout {
		if m.drop(b, reason) {
			m.tryForget(b.id)
		}
		return
	}
	if err := m.pause(ctx, b.id); err != nil {
		m.postpone(b, "pausing a sandbox whose lifetime is over; it goes on until that works", err)
	}
}
