package page

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
)

// ErrQuota reports that an overlay may not hold more pages.
var ErrQuota = errors.New("page quota exceeded")

// Overlay is the writable top of one machine over a stack. The first write to
// a page copies it here. An Overlay is safe for concurrent use; what a page
// contains is the business of whoever holds it.
//
// A page of an overlay is resident, a page of the arena; or packed, a difference from
// the stack, which the first Read or Write makes resident again; or discarded, which
// takes no memory and reads as zeros.
//
// A quota bounds the pages that the overlay has ever written, each counted once, whether
// they are its own now or went into a layer in a Seal. A page that is discarded counts no
// more if it is the overlay's own. One that lies in a layer counts still, as the layer is
// there; and so does what is written to its place if the discard went into a layer, too.
// With CountKept it bounds the pages that are in memory because of the overlay as well.
type Overlay struct {
	arena *Arena // immutable
	limit Number // immutable
	tally tally  // of layers that were sealed

	// shape is held by who makes pages the overlay's own or a layer's, or replaces stacks:
	// Seal, Unseal, Pack, Change.Swap and Close. It is locked before mu.
	shape sync.Mutex

	mu     sync.Mutex
	origin *Stack  // that the overlay was made over; guarded by mu, but for who uses pages
	strict bool    // see CountKept; guarded by mu
	quota  int     // guarded by mu
	base   *Stack  // guarded by mu
	pages  table   // resident pages, and zero for those that were discarded; guarded by mu
	holes  int     // of pages, those that were discarded; guarded by mu
	packed *packed // may name pages that are resident as well, which count; guarded by mu
	hidden int     // pages of packed that are not resident; guarded by mu
	large  int     // resident pages that are not worth packing; guarded by mu
	sealed int     // pages that went into layers, each counted once; guarded by mu
	again  int     // of those, how many the overlay has again; guarded by mu
}

// NewOverlay returns an empty overlay over base. It takes its own reference to
// base. quota is as SetQuota has it.
func NewOverlay(base *Stack, arena *Arena, quota int) *Overlay {
	o := &Overlay{arena: arena, limit: base.Limit(), origin: base.Retain(), base: base.Retain()}
	o.SetQuota(quota)
	return o
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

// resident returns page n of this overlay, unpacking it if need be, zero if it was
// discarded, or nil if the overlay does not have it. The caller holds o.mu.
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
	p, err := o.arena.copyOf(o.base.Get(n))
	if err != nil {
		return nil, err
	}
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
	below, err := o.resident(n)
	if err != nil || below != nil && below != zero {
		if o.large > 0 {
			o.unmark(n)
		}
		return below, false, err
	}
	again := o.sealedBefore(n)
	if o.charged() >= o.quota && !(again && o.free(n, below)) {
		return nil, false, ErrQuota
	}
	from := below
	if below == nil {
		from = o.base.Get(n)
	}
	if p, err = o.arena.copyOf(from); err != nil {
		return nil, false, err
	}
	if below == nil {
		o.pages.put(n, p)
	} else {
		o.pages.find(n).page = p
		o.holes--
	}
	if again {
		o.again++
		if below == nil {
			o.supersede(n, false)
		}
	}
	return p, true, nil
}

// free reports whether a page that counts already can be written without counting twice.
// below is what the overlay has in its place, nil or zero. The caller holds o.mu.
func (o *Overlay) free(n Number, below *Page) bool {
	return !o.strict || below != nil || o.keeper(n) == nil
}

// unmark notes that a page is written which was not worth packing. The caller
// holds o.mu.
func (o *Overlay) unmark(n Number) {
	if s := o.pages.find(n); s != nil && s.large {
		s.large = false
		o.large--
	}
}

// Private reports whether page n has a place of its own: it is not the page of
// the stack that the overlay was made over, because it was written since, be it
// before a Seal. What is known about that stack's pages holds for the others.
func (o *Overlay) Private(n Number) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.holds(n) || o.pages.get(n) == zero || o.moved(n)
}

// Owner is Stack.Owner for the stack that the overlay was made over.
func (o *Overlay) Owner(n Number) *Layer { return o.origin.Owner(n) }

// Owns reports whether page n is the overlay's already, so that Write would not
// move it.
func (o *Overlay) Owns(n Number) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.holds(n)
}

