package page

import "sync"

// tally counts the pages that an overlay has sealed and that are still in memory. It outlives
// the overlay, as long as one of its layers does.
//
// A page counts as over when the overlay can do without it: it has written, or
// discarded, the page once more, or has the same contents in another layer. Somebody
// else needs it, or it has not been given back yet.
type tally struct {
	mu   sync.Mutex // a leaf
	kept int        // pages in memory; guarded by mu
	over int        // of these; guarded by mu
}

// sums returns how many sealed pages are in memory, and how many of them the overlay
// can do without.
func (l *tally) sums() (kept, over int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept, l.over
}

// enter adds what was sealed.
func (l *tally) enter(s *sealed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept += s.count
}

// strike takes out what is not in memory any more, or the overlay's own again.
func (l *tally) strike(s *sealed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept -= s.count
	l.over -= s.over
	s.count, s.over = 0, 0
}

// join has what is counted of parts count for all, which has their pages from now on, but
// for some that are hidden: these were over, and go. Whoever has found out before which of
// the parts keeps a page counts for all as well.
func (l *tally) join(parts []*sealed, all *sealed, hidden int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range parts {
		all.over += s.over
		s.into, s.count, s.over = all, 0, 0
	}
	all.over -= hidden
	l.kept -= hidden
	l.over -= hidden
}

// change notes that pages of s are over, or, if there are fewer than none, are not any
// more.
func (l *tally) change(s *sealed, pages int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.whole().over += pages
	l.over += pages
}

// leave notes that the overlay does not stand on s any more.
func (l *tally) leave(s *sealed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s = s.whole()
	l.over += s.count - s.over
	s.over = s.count
}

// whole returns what has the pages of s now. The caller holds tally.mu.
func (s *sealed) whole() *sealed {
	for s.into != nil {
		s = s.into
	}
	return s
}
