package memory

import "github.com/forkd-dev/forkd/internal/page"

// What follows is for doing ahead, in one go, what a machine is going to do to its
// memory as others over the same stack did.

// Untouched returns the stack that RAM was made over, if nothing has been written
// since; nil as well if RAM is not one slot, whose pages may lie anywhere.
func (s *Space) Untouched() *page.Stack {
	if len(s.slots) != 1 || s.slots[0].First != 0 {
		return nil
	}
	o, ok := s.slots[0].Pages.(*page.Overlay)
	if !ok || o.Pages() > 0 {
		return nil
	}
	return o.Origin()
}

// What follows has the precondition that Untouched has returned a stack once.

func (s *Space) overlay() *page.Overlay { return s.slots[0].Pages.(*page.Overlay) }

// gpas returns where pages lie.
func (s *Space) gpas(numbers []page.Number) []uint64 {
	gpas := make([]uint64, len(numbers))
	for i, n := range numbers {
		gpas[i] = s.slots[0].Base + uint64(n)<<page.Shift
	}
	return gpas
}

// Over reports whether memory lies over a stack still, whose pages may have been replaced.
func (s *Space) Over(stack *page.Stack) bool { return s.overlay().Origin() == stack }

// Written returns the GPAs of the pages that are the machine's own, ascending.
func (s *Space) Written() []uint64 { return s.gpas(s.overlay().Numbers()) }

// Ahead makes the pages at gpas, which are RAM, the machine's own as far as that
// is cheap; see page.Overlay.Ahead.
//
// Preconditions: no vCPU has looked at memory yet.
func (s *Space) Ahead(gpas []uint64) []*page.Page {
	numbers := make([]page.Number, len(gpas))
	for i, gpa := range gpas {
		numbers[i] = page.Number((gpa - s.slots[0].Base) >> page.Shift)
	}
	return s.overlay().Ahead(numbers)
}

// Since returns the GPAs of the pages that have become the machine's own since Ahead,
// none of which are packed.
func (s *Space) Since() []uint64 { return s.gpas(s.overlay().Since()) }

// Source returns memory as it was before anything was written. The caller calls
// release when done with it, while the machine still exists.
func (s *Space) Source() (source *Space, release func()) {
	slot := s.slots[0]
	overlay := page.NewOverlay(s.overlay().Origin(), page.NewArena(), 0)
	slot.Pages = overlay
	source = &Space{slots: []region{slot}}
	source.Share(1, nil)
	return source, overlay.Close
}
