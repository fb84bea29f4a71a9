package interp

import (
	"maps"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
)

// Cache holds the decoded pages of immutable layers, for all machines over
// them. It is safe for concurrent use.
//
// Pages are known by their place in host memory, and forgotten when that is
// freed.
type Cache struct {
	limit  int        // immutable
	native *jit.Cache // nil: nothing is translated

	mu     sync.RWMutex
	pages  map[*page.Page]cached                   // guarded by mu
	layers map[*page.Layer]bool                    // that tell when they are freed; guarded by mu
	work   map[weak.Pointer[page.Stack]]*knowledge // guarded by mu
	next   uint32                                  // guarded by mu; id of the next page
}

// cached is a decoded page and the layer that it lies in.
type cached struct {
	code  *Code
	layer *page.Layer
}

// NewCache returns an empty cache of at most limit pages. A decoded page takes
// 18 KiB. With native, code is translated into it when it is first executed.
func NewCache(limit int, native *jit.Cache) *Cache {
	return &Cache{
		limit: max(limit, 1), native: native,
		pages: make(map[*page.Page]cached), layers: make(map[*page.Layer]bool),
		work: make(map[weak.Pointer[page.Stack]]*knowledge),
	}
}

// find returns the decoded page p, which is in the layer owner, and whether this
// call decoded it.
func (c *Cache) find(p *page.Page, owner func() *page.Layer) (code *Code, decoded bool) {
	c.mu.RLock()
	code = c.pages[p].code
	c.mu.RUnlock()
	if code != nil {
		return code, false
	}
	code = decode(p)
	layer := owner()
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.pages[p].code; other != nil {
		return other, false
	}
	c.evict()
	code.id = c.next % (1 << 16)
	c.next++
	c.pages[p] = cached{code, layer}
	if layer != nil && !c.layers[layer] {
		c.layers[layer] = true
		layer.OnFree(func() { c.drop(layer) })
	}
	return code, true
}

// drop forgets the pages of a layer.
func (c *Cache) drop(l *page.Layer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.layers, l)
	maps.DeleteFunc(c.pages, func(_ *page.Page, s cached) bool { return s.layer == l })
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
// The vCPUs of a machine share it; each executes what it has found until it
// executes FENCE.I itself. That writing makes a page stale is seen only where it
// is announced (memory.Space.Watch): of a page which another vCPU may be writing to
// unannounced, what is decoded is not kept.
type Codes struct {
	mem    *memory.Space
	shared *Cache

	// Pages and basic blocks; see engine.Counters.
	Decoded, Inherited, Translated atomic.Uint64

	mu    sync.Mutex         // before the locks of package memory
	own   map[uint64]ownCode // by page number; guarded by mu
	stale []uint64           // keys of own that were written since decoded; guarded by mu
	seen  []uint64           // bit set of ids of shared pages; guarded by mu
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
	if !s.mem.Private(gpa) {
		code, decoded := s.shared.find(p, func() *page.Layer { return s.mem.Owner(gpa) })
		s.count(code.id, decoded)
		return code, finding{decoded: decoded}
	}
	n := gpa >> page.Shift
	s.mu.Lock()
	defer s.mu.Unlock()
	if own, ok := s.own[n]; ok {
		if own.page == p {
			return own.code, finding{}
		}
		own.leave()
	}
	if len(s.own) >= maxPrivate {
		s.forget()
	}
	if s.own == nil {
		s.own = make(map[uint64]ownCode)
	}
	if !view.Guard(gpa, p) {
		code := decode(p)
		code.native.written.Store(true)
		return code, finding{decoded: true, watch: true, fleeting: true}
	}
	// Who writes since Guard has looked finds s.mu taken, and then the page here.
	code := decode(p)
	s.own[n] = ownCode{page: p, code: code}
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

// wrote is called before a page is written.
func (s *Codes) wrote(gpa uint64) {
	n := gpa >> page.Shift
	s.mu.Lock()
	defer s.mu.Unlock()
	own, ok := s.own[n]
	if !ok || own.stale {
		return
	}
	own.stale = true
	own.leave()
	s.own[n] = own
	s.stale = append(s.stale, n)
}

// fence drops what was decoded from pages that were written since.
func (s *Codes) fence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.stale {
		if s.own[n].stale {
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
func (o ownCode) leave() { o.code.native.written.Store(true) }
