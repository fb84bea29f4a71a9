package page

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A leaf is copied for each page of a layer that lies alone, and the list of
// leaves for each layer. With 128 pages both are small: a KiB, and 64 KiB for a
// disk of 4 GiB.
const (
	leafShift = 7
	leafPages = 1 << leafShift
)

// leaf is the part of a stack's index that covers 512 KiB. It is shared between
// stacks and never changed once a stack has been returned.
type leaf [leafPages]*Page

// Stack is an immutable view of a chain of layers, flattened: each page number
// leads straight to the topmost contents. Stacks are reference counted and
// hold a reference to each of their layers.
type Stack struct {
	refs   atomic.Int64
	limit  Number // pages in the address space
	leaves []*leaf
	layers []*Layer // bottom first

	findOnce sync.Once
	found    []stretch // see stretches; immutable after findOnce
}

// NewStack returns a stack without layers over an address space of limit
// pages, all zero.
func NewStack(limit Number) *Stack {
	s := &Stack{limit: limit, leaves: make([]*leaf, (int(limit)+leafPages-1)/leafPages)}
	s.refs.Store(1)
	return s
}

// Push returns a new stack with layers, bottom first, on top of s. It shares all
// of the index that they do not touch, so it costs time in proportion to their
// pages. It takes a reference to each and does not consume the caller's
// reference to s.
//
// Preconditions: no layer's limit is above the stack's. A layer from a file can
// have any limit, so whoever opens it compares first.
func (s *Stack) Push(layers ...*Layer) *Stack {
	for _, l := range layers {
		if l.limit > s.limit {
			panic("BUG: layer pushed on a stack that is smaller")
		}
		l.index() // finding out what it holds may be a fault (see Guard), and there is no stack then
	}
	t := s.under(layers...)
	for _, l := range layers {
		x := l.index()
		for i, n := range x.numbers {
			t.set(s, n, x.pages[i])
		}
	}
	return t
}

// under returns a stack of the layers of s and others on top that leads to the
// pages of s only.
func (s *Stack) under(others ...*Layer) *Stack {
	t := &Stack{
		limit:  s.limit,
		leaves: slices.Clone(s.leaves),
		layers: slices.Concat(s.layers, others),
	}
	t.refs.Store(1)
	for _, l := range t.layers {
		l.Retain()
	}
	return t
}

// set has t, which was made from s and which nobody else knows yet, lead to p.
func (t *Stack) set(s *Stack, n Number, p *Page) {
	at := n >> leafShift
	if t.leaves[at] == s.leaves[at] {
		fresh := new(leaf)
		if shared := s.leaves[at]; shared != nil {
			*fresh = *shared
		}
		t.leaves[at] = fresh
	}
	t.leaves[at][n%leafPages] = p
}

// Limit returns the number of pages in the address space.
func (s *Stack) Limit() Number { return s.limit }

// Layers returns the layers, bottom first. The slice must not be changed.
func (s *Stack) Layers() []*Layer { return s.layers }

// Get returns page n, which must be below the limit. The page must not be
// written.
func (s *Stack) Get(n Number) *Page {
	if p := s.lookup(n); p != nil {
		return p
	}
	return zero
}

// lookup is Get with nil for a page that no layer stores.
func (s *Stack) lookup(n Number) *Page {
	l := s.leaves[n>>leafShift]
	if l == nil {
		return nil
	}
	return l[n%leafPages]
}

// Owner returns the layer whose memory Get returns for page n, or nil if no layer
// stores it.
func (s *Stack) Owner(n Number) *Layer {
	p := s.lookup(n)
	if p == nil {
		return nil
	}
	for _, l := range slices.Backward(s.layers) {
		if l.owns(n, p) {
			return l
		}
	}
	panic("BUG: a page of a stack is in none of its layers")
}

// Intact is Layer.Intact for each layer of the stack.
func (s *Stack) Intact() error {
	for _, l := range s.layers {
		if err := l.Intact(); err != nil {
			return err
		}
	}
	return nil
}

// All iterates over the pages that have contents, in ascending order. Some may
// consist of zeros.
func (s *Stack) All(yield func(Number, *Page) bool) {
	for i, l := range s.leaves {
		if l == nil {
			continue
		}
		for j, p := range l {
			if p != nil && !yield(Number(i<<leafShift|j), p) {
				return
			}
		}
	}
}

// Retain takes another reference.
func (s *Stack) Retain() *Stack {
	if s.refs.Add(1) <= 1 {
		panic("BUG: stack used after its release")
	}
	return s
}

// Release drops a reference; the last one releases the layers.
func (s *Stack) Release() {
	switch n := s.refs.Add(-1); {
	case n == 0:
		for _, l := range s.layers {
			l.Release()
		}
	case n < 0:
		panic("BUG: stack released twice")
	}
}
