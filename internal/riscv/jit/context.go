//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// Context is what native code runs on: one CPU's view of its hart and memory.
// The caller keeps Loads, Stores and Space as the MMU has them. A Context belongs
// to one goroutine at a time.
type Context struct {
	hart          *hart.Hart
	Loads, Stores *mmu.Bank[mmu.Host]
	natives       *mmu.Bank[*Table] // of the present mode
	Space         uint64
	base          uint64  // GVA of the page that is executed
	code          uintptr // of the arena
	left          int64   // instructions
	pc            uint64  // where code was missing
	target        uintptr
	exit          uint32 // offset of a site in the arena, or 0: no code at pc
	mxcsr         uint32
	kept          uintptr // gp, for who looks into the TLB again
	float         uint8   // 1: floating point may be native
	zero          uint8   // 1: CBO.ZERO is legal

	cache *Cache
	arena *arena // nil: it rests
	known uint64 // number of the arena that the banks are of
	site  site
	banks [2]mmu.Bank[*Table] // by hart.Mode
}

// Stop is why native code returned.
type Stop uint8

const (
	// Elsewhere: there is no code at the hart's PC, or none that is known to the
	// context.
	Elsewhere Stop = iota
	// Slow: some instructions need the reference semantics.
	Slow
	// Spent: too little is left of the budget for the next block.
	Spent
)

// Attach makes x execute h with code from cache.
func (x *Context) Attach(cache *Cache, h *hart.Hart) {
	x.hart, x.cache = h, cache
	x.Flush()
	x.Sync()
}

// Sync follows the cache to its present arena. Between calls no page may be
// entered that comes from another one.
func (x *Context) Sync() {
	if x.cache.arena.Load() == x.arena {
		return
	}
	x.Rest()
	a := x.cache.hold()
	x.arena = a
	if a != nil && a.number != x.known {
		x.known, x.code = a.number, a.address(0)
		x.Flush()
	}
}

// Rest has x keep no arena from going, until it is synced or attached again.
func (x *Context) Rest() {
	if x.arena != nil {
		x.arena.release()
		x.arena = nil
	}
}

// Switch follows a change of the hart's mode.
func (x *Context) Switch() { x.natives = &x.banks[x.hart.Mode&1] }

// Bank returns the bank of pages with code for a mode, for invalidation.
func (x *Context) Bank(m hart.Mode) *mmu.Bank[*Table] { return &x.banks[m&1] }

// Flush forgets all pages.
func (x *Context) Flush() {
	x.banks[0].Clear()
	x.banks[1].Clear()
}

// Usable reports whether p is of the arena that x is on.
func (x *Context) Usable(p *Page) bool { return p != nil && x.arena != nil && p.arena == x.known }

// Has reports whether p, which is usable, has code at an offset in its page.
func (x *Context) Has(p *Page, off uint16) bool { return p.has(off) }

// Know enters the code of a page, if it is usable, for a hart that will come to it at
// the address, and in the address space, of tag in mode m.
func (x *Context) Know(m hart.Mode, tag uint64, p *Page) {
	if x.Usable(p) {
		*x.banks[m&1].At(tag) = mmu.Entry[*Table]{Tag: tag, To: p.table}
	}
}

// Enter executes from the hart's PC, which must lie in the page p and have code,
// until that returns; at most n instructions. It returns how many of them are
// left. The hart's PC is that of the next instruction.
func (x *Context) Enter(p *Page, n int) (Stop, int) {
	pc := x.hart.PC
	e := x.natives.At(pc)
	e.Tag, e.To = mmu.Tag(pc, 1, x.Space), p.table
	x.base = pc &^ (page.Size - 1)
	return x.run(p.entry(uint16(pc%page.Size)), n)
}

// Miss is an entry that the TLB lacks.
type Miss struct {
	VA     uint64
	Store  bool // for stores; else for loads
	Early  bool // it may yet turn out that nothing is stored
	Pinned bool // native code can Retry only if no page has moved since
}

// Miss tells what a Slow stop is about if that is all that was missing.
func (x *Context) Miss() (_ Miss, ok bool) {
	s := &x.site
	va := x.hart.X[s.base] + uint64(int64(s.low))
	return Miss{va, s.store, s.early, s.keep}, s.probe != 0 && va%page.Size+uint64(s.last) < page.Size
}

// Retry goes on where the TLB was looked into.
func (x *Context) Retry(n int) (Stop, int) {
	return x.run(x.site.probe, n-int(x.site.before))
}

// Slow returns how many instructions, from the hart's PC on, are to be executed
// before Resume. They need not follow one another.
func (x *Context) Slow() int { return int(x.site.count) }

// Resumable reports whether native code can go on after the instructions that it
// was left for, with n left.
func (x *Context) Resumable(n int) bool {
	return x.site.resume != 0 && x.hart.PC == x.base+uint64(x.site.next) && n >= int(x.site.after) &&
		(!x.site.float || floatReady(x.hart))
}

// Resume goes on. It may be called when Resumable says so.
func (x *Context) Resume(n int) (Stop, int) {
	return x.run(x.site.resume, n-int(x.site.after))
}

// noFlags is the value of MXCSR for rounding to nearest-even, with all exceptions
// masked and none raised.
const noFlags = 0x1f80

// floatReady reports whether native code may execute floating-point instructions.
func floatReady(h *hart.Hart) bool {
	return h.Status&hart.StatusFS == hart.StatusFS && h.FCSR>>5 == 0
}

func (x *Context) run(at uint32, n int) (Stop, int) {
	x.left, x.mxcsr, x.float, x.zero = int64(n), noFlags, 0, 0
	if floatReady(x.hart) {
		x.float = 1
	}
	if x.hart.CanZeroBlock() {
		x.zero = 1
	}
	x.target = x.arena.address(at)
	enter(x, x.arena.start)
	if raised := x.mxcsr & 0x3d; raised != 0 {
		x.hart.FCSR |= accrued[raised]
	}
	if x.exit == 0 {
		x.hart.PC = x.pc
		return Elsewhere, int(x.left)
	}
	x.site = decodeSite(x.arena.executable[x.exit:])
	x.hart.PC = x.base + uint64(x.site.off)
	n = int(x.left + int64(x.site.before))
	if x.site.count == 0 {
		return Spent, n
	}
	return Slow, n
}

// accrued turns exception flags of MXCSR into those of fcsr.
var accrued = func() (t [64]uint8) {
	pairs := [...][2]uint8{{1 << 0, 16}, {1 << 2, 8}, {1 << 3, 4}, {1 << 4, 2}, {1 << 5, 1}}
	for i := range t {
		for _, p := range pairs {
			if uint8(i)&p[0] != 0 {
				t[i] |= p[1]
			}
		}
	}
	return t
}()

// enter runs the code at start with x.
//
//go:noescape
func enter(x *Context, start uintptr)

// hasLZCNT reports whether the host has LZCNT, which older ones take for BSR.
func hasLZCNT() bool
