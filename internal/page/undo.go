package page

import "slices"

// What an overlay has sealed it can have back when nobody else needs it, and what else
// it stands on can be put elsewhere, while it goes on.

// above returns how many layers of the overlay's own seals it stands on. The caller
// holds o.mu.
func (o *Overlay) above() int { return len(o.base.layers) - len(o.origin.layers) }

// supersede notes that the overlay can do without the page below that is page n, or, if
// again, needs it once more. The caller holds o.mu.
func (o *Overlay) supersede(n Number, again bool) {
	if s := o.keeper(n); s != nil {
		o.tally.change(s, map[bool]int{false: 1, true: -1}[again])
	}
}

// keeper returns what keeps the page below that is page n in memory, if the overlay has
// sealed it. The caller holds o.mu.
func (o *Overlay) keeper(n Number) *sealed {
	p := o.base.lookup(n)
	if p == nil || p == zero {
		return nil
	}
	for _, l := range slices.Backward(o.base.layers[len(o.base.layers)-o.above():]) {
		if s := l.keeps(n, p); s != nil && s.tally == &o.tally {
			return s
		}
	}
	return nil
}

// keeps returns what keeps page n of the layer in memory if that is p, or nil.
func (l *Layer) keeps(n Number, p *Page) *sealed {
	if l.file != nil {
		return nil
	}
	m := l.memory.Load()
	if m.seal != nil {
		if m.seal.pages.get(n) == p {
			return m.seal
		}
		return nil
	}
	for _, part := range m.parts {
		if s := part.keeps(n, p); s != nil {
			return s
		}
	}
	return nil
}

// abandon notes that the overlay does not stand on layers any more.
func (l *tally) abandon(layers ...*Layer) {
	for _, layer := range layers {
		if layer.file != nil {
			continue
		}
		m := layer.memory.Load()
		if m.seal != nil && m.seal.tally == l {
			l.leave(m.seal)
		}
		l.abandon(m.parts...)
	}
}

// Replacing implements Top.
func (o *Overlay) Replacing(r *Replacement) *Change {
	o.shape.Lock()
	o.mu.Lock()
	if o.base == nil { // it is closed
		o.mu.Unlock()
		o.shape.Unlock()
		return nil
	}
	base, origin := o.base.Retain(), o.origin.Retain()
	o.mu.Unlock()
	o.shape.Unlock()

	c := &Change{stacks: []*Stack{base, origin}}
	newBase, moved := r.Of(base)
	newOrigin, _ := r.Of(origin)
	if newBase == nil && newOrigin == nil {
		c.Release()
		return nil
	}
	if newBase == nil {
		newBase = base
	}
	if newOrigin == nil {
		newOrigin = origin
	}
	if len(newBase.layers) < len(newOrigin.layers) || !slices.Equal(newBase.layers[:len(newOrigin.layers)], newOrigin.layers) {
		c.Release() // it would take layers of the overlay's own and others together
		return nil
	}
	c.Moved = moved
	next := []*Stack{newBase.Retain(), newOrigin.Retain()}
	bare := bare(base, origin, newBase, newOrigin)
	c.stacks = append(c.stacks, next...)
	c.swap = func() bool {
		if !o.swap(base, origin, newBase, newOrigin, bare) {
			return false
		}
		// What was the overlay's is the change's to give up, and the other way round.
		c.stacks = []*Stack{base, origin, base, origin}
		return true
	}
	return c
}

