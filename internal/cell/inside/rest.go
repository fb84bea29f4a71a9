package inside

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// A machine that nobody has used for a moment is packed: its RAM shrinks to
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

// trimAfter is how long memory that was freed is kept for reuse.
const trimAfter = 500 * time.Millisecond

// rest is when a machine is looked at next.
type rest struct {
	timer *time.Timer
	pause time.Duration
	seen  uint64 // instructions at the last look
	pages int    // resident at the last look
}

func (r *rest) cancel() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// touch notes that a machine is used now.
func (s *Server) touch(v *vm) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rest.pause = restAfter
	switch {
	case v.closed:
	case v.rest.timer == nil:
		v.rest.timer = time.AfterFunc(restAfter, func() { s.look(v) })
	default:
		v.rest.timer.Reset(restAfter)
	}
}

// pinned reports whether somebody needs the machine as it is.
func (s *Server) pinned(v *vm) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pins[v.id] > 0
}

var errFormer = errors.New("another daemon has taken the place of this one")

func pin(s *Server, c *session, m *wire.Message) (*result, error) {
	return with(func(s *Server, _ *wire.Message, p wire.Pin) (*result, error) { return s.pin(c, p) })(s, c, m)
}

// pin has the machine be unpacked and stay so, until it is unpinned as often, or the daemon is
// gone. Pins are counted in the order in which they are asked for.
func (s *Server) pin(c *session, p wire.Pin) (*result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vms[p.VM]
	switch {
	case s.control != c:
		return nil, errFormer
	case v == nil:
		return nil, noMachine(p.VM)
	case p.Pin:
		s.pins[p.VM]++
		return &result{rest: v.machine.Prepare}, nil
	}
	if s.pins[p.VM]--; s.pins[p.VM] <= 0 {
		delete(s.pins, p.VM)
	}
	s.tidySoon()
	return nil, nil
}

// look packs a machine unless it works, and comes back later.
func (s *Server) look(v *vm) {
	st, ok := v.stat()
	if !ok {
		return
	}
	pinned := s.pinned(v)
	v.mu.Lock()
	// What is packed in the middle of its work comes back page by page. Many children at once wait for long there.
	working := v.machine.Busy() || st.Instructions-v.rest.seen > restWorking || st.Resident-v.rest.pages > restGrowing || pinned
	v.rest.seen, v.rest.pages = st.Instructions, st.Resident
	v.mu.Unlock()
	if !working && st.Resident >= restWorth {
		v.machine.Pack()
		s.trims.soon(trimAfter, s.trim)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rest.pause = min(2*v.rest.pause, restAtMost)
	if !v.closed {
		v.rest.timer.Reset(v.rest.pause)
	}
}

// delayed runs something once after a while, however often it is asked to.
type delayed struct{ due atomic.Bool }

func (d *delayed) soon(after time.Duration, do func()) {
	if d.due.Swap(true) {
		return
	}
	time.AfterFunc(after, func() {
		d.due.Store(false)
		do()
	})
}

// freed has done what is of use when machines or sources are gone.
func (s *Server) freed() {
	s.tidySoon()
	s.trims.soon(trimAfter, s.trim)
}

// trim gives memory that stays free back to the host.
func (s *Server) trim() {
	s.memory.Trim(s.cfg.Reserve)
	s.scratch.Trim(0)
}
