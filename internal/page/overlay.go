package page

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrQuota reports that an overlay may not hold more pages.
var ErrQuota = errors.New("page quota exceeded")

// Overlay is the writable top of one machine over a stack. The first write to
// a page copies it here. An Overlay is safe for concurrent use; what a page
// contains is the business of whoever holds it.
type Overlay struct {
	arena *Arena // immutable
	quota int    // immutable
	limit Number // immutable

	mu    sync.Mutex
	base  *Stack // guarded by mu
	pages table  // guarded by mu
}

// NewOverlay returns an empty overlay over base. It takes its own reference to
// base. quota bounds how many pages it may hold; zero means as many as base
// has.
func NewOverlay(base *Stack, arena *Arena, quota int) *Overlay {
	if quota <= 0 {
		quota = int(base.Limit())
	}
	return &Overlay{arena: arena, quota: quota, limit: base.Limit(), base: base.Retain()}
}

// Limit returns the number of pages in the address space.
func (o *Overlay) Limit() Number { return o.limit }

// Read returns page n as it is now. The caller must not write to it, and must
// look it up again after any Write of the same page that reported a move.
//
// Preconditions: n is below the limit.
func (o *Overlay) Read(n Number) *Page {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.pages.get(n); p != nil {
		return p
	}
	return o.base.Get(n)
}

// Write returns page n for writing. moved tells that the page was copied into
// the overlay just now, so that pointers from an earlier Read are stale. The
// error wraps ErrQuota or ErrNoSpace.
//
// Preconditions: n is below the limit.
func (o *Overlay) Write(n Number) (p *Page, moved bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.pages.get(n); p != nil {
		return p, false, nil
	}
	if o.pages.used >= o.quota {
		return nil, false, ErrQuota
	}
	p, err = o.arena.Alloc()
	if err != nil {
		return nil, false, err
	}
	*p = *o.base.Get(n)
	o.pages.put(n, p)
	return p, true, nil
}

// Private reports whether page n has been written since the overlay was made
// or last sealed.
func (o *Overlay) Private(n Number) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pages.get(n) != nil
}

// Pages returns how many pages the overlay holds.
func (o *Overlay) Pages() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pages.used
}

// Seal moves the overlay's pages into a new layer and returns the stack with
// that layer on top; the overlay goes on, empty, over the same stack. Pages
// that are as they were below are dropped, pages that became zero are recorded
// as holes. The caller owns a reference to the returned stack. All page pointers
// handed out before become stale, those for reading too: dropped pages are
// reused.
//
// Preconditions: nothing writes to pages of this overlay during the call.
func (o *Overlay) Seal() *Stack {
	o.mu.Lock()
	defer o.mu.Unlock()
	numbers, pages, dropped := o.changed()
	o.arena.Free(dropped...)
	o.pages = table{}

	l := newLayer(o.limit, numbers, pages)
	l.arena = o.arena
	defer l.Release() // the new stack holds its own reference
	below := o.base
	o.base = below.Push(l)
	below.Release()
	return o.base.Retain()
}

// changed returns the pages that differ from those below, a nil page being a
// hole, and the pages that are not needed for that. The caller holds o.mu.
func (o *Overlay) changed() (numbers []Number, pages, dropped []*Page) {
	numbers = o.pages.numbers()
	slices.Sort(numbers)
	pages = make([]*Page, 0, len(numbers))
	numbers = slices.DeleteFunc(numbers, func(n Number) bool {
		p := o.pages.get(n)
		if *p == *o.base.Get(n) {
			dropped = append(dropped, p)
			return true
		}
		if IsZero(p) {
			dropped = append(dropped, p)
			p = nil
		}
		pages = append(pages, p)
		return false
	})
	return numbers, pages, dropped
}

// Close frees the overlay's pages and its reference to the stack.
//
// Preconditions: nothing uses the overlay or its pages any more.
func (o *Overlay) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	pages := make([]*Page, 0, o.pages.used)
	for _, s := range o.pages.slots {
		if s.page != nil {
			pages = append(pages, s.page)
		}
	}
	o.pages = table{}
	o.arena.Free(pages...)
	o.base.Release()
	o.base = nil // a later use is then a clear fault, not a stale page
}

// WriteAt writes b at a byte offset of the address space (io.WriterAt). A
// range that is not wholly inside is an error and changes nothing.
func (o *Overlay) WriteAt(b []byte, off int64) (n int, err error) {
	size := int64(o.Limit()) * Size
	if off < 0 || off > size || int64(len(b)) > size-off {
		return 0, fmt.Errorf("writing %d bytes at %d: beyond the end at %d", len(b), off, size)
	}
	for n < len(b) {
		at := off + int64(n)
		p, _, err := o.Write(Number(at / Size))
		if err != nil {
			return n, err
		}
		n += copy(p[at%Size:], b[n:])
	}
	return n, nil
}
