package page

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Layer is an immutable set of pages. A number that the layer holds either has
// contents or is a hole: a page that is all zeros in this layer whatever lies
// below. Layers are reference counted; the creator holds the first reference.
//
// A layer that was sealed does not know yet which of its pages differ from what
// lies below: finding out reads every page, and a machine is waiting. The first
// who asks for the layer's contents pays for it.
type Layer struct {
	refs   atomic.Int64
	limit  Number
	index  func() index             // what the layer holds; safe for concurrent use
	saved  atomic.Pointer[Digest]   // of the file that holds the same contents
	file   *mapping                 // has the pages, or
	memory atomic.Pointer[inMemory] // tells who has

	mu     sync.Mutex
	onFree []func() // guarded by mu
}

// index is what a layer holds.
type index struct {
	numbers []Number // ascending, below the limit
	pages   []*Page  // parallel to numbers; nil: hole
	stored  int      // pages that are not holes
}

func newIndex(numbers []Number, pages []*Page) index {
	x := index{numbers: numbers, pages: pages}
	for _, p := range pages {
		if p != nil {
			x.stored++
		}
	}
	return x
}

func newFileLayer(limit Number, file *mapping, x index) *Layer {
	l := &Layer{limit: limit, file: file, index: func() index { return x }}
	l.refs.Store(1)
	return l
}

// inMemory is a layer that has no file of its own: it has pages of an overlay, or
// consists of other layers (see Merge).
type inMemory struct {
	seal  *sealed
	parts []*Layer // bottom first, a reference to each
}

// sealed is the pages of an overlay, as they were when it was sealed.
type sealed struct {
	arena *Arena
	pages table
	tally *tally  // of the overlay
	count int     // pages of its own; guarded by tally.mu once they are in it
	over  int     // of those, how many are in the tally's over; guarded by tally.mu
	into  *sealed // has its pages since it was joined with others; guarded by tally.mu
	dense bool    // see fillGaps

	mu    sync.Mutex
	below *Stack // a reference; nil once somebody finds out the differences; guarded by mu
}

func newSealedLayer(limit Number, arena *Arena, pages table, below *Stack, keeper *tally) *Layer {
	s := &sealed{arena: arena, pages: pages, tally: keeper, below: below.Retain()}
	for i := range pages.slots {
		if p := pages.slots[i].page; p != nil && p != zero {
			s.count++
		}
	}
	keeper.enter(s)
	l := &Layer{limit: limit, index: sync.OnceValue(s.compare)}
	l.memory.Store(&inMemory{seal: s})
	l.refs.Store(1)
	return l
}

// compare finds the pages that differ from those below. The others stay in
// memory, because stacks lead to them.
func (s *sealed) compare() index {
	below := s.unlink()
	defer below.Release()
	numbers := s.pages.numbers()
	slices.Sort(numbers)
	pages := make([]*Page, 0, len(numbers))
	numbers = slices.DeleteFunc(numbers, func(n Number) bool {
		p := s.pages.get(n)
		if *p == *below.Get(n) {
			return true
		}
		if IsZero(p) {
			p = nil
		}
		pages = append(pages, p)
		return false
	})
	if s.dense {
		numbers, pages = fillGaps(numbers, pages)
	}
	return newIndex(numbers, pages)
}

// shortGap is how many pages of zeros may be stored between two others.
const shortGap = 16

// fillGaps adds pages of zeros to those of a lowest layer where few are missing. In a
// file there are fewer and longer stretches then, and each of them takes a mapping of
// its own in every machine (see Flat).
func fillGaps(numbers []Number, pages []*Page) ([]Number, []*Page) {
	var allNumbers []Number
	var all []*Page
	for i, n := range numbers {
		if i > 0 && n-numbers[i-1]-1 <= shortGap {
			for gap := numbers[i-1] + 1; gap < n; gap++ {
				allNumbers, all = append(allNumbers, gap), append(all, zero)
			}
		}
		allNumbers, all = append(allNumbers, n), append(all, pages[i])
	}
	return allNumbers, all
}

// unlink returns the reference to the stack below; nil if there is none any more.
func (s *sealed) unlink() *Stack {
	s.mu.Lock()
	defer s.mu.Unlock()
	below := s.below
	s.below = nil
	return below
}

// forget gives up the stack below: nobody will ask for the differences any more.
func (s *sealed) forget() {
	if below := s.unlink(); below != nil {
		below.Release()
	}
}

// relink has the layer compared with another stack below, of the same contents.
func (s *sealed) relink(r *Replacement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.below == nil {
		return
	}
	if next, _ := r.Of(s.below); next != nil {
		next.Retain()
		s.below.Release() // the replacement has it, too
		s.below = next
	}
}

func (s *sealed) free() {
	s.forget()
	s.tally.strike(s)
	s.arena.Free(s.pages.all()...)
}

// Limit returns the size in pages of the address space that the layer was made
// for; all its page numbers are below it.
func (l *Layer) Limit() Number { return l.limit }

// Len returns how many page numbers the layer holds, and Stored how many of
// them have contents.
func (l *Layer) Len() int    { return len(l.index().numbers) }
func (l *Layer) Stored() int { return l.index().stored }

