package page

import "sync"

// ledger is what an overlay has sealed and what is still in memory of it. It outlives
// the overlay, as long as one of its layers does.
//
// A page counts as over when the overlay can do without it: it has written, or
// discarded, the page once more, or has the same contents in another layer. Somebody
// else needs it, or it has not been given back yet.
type ledger struct {
	mu   sync.Mutex // a leaf
	kept int        // pages in memory; guarded by mu
	over int        // of these; guarded by mu
}

// sums returns how many sealed pages are in memory, and how many of them the overlay
// can do without.
func (l *ledger) sums() (kept, over int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept, l.over
}

// enter adds what was sealed.
func (l *ledger) enter(s *sealed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept += s.count
}

// strike takes out what is not in memory any more, or the overlay's own again.
func (l *ledger) strike(s *sealed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept -= s.count
	l.over -= s.over
	s.count, s.over = 0, 0
}

// change notes that pages of s are over, or, if there are fewer than none, are not any
// more.
func (l *ledger) change(s *sealed, pages int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.over += pages
	l.over += pages
}

// leave notes that the overlay does not stand on s any more.
func (l *ledger) leave(s *sealed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over += s.count - s.over
	s.over = s.count
}

// overOf returns how many pages of s are over.
func (l *ledger) overOf(s *sealed) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.over
}
