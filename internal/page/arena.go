package page

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// chunkSize is how much an arena takes from the host at a time: one huge
	// page, so that the host takes one fault for 512 guest pages.
	chunkSize  = 2 << 20
	chunkPages = chunkSize / Size

	// regionSize is how much address space an arena reserves at a time.
	regionSize = 64 << 20
)

// ErrNoSpace reports that an arena could get no more pages from the host.
var ErrNoSpace = errors.New("no space left for page storage")

// Arena hands out pages that live outside the Go heap. Pages come back through
// Free and are reused, not returned to the host (until Trim): touching fresh
// memory is what makes a fork slow. An Arena is safe for concurrent use.
//
// An arena is as long-lived as its process; what it has mapped it keeps mapped.
type Arena struct {
	file *os.File // immutable; nil: anonymous memory

	mu     sync.Mutex
	region chunk             // mapped, not yet handed out; a multiple of chunkSize
	mapped int64             // bytes that regions cover, of the file if there is one
	chunks map[uintptr]chunk // all that were handed out, by address
	cold   []chunk           // of those, the ones that the host has no memory for
	free   []*Page           // the last one was used last
	inUse  int
}

// chunk is a stretch of host memory that begins at a multiple of chunkSize,
// and, in an arena with a file, where that lies in the file.
type chunk struct {
	mem    []byte
	offset int64
}

// NewArena returns an arena of anonymous memory on huge pages where the host
// has them.
func NewArena() *Arena { return &Arena{chunks: make(map[uintptr]chunk)} }

// NewFileArena returns an arena backed by an unlinked sparse file in dir, so
// that the host can write cold pages back instead of holding them in memory.
func NewFileArena(dir string) (*Arena, error) {
	f, err := os.CreateTemp(dir, "pages-*")
	if err != nil {
		return nil, fmt.Errorf("creating page file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("unlinking page file: %w", err)
	}
	return UseFileArena(f), nil
}

// UseFileArena returns an arena backed by a file that is empty, open for reading and
// writing, and nobody else's.
func UseFileArena(f *os.File) *Arena { return &Arena{file: f, chunks: make(map[uintptr]chunk)} }

// NewSharedArena returns an arena of memory that can be mapped a second time, as
// the pages of a Flat are that it has in common with others.
func NewSharedArena() (*Arena, error) {
	fd, err := unix.MemfdCreate("pages", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("creating page memory: %w", err)
	}
	return &Arena{file: os.NewFile(uintptr(fd), "pages"), chunks: make(map[uintptr]chunk)}, nil
}

// place returns where in the arena's file the page at p lies; ok is false if it is
// not the arena's, or the arena has no file.
func (a *Arena) place(p uintptr) (offset int64, ok bool) {
	base := p &^ (chunkSize - 1)
	c := a.chunk(base)
	return c.offset + int64(p-base), a.file != nil && c.mem != nil
}

// Alloc returns a page with undefined contents, or an error that wraps
// ErrNoSpace.
func (a *Arena) Alloc() (*Page, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.have(1); err != nil {
		return nil, err
	}
	p := a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	a.inUse++
	return p, nil
}

// copyOf is Alloc for a page with the contents of another. Reading that may be a fault (see
// Guard), after which there is no page.
func (a *Arena) copyOf(from *Page) (p *Page, err error) {
	if p, err = a.Alloc(); err != nil {
		return nil, err
	}
	done := false
	defer func() {
		if !done {
			a.Free(p)
		}
	}()
	*p = *from
	done = true
	return p, nil
}

// allocAll is Alloc for n pages, or none.
func (a *Arena) allocAll(n int) ([]*Page, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.have(n); err != nil {
		return nil, err
	}
	pages := slices.Clone(a.free[len(a.free)-n:])
	a.free = a.free[:len(a.free)-n]
	a.inUse += n
	return pages, nil
}

// have sees to it that n pages are free. The caller holds a.mu.
func (a *Arena) have(n int) error {
	for len(a.free) < n {
		c, err := a.take()
		if err != nil {
			return err
		}
		a.push(c)
	}
	return nil
}

// Free gives pages back. The caller must hold no other reference to them.
func (a *Arena) Free(pages ...*Page) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = append(a.free, pages...)
	a.inUse -= len(pages)
	if a.inUse < 0 {
		panic("BUG: page freed twice")
	}
}

// InUse returns the number of pages handed out and not yet freed.
func (a *Arena) InUse() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inUse
}

