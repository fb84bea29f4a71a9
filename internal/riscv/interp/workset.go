package interp

import (
	"maps"
	"runtime"
	"slices"
	"weak"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// Workset is what machines that begin with the memory of one stack need first: the
// pages that they write, and the entries that they miss in their caches. It is
// learned from one of them. The others have the pages copied and the entries made in
// one go, which takes a fifth of the time of going through the misses one by one; and
// where they do something else, they miss as ever.
type Workset struct {
	pages []uint64 // GPAs of those that are written
	parts map[uint64][]*group
}

// group is the entries in one page table, and what else is known of each.
type group struct {
	*mmu.Group
	own    []int32     // index of its page in Workset.pages, or -1
	codes  []*Code     // of a mapping for fetches,
	native []*jit.Page // and its translation, if any
}

const (
	maxTouches = 8192
	maxAhead   = 512 // pages
	lessons    = 3
)

// Touches returns room for the record of a machine.
func Touches() []mmu.Touch { return make([]mmu.Touch, 0, maxTouches) }

// knowledge is what is known about the machines over a stack.
type knowledge struct {
	set   *Workset // nil: nothing yet; guarded by Cache.mu
	given int      // lessons; guarded by Cache.mu
	busy  bool     // one is under way; guarded by Cache.mu

	// What the next lesson adds to; of whoever is in it.
	touches []mmu.Touch
	written map[uint64]int // by GPA of a page, by how many machines
}

// Workset returns what is known about machines over a stack, nil if nothing is. wanted
// tells that the caller shall find out more, with a machine that has no help from what
// is known, and call Learn in the end.
func (c *Cache) Workset(s *page.Stack) (w *Workset, wanted bool) {
	key := weak.Make(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.work[key]
	if k == nil {
		k = &knowledge{written: make(map[uint64]int)}
		c.work[key] = k
		runtime.AddCleanup(s, c.forgetWork, key)
	}
	if wanted = !k.busy && k.given < lessons; wanted {
		k.busy = true
	}
	return k.set, wanted
}

func (c *Cache) forgetWork(key weak.Pointer[page.Stack]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.work, key)
}

// Learn takes in what was recorded since a machine with that memory, over the stack s,
// began. Without a record another machine shall find out.
func (c *Cache) Learn(s *page.Stack, mem *memory.Space, touches []mmu.Touch) {
	c.mu.Lock()
	k := c.work[weak.Make(s)]
	c.mu.Unlock()
	// As long as it is busy, nobody else changes what is known.
	set, given := k.set, k.given
	if len(touches) > 0 {
		given++
		k.touches = append(k.touches, touches...)
		for _, gpa := range mem.Written() {
			k.written[gpa]++
		}
		set = c.resolve(mem, k, given)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k.set, k.given, k.busy = set, given, false
	if given == lessons {
		k.touches, k.written = nil, nil
	}
}

// resolve finds out what a record comes to in memory as it was before the machine
// wrote to it, so that it holds for every machine which begins with that.
func (c *Cache) resolve(mem *memory.Space, k *knowledge, given int) *Workset {
	source, release := mem.Source()
	defer release()
	w := &Workset{parts: make(map[uint64][]*group)}
	fetched := make(map[uint64]bool)
	for satp, part := range firstTouches(k.touches) {
		for _, g := range mmu.Resolve(source, part) {
			w.parts[satp] = append(w.parts[satp], &group{Group: g})
			for _, m := range g.Mappings {
				fetched[m.GPA] = fetched[m.GPA] || m.Access == mmu.Fetch
			}
		}
	}
	index := make(map[uint64]int32)
	for _, gpa := range slices.Sorted(maps.Keys(k.written)) {
		// Code that a machine has for itself would have to be decoded in each.
		if usual := 2*k.written[gpa] > given; usual && len(w.pages) < maxAhead && !fetched[gpa] {
			index[gpa] = int32(len(w.pages))
			w.pages = append(w.pages, gpa)
		}
	}
	for _, part := range w.parts {
		for _, g := range part {
			c.complete(g, index)
		}
	}
	return w
}

// firstTouches sorts touches by address space, and leaves of those that would share an
// entry of a TLB only the first.
func firstTouches(touches []mmu.Touch) map[uint64][]mmu.Touch {
	type entry struct {
		satp, slot uint64
		access     mmu.Access
		class      mmu.Class
	}
	seen := make(map[entry]bool)
	parts := make(map[uint64][]mmu.Touch)
	for _, t := range touches {
		e := entry{t.SATP, t.VA >> page.Shift % mmu.BankSize, t.Access, t.Class}
		if !seen[e] {
			seen[e] = true
			parts[t.SATP] = append(parts[t.SATP], t)
		}
	}
	return parts
}

// complete adds to a group what is known of its pages.
func (c *Cache) complete(g *group, index map[uint64]int32) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, m := range g.Mappings {
		own, ok := index[m.GPA]
		if !ok {
			own = -1
		}
		var code *Code
		var native *jit.Page
		if m.Access == mmu.Fetch {
			if code = c.pages[m.Page].code; code != nil {
				native = code.native.code.Load()
			}
		}
		g.own, g.codes, g.native = append(g.own, own), append(g.codes, code), append(g.native, native)
	}
}

// Record has the misses of the hart that c is attached to recorded, as far as there is
// room.
func (c *CPU) Record(touches *[]mmu.Touch) { c.m.Record(touches) }

// ahead is what a CPU knows of the needs of its hart.
type ahead struct {
	set   *Workset // nil: nothing
	mem   *memory.Space
	pages []*page.Page // where those of set are
	done  []uint64     // satp of address spaces that were seen to
	since []uint64     // GPAs of others that have been written,
	may   [64]uint64   // and a set of some of their bits
}

// LookAhead prepares c, which is attached to a hart that has executed nothing yet, for
// what it will do. Of memory devices may have written some, but nothing was sealed or packed.
func (c *CPU) LookAhead(mem *memory.Space, w *Workset) {
	c.ahead = ahead{set: w, mem: mem, pages: mem.Ahead(w.pages)}
	c.lookAhead(true)
}

// look finds out which pages have been written but those of the set.
func (a *ahead) look() {
	a.since, a.may = a.mem.Since(), [64]uint64{}
	for _, gpa := range a.since {
		word, bit := a.bit(gpa)
		*word |= bit
	}
}

func (a *ahead) bit(gpa uint64) (word *uint64, bit uint64) {
	n := gpa >> page.Shift
	return &a.may[n/64%64], 1 << (n % 64)
}

// written reports whether a page has been written that is not of the set.
func (a *ahead) written(gpa uint64) bool {
	word, bit := a.bit(gpa)
	return *word&bit != 0 && slices.Contains(a.since, gpa)
}

// lookAhead makes the entries for the present address space, once: it takes the longer the
// more the machine has written. fresh tells that memory has not been written but ahead.
func (c *CPU) lookAhead(fresh bool) {
	if c.ahead.set == nil {
		return
	}
	satp := c.h.SATP()
	part := c.ahead.set.parts[satp]
	if part == nil || slices.Contains(c.ahead.done, satp) {
		return
	}
	c.ahead.done = append(c.ahead.done, satp)
	c.ahead.look()
	for _, g := range part {
		if !fresh && !c.m.Leads(g.Group) {
			continue
		}
		for i := range g.Mappings {
			m := &g.Mappings[i]
			if !fresh && (!c.m.Holds(m) || m.Access == mmu.Store && c.codes.owns(m.GPA)) {
				continue // stores to code that was decoded are to be noticed
			}
			c.enterAhead(g, i)
		}
	}
}

// enterAhead makes the entry of a mapping of a group, which holds.
func (c *CPU) enterAhead(g *group, i int) {
	m := &g.Mappings[i]
	p, owned := m.Page, false
	if own := g.own[i]; own >= 0 && c.ahead.pages[own] != nil {
		p, owned = c.ahead.pages[own], true
	}
	switch {
	case m.Access == mmu.Store && !owned, m.Access == mmu.Fetch && (owned || g.codes[i] == nil):
		return
	case !owned && c.ahead.written(m.GPA):
		return
	}
	c.m.Enter(m, p)
	if m.Access != mmu.Fetch {
		return
	}
	if e := c.fetches[m.Mode].At(m.Tag); e.Tag == 0 {
		e.Tag, e.To = m.Tag, g.codes[i]
		if c.native != nil && g.native[i] != nil {
			c.native.Know(m.Mode, m.Tag, g.native[i])
		}
	}
}
