package interp

import (
	"sync"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
)

// Cache holds the decoded pages of immutable layers, for all machines over
// them. It is safe for concurrent use.
//
// Pages are known by their place in host memory, so a Cache must not outlive
// the layers whose pages it has seen.
type Cache struct {
	limit int // immutable

	mu    sync.RWMutex
	pages map[*page.Page]*Code // guarded by mu
	next  uint32               // guarded by mu; id of the next page
}

// NewCache returns an empty cache of at most limit pages. A decoded page takes
// 18 KiB.
func NewCache(limit int) *Cache {
	return &Cache{limit: max(limit, 1), pages: make(map[*page.Page]*Code)}
}

// find returns the decoded page p, which must not change any more, and whether
// this call decoded it.
func (c *Cache) find(p *page.Page) (code *Code, decoded bool) {
	c.mu.RLock()
	code = c.pages[p]
	c.mu.RUnlock()
	if code != nil {
		return code, false
	}
	code = decode(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.pages[p]; other != nil {
		return other, false
	}
	c.evict()
	code.id = c.next % (1 << 16)
	c.next++
	c.pages[p] = code
	return code, true
}

// evict makes room for one page. Which pages go is left to the map's random
// order: what is in use is found again soon, and machines that run on an evicted
// page keep it meanwhile. The caller holds c.mu.
func (c *Cache) evict() {
	if len(c.pages) < c.limit {
		return
	}
	drop := len(c.pages)/8 + 1
	for p := range c.pages {
		delete(c.pages, p)
		if drop--; drop == 0 {
			return
		}
	}
}

// maxPrivate bounds how many pages one machine may have decoded for itself.
const maxPrivate = 4096

// Codes finds the decoded pages of one machine: shared ones for pages that the
// machine has as its snapshot has them, and its own for pages that it wrote.
//
// A decoded page is not watched word by word. Writing to it makes it stale, and
// stale pages go at the next FENCE.I, which is what software needs anyway
// (unpriv 6.1).
//
// A Codes is used by one goroutine at a time, but for Counters.
type Codes struct {
	mem    *memory.Space
	shared *Cache

	own   map[uint64]ownCode // by page number
	stale []uint64           // keys of own that were written since decoded
	seen  []uint64           // bit set of ids of shared pages

	Decoded, Inherited uint64
}

type ownCode struct {
	page  *page.Page
	code  *Code
	stale bool
}

// NewCodes returns an empty index for the machine with that memory. It takes
// the space's watch.
func NewCodes(mem *memory.Space, shared *Cache) *Codes {
	s := &Codes{mem: mem, shared: shared}
	mem.Watch(s.wrote)
	return s
}

// find returns the decoded form of the page p that holds gpa. watch tells that
// a page which may yet be written has just been decoded: the caller must forget
// where it may store to it without asking.
func (s *Codes) find(gpa uint64, p *page.Page) (code *Code, watch bool) {
	if !s.mem.Private(gpa) {
		code, decoded := s.shared.find(p)
		s.count(code.id, decoded)
		return code, false
	}
	n := gpa >> page.Shift
	if own, ok := s.own[n]; ok && own.page == p {
		return own.code, false
	}
	if len(s.own) >= maxPrivate {
		s.Forget()
	}
	if s.own == nil {
		s.own = make(map[uint64]ownCode)
	}
	code = decode(p)
	s.own[n] = ownCode{page: p, code: code}
	s.Decoded++
	return code, true
}

func (s *Codes) count(id uint32, decoded bool) {
	if decoded {
		s.Decoded++
	}
	word, bit := int(id/64), uint64(1)<<(id%64)
	for word >= len(s.seen) {
		s.seen = append(s.seen, 0)
	}
	if s.seen[word]&bit == 0 {
		s.seen[word] |= bit
		if !decoded {
			s.Inherited++
		}
	}
}

// wrote is called before a page is written.
func (s *Codes) wrote(gpa uint64) {
	n := gpa >> page.Shift
	own, ok := s.own[n]
	if !ok || own.stale {
		return
	}
	own.stale = true
	s.own[n] = own
	s.stale = append(s.stale, n)
}

// fence drops what was decoded from pages that were written since.
func (s *Codes) fence() {
	for _, n := range s.stale {
		if s.own[n].stale {
			delete(s.own, n)
		}
	}
	s.stale = s.stale[:0]
}

// Forget drops all pages that the machine decoded for itself.
func (s *Codes) Forget() { s.own, s.stale = nil, nil }
