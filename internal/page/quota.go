package page

import "math"

// SetQuota bounds how many pages may be written, however often the overlay is sealed;
// zero is no bound. What was written already counts, and stays.
func (o *Overlay) SetQuota(pages int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.quota = pages; pages <= 0 {
		o.quota = math.MaxInt
	}
}

// CountKept has the quota bound memory: what was written before a Seal and again
// after it counts twice as long as both are in memory.
func (o *Overlay) CountKept() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.strict = true
}

// Charged returns how many pages count for the quota.
func (o *Overlay) Charged() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.charged()
}

// Left returns how many pages more the quota allows, none if it is exceeded.
func (o *Overlay) Left() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return max(0, o.quota-o.charged())
}

func (o *Overlay) charged() int {
	n := o.sealed + o.own() - o.again
	if o.strict {
		_, over := o.tally.sums()
		n += over
	}
	return n
}

// own returns how many pages the overlay holds. The caller holds o.mu.
func (o *Overlay) own() int { return o.pages.used - o.holes + o.hidden }

// Discard makes page n zeros, and gives its memory back if it is the overlay's own.
// Pointers from an earlier Read or Write are stale. The error wraps ErrNoSpace, and
// comes for packed pages only.
//
// Preconditions: n is below the limit.
func (o *Overlay) Discard(n Number) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, err := o.resident(n)
	switch {
	case err != nil:
		return err
	case p == zero || p == nil && o.base.Get(n) == zero:
		return nil
	case p == nil:
		o.pages.put(n, zero)
		if o.sealedBefore(n) {
			o.supersede(n, false)
		}
	default:
		o.unmark(n)
		o.pages.find(n).page = zero
		if o.sealedBefore(n) {
			o.again--
		}
		o.arena.Free(p)
	}
	o.holes++
	return nil
}

// sealedBefore reports whether page n went into a layer in a Seal of this
// overlay, with contents. The caller holds o.mu.
func (o *Overlay) sealedBefore(n Number) bool {
	return o.base != o.origin && leads(o.base, o.origin, n)
}

// moved reports whether page n is in another place than in the stack that the overlay
// was made over, because of a Seal. The caller holds o.mu.
func (o *Overlay) moved(n Number) bool {
	return o.base != o.origin && o.base.lookup(n) != o.origin.lookup(n)
}
