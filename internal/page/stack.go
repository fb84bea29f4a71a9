package page

import (
	"slices"
	"sync/atomic"
)

const (
	leafShift = 9
	leafPages = 1 << leafShift
)

// leaf is the part of a stack's index that covers 2 MiB. It is shared between
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
}

// NewStack returns a stack without layers over an address space of limit
// pages, all zero.
func NewStack(limit Number) *Stack {
	s := &Stack{limit: limit, leaves: make([]*leaf, (int(limit)+leafPages-1)/leafPages)}
	s.refs.Store(1)
	return s
}

// Push returns a new stack with l on top of s. It shares all of the index that
// l does not touch, so it costs time in proportion to the pages of l. It takes
// a reference to l and does not consume the caller's reference to s.
//
// Preconditions: l's limit is not above the stack's. A layer from a file can
// have any limit, so whoever opens it compares first.
func (s *Stack) Push(l *Layer) *Stack {
	if l.limit > s.limit {
		panic("BUG: layer pushed on a stack that is smaller")
	}
	t := &Stack{
		limit:  s.limit,
		leaves: slices.Clone(s.leaves),
		layers: slices.Concat(s.layers, []*Layer{l}),
	}
	t.refs.Store(1)
	for _, below := range t.layers {
		below.Retain()
	}
	copied := -1
	for i, n := range l.numbers {
		at := int(n >> leafShift)
		if at != copied {
			fresh := new(leaf)
			if t.leaves[at] != nil {
				*fresh = *t.leaves[at]
			}
			t.leaves[at], copied = fresh, at
		}
		t.leaves[at][n%leafPages] = l.pages[i]
	}
	return t
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

// Intact is Layer.Intact for each layer of the stack.
func (s *Stack) Intact() error {
	for _, l := range s.layers {
		if err := l.Intact(); err != nil {
			return err
		}
	}
	return nil
}

// All iterates over the pages that have contents, in ascending order.
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
