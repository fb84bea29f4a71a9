package conn

import (
	"sync"
	"time"
)

// Deadline is one of the two of a connection. The zero value is none.
type Deadline struct {
	timer  *time.Timer
	passed bool
}

// Passed reports whether the deadline has passed.
func (d *Deadline) Passed() bool { return d.passed }

// Stop has the deadline wake nobody any more.
func (d *Deadline) Stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// Set replaces the deadline; the zero time means none. When it passes, those who wait at
// cond, whose lock the caller holds, look.
func (d *Deadline) Set(t time.Time, cond *sync.Cond) {
	d.Stop()
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