// bare returns the pages that were written and sealed as they had been before, or as zeros:
// in layers that hold differences they are not, so that the stack leads to what lies below,
// or nowhere.
func bare(base, origin, newBase, newOrigin *Stack) (numbers []Number) {
	for _, n := range touched(gone(base, origin, newBase)) {
		p := newBase.lookup(n)
		below := p != base.lookup(n) && slices.ContainsFunc(base.layers, func(l *Layer) bool { return l.owns(n, p) })
		if below || leads(base, origin, n) && !leads(newBase, newOrigin, n) {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// gone returns the layers above the origin that are not in another stack.
func gone(base, origin, other *Stack) (layers []*Layer) {
	for _, l := range base.layers[len(origin.layers):] {
		if !slices.Contains(other.layers, l) {
			layers = append(layers, l)
		}
	}
	return layers
}

// swap has the overlay stand on other stacks, unless it has got others meanwhile. bare is
// as bare returns it.
func (o *Overlay) swap(base, origin, newBase, newOrigin *Stack, bare []Number) bool {
	o.shape.Lock()
	defer o.shape.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.base != base || o.origin != origin {
		return false
	}
	o.base, o.origin = newBase, newOrigin
	o.tally.abandon(slices.DeleteFunc(gone(base, origin, newBase), func(l *Layer) bool { return l.partOf(newBase) })...)
	for _, n := range bare {
		switch before, after := leads(base, origin, n), leads(newBase, newOrigin, n); {
		case before && !after:
			if o.sealed--; o.holds(n) {
				o.again--
			}
		case after && !before && o.holds(n): // zeros below what was discarded, which counted
			o.again++
		}
		if !o.holds(n) && o.pages.get(n) != zero {
			o.supersede(n, true)
		}
	}
	return true
}

// partOf reports whether the layer is part of one of a stack's.
func (l *Layer) partOf(s *Stack) bool {
	for _, other := range s.layers {
		if other.file != nil {
			continue
		}
		for _, part := range other.memory.Load().parts {
			if part == l {
				return true
			}
		}
	}
	return false
}

// atOnce is how many pages others wait for while an Unseal goes on.
const atOnce = 256

// Unseal implements Top.
func (o *Overlay) Unseal() (free func()) {
	o.shape.Lock()
	defer o.shape.Unlock()
	var spare []*Page
	done := false
	for {
		s, l := o.claimTop()
		if l == nil {
			break
		}
		done = true
		spare = append(spare, o.takeBack(s, l)...)
	}
	if !done {
		return nil
	}
	return func() { o.arena.Free(spare...) }
}

// claimTop takes the uppermost layer of the overlay's stack, and the stack, out of
// everybody's reach, if the overlay has sealed it and nobody else has it. The caller
// holds o.shape.
func (o *Overlay) claimTop() (*Stack, *Layer) {
	o.mu.Lock()
	if o.base == nil || o.above() == 0 {
		o.mu.Unlock()
		return nil, nil
	}
	s := o.base
	l := s.layers[len(s.layers)-1]
	o.mu.Unlock()
	l.Absorb()
	if seal := l.seal(); seal == nil || seal.tally != &o.tally || !o.unpackHoles(seal) {
		return nil, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !s.claim(l) {
		return nil, nil
	}
	l.leave()
	seal := l.seal()
	seal.forget()
	o.tally.strike(seal)
	seal.tally = nil // nobody counts its pages any more
	return s, l
}

// unpackHoles makes packed pages resident that are differences from pages which were
// discarded: without them these would not be differences from zeros any more. It tells
// whether there was memory for it.
func (o *Overlay) unpackHoles(seal *sealed) bool {
	for i := range seal.pages.slots {
		if slot := &seal.pages.slots[i]; slot.page == zero {
			if _, err := o.residentNow(slot.number); err != nil {
				return false
			}
		}
	}
	return true
}

// residentNow is resident for who does not hold o.mu.
func (o *Overlay) residentNow(n Number) (*Page, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.resident(n)
}

// takeBack makes the pages of a claimed layer, the uppermost of a claimed stack, the
// overlay's own, and returns those that it does not need. The caller holds o.shape.
func (o *Overlay) takeBack(s *Stack, l *Layer) (spare []*Page) {
	below := s.below(l)
	slots := l.seal().pages.slots
	for i := 0; i < len(slots); i += atOnce {
		spare = append(spare, o.takeSome(slots[i:min(i+atOnce, len(slots))])...)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.base = below
	for i := range slots {
		switch n, counted := slots[i].number, leads(below, o.origin, slots[i].number); {
		case slots[i].page == nil:
		case slots[i].page != zero && !counted: // it was counted when it was sealed
			if o.sealed--; o.holds(n) {
				o.again--
			}
		case slots[i].page == zero && counted && o.holds(n):
			o.again++
		}
	}
	return spare
}

// takeSome makes some pages of the layer below the overlay's own, unless it has others
// in their place, and returns those.
func (o *Overlay) takeSome(slots []slot) (spare []*Page) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range slots {
		n, p := slots[i].number, slots[i].page
		own := o.pages.get(n)
		switch {
		case p == nil:
		case p == zero:
			if own == nil {
				o.pages.put(n, zero)
				o.holes++
			}
		case own != nil:
			spare = append(spare, p)
		default:
			if i, ok := o.findPacked(n); ok {
				o.packed.apply(i, p)
				o.hidden--
			} else {
				o.again++
			}
			o.pages.put(n, p)
		}
	}
	return spare
}

// findPacked returns the index of a packed page. The caller holds o.mu.
func (o *Overlay) findPacked(n Number) (i int, ok bool) {
	if o.packed == nil {
		return 0, false
	}
	return o.packed.find(n)
}

// leads reports whether page n of a stack is another one than in the stack that an
// overlay was made over, and has contents.
func leads(base, origin *Stack, n Number) bool {
	p := base.lookup(n)
	return p != nil && p != zero && p != origin.lookup(n)
}
