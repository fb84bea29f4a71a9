package machine

import (
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/vsock"
)

// A guest that is switched off, or reset, tells its machine so. One that halts may not:
// on some ISAs its processors wait, with all interrupts off, for something that does not
// exist, and to the engine that is waiting like any other. But before it halts a kernel
// resets its devices. So when the driver of the sockets goes, connections and all, there
// are a few looks at the vCPUs, and none at any other time.

// firstLook is how long after its driver has gone a guest is looked at first, and
// lastLook the longest that is waited for a look; each wait is twice the one before.
const (
	firstLook = 100 * time.Millisecond
	lastLook  = 10 * time.Second
)

// watched is the host's end of a guest's sockets, which notices that the driver goes.
type watched struct {
	*vsock.Mux
	gone func()
}

// Reset implements virtio/vsock.Host.
func (w watched) Reset() {
	used := w.Connected()
	w.Mux.Reset()
	if used {
		w.gone()
	}
}

// looks are the looks at a guest that are to come, of which there is one at a time: a guest
// can have the driver go as often as it likes.
type looks struct {
	look func() (runs bool) // immutable

	mu    sync.Mutex
	timer *time.Timer   // nil until there was a reason to look; guarded by mu
	wait  time.Duration // before the look that comes next; guarded by mu
}

// begin has the guest be looked at for a while as of now.
func (l *looks) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in(firstLook)
}

// in sets the timer. The caller holds l.mu.
func (l *looks) in(wait time.Duration) {
	if l.wait = wait; l.timer == nil {
		l.timer = time.AfterFunc(wait, l.due)
	} else {
		l.timer.Reset(wait)
	}
}

func (l *looks) due() {
	if !l.look() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if 2*l.wait <= lastLook {
		l.in(2 * l.wait)
	}
}

// Look ends the machine if its guest has halted, and reports whether it runs on.
func (m *Machine) Look() (runs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.ended() || !m.running {
		return false
	}
	m.pause()
	if m.ended() { // on the way to the pause
		return false
	}
	if m.vm.Halted() {
		m.end(Ending{Exit: engine.Off})
		return false
	}
	m.start()
	return true
}
