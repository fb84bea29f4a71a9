package page

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Flat is the writable top of one machine over a stack, in one stretch of host
// memory: page n is the n-th of it. It is for memory that somebody writes to past
// this process's back, as a vCPU under hardware virtualization does. The host
// copies a page when it is written for the first time; which pages those are is
// asked of the host when somebody wants to know.
//
// Pages of the stack that lie in files are mapped from there, and shared with
// whoever else has them. A Flat is safe for concurrent use.
//
// Lock order: Flat.mu is held while the arena is asked.
type Flat struct {
	arena  *Arena // immutable; for the pages of sealed layers
	limit  Number // immutable
	origin *Stack // immutable until Close
	mapped []byte // address space; immutable until Close
	mem    []byte // the part of it that is the memory; immutable until Close

	mu     sync.Mutex
	base   *Stack          // guarded by mu
	copied map[Number]bool // pages of origin that had to be copied; guarded by mu
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
	if err := f.fill(); err != nil {
		f.Close()
		return nil, fmt.Errorf("mapping guest memory: %w", err)
	}
	return f, nil
}

// stretch is pages that follow each other in a file as they do in memory.
type stretch struct {
	file   *os.File // nil: they are in no file
	offset int64
	first  Number
	pages  int
}

// fill makes the memory show the stack.
func (f *Flat) fill() error {
	var runs []stretch
	places := f.origin.places()
	for n, p := range f.origin.All {
		file, offset := places.find(p)
		if k := len(runs) - 1; k >= 0 && file != nil && runs[k].file == file &&
			runs[k].first+Number(runs[k].pages) == n && runs[k].offset+int64(runs[k].pages)*Size == offset {
			runs[k].pages++
			continue
		}
		runs = append(runs, stretch{file, offset, n, 1})
	}
	// The longest are mapped.
	slices.SortStableFunc(runs, func(a, b stretch) int { return b.pages - a.pages })
	for i, r := range runs {
		at := f.mem[int(r.first)*Size:][:r.pages*Size]
		if r.file != nil && i < maxMaps {
			if err := mapOver(at, r.file, r.offset); err != nil {
				return err
			}
			continue
		}
		for k := range r.pages {
			n := r.first + Number(k)
			*f.Read(n) = *f.origin.Get(n)
			f.copied[n] = true
		}
	}
	return nil
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
		switch {
		case l.file != nil:
			x.files = append(x.files, l.file)
		case !slices.Contains(x.arenas, l.seal.arena):
			x.arenas = append(x.arenas, l.seal.arena)
		}
	}
	return x
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

// Read returns page n, which stays where it is.
//
// Preconditions: n is below the limit.
func (f *Flat) Read(n Number) *Page { return (*Page)(f.mem[int(n)*Size:]) }

// Write returns page n for writing; it never moves, and there is no error.
func (f *Flat) Write(n Number) (p *Page, moved bool, err error) { return f.Read(n), false, nil }

// Private returns true: each page has a place of its own.
func (f *Flat) Private(Number) bool { return true }

// Owner returns nil: no layer's memory is handed out.
func (f *Flat) Owner(Number) *Layer { return nil }

// Owns returns true: a Write never moves a page.
func (f *Flat) Owns(Number) bool { return true }

// Pages returns how many pages have been written.
func (f *Flat) Pages() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	numbers, err := f.written()
	if err != nil {
		return 0
	}
	return len(numbers)
}

// Bytes returns the host memory that only this machine has.
func (f *Flat) Bytes() int { return f.Pages() * Size }

// Resident returns 0: there is nothing that a Pack could do.
func (f *Flat) Resident() int { return 0 }

// Pack does nothing.
func (f *Flat) Pack() {}

// Unpack does nothing.
func (f *Flat) Unpack() error { return nil }

// Seal copies the pages that were written into a new layer and returns the stack
// with that layer on top; the machine goes on in the same memory. Pages that are as
// they were below are not part of the layer. The caller owns a reference to the
// stack. It panics with an *AllocError if the host has no memory for it.
//
// Preconditions: nobody writes to the memory during the call.
func (f *Flat) Seal() *Stack {
	f.mu.Lock()
	defer f.mu.Unlock()
	numbers, err := f.written()
	if err != nil {
		panic(&AllocError{err})
	}
	var pages table
	for _, n := range numbers {
		p, err := f.arena.Alloc()
		if err != nil {
			f.arena.Free(pages.all()...)
			panic(&AllocError{err})
		}
		*p = *f.Read(n)
		pages.put(n, p)
	}
	below := f.base
	f.base = seal(f.limit, f.arena, pages, below)
	below.Release()
	return f.base.Retain()
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
	f.mapped, f.mem = nil, nil
	f.base.Release()
	f.origin.Release()
	f.base, f.origin = nil, nil
}

// written returns the pages that were written since the Flat was made, in
// ascending order; pages that were read where nothing is may be among them. The
// caller holds f.mu.
func (f *Flat) written() ([]Number, error) {
	numbers, err := anonymous(f.mem)
	if err != nil {
		return nil, fmt.Errorf("asking which pages were written: %w", err)
	}
	return slices.DeleteFunc(numbers, func(n Number) bool {
		return f.copied[n] && *f.Read(n) == *f.origin.Get(n)
	}), nil
}

// Bits of an entry of /proc/self/pagemap (the kernel's
// Documentation/admin-guide/mm/pagemap).
const (
	pagemapPresent = 1 << 63
	pagemapSwapped = 1 << 62
	pagemapFile    = 1 << 61 // of a file, or of shared memory
	pagemapEntry   = 8       // bytes
)

// pagemap is the host's table of this process's pages.
var pagemap = sync.OnceValues(func() (*os.File, error) { return os.Open("/proc/self/pagemap") })

// PrepareFlats opens what a Flat asks the host with. It is for a process that will not be
// able to open anything by then.
func PrepareFlats() error {
	_, err := pagemap()
	return err
}

// anonymous returns the numbers of pages that the host has copied or made for this
// mapping alone.
func anonymous(mem []byte) (numbers []Number, err error) {
	f, err := pagemap()
	if err != nil {
		return nil, err
	}
	const atOnce = 8 << 10 // pages
	buf := make([]byte, atOnce*pagemapEntry)
	first := int64(address(mem) / Size)
	for n := 0; n < len(mem)/Size; n += atOnce {
		want := min(atOnce, len(mem)/Size-n) * pagemapEntry
		if _, err := f.ReadAt(buf[:want], (first+int64(n))*pagemapEntry); err != nil {
			return nil, err
		}
		for i := range want / pagemapEntry {
			e := binary.NativeEndian.Uint64(buf[i*pagemapEntry:])
			if e&(pagemapPresent|pagemapSwapped) != 0 && e&pagemapFile == 0 {
				numbers = append(numbers, Number(n+i))
			}
		}
	}
	return numbers, nil
}
