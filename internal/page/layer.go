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
	refs  atomic.Int64
	limit Number
	index func() index           // what the layer holds; safe for concurrent use
	saved atomic.Pointer[Digest] // of the file that holds the same contents
	file  *mapping               // holds the pages, or
	seal  *sealed                // does

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

// sealed is the pages of an overlay, as they were when it was sealed.
type sealed struct {
	arena *Arena
	pages table
	below atomic.Pointer[Stack] // nil once the differences are known
	dense bool                  // see fillGaps
}

func newSealedLayer(limit Number, arena *Arena, pages table, below *Stack) *Layer {
	s := &sealed{arena: arena, pages: pages}
	s.below.Store(below.Retain())
	l := &Layer{limit: limit, seal: s, index: sync.OnceValue(s.compare)}
	l.refs.Store(1)
	return l
}

// compare finds the pages that differ from those below. The others stay in
// memory, because stacks lead to them.
func (s *sealed) compare() index {
	below := s.below.Load()
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
	s.unlink()
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

// unlink gives up the stack below.
func (s *sealed) unlink() {
	if below := s.below.Swap(nil); below != nil {
		below.Release()
	}
}

func (s *sealed) free() {
	s.unlink()
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
	for _, fn := range l.onFree {
		fn()
	}
	if l.file != nil {
		l.file.close()
	} else {
		l.seal.free()
	}
}

// owns reports whether p is the layer's memory for page n.
func (l *Layer) owns(n Number, p *Page) bool {
	if l.seal != nil {
		return l.seal.pages.get(n) == p
	}
	q, _ := l.Get(n)
	return q == p
}
