package page

import (
	"slices"
	"sync/atomic"
)

// Layer is an immutable set of pages. A number that the layer holds either has
// contents or is a hole: a page that is all zeros in this layer whatever lies
// below. Layers are reference counted; the creator holds the first reference.
type Layer struct {
	refs    atomic.Int64
	limit   Number
	numbers []Number // ascending, below limit
	pages   []*Page  // parallel to numbers; nil: hole
	stored  int      // pages that are not holes
	arena   *Arena   // owns the pages, or
	file    *mapping // holds them
}

func newLayer(limit Number, numbers []Number, pages []*Page) *Layer {
	l := &Layer{limit: limit, numbers: numbers, pages: pages}
	for _, p := range pages {
		if p != nil {
			l.stored++
		}
	}
	l.refs.Store(1)
	return l
}

// Limit returns the size in pages of the address space that the layer was made
// for; all its page numbers are below it.
func (l *Layer) Limit() Number { return l.limit }

// Len returns how many page numbers the layer holds, and Stored how many of
// them have contents.
func (l *Layer) Len() int    { return len(l.numbers) }
func (l *Layer) Stored() int { return l.stored }

// Digest returns the content hash of a layer from OpenLayer, else zeros.
func (l *Layer) Digest() Digest {
	if l.file == nil {
		return Digest{}
	}
	return l.file.digest
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
	for i, n := range l.numbers {
		if !yield(n, l.pages[i]) {
			return
		}
	}
}

// Get returns the layer's page n. ok tells whether the layer holds n at all; a
// nil page with ok is a hole.
func (l *Layer) Get(n Number) (p *Page, ok bool) {
	i, ok := slices.BinarySearch(l.numbers, n)
	if !ok {
		return nil, false
	}
	return l.pages[i], true
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
	case n > 0:
	case l.file != nil:
		l.file.close()
	case l.arena != nil:
		l.arena.Free(slices.DeleteFunc(l.pages, func(p *Page) bool { return p == nil })...)
	}
}
