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
//
// A page of an overlay is either resident, a page of the arena, or packed, a
// difference from the stack; the first Read or Write of a packed page makes it
// resident again.
type Overlay struct {
	arena *Arena // immutable
	quota int    // immutable
	limit Number // immutable

	mu     sync.Mutex
	base   *Stack  // guarded by mu
	pages  table   // resident pages; guarded by mu
	packed *packed // may name pages that are resident as well, which count; guarded by mu
	hidden int     // pages of packed that are not resident; guarded by mu
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
// It panics with an *AllocError if the page is packed and the host has no
// memory to unpack it.
//
// Preconditions: n is below the limit.
func (o *Overlay) Read(n Number) *Page {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, err := o.resident(n)
	if err != nil {
		panic(&AllocError{err})
	}
	if p != nil {
		return p
	}
	return o.base.Get(n)
}

// AllocError is what Read panics with when the host is out of memory.
type AllocError struct{ Err error }

func (e *AllocError) Error() string { return "unpacking a page: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *AllocError) Unwrap() error { return e.Err }

// resident returns page n of this overlay, unpacking it if need be, or nil if
// the overlay does not have it. The caller holds o.mu.
func (o *Overlay) resident(n Number) (*Page, error) {
	if p := o.pages.get(n); p != nil {
		return p, nil
	}
	if o.packed == nil {
		return nil, nil
	}
	i, ok := o.packed.find(n)
	if !ok {
		return nil, nil
	}
	p, err := o.arena.Alloc()
	if err != nil {
		return nil, err
	}
	*p = *o.base.Get(n)
	o.packed.apply(i, p)
	o.pages.put(n, p)
	o.hidden--
	return p, nil
}

// Write returns page n for writing. moved tells that the page was copied into
// the overlay just now, so that pointers from an earlier Read are stale. The
// error wraps ErrQuota or ErrNoSpace.
//
// Preconditions: n is below the limit.
func (o *Overlay) Write(n Number) (p *Page, moved bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p, err := o.resident(n); p != nil || err != nil {
		return p, false, err
	}
	if o.pages.used+o.hidden >= o.quota {
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
	if o.pages.get(n) != nil {
		return true
	}
	if o.packed == nil {
		return false
	}
	_, ok := o.packed.find(n)
	return ok
}

// Pages returns how many pages the overlay holds, packed ones included.
func (o *Overlay) Pages() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pages.used + o.hidden
}

// Bytes returns the host memory that the overlay's pages take.
func (o *Overlay) Bytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.pages.used * Size
	if o.packed != nil {
		n += o.packed.size()
	}
	return n
}

// Resident returns how many of the overlay's pages are not packed.
func (o *Overlay) Resident() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pages.used
}

// Pack stores the overlay as differences from the stack and gives its pages
// back to the arena; pages that are as they were below it drops. All page
// pointers handed out before become stale, those for reading too.
//
// Preconditions: nothing reads or writes pages of this overlay during the call.
func (o *Overlay) Pack() {
	o.mu.Lock()
	defer o.mu.Unlock()
	numbers := o.pages.numbers()
	slices.Sort(numbers)
	old := o.packed
	if old == nil {
		old = new(packed)
	}
	fresh := new(packed)
	free := make([]*Page, 0, len(numbers))
	for i := 0; i < len(old.numbers) || len(numbers) > 0; {
		if len(numbers) == 0 || i < len(old.numbers) && old.numbers[i] < numbers[0] {
			fresh.copyFrom(old, i)
			i++
			continue
		}
		n := numbers[0]
		numbers = numbers[1:]
		if i < len(old.numbers) && old.numbers[i] == n {
			i++ // superseded
		}
		p := o.pages.get(n)
		fresh.add(n, p, o.base.Get(n))
		free = append(free, p)
	}
	fresh.data = slices.Clone(fresh.data) // without the room that appending left
	o.packed, o.hidden, o.pages = fresh, len(fresh.numbers), table{}
	o.arena.Free(free...)
}

// unpack makes all pages resident. The caller holds o.mu.
func (o *Overlay) unpack() error {
	if o.packed == nil {
		return nil
	}
	for _, n := range o.packed.numbers {
		if _, err := o.resident(n); err != nil {
			return err
		}
	}
	o.packed = nil
	return nil
}

// Seal moves the overlay's pages into a new layer and returns the stack with
// that layer on top; the overlay goes on, empty, over the same stack. Pages
// that are as they were below are dropped, pages that became zero are recorded
// as holes. The caller owns a reference to the returned stack. All page pointers
// handed out before become stale, those for reading too: dropped pages are
// reused. It panics as Read does.
//
// Preconditions: nothing writes to pages of this overlay during the call.
func (o *Overlay) Seal() *Stack {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.unpack(); err != nil {
		panic(&AllocError{err})
	}
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
	o.pages, o.packed, o.hidden = table{}, nil, 0
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