// Trim returns the memory of chunks that are wholly free to the host, and
// tells how many pages that was. It leaves the keep pages that were freed last
// alone, so that Alloc finds some meanwhile: pages that were returned cost a
// host fault when they are needed again.
func (a *Arena) Trim(keep int) (pages int) {
	a.mu.Lock()
	n := max(len(a.free)-keep, 0)
	free := slices.Clone(a.free[:n])
	a.free = slices.Clone(a.free[n:])
	a.mu.Unlock()

	// Descending, so that pages will be handed out in address order.
	slices.SortFunc(free, func(p, q *Page) int { return cmp.Compare(pageAddress(q), pageAddress(p)) })
	kept := make([]*Page, 0, len(free))
	var cold []chunk
	for len(free) > 0 {
		base := pageAddress(free[0]) &^ (chunkSize - 1)
		n := 1
		for n < len(free) && pageAddress(free[n]) >= base {
			if free[n] == free[n-1] {
				panic("BUG: page freed twice")
			}
			n++
		}
		if c := a.chunk(base); n == chunkPages && a.discard(c) == nil {
			cold = append(cold, c)
		} else {
			kept = append(kept, free[:n]...)
		}
		free = free[n:]
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = append(kept, a.free...)
	a.cold = append(a.cold, cold...)
	return len(cold) * chunkPages
}

func (a *Arena) chunk(base uintptr) chunk {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.chunks[base]
}

// discard returns a chunk's memory, and its blocks in the file, to the host.
func (a *Arena) discard(c chunk) error {
	if a.file == nil {
		return unix.Madvise(c.mem, unix.MADV_DONTNEED)
	}
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return unix.Fallocate(int(a.file.Fd()), punch, c.offset, chunkSize)
}

// Reserve sees to it that at least so many pages are free and backed by host
// memory, for Alloc to hand out without a host fault. It is slow (up to
// milliseconds per chunk where the host itself is a virtual machine), so it is
// for before forks come and between them. Alloc goes on meanwhile. The error
// wraps ErrNoSpace.
func (a *Arena) Reserve(pages int) error {
	for {
		a.mu.Lock()
		if len(a.free) >= pages {
			a.mu.Unlock()
			return nil
		}
		c, err := a.take()
		a.mu.Unlock()
		if err != nil {
			return err
		}
		// Only a hint: an old host faults the pages in one by one, later.
		_ = unix.Madvise(c.mem, unix.MADV_POPULATE_WRITE)
		a.mu.Lock()
		a.push(c)
		a.mu.Unlock()
	}
}

// take returns a chunk whose pages nobody knows yet, with blocks in the file if
// there is one. The caller holds a.mu.
func (a *Arena) take() (chunk, error) {
	if len(a.cold) == 0 {
		if err := a.carve(); err != nil {
			return chunk{}, fmt.Errorf("%w: %w", ErrNoSpace, err)
		}
	}
	c := a.cold[len(a.cold)-1]
	if a.file != nil {
		// Reserving the blocks now turns a full disk into an error here; a
		// sparse mapping would turn it into a bus error at some later store.
		if err := unix.Fallocate(int(a.file.Fd()), 0, c.offset, chunkSize); err != nil {
			return chunk{}, fmt.Errorf("%w: growing page file: %w", ErrNoSpace, err)
		}
	}
	a.cold = a.cold[:len(a.cold)-1]
	return c, nil
}

// push adds a chunk's pages to the free list, in reverse, so that they are
// handed out in address order. The caller holds a.mu.
func (a *Arena) push(c chunk) {
	for off := chunkSize - Size; off >= 0; off -= Size {
		a.free = append(a.free, (*Page)(c.mem[off:]))
	}
}

// carve adds the next chunk of the region to the cold ones. The caller holds
// a.mu.
func (a *Arena) carve() error {
	if len(a.region.mem) == 0 {
		if err := a.mapRegion(); err != nil {
			return err
		}
	}
	r := &a.region
	c := chunk{r.mem[:chunkSize:chunkSize], r.offset}
	r.mem, r.offset = r.mem[chunkSize:], r.offset+chunkSize
	a.chunks[address(c.mem)] = c
	a.cold = append(a.cold, c)
	return nil
}

// mapRegion reserves address space for more chunks; memory and disk blocks
// come later. A chunk more than needed is mapped, for the alignment.
func (a *Arena) mapRegion() error {
	fd, offset, flags := -1, int64(0), unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE
	if a.file != nil {
		fd, offset, flags = int(a.file.Fd()), a.mapped, unix.MAP_SHARED
	}
	mem, err := unix.Mmap(fd, offset, regionSize+chunkSize, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return fmt.Errorf("mapping page memory: %w", err)
	}
	skip := int(-address(mem) & (chunkSize - 1))
	a.region = chunk{mem[skip : skip+regionSize], offset + int64(skip)}
	a.mapped += regionSize + chunkSize
	// Only a hint: without huge pages the arena works, with more faults.
	_ = unix.Madvise(a.region.mem, unix.MADV_HUGEPAGE)
	return nil
}

func mustMapZero() *Page {
	mem, err := unix.Mmap(-1, 0, Size, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic("BUG: cannot map one page: " + err.Error())
	}
	return (*Page)(mem)
}
