package interp

import (
	"math"
	"slices"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
)

// What is made of code that a machine has for itself is its host's memory, and no page of
// the machine. So it gets what the machine's pages leave of its limit, as they grow less and
// less, and what has not been used lately goes. A machine that has used up its limit has some
// left, or it could not execute at all; what little that is, is beyond the limit.
//
// Native code lies in an arena that machines share, and that is replaced when it is full: then
// all of them translate anew. So each has an allowance of native code. Who has used that up
// goes on with what there is, and has the rest interpreted.
const (
	// maxPrivate bounds how many pages a machine may have decoded for itself, and minPrivate
	// is how many it may have in any case. A Linux that boots and starts Python has 2,140;
	// with room for 1,000 it executes half as fast.
	maxPrivate = 4096
	minPrivate = 256
	// privateBytes is what one takes: decoded, and with the table of its native code.
	privateBytes = int(18<<10 + jit.TableSize)
	// lookWrites is how many announced writes, each of which may have given the machine a
	// page more, pass between looks at how much room is left.
	lookWrites = 64

	// nativeBurst is how much of an arena one machine may fill at once, and nativeRate how
	// much in a second, on and on. The same start of Python fills two thirds, in some seconds.
	nativeBurst = 3. / 4
	nativeRate  = 1. / 32
	// evictBurst and evictRate are the same for the shared cache, once that is full: beyond it
	// a machine keeps for itself what it decodes.
	evictBurst = 1.
	evictRate  = 1. / 32
)

// ownCode is a page that a machine has decoded for itself.
type ownCode struct {
	page  *page.Page
	code  *Code
	stale bool // it has been written since
	used  bool // it has been looked for since the last sweep that came to it
}

// room returns how many pages the machine may have decoded for itself. The caller holds s.mu.
func (s *Codes) room() int {
	left := min(s.mem.Left(), math.MaxInt/page.Size)
	return max(minPrivate, min(maxPrivate, left*page.Size/privateBytes))
}

// shrink makes room for more pages, if there is none. The caller holds s.mu.
func (s *Codes) shrink(more int) {
	if len(s.own)+more <= minPrivate {
		return
	}
	if room := s.room(); len(s.own)+more > room {
		s.sweep(room / 4 * 3)
	}
}

// sweep drops pages until so many are left, at first such as have not been used since the last
// time. vCPUs drop what they hold when they see that it has taken place, so that what one
// executes all the time is looked for again, and counts as used. The caller holds s.mu.
func (s *Codes) sweep(keep int) {
	for _, spare := range []bool{true, false} {
		for n, own := range s.own {
			if len(s.own) <= keep {
				break
			}
			if spare && own.used {
				own.used = false
				continue
			}
			own.leave()
			delete(s.own, n)
		}
	}
	s.stale = slices.DeleteFunc(s.stale, func(n uint64) bool { own := s.own[n]; return own == nil || !own.stale })
	s.sweeps.Add(1)
}

// Bytes returns how much memory of the host is taken by what was made of code that the machine
// has for itself, but for native code.
func (s *Codes) Bytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.own) * privateBytes
}

// mayEvict reports whether the machine may have shared pages go to make room for another, and
// accounts for that.
func (s *Codes) mayEvict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Since(s.began)
	if s.evict.Level(now) <= 0 {
		return false
	}
	s.evict.Take(now, 1./evictPart)
	return true
}

// mayTranslate reports whether the machine may have more native code.
func (s *Codes) mayTranslate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.native.Level(time.Since(s.began)) > 0
}

// translated accounts for native code that was made for the machine.
func (s *Codes) translated(made jit.Made) {
	s.Translated.Add(uint64(made.Blocks))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.native.Take(time.Since(s.began), made.Share)
}

// wrote is called before a page is written.
func (s *Codes) wrote(gpa uint64) {
	n := gpa >> page.Shift
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writes++; s.writes%lookWrites == 0 {
		s.shrink(0)
	}
	own := s.own[n]
	if own == nil || own.stale {
		return
	}
	own.stale = true
	own.leave()
	s.stale = append(s.stale, n)
}

// fence drops what was decoded from pages that were written since.
func (s *Codes) fence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.stale {
		if own := s.own[n]; own != nil && own.stale {
			delete(s.own, n)
		}
	}
	s.stale = s.stale[:0]
}

// Forget drops all pages that the machine decoded for itself.
func (s *Codes) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
}

func (s *Codes) forget() {
	for _, own := range s.own {
		own.leave()
	}
	s.own, s.stale = nil, nil
}

// leave is for what will not be found any more. A vCPU may still execute it, and nobody tells
// when its page is written, or freed and somebody else's: from that nothing more may be
// translated.
func (o *ownCode) leave() { o.code.native.written.Store(true) }
