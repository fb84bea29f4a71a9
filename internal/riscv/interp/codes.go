package interp

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/rate"
)

// Codes finds the decoded pages of one machine: shared ones for pages that the
// machine has as its snapshot has them, and its own for pages that it wrote.
//
// A decoded page is not watched word by word. Writing to it makes it stale, and
// stale pages go at the next FENCE.I, which is what software needs anyway
// (unpriv 6.1).
//
// The vCPUs of a machine share it; each executes what it has found until it
// executes FENCE.I itself. That writing makes a page stale is seen only where it
// is announced (memory.Space.Watch): of a page which another vCPU may be writing to
// unannounced, what is decoded is not kept.
//
// What it has for the machine alone is bounded; see private.go.
type Codes struct {
	mem    *memory.Space
	shared *Cache

	// Pages and basic blocks; see engine.Counters.
	Decoded, Inherited, Translated atomic.Uint64

	began  time.Time     // immutable
	sweeps atomic.Uint64 // counts those of own

	mu     sync.Mutex          // before the locks of package memory
	own    map[uint64]*ownCode // by page number; guarded by mu
	stale  []uint64            // keys of own that were written since decoded; guarded by mu
	writes uint                // announced; guarded by mu
	native rate.Bucket         // arenas that may be filled with native code; guarded by mu
	evict  rate.Bucket         // shared caches that may be emptied; guarded by mu
	seen   []uint64            // bit set of ids of shared pages; guarded by mu
}

// NewCodes returns an empty index for the machine with that memory. It takes
// the space's watch.
func NewCodes(mem *memory.Space, shared *Cache) *Codes {
	s := &Codes{mem: mem, shared: shared, began: time.Now(), native: rate.NewBucket(nativeRate, nativeBurst, 0), evict: rate.NewBucket(evictRate, evictBurst, 0)}
	mem.Watch(s.wrote)
	return s
}

// finding is what there is to know of a page that find returns.
type finding struct {
	decoded bool // just now
	// It may yet be written: the caller must forget where it may store to it without asking.
	watch bool
	// The others could not be kept from that for the moment: the caller must ask again soon.
	fleeting bool
}

// find returns the decoded form of the page p that holds gpa, for the vCPU with
// that view.
func (s *Codes) find(view *memory.View, gpa uint64, p *page.Page) (*Code, finding) {
	private := s.mem.Private(gpa)
	if !private {
		code, decoded := s.shared.find(p, func() *page.Layer { return s.mem.Owner(gpa) }, s.mayEvict)
		if code != nil {
			s.count(code.id, decoded)
			return code, finding{decoded: decoded}
		}
		// It is kept as if the machine had written it.
	}
	n := gpa >> page.Shift
	s.mu.Lock()
	defer s.mu.Unlock()
	if own, ok := s.own[n]; ok {
		if own.page == p {
			own.used = true
			return own.code, finding{}
		}
		own.leave()
	}
	s.shrink(1)
	if s.own == nil {
		s.own = make(map[uint64]*ownCode)
	}
	if private && !view.Guard(gpa, p) {
		code := decode(p)
		code.native.written.Store(true)
		return code, finding{decoded: true, watch: true, fleeting: true}
	}
	// Who writes since Guard has looked finds s.mu taken, and then the page here.
	code := decode(p)
	s.own[n] = &ownCode{page: p, code: code, used: true}
	s.Decoded.Add(1)
	return code, finding{decoded: true, watch: true}
}

// owns reports whether the machine has decoded a page for itself.
func (s *Codes) owns(gpa uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.own[gpa>>page.Shift]
	return ok
}

func (s *Codes) count(id uint32, decoded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if decoded {
		s.Decoded.Add(1)
	}
	word, bit := int(id/64), uint64(1)<<(id%64)
	for word >= len(s.seen) {
		s.seen = append(s.seen, 0)
	}
	if s.seen[word]&bit == 0 {
		s.seen[word] |= bit
		if !decoded {
			s.Inherited.Add(1)
		}
	}
}
