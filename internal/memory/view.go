package memory

import (
	"slices"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/page"
)

// View is what one vCPU may hold of a Space: pointers to pages in its TLB and
// other caches. Pages for the vCPU are looked up here, and what it has to forget
// is collected here until it takes it, before it executes again.
//
// While a Space has several views, each remembers which pages it has handed out
// for reading and for writing since its last Reset. It may name too many, never
// too few. A single view remembers nothing and stands for every page.
type View struct {
	space         *Space
	shared        bool   // there are others
	refused       uint64 // GPA that WritePage refused; of the vCPU
	read, written bitset // guarded by space.mu

	executing atomic.Bool // between Enter and Leave
	waiting   atomic.Bool // stale has something
	stale     Stale       // guarded by space.mu
}

// Stale is what the holder of a View has to forget before it executes on.
type Stale struct {
	All     bool    // everything
	Moved   []Place // that pages are here, from where they moved
	Guarded []Place // that these may be written
}

// Place is where a page lies, or lay.
type Place struct {
	GPA  uint64 // of its first byte
	Page *page.Page
}

// maxStale bounds what is remembered for a vCPU that does not execute; forgetting
// everything is cheaper beyond that.
const maxStale = 16

// Share makes n views, for as many vCPUs. exclusively calls a function while no
// vCPU executes; a single vCPU needs none, since devices work on its goroutine.
//
// Preconditions: no vCPU runs yet.
func (s *Space) Share(n int, exclusively func(func())) {
	s.views = nil
	for range n {
		s.views = append(s.views, &View{space: s, shared: n > 1})
	}
	s.exclusively = exclusively
	if n == 1 {
		s.exclusively = nil
	}
}

// View returns the i-th view.
func (s *Space) View(i int) *View { return s.views[i] }

// Shared reports whether the space has other views.
func (v *View) Shared() bool { return v.shared }

// Enter and Leave are called before and after the holder uses what it holds. After
// Enter it looks at what is Stale first.

// Enter begins to use what the view holds.
func (v *View) Enter() { v.executing.Store(true) }

// Leave ends it.
func (v *View) Leave() { v.executing.Store(false) }

// Executing reports whether the holder is between Enter and Leave.
func (v *View) Executing() bool { return v.executing.Load() }

// ReadPage returns the page that holds gpa, or nil if that is not RAM. The page
// must not be written. The pointer may be kept as long as the view is asked for
// what is stale.
func (v *View) ReadPage(gpa uint64) *page.Page {
	r, n, ok := v.space.find(gpa)
	if !ok {
		return nil
	}
	if v.shared {
		v.space.mu.Lock()
		defer v.space.mu.Unlock()
		v.read.set(r.index(n))
	}
	return r.Pages.Read(n)
}

// WritePage is Space.WritePage for the vCPU: the caller forgets by itself where
// the page was. refused tells that the page would have to move while another vCPU
// may hold it. The caller has then all others stand still, calls Move, and starts
// over.
func (v *View) WritePage(gpa uint64) (p *page.Page, refused bool, err error) {
	s := v.space
	r, n, ok := s.find(gpa)
	if !ok {
		return nil, false, nil
	}
	if v.shared {
		if p, refused, err = s.write(v, r, n); refused {
			v.refused = gpa
			return nil, true, nil
		}
	} else {
		p, _, err = r.Pages.Write(n)
	}
	s.announce(gpa)
	return p, false, err
}

// Move moves the page that WritePage refused last. The error means that the host
// has no page to give.
//
// Preconditions: no vCPU executes.
func (v *View) Move() error {
	r, n, ok := v.space.find(v.refused)
	if !ok {
		return nil
	}
	if _, err := v.space.move(r, n); err != nil {
		return writeError(v.refused, err)
	}
	return nil
}

// Guard prepares for deriving something from the page p that holds gpa. It
// reports whether every later write by others will be announced to the Watch
// function. If not, others may be writing to the page unannounced just now; they
// have been told to ask again, and the caller had better try again later.
//
// Preconditions: the Watch function does not miss an announcement that is made
// from now on.
func (v *View) Guard(gpa uint64, p *page.Page) bool {
	s := v.space
	r, n, ok := s.find(gpa)
	if !ok || !v.shared {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	guarded, at := !slices.Contains(s.lent, r.index(n)), Place{r.gpa(n), p}
	for _, w := range s.views {
		if w == v || !w.written.has(r.index(n)) {
			continue
		}
		if !slices.Contains(w.stale.Guarded, at) {
			w.stale.Guarded = append(w.stale.Guarded, at)
			w.note()
		}
		if w.Executing() {
			guarded = false
		} else { // it will have asked before it writes again
			w.written.remove(r.index(n))
		}
	}
	return guarded
}

// Stale returns what has to be forgotten, and that there is something. Whoever
// takes it forgets it at once.
func (v *View) Stale() (Stale, bool) {
	if !v.waiting.Load() {
		return Stale{}, false
	}
	v.space.mu.Lock()
	defer v.space.mu.Unlock()
	stale := v.stale
	v.stale = Stale{}
	v.waiting.Store(false)
	for _, g := range stale.Guarded {
		if r, n, ok := v.space.find(g.GPA); ok {
			v.written.remove(r.index(n))
		}
	}
	return stale, true
}

// Reset says that the holder has forgotten everything.
func (v *View) Reset() {
	if !v.shared && !v.waiting.Load() {
		return
	}
	v.space.mu.Lock()
	defer v.space.mu.Unlock()
	v.stale = Stale{}
	v.waiting.Store(false)
	v.read.clear()
	v.written.clear()
}

// reads reports whether a view other than v may hold a page. The caller holds
// s.mu.
func (s *Space) reads(v *View, index int) bool {
	for _, w := range s.views {
		if w != v && (!w.shared || w.read.has(index)) {
			return true
		}
	}
	return false
}

// forget notes that the holder has to forget a page's old place, if it may know
// of it. The caller holds space.mu.
func (v *View) forget(index int, from Place) {
	if v.shared && !v.read.has(index) {
		return
	}
	v.stale.Moved = append(v.stale.Moved, from)
	v.note()
}

// forgetAll notes that the holder has to forget everything. The caller holds
// space.mu.
func (v *View) forgetAll() {
	v.stale = Stale{All: true}
	v.waiting.Store(true)
}

// note has the holder look at what is stale. The caller holds space.mu.
func (v *View) note() {
	if v.stale.All || len(v.stale.Moved)+len(v.stale.Guarded) > maxStale {
		v.forgetAll()
	}
	v.waiting.Store(true)
}

// bitset is a set of page indexes. Its leaves cover 16 MiB of pages each, so that
// a small set is small.
type bitset []*[leafWords]uint64

const leafWords = 64

func (b *bitset) set(i int) {
	leaf := i / (64 * leafWords)
	for leaf >= len(*b) {
		*b = append(*b, nil)
	}
	if (*b)[leaf] == nil {
		(*b)[leaf] = new([leafWords]uint64)
	}
	(*b)[leaf][i/64%leafWords] |= 1 << (i % 64)
}

func (b bitset) remove(i int) {
	if b.has(i) {
		b[i/(64*leafWords)][i/64%leafWords] &^= 1 << (i % 64)
	}
}

func (b bitset) has(i int) bool {
	leaf := i / (64 * leafWords)
	return leaf < len(b) && b[leaf] != nil && b[leaf][i/64%leafWords]>>(i%64)&1 != 0
}

func (b bitset) clear() {
	for _, leaf := range b {
		if leaf != nil {
			*leaf = [leafWords]uint64{}
		}
	}
}
