package page

import "slices"

// without returns a stack of the layers of s but for run, which are those from index
// at on, and with by, if it is not nil, in their place. moved tells that a page lies
// elsewhere in it. The layers that are left must be layers of s whose pages it leads to.
func (s *Stack) without(at int, run []*Layer, by *Layer) (t *Stack, moved bool) {
	lower, upper := s.layers[:at], s.layers[at+len(run):]
	t = &Stack{limit: s.limit, leaves: slices.Clone(s.leaves), layers: slices.Clone(lower)}
	if by != nil {
		t.layers = append(t.layers, by)
	}
	t.layers = append(t.layers, upper...)
	t.refs.Store(1)
	for _, l := range t.layers {
		l.Retain()
	}
	for _, n := range touched(run) {
		p := s.lookup(n)
		above := func(l *Layer) bool { _, ok := l.at(n); return ok }
		if (p == nil || p == zero) && slices.ContainsFunc(upper, above) {
			continue // all zeros are alike
		}
		if !slices.ContainsFunc(run, func(l *Layer) bool { return l.owns(n, p) }) {
			continue // it is of a layer above
		}
		if q := topmost(lower, by, n); p != q {
			t.set(s, n, q)
			moved = true
		}
	}
	return t, moved
}

// claim takes a stack and its uppermost layer out of everybody's reach, if the caller's
// reference to the stack is the last and nobody else has the layer.
func (s *Stack) claim(top *Layer) bool {
	if !s.refs.CompareAndSwap(1, 0) {
		return false
	}
	if !top.claim() {
		s.refs.Store(1)
		return false
	}
	return true
}

// below returns what a claimed stack is without its uppermost layer. The other layers
// are not the claimed stack's any more.
func (s *Stack) below(top *Layer) *Stack {
	lower := s.layers[:len(s.layers)-1]
	t := &Stack{limit: s.limit, leaves: slices.Clone(s.leaves), layers: slices.Clone(lower)}
	t.refs.Store(1)
	for _, n := range top.touched() {
		if p, _ := top.at(n); s.lookup(n) == p {
			t.set(s, n, topmost(lower, nil, n))
		}
	}
	return t
}

// topmost returns the page n of by, if it has one, or of the layers below it; nil if
// none has contents.
func topmost(lower []*Layer, by *Layer, n Number) *Page {
	if by != nil {
		if p, ok := by.at(n); ok {
			return p
		}
	}
	for _, l := range slices.Backward(lower) {
		if p, ok := l.at(n); ok {
			return p
		}
	}
	return nil
}

// Replacement has layers replaced in stacks by others that hold the same: those that are in
// memory by files, or several by one. It is used by one goroutine.
type Replacement struct {
	runs []replaced
	memo map[*Stack]result
}

// replaced is layers that lie on one another, and what takes their place.
type replaced struct {
	run []*Layer
	by  *Layer // nil: they hold nothing
}

// result is what becomes of a stack.
type result struct {
	stack *Stack // a reference; nil: there is nothing to replace in it
	moved bool
}

// NewReplacement returns a Replacement of nothing. The caller closes it.
func NewReplacement() *Replacement { return &Replacement{memo: make(map[*Stack]result)} }

// Add has a run of layers, bottom first, replaced by another one, which holds what they
// hold together; nil if they hold nothing. It takes references to all.
//
// Preconditions: Of was not called yet, and no layer is in two runs.
func (r *Replacement) Add(run []*Layer, by *Layer) {
	for _, l := range run {
		l.Retain()
	}
	if by != nil {
		by.Retain()
	}
	r.runs = append(r.runs, replaced{slices.Clone(run), by})
}

// Close gives up what the Replacement refers to.
func (r *Replacement) Close() {
	for _, x := range r.runs {
		for _, l := range x.run {
			l.Release()
		}
		if x.by != nil {
			x.by.Release()
		}
	}
	for s, x := range r.memo {
		if s.Release(); x.stack != nil {
			x.stack.Release()
		}
	}
	r.runs, r.memo = nil, nil
}

// Of returns what takes the place of a stack, and whether pages lie elsewhere in it; nil if it
// has nothing that is replaced. The stack belongs to the Replacement, and is the same
// whenever it is asked for: who has a stack in common still does afterwards.
func (r *Replacement) Of(s *Stack) (t *Stack, moved bool) {
	if x, known := r.memo[s]; known {
		return x.stack, x.moved
	}
	var x result
	for _, y := range r.runs {
		from := s
		if x.stack != nil {
			from = x.stack
		}
		at := from.find(y.run)
		if at < 0 {
			continue
		}
		next, moved := from.without(at, y.run, y.by)
		if x.stack != nil {
			x.stack.Release()
		}
		x.stack, x.moved = next, x.moved || moved
	}
	r.memo[s.Retain()] = x
	if x.stack != nil {
		r.relink(x.stack.layers)
	}
	return x.stack, x.moved
}

// relink has layers do without what is replaced below them.
func (r *Replacement) relink(layers []*Layer) {
	for _, l := range layers {
		if l.file != nil {
			continue
		}
		m := l.memory.Load()
		if m.seal != nil {
			m.seal.relink(r)
		}
		r.relink(m.parts)
	}
}

// find returns where in the stack layers lie on one another, -1 if they do not.
func (s *Stack) find(run []*Layer) int {
	if len(run) == 0 {
		return -1
	}
	at := slices.Index(s.layers, run[0])
	if at < 0 || at+len(run) > len(s.layers) || !slices.Equal(s.layers[at:at+len(run)], run) {
		return -1
	}
	return at
}

// Stand reports whether any of the stacks has layers that lie on one another as in run.
func Stand(stacks []*Stack, run []*Layer) bool {
	return slices.ContainsFunc(stacks, func(s *Stack) bool { return s.find(run) >= 0 })
}

// Change is what Replacing has prepared.
type Change struct {
	// Moved tells that pages will lie elsewhere: all page pointers handed out before
	// become stale then.
	Moved bool

	swap   func() bool
	stacks []*Stack // references to give up
}

// Swap makes the change, unless there was a Seal, an Unseal or another change since it
// was prepared. It takes no longer for many pages than for few.
//
// Preconditions: nothing reads or writes pages during the call.
func (c *Change) Swap() bool { return c.swap() }

// Release gives up what is not needed any more, made or not. It is called once.
func (c *Change) Release() {
	for _, s := range c.stacks {
		s.Release()
	}
	c.stacks = nil
}
