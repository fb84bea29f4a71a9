package page

// Unseal implements Top. Nobody else reads what was sealed, so there is nothing to wait
// for.
func (f *Flat) Unseal() (free func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.unsealTop() {
		free = func() {}
	}
	return free
}

// unsealTop takes the pages of the uppermost layer back as copies that are made already.
// The caller holds f.mu.
func (f *Flat) unsealTop() bool {
	if f.base == nil || len(f.base.layers) == len(f.origin.layers) {
		return false
	}
	s := f.base
	l := s.layers[len(s.layers)-1]
	l.Absorb()
	seal := l.seal()
	if seal == nil || seal.tally != &f.tally || !s.claim(l) {
		return false
	}
	l.leave()
	seal.forget()
	f.tally.strike(seal)
	for _, slot := range seal.pages.slots {
		switch {
		case slot.page == nil:
		case f.ahead.get(slot.number) == nil:
			f.ahead.put(slot.number, slot.page)
		default:
			f.arena.Free(slot.page) // it was written since
		}
	}
	f.base = s.below(l)
	return true
}

// Replacing implements Top. What the memory is mapped from stays as it is.
func (f *Flat) Replacing(r *Replacement) *Change {
	f.mu.Lock()
	base := f.base
	if base != nil {
		base.Retain()
	}
	f.mu.Unlock()
	if base == nil {
		return nil
	}
	next, _ := r.Of(base)
	if next == nil {
		base.Release()
		return nil
	}
	c := &Change{stacks: []*Stack{base, next.Retain()}}
	c.swap = func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.base != base {
			return false
		}
		f.base = next
		c.stacks = []*Stack{base, base}
		return true
	}
	return c
}
