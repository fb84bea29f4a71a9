package page

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Flat is the writable top of one machine over a stack, in one stretch of host
// memory: page n is the n-th of it. It is for memory that somebody writes to past
// this process's back, as a vCPU under hardware virtualization does. The host
// copies a page when it is written for the first time; which pages those are is
// asked of the host when somebody wants to know (see writes).
//
// Pages of the stack that lie in files are mapped from there, and shared with
// whoever else has them. What is sealed off is a copy: Prepare makes one of each page
// while the machine runs, so that a Seal has to copy only what was written meanwhile.
// A Flat is safe for concurrent use.
//
// Lock order: Flat.mu is held while the arena is asked.
type Flat struct {
	arena  *Arena // immutable; for the pages of sealed layers
	limit  Number // immutable
	origin *Stack // immutable until Close
	mapped []byte // address space; immutable until Close
	mem    []byte // the part of it that is the memory; immutable until Close
	order  atomic.Uint32

	mu     sync.Mutex
	base   *Stack          // guarded by mu
	copied map[Number]bool // pages of origin that had to be copied; guarded by mu
	writes writes          // guarded by mu
	ahead  table           // copies of pages as they were when writes told of them last; guarded by mu
	tally  tally           // of layers that were sealed
}

// maxMaps bounds how many mappings a Flat is made of. The host has a bound for a
// whole process, by default 65,530. What does not fit is copied.
const maxMaps = 16 << 10

// NewFlat returns an untouched Flat over base, to which it takes a reference of its
// own. The arena, which should be shared (see NewSharedArena), takes the pages of
// layers that are sealed off.
func NewFlat(base *Stack, arena *Arena) (*Flat, error) {
	size := int(base.Limit()) * Size
	// A huge page more, so that the memory can begin where the host can use some.
	mapped, err := unix.Mmap(-1, 0, size+chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserving %d MiB for guest memory: %w", size>>20, err)
	}
	skip := int(-address(mapped) & (chunkSize - 1))
	f := &Flat{
		arena: arena, limit: base.Limit(), origin: base.Retain(), base: base.Retain(),
		mapped: mapped, mem: mapped[skip:][:size:size], copied: make(map[Number]bool),
	}
	f.writes.mem = f.mem
	done := false
	defer func() {
		if !done { // reading the stack may be a fault (see Guard)
			f.Close()
		}
	}()
	if err := f.fill(); err != nil {
		return nil, fmt.Errorf("mapping guest memory: %w", err)
	}
	done = true
	return f, nil
}

// fill makes the memory show the stack.
func (f *Flat) fill() error {
	for i, r := range f.origin.stretches() {
		at := f.mem[int(r.first)*Size:][:r.pages*Size]
		if r.file != nil && i < maxMaps {
			if err := mapOver(at, r.file, r.offset); err != nil {
				return err
			}
			continue
		}
		for k := range r.pages {
			n := r.first + Number(k)
			*f.at(n) = *f.origin.Get(n)
			f.copied[n] = true
		}
	}
	return nil
}

// stretch is pages that follow each other in a file as they do in memory.
type stretch struct {
	file   *os.File // nil: they are in no file
	offset int64
	first  Number
	pages  int
}

// stretches returns the stretches that a stack consists of, the longest first. They are
// looked for once: that takes time for every page.
func (s *Stack) stretches() []stretch {
	s.findOnce.Do(func() {
		places := s.places()
		for n, p := range s.All {
			file, offset := places.find(p)
			if k := len(s.found) - 1; k >= 0 && s.found[k].continues(file, offset, n) {
				s.found[k].pages++
				continue
			}
			s.found = append(s.found, stretch{file, offset, n, 1})
		}
		slices.SortStableFunc(s.found, func(a, b stretch) int { return b.pages - a.pages })
	})
	return s.found
}

// continues tells whether page n, which is at an offset of a file, goes on where the
// stretch ends.
func (r *stretch) continues(file *os.File, offset int64, n Number) bool {
	return r.file == file && r.first+Number(r.pages) == n && (file == nil || r.offset+int64(r.pages)*Size == offset)
}

// places tells in which file a page of a stack lies.
type places struct {
	files  []*mapping
	arenas []*Arena
	last   *mapping // where the page before was
}

func (s *Stack) places() *places {
	x := new(places)
	for _, l := range s.layers {
		x.add(l)
	}
	return x
}

// add adds the places in which a layer has pages.
func (x *places) add(l *Layer) {
	if l.file != nil {
		x.files = append(x.files, l.file)
		return
	}
	m := l.memory.Load()
	if m.seal != nil && !slices.Contains(x.arenas, m.seal.arena) {
		x.arenas = append(x.arenas, m.seal.arena)
	}
	for _, part := range m.parts {
		x.add(part)
	}
}

func (x *places) find(p *Page) (file *os.File, offset int64) {
	at := pageAddress(p)
	if x.last != nil {
		if offset, ok := x.last.place(at); ok {
			return x.last.file, offset
		}
	}
	for _, m := range x.files {
		if offset, ok := m.place(at); ok {
			x.last = m
			return m.file, offset
		}
	}
	for _, a := range x.arenas {
		if offset, ok := a.place(at); ok {
			return a.file, offset
		}
	}
	return nil, 0
}

