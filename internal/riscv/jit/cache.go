//go:build linux && amd64

package jit

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/cpu"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// Supported reports whether this host can execute what the package makes.
func Supported() bool {
	return cpu.X86.HasBMI1 && cpu.X86.HasBMI2 && cpu.X86.HasFMA && cpu.X86.HasPOPCNT && hasLZCNT()
}

// Cache holds the code of all machines that share it. It is safe for concurrent
// use.
//
// Code goes into an arena until that is full; then a new one begins and the old
// one goes as soon as no context executes in it any more. Pages that have code in it do not
// keep it: many are seldom executed, and would have all arenas that ever were stay.
type Cache struct {
	size int // of an arena, in bytes

	arena atomic.Pointer[arena] // the present one; nil until first used

	mu       sync.Mutex
	tr       translator // guarded by mu
	parallel bool       // guarded by mu
}

// NewCache returns a cache whose code takes at most about size bytes, and as much once more
// for each context that has not noticed yet that the arena has been replaced.
func NewCache(size int) *Cache { return &Cache{size: max(size, minArena)} }

// Bytes returns how much memory the present code takes.
func (c *Cache) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.arena.Load(); a != nil {
		return a.bytes()
	}
	return 0
}

// SetParallel makes the code that is translated from now on order its memory
// accesses for machines with several vCPUs. It must be called before any code of
// such a machine runs.
func (c *Cache) SetParallel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.parallel {
		c.parallel = true
		c.retire()
	}
}

// retire ends the present arena. The caller holds c.mu.
func (c *Cache) retire() {
	if a := c.arena.Swap(nil); a != nil {
		a.release()
	}
}

// hold returns the present arena, for the caller to release; nil if there is none.
func (c *Cache) hold() *arena {
	for {
		if a := c.arena.Load(); a == nil || a.hold() {
			return a
		}
	}
}

// Table has the entry for each halfword of a page: the offset of its code in the
// arena, or zero, which leads back to Go.
type Table [page.Size / 2]uint32

// TableSize is the size of a Table in bytes.
const TableSize = page.Size / 2 * 4

// Made is what a call of Translate has made.
type Made struct {
	Blocks int     // basic blocks
	Share  float64 // how much of an arena they take, in which there is room for 1
}

// Page is the code of one page.
type Page struct {
	arena uint64 // number of the one that the code lies in
	table *Table
	links map[uint16][]uint32 // slots that wait for code at an offset; guarded by Cache.mu
}

// entry returns where the code for the instruction at off begins.
func (p *Page) entry(off uint16) uint32 { return atomic.LoadUint32(&p.table[off/2]) }

// has reports whether there is code for the instruction at off.
func (p *Page) has(off uint16) bool { return p.entry(off) != 0 }

var errFull = errors.New("the arena for code is full")

// Translate translates what is reached from the instruction at the offset off of
// p, whose contents must not change meanwhile. native is the page's code so far,
// nil if there is none; the code of the page after is returned, and what is new in it.
// An error means that the host has no memory for code.
func (c *Cache) Translate(p *page.Page, native *Page, off uint16) (_ *Page, made Made, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 2 {
		a := c.arena.Load()
		if a == nil {
			var err error
			if a, err = newArena(c.size, c.parallel); err != nil {
				return nil, Made{}, fmt.Errorf("making room for native code: %w", err)
			}
			c.arena.Store(a)
		}
		if native == nil || native.arena != a.number {
			native = &Page{arena: a.number, table: new(Table), links: make(map[uint16][]uint32)}
		}
		before := a.parts()
		err := c.tr.translate(a, p, native, off)
		if err == nil {
			blocks := c.tr.publish(native)
			return native, Made{blocks, a.share(before)}, nil
		}
		if !errors.Is(err, errFull) {
			panic("BUG: translating: " + err.Error())
		}
		c.retire()
	}
	return nil, Made{}, errFull
}

// publish makes the translated region's entries known and returns how many blocks
// it has.
func (t *translator) publish(native *Page) (blocks int) {
	a, base := t.arena, t.arena.used
	a.used, a.cold, a.slots = align(base+t.hotEnd, codeAlign), align(base+t.coldEnd, lineSize), base+t.slotEnd
	offset := func(l amd64.Label) uint32 { return uint32(base + t.Offset(l)) }
	for _, l := range t.links {
		a.setSlot(offset(l.slot), offset(l.miss))
		native.links[l.off] = append(native.links[l.off], offset(l.slot))
	}
	for i := range t.seq {
		in := &t.seq[i]
		if in.start {
			blocks++
		}
		if !in.leader {
			continue
		}
		code := offset(in.label)
		for _, slot := range native.links[in.off] {
			a.setSlot(slot, code)
		}
		delete(native.links, in.off)
		atomic.StoreUint32(&native.table[in.off/2], code)
	}
	return blocks
}

// Regions begin where the host fetches instructions from. What is seldom used is kept
// apart by lines, since records are data.
const (
	codeAlign = 16
	lineSize  = 64
)

func align(n, to int) int { return (n + to - 1) &^ (to - 1) }
