package mmu

import (
	"slices"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

// Machines that begin with the same memory begin alike: they miss the same entries
// in their empty TLBs. One of them has its misses recorded, and the others are given
// those entries before they miss them.
//
// That is what hardware does when it walks page tables speculatively, and as such it
// must not show: entries are made only of page-table entries that are valid, permit
// the access and need no A or D bit, while satp is what they belong to.

// Class tells apart accesses that have TLBs of their own.
type Class = class

// Touch is an access that missed the TLB.
type Touch struct {
	VA     uint64 // of the page
	SATP   uint64
	Access Access
	Class  Class
}

// Record has misses appended to touches, as far as that has room.
func (m *MMU) Record(touches *[]Touch) { m.touches = touches }

// Note records a miss of one of the caller's banks, or of this MMU's.
func (m *MMU) Note(va uint64, a Access) {
	if t := m.touches; t != nil && len(*t) < cap(*t) && !m.mxr && hart.Sv39(m.satp) {
		*t = append(*t, Touch{va & pageMask, m.satp, a, m.class})
	}
}

// Mapping is the TLB entry that a touch made, at the time when it was resolved.
type Mapping struct {
	Tag    uint64
	GPA    uint64 // of the page
	Page   *page.Page
	Access Access
	Mode   hart.Mode

	class  class
	global bool
	level  int
	leaf   tableEntry
}

// Group is the mappings whose leaf entries lie in one table.
type Group struct {
	Mappings []Mapping
	upper    []tableEntry // what leads to the table
}

// tableEntry is a page-table entry and its GPA.
type tableEntry struct{ at, pte uint64 }

// Resolve finds out what touches, all with the same satp, lead to in mem. Those for
// which hardware could not have made an entry by itself it leaves out.
func Resolve(mem *memory.Space, touches []Touch) (groups []*Group) {
	m := &MMU{view: mem.View(0)}
	found := make(map[uint64]*Group)
	for _, t := range touches {
		mapping, upper, ok := m.resolve(t)
		if !ok || len(upper) == 0 {
			continue
		}
		table := mapping.leaf.at & pageMask
		g := found[table]
		if g == nil {
			g = &Group{upper: upper}
			found[table] = g
			groups = append(groups, g)
		}
		if slices.Equal(g.upper, upper) {
			g.Mappings = append(g.Mappings, mapping)
		}
	}
	return groups
}

func (m *MMU) resolve(t Touch) (_ Mapping, upper []tableEntry, ok bool) {
	m.satp, m.class, m.mode = t.SATP, t.Class, hart.Supervisor
	space := uint64(valid)
	if t.Class == classUser {
		m.mode = hart.User
		space |= hart.ASID(t.SATP)
	}
	var path []tableEntry
	m.path, m.speculative = &path, true
	gpa, f := m.Translate(t.VA, t.Access)
	if f != NoFault {
		return Mapping{}, nil, false
	}
	p := m.Page(gpa)
	if p == nil {
		return Mapping{}, nil, false
	}
	last := len(path) - 1
	return Mapping{
		Tag: t.VA | space, GPA: gpa, Page: p, Access: t.Access, Mode: m.mode, class: t.Class,
		global: slices.ContainsFunc(path, func(e tableEntry) bool { return e.pte&pteG != 0 }),
		level:  levels - len(path),
		leaf:   path[last],
	}, path[:last], true
}

// Leads reports whether the table of a group is where it was in the present address
// space.
func (m *MMU) Leads(g *Group) bool {
	for _, e := range g.upper {
		if pte, ok := m.readPTE(e.at); !ok || pte != e.pte {
			return false
		}
	}
	return true
}

// Holds reports whether a mapping, of a group that Leads, is what it was.
func (m *MMU) Holds(p *Mapping) bool {
	pte, ok := m.readPTE(p.leaf.at)
	return ok && pte|pteD == p.leaf.pte|pteD && pte&p.leaf.pte == p.leaf.pte
}

// Enter enters a mapping, which holds, into the TLB: the page is at p now, which the
// machine owns if the access is a store. Of a mapping for fetches it only takes note;
// the entry is the caller's. What is in the TLB already stays.
func (m *MMU) Enter(mapping *Mapping, p *page.Page) {
	if mapping.level > 0 {
		m.large.add(mapping.Tag, mapping.level)
	}
	local := !mapping.global && mapping.class != classUser
	if mapping.Access == Fetch {
		m.localFetch = m.localFetch || local
		return
	}
	bank := &m.loads[mapping.class]
	if mapping.Access == Store {
		bank = &m.stores[mapping.class]
	}
	e := bank.At(mapping.Tag)
	if e.Tag != 0 {
		return
	}
	*e = Entry[Host]{mapping.Tag, HostOf(p, mapping.Tag)}
	m.local[mapping.class] = m.local[mapping.class] || local
	if mapping.Access == Load {
		m.held.add(p, mapping.Tag)
	}
}
