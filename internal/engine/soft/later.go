package soft

import (
	"sync"
	"time"
)

// later is what a machine's devices go on with when it has processor time for that.
type later struct {
	mu      sync.Mutex
	waiting []func()    // guarded by mu
	timer   *time.Timer // set while something waits; guarded by mu
	closed  bool        // guarded by mu
}

// Continue implements engine.VM. What comes while something waits does, too.
func (m *vm) Continue(fn func()) {
	wait := m.group.Wait()
	l := &m.later
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
	case len(l.waiting) > 0:
		l.waiting = append(l.waiting, fn)
	case wait <= 0:
		m.Post(fn)
	default:
		l.waiting = append(l.waiting, fn)
		if l.timer == nil {
			l.timer = time.AfterFunc(wait, m.goOn)
		} else {
			l.timer.Reset(wait)
		}
	}
}

// goOn posts what waits, if the machine need not wait any longer.
func (m *vm) goOn() {
	wait := m.group.Wait()
	l := &m.later
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
	case wait > 0:
		l.timer.Reset(wait)
	default:
		for _, fn := range l.waiting {
			m.Post(fn)
		}
		l.waiting = nil
	}
}

// close forgets what waits.
func (l *later) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.waiting = true, nil
	if l.timer != nil {
		l.timer.Stop()
	}
}