// holds reports whether page n was written since the overlay was made or last
// sealed. The caller holds o.mu.
func (o *Overlay) holds(n Number) bool {
	if p := o.pages.get(n); p != nil {
		return p != zero
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
	return o.own()
}

// Bytes returns the host memory that the overlay's pages take, and those that it has
// sealed, as long as they are in memory.
func (o *Overlay) Bytes() int {
	kept, _ := o.tally.sums()
	o.mu.Lock()
	defer o.mu.Unlock()
	n := (o.pages.used - o.holes + kept) * Size
	if o.packed != nil {
		n += o.packed.size()
	}
	return n
}

// Resident returns how many of the overlay's pages a Pack would look at.
func (o *Overlay) Resident() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pages.used - o.holes - o.large
}

// Pack stores pages as differences from the stack and gives them back to the
// arena, but for those that differ too much; pages that are as they were below
// it drops. All page pointers handed out before become stale, those for reading
// too.
//
// Preconditions: nothing reads or writes pages of this overlay during the call.
func (o *Overlay) Pack() {
	o.shape.Lock()
	defer o.shape.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	numbers := o.pages.numbers()
	slices.Sort(numbers)
	old := o.packed
	if old == nil {
		old = new(packed)
	}
	var stay table
	fresh := new(packed)
	free := make([]*Page, 0, len(numbers))
	var same []Number // as they are in a layer that was sealed
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
		s := o.pages.find(n)
		if s.page == zero {
			stay.put(n, zero)
			continue
		}
		held := len(fresh.numbers)
		if s.large || !fresh.add(n, s.page, o.base.Get(n)) {
			stay.put(n, s.page)
			stay.find(n).large = true
			continue
		}
		if len(fresh.numbers) == held && o.sealedBefore(n) {
			same = append(same, n)
		}
		free = append(free, s.page)
	}
	for _, n := range same {
		o.supersede(n, true)
	}
	fresh.data = slices.Clone(fresh.data) // without the room that appending left
	o.packed, o.hidden, o.pages, o.large = fresh, len(fresh.numbers), stay, stay.used-o.holes
	if o.again = 0; o.sealed > 0 {
		for _, n := range slices.Concat(fresh.numbers, stay.numbers()) {
			if o.holds(n) && o.sealedBefore(n) {
				o.again++
			}
		}
	}
	o.arena.Free(free...)
}

// Prepare makes packed pages resident, so that a Seal which follows costs nothing
// for them. The overlay can be used meanwhile. The error wraps ErrNoSpace.
func (o *Overlay) Prepare() error {
	const atOnce = 64 // pages for which others wait
	for start := 0; ; start += atOnce {
		if more, err := o.unpackNext(start, start+atOnce); err != nil || !more {
			return err
		}
	}
}

// unpackNext is unpackSome for who does not hold o.mu. Reading a page of the stack may
// be a fault (see Guard), so the lock is given up whatever happens.
func (o *Overlay) unpackNext(from, to int) (more bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unpackSome(from, to)
}

// unpackSome makes the packed pages from index from up to index to resident, and
// tells whether there are more. The caller holds o.mu.
func (o *Overlay) unpackSome(from, to int) (more bool, err error) {
	if o.packed == nil {
		return false, nil
	}
	for i := from; i < min(to, len(o.packed.numbers)); i++ {
		if _, err := o.resident(o.packed.numbers[i]); err != nil {
			return false, err
		}
	}
	if more = to < len(o.packed.numbers); !more && o.hidden == 0 {
		o.packed = nil
	}
	return more, nil
}

// Seal moves the overlay's pages into a new layer and returns the stack with
// that layer on top; the overlay goes on, empty, over the same stack. Pages
// that are as they were below are not part of the layer, pages that became zero
// are holes of it. The caller owns a reference to the returned stack. All page
// pointers handed out before become stale, those for reading too.
//
// It costs some ten nanoseconds for each page that was written since the last
// Seal, and more for each packed one (see Unpack). It panics as Read does.
//
// Preconditions: nothing writes to pages of this overlay during the call.
func (o *Overlay) Seal() *Stack {
	o.shape.Lock()
	defer o.shape.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, err := o.unpackSome(0, math.MaxInt); err != nil {
		panic(&AllocError{err})
	}
	o.sealed += o.own() - o.again
	pages, below := o.pages, o.base
	o.pages, o.holes, o.large, o.again = table{}, 0, 0, 0
	o.base = seal(o.limit, o.arena, pages, below, &o.tally)
	below.Release()
	return o.base.Retain()
}

// Close frees the overlay's pages and its reference to the stack.
//
// Preconditions: nothing uses the overlay or its pages any more.
func (o *Overlay) Close() {
	o.shape.Lock()
	defer o.shape.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.arena.Free(o.pages.all()...)
	o.pages, o.holes, o.packed, o.hidden, o.large = table{}, 0, nil, 0, 0
	o.base.Release()
	o.origin.Release()
	o.base, o.origin = nil, nil // a later use is then a clear fault, not a stale page
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