// Digest returns the content hash of a layer that OpenLayer returned or Write
// has written; zeros of any other.
func (l *Layer) Digest() Digest {
	if d := l.saved.Load(); d != nil {
		return *d
	}
	return Digest{}
}

// Detach gives up the descriptor of the layer's file: what is mapped stays, and takes no
// descriptor. File and Intact do not know of the file any more.
//
// Preconditions: nobody else knows the layer yet.
func (l *Layer) Detach() {
	if l.file != nil {
		l.file.detach()
	}
}

// Intact reports a layer whose file has been truncated or written to since it
// was opened; the error wraps ErrCorrupt and names the file. Touching the
// missing pages of a truncated file is a bus error, so ask before a fork. It
// costs one system call, none for a layer in memory.
func (l *Layer) Intact() error {
	if l.file == nil {
		return nil
	}
	return l.file.intact()
}

// All iterates over the layer in ascending order; a nil page is a hole.
func (l *Layer) All(yield func(Number, *Page) bool) {
	x := l.index()
	for i, n := range x.numbers {
		if !yield(n, x.pages[i]) {
			return
		}
	}
}

// Get returns the layer's page n. ok tells whether the layer holds n at all; a
// nil page with ok is a hole.
func (l *Layer) Get(n Number) (p *Page, ok bool) {
	x := l.index()
	i, ok := slices.BinarySearch(x.numbers, n)
	if !ok {
		return nil, false
	}
	return x.pages[i], true
}

// Retain takes another reference.
func (l *Layer) Retain() {
	if l.refs.Add(1) <= 1 {
		panic("BUG: layer used after its release")
	}
}

// TryRetain is Retain for who cannot know whether the layer is still there, and tells
// whether it is.
func (l *Layer) TryRetain() bool {
	for {
		n := l.refs.Load()
		if n <= 0 {
			return false
		}
		if l.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Alone reports whether the caller's reference is the only one, so that nobody leads to the
// layer. It is for who knows that nobody gets another one meanwhile.
func (l *Layer) Alone() bool { return l.refs.Load() == 1 }

// claim takes the last reference, if the caller's is the last: nobody else has the
// layer then, or can get it. unclaim gives it back.
func (l *Layer) claim() bool { return l.refs.CompareAndSwap(1, 0) }
func (l *Layer) unclaim()    { l.refs.Store(1) }

// Release drops a reference; the last one frees the layer's memory.
func (l *Layer) Release() {
	switch n := l.refs.Add(-1); {
	case n < 0:
		panic("BUG: layer released twice")
	case n == 0:
		l.free()
	}
}

// OnFree has fn called before the layer's memory is freed, when nobody uses its
// pages any more: whoever knows something by the place of a page forgets it then.
// fn must not use the layer. The caller holds a reference.
func (l *Layer) OnFree(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onFree = append(l.onFree, fn)
}

func (l *Layer) free() {
	l.leave()
	if l.file != nil {
		l.file.close()
		return
	}
	m := l.memory.Load()
	if m.seal != nil {
		m.seal.free()
	}
	for _, part := range m.parts {
		part.Release()
	}
}

// leave tells those who want to know that nobody uses the layer any more.
func (l *Layer) leave() {
	l.mu.Lock()
	told := l.onFree
	l.onFree = nil
	l.mu.Unlock()
	for _, fn := range told {
		fn()
	}
}

// seal returns the pages that the layer has itself; nil if it has a file, or consists of
// others.
func (l *Layer) seal() *sealed {
	if l.file != nil {
		return nil
	}
	return l.memory.Load().seal
}

// at returns the page that a stack leads to, for page n, whose topmost layer with
// anything to say about it is this one. That may be more than Get tells, since a page
// that a machine has written does not always differ from what lies below. A nil page
// with ok is a hole.
func (l *Layer) at(n Number) (p *Page, ok bool) {
	if l.file != nil {
		return l.Get(n)
	}
	m := l.memory.Load()
	if m.seal != nil {
		p = m.seal.pages.get(n)
		return p, p != nil
	}
	for _, part := range slices.Backward(m.parts) {
		if p, ok = part.at(n); ok {
			return p, true
		}
	}
	return nil, false
}

// touched returns the numbers for which at finds something, in no order.
func (l *Layer) touched() []Number {
	if l.file != nil {
		return l.index().numbers
	}
	m := l.memory.Load()
	if m.seal != nil {
		return m.seal.pages.numbers()
	}
	return touched(m.parts)
}

// touched returns the numbers that any of the layers touches, each once.
func touched(layers []*Layer) (all []Number) {
	if len(layers) == 1 {
		return layers[0].touched()
	}
	for _, l := range layers {
		all = append(all, l.touched()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// owns reports whether p is the layer's memory for page n.
func (l *Layer) owns(n Number, p *Page) bool {
	if l.file == nil {
		if m := l.memory.Load(); m.seal == nil {
			return slices.ContainsFunc(m.parts, func(part *Layer) bool { return part.owns(n, p) })
		}
	}
	q, ok := l.at(n)
	return ok && q == p
}
