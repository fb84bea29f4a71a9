// Package pulse keeps streams that have nothing to say from being taken for dead.
package pulse

import (
	"sync"
	"time"
)

// A Pulse is in front of a stream that one message at a time may be sent to. When
// nothing was sent for a while, it sends a sign of life itself.
type Pulse struct {
	every time.Duration
	beat  func() error

	mu      sync.Mutex // held while something is sent
	timer   *time.Timer
	stopped bool
}

// Start begins to call beat when nothing was sent for first, and from then on for
// every. An error of beat ends it: the stream's owner will notice, too.
func Start(first, every time.Duration, beat func() error) *Pulse {
	p := &Pulse{every: every, beat: beat}
	p.mu.Lock() // the timer may fire before it is known
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(first, p.fire)
	return p
}

func (p *Pulse) fire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped && p.beat() == nil {
		p.timer.Reset(p.every)
	}
}

// Send calls send while nothing else is sent, and puts off the next sign of life.
func (p *Pulse) Send(send func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Reset(p.every)
	return send()
}

// Stop ends it. Nothing is sent once it has returned.
func (p *Pulse) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.timer.Stop()
}
