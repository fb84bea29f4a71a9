package mmu

import (
	"slices"

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
		p := m.view.ReadPage(gpa)
		if p == nil {
			return nil
		}
		*e = physEntry{tag, p}
	}
	return e.page
}

// WritePage returns the page that holds gpa for writing, nil if it is not RAM. If
// the page moves, whatever the caches know of its old place is dropped. The fault
// is Blocked, or AccessFault if the host has no memory for it (Err).
func (m *MMU) WritePage(gpa uint64) (*page.Page, Fault) {
	old := m.Page(gpa)
	if old == nil {
		return nil, NoFault
	}
	p, refused, err := m.view.WritePage(gpa)
	switch {
	case refused:
		m.IsBlocked = true
		return nil, Blocked
	case err != nil:
		m.Err = err
		return nil, AccessFault
	}
	if p != old {
		m.forget(gpa, old)
		*m.physAt(gpa) = physEntry{gpa&pageMask | 1, p}
	}
	return p, NoFault
}

// forget drops what the caches know of the page of gpa when it was at old.
func (m *MMU) forget(gpa uint64, old *page.Page) {
	m.Moved++
	if e := m.physAt(gpa); e.tag == gpa&pageMask|1 {
		*e = physEntry{}
	}
	held := m.held.of(old)
	for i := range m.loads {
		bank := &m.loads[i]
		if int(held.n) > len(held.at) {
			bank.dropIf(func(e *Entry[Host]) bool { return leads(e, old) })
			continue
		}
		for _, at := range held.at[:held.n] {
			if e := &bank[at]; leads(e, old) {
				*e = Entry[Host]{}
			}
		}
	}
}

// leads reports whether an entry of a data bank leads to p.
func leads(e *Entry[Host], p *page.Page) bool { return e.Tag != 0 && e.To == HostOf(p, e.Tag) }

// holds knows, by places in host memory, where a page was entered into the banks for
// loads since all were empty, if that is not many places: looking through the banks for a page
// that moves costs more than copying it. Pages share it, and entries that others have
// displaced still count, so that there are never too few.
type holds [4096]held

type held struct {
	n  uint8     // how many there are, or one more than at has
	at [2]uint16 // indices in banks, of the first ones
}

// add notes that the page of va is entered, which is at p.
func (h *holds) add(p *page.Page, va uint64) {
	held, at := h.of(p), uint16(index(va))
	switch {
	case int(held.n) > len(held.at) || slices.Contains(held.at[:held.n], at):
		return
	case int(held.n) < len(held.at):
		held.at[held.n] = at
	}
	held.n++
}

func (m *MMU) forgetPages() {
	clear(m.phys[:])
	clear(m.held[:])
	m.view.Reset()
}
