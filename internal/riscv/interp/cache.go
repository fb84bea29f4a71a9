package interp

import (
	"maps"
	"sync"
	"weak"

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
// call decoded it. It returns nil if others would have to go for it, and that may not be.
func (c *Cache) find(p *page.Page, owner func() *page.Layer, mayEvict func() bool) (code *Code, decoded bool) {
	c.mu.RLock()
	code = c.pages[p].code
	full := len(c.pages) >= c.limit
	c.mu.RUnlock()
	if code != nil {
		return code, false
	}
	if full && !mayEvict() {
		return nil, false
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

// evictPart is the part of the pages that go at a time, one in so many.
const evictPart = 8

// evict makes room for one page. Which pages go is left to the map's random
// order: what is in use is found again soon, and machines that run on an evicted
// page keep it meanwhile. The caller holds c.mu.
func (c *Cache) evict() {
	if len(c.pages) < c.limit {
		return
	}
	drop := len(c.pages)/evictPart + 1
	for p := range c.pages {
		delete(c.pages, p)
		if drop--; drop == 0 {
			return
		}
	}
}
