package page

import (
	"maps"
	"slices"
	"sync"
)

// Merge returns a layer that holds what others hold together, bottom first, which lie on
// one another. It takes a reference to each; no page is copied.
func Merge(layers ...*Layer) *Layer {
	parts := slices.Clone(layers)
	l := &Layer{index: sync.OnceValue(func() index { return mergeIndex(parts) })}
	for _, part := range parts {
		part.Retain()
		l.limit = max(l.limit, part.limit)
	}
	l.memory.Store(&inMemory{parts: parts})
	l.refs.Store(1)
	return l
}

// mergeIndex returns what layers hold together. Of pages with equal contents it takes
// the upper one, which is the one that stacks lead to.
func mergeIndex(parts []*Layer) index {
	all := make(map[Number]*Page)
	for _, part := range parts {
		x := part.index()
		for i, n := range x.numbers {
			all[n] = x.pages[i]
		}
		for _, n := range part.touched() {
			if p, ok := part.at(n); ok && p != nil && p != zero && all[n] != nil {
				all[n] = p
			}
		}
	}
	numbers := slices.Sorted(maps.Keys(all))
	pages := make([]*Page, len(numbers))
	for i, n := range numbers {
		pages[i] = all[n]
	}
	return newIndex(numbers, pages)
}

// Absorb has a layer that Merge has made take over the pages of its parts, if nobody
// else needs any of these: pages that are hidden by others are freed then. It reports
// whether the layer has no parts, now or before. If a page cannot be read (see Guard) that
// the layer has to be compared with, it keeps its parts.
//
// It takes only parts that one overlay has sealed.
func (l *Layer) Absorb() bool {
	if l.file != nil {
		return true
	}
	m := l.memory.Load()
	if m.seal != nil {
		return true
	}
	for _, part := range m.parts {
		if !part.mergeable(m.parts[0]) {
			return false
		}
	}
	// What the layer holds is found out as long as all pages are there.
	if Guard(func() error { l.index(); return nil }) != nil {
		return false
	}
	for i, part := range m.parts {
		if !part.claim() {
			for _, claimed := range m.parts[:i] {
				claimed.unclaim()
			}
			return false
		}
	}
	all, hidden := join(m.parts)
	for _, part := range m.parts {
		part.leave()
	}
	l.memory.Store(&inMemory{seal: all})
	all.arena.Free(hidden...)
	return true
}

// mergeable reports whether one overlay has sealed both layers, and they are in memory.
func (l *Layer) mergeable(with *Layer) bool {
	a, b := l.seal(), with.seal()
	return a != nil && b != nil && a.arena == b.arena && a.tally == b.tally
}

// join returns the pages of claimed layers as those of one, and those that no stack leads to.
func join(parts []*Layer) (all *sealed, hidden []*Page) {
	first := parts[0].seal()
	all = &sealed{arena: first.arena, tally: first.tally, dense: first.dense}
	var seals []*sealed
	for _, part := range slices.Backward(parts) {
		s := part.seal()
		s.forget()
		seals = append(seals, s)
		for i := range s.pages.slots {
			switch slot := s.pages.slots[i]; {
			case slot.page == nil:
			case all.pages.get(slot.number) == nil:
				all.pages.put(slot.number, slot.page)
				if slot.page != zero {
					all.count++
				}
			case slot.page != zero:
				hidden = append(hidden, slot.page)
			}
		}
	}
	all.tally.join(seals, all, len(hidden))
	return all, hidden
}

// Equal reports whether two layers hold the same.
func Equal(a, b *Layer) bool {
	x, y := a.index(), b.index()
	if a.limit != b.limit || !slices.Equal(x.numbers, y.numbers) {
		return false
	}
	for i, p := range x.pages {
		q := y.pages[i]
		if (p == nil) != (q == nil) || p != q && *p != *q {
			return false
		}
	}
	return true
}

// Foldable returns runs of layers, bottom first, that can be replaced by one each (see
// Merge, Absorb): one overlay has sealed them, they are in memory, and each of the stacks
// has all of a run or nothing of it. What the upper layers of a run hide nobody needs.
// The stacks must be all that there are; the layers of others are not folded, or are kept
// in memory beside the one that replaces them.
func Foldable(stacks []*Stack) (runs [][]*Layer) {
	next, last := neighbours(stacks)
	joined := func(l *Layer) *Layer { // the one that goes together with l, above it
		m := next[l]
		if m == nil || last[m] != l || !l.mergeable(m) {
			return nil
		}
		return m
	}
	for l := range next {
		if below := last[l]; below != nil && joined(below) == l {
			continue // not the lowest
		}
		run := []*Layer{l}
		for m := joined(l); m != nil; m = joined(m) {
			run = append(run, m)
		}
		if len(run) > 1 {
			runs = append(runs, run)
		}
	}
	return runs
}

// neighbours tells which layer lies on each layer, and which below it; nil if it is not the
// same, or none, in all of the stacks.
func neighbours(stacks []*Stack) (above, below map[*Layer]*Layer) {
	above, below = make(map[*Layer]*Layer), make(map[*Layer]*Layer)
	note := func(m map[*Layer]*Layer, l, neighbour *Layer) {
		if known, ok := m[l]; ok && known != neighbour {
			neighbour = nil
		}
		m[l] = neighbour
	}
	for _, s := range stacks {
		for i, l := range s.layers {
			if i > 0 {
				note(below, l, s.layers[i-1])
			} else {
				note(below, l, nil)
			}
			if i+1 < len(s.layers) {
				note(above, l, s.layers[i+1])
			} else {
				note(above, l, nil)
			}
		}
	}
	return above, below
}