// place returns where in the file what is mapped at p lies.
func (m *mapping) place(p uintptr) (offset int64, ok bool) {
	at := p - address(m.mem)
	return int64(at), at < uintptr(len(m.mem))
}

// Memory returns the whole memory.
func (f *Flat) Memory() []byte { return f.mem }

// Limit returns the number of pages.
func (f *Flat) Limit() Number { return f.limit }

// Read returns page n, which stays where it is. What the caller wrote before is seen
// by others before the caller sees what they write, as with an Overlay, which takes a
// lock: a device that asks to be notified and then looks once more relies on it.
//
// Preconditions: n is below the limit.
func (f *Flat) Read(n Number) *Page {
	f.order.Add(0) // a full barrier
	return f.at(n)
}

func (f *Flat) at(n Number) *Page { return (*Page)(f.mem[int(n)*Size:]) }

// Write returns page n for writing; it never moves, and there is no error.
func (f *Flat) Write(n Number) (p *Page, moved bool, err error) { return f.Read(n), false, nil }

// Private returns true: each page has a place of its own.
func (f *Flat) Private(Number) bool { return true }

// Owner returns nil: no layer's memory is handed out.
func (f *Flat) Owner(Number) *Layer { return nil }

// Owns returns true: a Write never moves a page.
func (f *Flat) Owns(Number) bool { return true }

// Pages returns how many pages the machine has to itself: it has written them since the
// Flat was made, or they had to be copied then.
func (f *Flat) Pages() (pages int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	runs, err := f.writes.all()
	if err != nil {
		return 0
	}
	for _, r := range runs {
		pages += int(r.pages)
	}
	return pages
}

// Bytes returns the host memory that only this machine has, or that it has sealed.
func (f *Flat) Bytes() int {
	f.mu.Lock()
	ahead := f.ahead.used
	f.mu.Unlock()
	kept, _ := f.tally.sums()
	return (f.Pages() + ahead + kept) * Size
}

// Resident returns 0: there is nothing that a Pack could do.
func (f *Flat) Resident() int { return 0 }

// Pack does nothing.
func (f *Flat) Pack() {}

// Prepare copies pages ahead of a Seal, while the machine goes on. Pages that are
// written meanwhile are copied once more, again and again as long as there are much
// fewer of them each time. It does nothing on a host that cannot tell which pages were
// written since a certain moment, as Linux can from 6.7 on. The error wraps ErrNoSpace.
func (f *Flat) Prepare() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.writes.watch() {
		return nil
	}
	const few = 64
	for last := int(f.limit); ; {
		n, err := f.copyWritten()
		if err != nil {
			return err
		}
		if n <= few || n > last/2 {
			return nil
		}
		last = n
	}
}

// Seal copies the pages that were written since the last time, as far as Prepare has
// not, into a new layer and returns the stack with that layer on top; the machine goes
// on in the same memory. Pages that are as they were below are not part of the layer.
// The caller owns a reference to the stack. It panics with an *AllocError if the host
// has no memory for it.
//
// Preconditions: nobody writes to the memory during the call.
func (f *Flat) Seal() *Stack {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.copyWritten(); err != nil {
		panic(&AllocError{err})
	}
	below, pages := f.base, f.ahead
	f.ahead = table{}
	f.base = seal(f.limit, f.arena, pages, below, &f.tally)
	if len(below.layers) == 0 {
		f.base.layers[0].seal().dense = true
	}
	below.Release()
	return f.base.Retain()
}

// copyWritten copies the pages that were written since it was called last, or since
// the Flat was made if the host cannot tell, and returns how many there are. If it fails,
// or reading the stack does (see Guard), it begins anew: the host tells of a page once. The
// caller holds f.mu.
func (f *Flat) copyWritten() (pages int, err error) {
	runs, err := f.writes.take()
	if err != nil {
		return 0, fmt.Errorf("asking which pages were written: %w", err)
	}
	done := false
	defer func() {
		if !done {
			f.startOver()
		}
	}()
	for n := range runs.numbers {
		p := f.ahead.get(n)
		if p == nil {
			if f.copied[n] && *f.at(n) == *f.base.Get(n) {
				continue // it was not written, or is again what the stack has
			}
			if p, err = f.arena.Alloc(); err != nil {
				return 0, err
			}
			f.ahead.put(n, p)
		}
		*p = *f.at(n)
		pages++
	}
	done = true
	return pages, nil
}

// startOver forgets which pages are copied already. The caller holds f.mu.
func (f *Flat) startOver() {
	f.arena.Free(f.ahead.all()...)
	f.ahead = table{}
	f.writes.forget()
}

// Close frees the memory and gives up the stack.
//
// Preconditions: nothing uses the memory any more.
func (f *Flat) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := unix.Munmap(f.mapped); err != nil {
		panic("BUG: cannot unmap guest memory: " + err.Error())
	}
	f.startOver()
	f.mapped, f.mem = nil, nil
	f.base.Release()
	f.origin.Release()
	f.base, f.origin = nil, nil
}
