package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Pause makes the state of a sandbox durable and ends its use of memory; Resume
// has it go on under the same id. Its processes do not notice, but whoever waits for
// a command or an evaluation gets a SandboxPaused error, and that goes on unheard. A
// sandbox that is paused already is a FailedPrecondition. If it cannot be paused, it
// goes on.
func (m *Manager) Pause(ctx context.Context, id string) (*Info, error) {
	free, err := m.turn(ctx, id)
	if err != nil {
		return nil, err
	}
	defer free()
	if _, ok := m.pausedOf(id); ok {
		return nil, fail(FailedPrecondition, fmt.Sprintf("`forkd resume %s` has it go on", id), "sandbox %s is paused already", id)
	}
	if err := m.pause(ctx, id); err != nil {
		return nil, err
	}
	return m.Sandbox(id)
}

// pause is Pause for a caller that has the turn of the id.
func (m *Manager) pause(ctx context.Context, id string) error {
	b, done, err := m.exclusive(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	if b.workspace != "" {
		return fail(FailedPrecondition, fmt.Sprintf("`forkd workspace suspend %s` does it", b.workspace),
			"sandbox %s is workspace %q, which is suspended instead", id, b.workspace)
	}
	defer b.leave()()
	ctx, cancel := b.untilClosed(ctx)
	defer cancel()
	r, _ := m.paused.Get(id)
	k, err := m.save(ctx, b, "paused-"+id, b.base, r.kept, func(k kept) error { return m.paused.Put(m.pauseOf(b, k)) })
	if err != nil && r.SnapshotTag == "" {
		m.tryForget(id)
	}
	if err != nil && b.state() != Running {
		return b.dead()
	}
	if err != nil {
		return wrap(err, "pausing sandbox %s", id)
	}
	if !m.remove(b) { // it was ended in the meantime
		m.tryForget(id)
		return b.dead()
	}
	m.journal.Gone("", id)
	m.end(b, reasonPaused)
	m.dropOwn(k.garbage())
	return nil
}

// Resume has a paused sandbox go on, with a lifetime from now on; zero is the one
// that it was given last, if any. One that has ended since goes on as it was when it was
// paused last, which nothing but this does. Of one that runs nothing changes.
func (m *Manager) Resume(ctx context.Context, id string, lifetime time.Duration) (*Info, error) {
	return m.resume(ctx, id, lifetime, true)
}

// Unpause is Resume, but for a sandbox that has ended: that it has is an error.
func (m *Manager) Unpause(ctx context.Context, id string, lifetime time.Duration) (*Info, error) {
	return m.resume(ctx, id, lifetime, false)
}

func (m *Manager) resume(ctx context.Context, id string, lifetime time.Duration, revive bool) (*Info, error) {
	if err := checkLifetime(lifetime); err != nil {
		return nil, err
	}
	free, err := m.turn(ctx, id)
	if err != nil {
		return nil, err
	}
	defer free()
	b := m.lookup(id)
	if b != nil && b.arrival != nil { // whether it runs its cell knows
		if b, err = m.here(ctx, id); err != nil {
			return nil, err
		}
	}
	if b != nil && b.state() != Running && b.kept() && revive {
		done, err := b.exclusive(ctx) // a rollback has it run again
		if err != nil {
			return nil, err
		}
		defer done()
		b = m.lookup(id)
	}
	switch {
	case b == nil:
	case b.state() == Running:
		info := b.info()
		return &info, nil
	case !b.kept() || !revive:
		return nil, b.dead()
	default:
		b.close()
	}
	r, ok := m.saved(id)
	if !ok {
		return nil, m.noSandbox(id)
	}
	c := r.birth()
	if lifetime > 0 {
		c.set(lifetime, time.Now())
	}
	defer m.tags.share(c.tag)()
	if b, err = m.restore(ctx, c); err != nil {
		return nil, wrap(err, "resuming sandbox %s", id)
	}
	info := b.info()
	return &info, nil
}

// turn waits for the turn to change whether a sandbox is there, and until when.
// The order is that of the callers.
func (m *Manager) turn(ctx context.Context, id string) (free func(), err error) {
	if err := m.pausedTurns.take(ctx, id); err != nil {
		return nil, err
	}
	return func() { m.pausedTurns.release(id) }, nil
}

// saved returns the record of a sandbox that is paused or, if it runs or has ended, was.
func (m *Manager) saved(id string) (pausedRecord, bool) {
	r, ok := m.paused.Get(id)
	return r, ok && r.SnapshotTag != ""
}

// pausedOf returns the record of a sandbox that is paused. The caller has its turn.
func (m *Manager) pausedOf(id string) (pausedRecord, bool) {
	if m.lookup(id) != nil {
		return pausedRecord{}, false
	}
	return m.saved(id)
}

func pausedError(id string) *Error {
	return fail(SandboxPaused, fmt.Sprintf("`forkd resume %s` has it go on; one that was forked with auto-resume does so by itself", id),
		"sandbox %s is paused", id)
}

// forget removes what was saved of a sandbox, which is paused as before if that fails.
// What somebody else runs from is removed at a later start.
func (m *Manager) forget(id string) error {
	r, ok := m.paused.Get(id)
	if !ok {
		return nil
	}
	// As of now it is gone, whatever a crash leaves behind.
	tags := r.OwnTags
	r.SnapshotTag = ""
	if err := m.paused.Put(r); err != nil {
		// A full disk takes nothing more, and lets a record go. A snapshot that is in use
		// becomes one as any other.
		if gone := m.paused.Remove(id); gone != nil {
			return wrap(errors.Join(err, gone), "removing what was saved of sandbox %s", id)
		}
	}
	if left := m.dropOwn(tags); len(left) > 0 {
		return nil
	}
	if err := m.paused.Remove(id); err != nil { // it names nothing, and goes at a later start
		m.opts.Log.Warn("removing the record of a sandbox", "id", id, "error", err)
	}
	return nil
}

// tryForget is forget for a sandbox that nobody waits for.
func (m *Manager) tryForget(id string) {
	if err := m.forget(id); err != nil {
		m.opts.Log.Error("a sandbox that has ended stays as it was paused last", "id", id, "error", err)
	}
}

// leave has those who come to use the sandbox wait until end is called: it is about to
// be paused, suspended or ended, if that succeeds.
func (b *box) leave() (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leaveLocked()
}

// leaveLocked is leave for a caller that holds b.mu.
func (b *box) leaveLocked() (end func()) {
	if b.leaving != nil {
		return func() {} // the caller has called it before
	}
	done := make(chan struct{})
	b.leaving = done
	return func() {
		b.mu.Lock()
		b.leaving = nil
		b.mu.Unlock()
		close(done)
	}
}

// untilClosed returns a context that also ends when the sandbox does.
func (b *box) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-b.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// settled returns the sandbox of an id that is not paused, when it is not about to
// leave either.
func (m *Manager) settled(ctx context.Context, id string) (*box, error) {
	for {
		b, err := m.here(ctx, id)
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		leaving := b.leaving
		b.mu.Unlock()
		if leaving == nil {
			return b, nil
		}
		select {
		case <-leaving:
		case <-ctx.Done():
			return nil, wrap(context.Cause(ctx), "waiting for the pause or the end of sandbox %s", id)
		}
	}
}

// find returns the sandbox of an id for somebody who uses it. One that is paused
// is resumed, if its creator wants that.
func (m *Manager) find(ctx context.Context, id string) (*box, error) {
	for {
		b, err := m.settled(ctx, id)
		if r, ok := m.saved(id); !hasCode(err, SandboxPaused) || ok && !r.AutoResume {
			return b, err
		}
		if _, err := m.Unpause(ctx, id, 0); err != nil { // it may have been resumed, and have ended, meanwhile
			return nil, err
		}
	}
}

// pauseAll pauses, because the daemon ends, the sandboxes whose creator has shown
// that they are to be kept: their lifetime ends in a pause, or they were paused
// before.
func (m *Manager) pauseAll() error {
	var keep []string
	for _, info := range m.Sandboxes() {
		_, before := m.paused.Get(info.ID)
		if info.State == Running && info.Workspace == "" && (before || info.OnTimeout == PauseOnTimeout) {
			keep = append(keep, info.ID)
		}
	}
	var mu sync.Mutex
	var failed error
	each(len(keep), func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), suspendTime)
		defer cancel()
		_, err := m.Pause(ctx, keep[i])
		if err != nil && !hasCode(err, NotFound) && !hasCode(err, FailedPrecondition) && !hasCode(err, SandboxDead) {
			mu.Lock()
			failed = errors.Join(failed, fmt.Errorf("sandbox %s is not saved: %w", keep[i], err))
			mu.Unlock()
		}
	})
	return failed
}
