package mmu

import (
	"github.com/forkd-dev/forkd/internal/page"
)

const physSize = 256

// physEntry caches where a page of RAM lies in host memory. The page is there
// for reading.
type physEntry struct {
	tag  uint64 // GPA of the page, plus 1 so that zero is no entry
	page *page.Page
}

func (m *MMU) physAt(gpa uint64) *physEntry { return &m.phys[gpa>>12&(physSize-1)] }

// Page returns the page that holds gpa for reading, nil if it is not RAM.
func (m *MMU) Page(gpa uint64) *page.Page {
	e := m.physAt(gpa)
	if tag := gpa&pageMask | 1; e.tag != tag {
		p := m.mem.ReadPage(gpa)
		if p == nil {
			return nil
		}
		*e = physEntry{tag, p}
	}
	return e.page
}

// WritePage returns the page that holds gpa for writing, nil if it is not RAM
// or the host has no memory for it (Err). If the page moves, whatever the
// caches know of its old place is dropped.
func (m *MMU) WritePage(gpa uint64) *page.Page {
	old := m.Page(gpa)
	if old == nil {
		return nil
	}
	p, err := m.mem.WritePage(gpa)
	if err != nil {
		m.Err = err
		return nil
	}
	if p != old {
		*m.physAt(gpa) = physEntry{gpa&pageMask | 1, p}
		for i := range m.loads {
			m.loads[i].DropTarget(old)
		}
		m.moves++ // the one move that this MMU knows of
	}
	return p
}

func (m *MMU) forgetPages() {
	clear(m.phys[:])
	m.moves = m.mem.Moves()
}

func (m *MMU) readPTE(at uint64) (uint64, bool) {
	p := m.Page(at)
	if p == nil {
		return 0, false
	}
	return *word(p, at), true
}
