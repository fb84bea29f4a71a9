package engine

import (
	"sync"
	"sync/atomic"
)

// Posts are the functions that VM.Post was given, in order. The zero value has none.
type Posts struct {
	pending atomic.Bool // list is not empty

	mu   sync.Mutex
	list []func() // guarded by mu
}

// Add appends a function.
func (p *Posts) Add(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, fn)
	p.pending.Store(true)
}

// Pending tells whether there are any.
func (p *Posts) Pending() bool { return p.pending.Load() }

// Run calls those that are there by now, inside of inside, but not what they add: devices
// may find work for ever. Without any it does nothing.
func (p *Posts) Run(inside func(func())) {
	if !p.Pending() {
		return
	}
	inside(func() {
		for _, fn := range p.take() {
			fn()
		}
	})
}

func (p *Posts) take() []func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.list
	p.list = nil
	p.pending.Store(false)
	return list
}
