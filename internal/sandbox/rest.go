package sandbox

import (
	"time"

	"github.com/forkd-dev/forkd/internal/page"
)

// A sandbox that nobody has used for a moment is packed: its RAM shrinks to
// what distinguishes it from its snapshot, and the pages serve whoever is
// active. Timers in the guest bring a few pages back each time they fire, so
// packing is repeated, ever more rarely.
//
// The moment is short, so that in a burst of forks the pages of the first
// children serve the next ones, and the host need not find new memory.
const (
	restAfter   = 10 * time.Millisecond
	restAtMost  = time.Minute
	restWorth   = 16      // resident pages that are worth a pack
	restWorking = 2 << 20 // instructions since the last look that mean work, not rest
	restGrowing = 256     // as do so many more resident pages
)

// reservedPages are faulted in from the start and never given back, so that a
// burst finds memory without asking the host.
const reservedPages = 32 << 20 / page.Size

// trimAfter is how long memory that was freed is kept for reuse.
const trimAfter = 500 * time.Millisecond

// rest is when a sandbox is looked at next.
type rest struct {
	timer *time.Timer
	pause time.Duration
	seen  uint64 // instructions at the last look
	pages int    // resident at the last look
	pins  int    // who needs it unpacked
	over  bool   // the sandbox is closed
}

func (r *rest) cancel() {
	r.over = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// touch notes that a sandbox is used now.
func (m *Manager) touch(b *box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rest.pause = restAfter
	if b.rest.over {
		return
	}
	if b.rest.timer == nil {
		b.rest.timer = time.AfterFunc(restAfter, func() { m.look(b) })
		return
	}
	b.rest.timer.Reset(restAfter)
}

// pin keeps a sandbox from being packed until unpin is called. What is packed
// already it unpacks.
func (b *box) pin() (unpin func(), err error) {
	add := func(n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.rest.pins += n
	}
	add(1)
	return func() { add(-1) }, b.machine.Unpack()
}

// look packs a sandbox unless it works, and comes back later.
func (m *Manager) look(b *box) {
	if b.state() != Running {
		return
	}
	now, pages := b.machine.Counters().Instructions, b.machine.Resident()
	b.mu.Lock()
	working := now-b.rest.seen > restWorking || pages-b.rest.pages > restGrowing || b.rest.pins > 0
	b.rest.seen, b.rest.pages = now, pages
	b.mu.Unlock()
	if !working && pages >= restWorth {
		b.machine.Pack()
		m.trimSoon()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rest.pause = min(2*b.rest.pause, restAtMost)
	if !b.rest.over {
		b.rest.timer.Reset(b.rest.pause)
	}
}

// trimSoon gives memory that stays free back to the host.
func (m *Manager) trimSoon() {
	if m.trimming.Swap(true) {
		return
	}
	time.AfterFunc(trimAfter, func() {
		m.trimming.Store(false)
		m.memory.Trim(reservedPages)
		m.scratch.Trim(0)
	})
}
