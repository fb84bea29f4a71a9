package page

import "slices"

// Origin returns the stack that the overlay was made over, or the one that has replaced
// it. It lives as long as the overlay has it.
//
// Preconditions: no Change is made meanwhile.
func (o *Overlay) Origin() *Stack { return o.origin }

// Numbers returns the pages that the overlay holds, packed ones included, in
// ascending order.
func (o *Overlay) Numbers() []Number {
	o.mu.Lock()
	defer o.mu.Unlock()
	numbers := o.pages.numbers()
	if o.packed != nil {
		numbers = append(numbers, o.packed.numbers...)
	}
	numbers = slices.DeleteFunc(numbers, func(n Number) bool { return !o.holds(n) })
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// Ahead is Write for many pages, which somebody will write soon; the result is
// parallel to numbers. It is a matter of speed only: where there is no memory, or
// the overlay would come near its quota, pages stay as they are, and the result is
// nil for these. All pointers from an earlier Read of the others are stale.
//
// Preconditions: the numbers are below the limit.
func (o *Overlay) Ahead(numbers []Number) []*Page {
	const share = 4 // of the quota, one part may be used here
	o.mu.Lock()
	defer o.mu.Unlock()
	pages := make([]*Page, len(numbers))
	if o.sealed > 0 || o.packed != nil || o.pages.used+len(numbers) > min(o.quota, int(o.limit))/share {
		return pages
	}
	fresh, err := o.arena.allocAll(len(numbers))
	if err != nil {
		return pages
	}
	defer func() { o.arena.Free(fresh...) }() // those that are left
	o.pages.reserve(len(numbers))
	for i, n := range numbers {
		if pages[i] = o.pages.get(n); pages[i] != nil {
			if pages[i] == zero {
				pages[i] = nil // it was discarded, and is nobody's to write
			}
			continue
		}
		p := fresh[len(fresh)-1]
		*p = *o.base.Get(n) // this may be a fault (see Guard)
		fresh = fresh[:len(fresh)-1]
		o.pages.put(n, p)
		o.pages.find(n).ahead = true
		pages[i] = p
	}
	return pages
}

// Since returns the pages that the overlay has got since Ahead copied some.
func (o *Overlay) Since() (numbers []Number) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.pages.slots {
		if s := &o.pages.slots[i]; s.page != nil && !s.ahead {
			numbers = append(numbers, s.number)
		}
	}
	return numbers
}
