// Package mmu translates guest-virtual addresses (GVA): the Sv39 page-table
// walk, and a software TLB whose entries hold host pointers.
//
// The TLB has a bank per kind of access and class of privilege. An access that
// finds its entry needs no further check, so the run loop of an interpreter can
// do loads and stores without a call. An entry for stores leads only to a page
// that the machine owns already.
//
// Invariants. Entries of the user class carry the ASID and survive a change of
// address space. Entries of the supervisor classes carry none: those from
// global mappings stay when satp changes, and a change drops the rest. Large
// pages are cached as 4 KiB pieces; the MMU remembers which 2 MiB regions have
// such pieces, so that SFENCE.VMA with any address inside drops all of them.
//
// An MMU is scratch: it belongs to whichever hart runs on it, holds nothing that
// cannot be found again, and starts empty (Attach). It is used from one
// goroutine at a time; there are no locks.
//
// Several harts of a machine translate and access memory in parallel. A page that
// another one may read through its caches is not moved under it: the store, or
// the update of a page-table entry, is Blocked, and has changed nothing. Whoever
// runs the hart then stops the others, calls Unblock, and has the instruction
// start over. What others changed comes to an MMU through its memory.View, in
// Sync. Page-table entries are read and updated atomically.
package mmu

import (
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

const asidBits = hart.ASIDBits

// class is the privilege that decides which pages may be accessed.
type class int

const (
	classUser    class = iota
	classKernel        // supervisor mode
	classKernelU       // supervisor mode with SUM: user pages as well
	numClasses
)

// Access is a kind of access.
type Access uint8

// The kinds of access.
const (
	Fetch Access = iota
	Load
	Store
)

// Fault is why an access has no physical address.
type Fault uint8

// The faults.
const (
	NoFault Fault = iota
	PageFault
	AccessFault
	// Blocked is no fault of the guest, and must not become a trap.
	Blocked
)

// Cause returns the exception that the fault raises for an access.
func (f Fault) Cause(a Access) uint64 {
	if f == PageFault {
		return [...]uint64{hart.FetchPageFault, hart.LoadPageFault, hart.StorePageFault}[a]
	}
	return [...]uint64{hart.FetchAccess, hart.LoadAccess, hart.StoreAccess}[a]
}

// MMU is the translation hardware of one running hart.
type MMU struct {
	// Loads and Stores are the banks of the present class, and Space is what
	// tags entries in the present address space.
	Loads, Stores *Bank[Host]
	Space         uint64

	// Moved counts the pages that were found to be elsewhere than they were.
	Moved uint64

	// Err is set when the host has no memory for a page of the guest. The
	// access that met it reports AccessFault, and must not become a trap.
	Err error

	// IsBlocked tells that an access was Blocked, until Unblock.
	IsBlocked bool

	view *memory.View

	satp  uint64
	mode  hart.Mode
	class class
	mxr   bool

	loads, stores [numClasses]Bank[Host]
	local         [numClasses]bool // a bank of the supervisor class has entries that are not global
	localFetch    bool             // the caller's fetch bank of supervisor mode has
	large         largePages
	phys          [physSize]physEntry
	held          holds

	touches     *[]Touch      // where misses are recorded; may be nil
	speculative bool          // a walk changes nothing, and faults if it would have to
	path        *[]tableEntry // where what a walk reads is noted; may be nil
}

// Attach makes m serve a hart, with empty caches.
func (m *MMU) Attach(mem *memory.Space, h *hart.Hart) {
	m.view, m.Err, m.IsBlocked, m.touches = mem.View(h.ID), nil, false, nil
	m.satp = h.SATP()
	m.mxr = h.Status&hart.StatusMXR != 0
	m.Flush()
	m.Switch(h)
}

// Flush empties all caches.
func (m *MMU) Flush() {
	for i := range m.loads {
		m.loads[i].Clear()
		m.stores[i].Clear()
	}
	m.local, m.localFetch = [numClasses]bool{}, false
	m.large = largePages{}
	m.forgetPages()
}

// Sync forgets what became stale behind the MMU's back, and reports whether that
// was everything.
func (m *MMU) Sync() bool {
	stale, ok := m.view.Stale()
	switch {
	case !ok:
		return false
	case stale.All:
		m.Flush()
		return true
	}
	for _, from := range stale.Moved {
		m.forget(from.GPA, from.Page)
	}
	for _, at := range stale.Guarded {
		m.DropStores(at.Page)
	}
	return false
}

// View returns the hart's view of memory.
func (m *MMU) View() *memory.View { return m.view }

// Unblock makes room for the access that was Blocked. The error means that the
// host has no memory for it.
//
// Preconditions: no hart of the machine executes.
func (m *MMU) Unblock() error {
	m.IsBlocked = false
	return m.view.Move()
}

// Switch follows a change of the hart's mode, SUM or MXR.
func (m *MMU) Switch(h *hart.Hart) {
	m.mode = h.Mode
	m.class = classUser
	m.Space = valid
	switch {
	case h.Mode == hart.User:
		m.Space |= hart.ASID(m.satp)
	case h.Status&hart.StatusSUM != 0:
		m.class = classKernelU
	default:
		m.class = classKernel
	}
	m.Loads, m.Stores = &m.loads[m.class], &m.stores[m.class]
	if mxr := h.Status&hart.StatusMXR != 0; mxr != m.mxr {
		m.mxr = mxr
		for i := range m.loads {
			m.loads[i].Clear()
		}
	}
}

// SetSATP follows a write of satp. It reports which fetch banks, which the
// caller keeps, must be emptied: all of them, or those of supervisor mode.
func (m *MMU) SetSATP(h *hart.Hart) (all, kernel bool) {
	old := m.satp
	m.satp = h.SATP()
	all = hart.Sv39(old) != hart.Sv39(m.satp)
	if all {
		m.Flush()
	} else {
		kernel = m.dropLocal()
	}
	m.Switch(h)
	return all, kernel
}

// dropLocal empties the supervisor banks that have entries which are not global,
// and reports whether the caller has to do so with the fetch bank. It is mostly
// the kernel's way to user memory (SUM) that has some.
func (m *MMU) dropLocal() (fetch bool) {
	for c, local := range m.local {
		if local {
			m.loads[c].Clear()
			m.stores[c].Clear()
			m.local[c] = false
		}
	}
	fetch = m.localFetch
	m.localFetch = false
	return fetch
}

// FlushPage is SFENCE.VMA with an address: it forgets the translation of va in
// all address spaces. It returns the binary logarithm of the size of the region
// around va that the caller must drop from its fetch banks, 12 for one page.
func (m *MMU) FlushPage(va uint64) (shift uint) {
	shift = m.large.shift(va)
	for i := range m.loads {
		if shift == 12 {
			m.loads[i].DropPage(va)
			m.stores[i].DropPage(va)
		} else {
			m.loads[i].DropRegion(va, shift)
			m.stores[i].DropRegion(va, shift)
		}
	}
	return shift
}

// FlushSpace is SFENCE.VMA with an ASID and no address: it forgets what is not
// global in that address space. The caller drops the same from its fetch banks:
// user entries tagged with space and, if kernel says so, all supervisor ones.
func (m *MMU) FlushSpace(asid uint64) (space uint64, kernel bool) {
	space = asid&(1<<asidBits-1) | valid
	m.loads[classUser].DropSpace(space)
	m.stores[classUser].DropSpace(space)
	return space, m.dropLocal()
}

// FillLoad translates va for a load and enters the page into the TLB. A nil
// page without a fault means that gpa is not RAM.
func (m *MMU) FillLoad(va uint64) (p *page.Page, gpa uint64, f Fault) {
	m.Note(va, Load)
	gpa, f = m.Translate(va, Load)
	if f != NoFault {
		return nil, 0, f
	}
	if p = m.Page(gpa); p != nil {
		*m.Loads.At(va) = Entry[Host]{va&pageMask | m.Space, HostOf(p, va)}
		m.held.add(p, va)
	}
	return p, gpa, NoFault
}

// FillStore is FillLoad for a store.
func (m *MMU) FillStore(va uint64) (p *page.Page, gpa uint64, f Fault) {
	m.Note(va, Store)
	gpa, f = m.Translate(va, Store)
	if f != NoFault {
		return nil, 0, f
	}
	if p, f = m.WritePage(gpa); f != NoFault {
		return nil, 0, f
	}
	if p != nil {
		*m.Stores.At(va) = Entry[Host]{va&pageMask | m.Space, HostOf(p, va)}
	}
	return p, gpa, NoFault
}

// FillStoreEarly is FillStore for a store that may yet turn out not to happen: it
// faults if the store would show in the page table.
func (m *MMU) FillStoreEarly(va uint64) (p *page.Page, f Fault) {
	m.speculative = true
	_, f = m.Translate(va, Store)
	m.speculative = false
	if f == NoFault {
		p, _, f = m.FillStore(va)
	}
	return p, f
}

// DropStores forgets every store entry that leads to p, so that the next store
// to the page is noticed.
func (m *MMU) DropStores(p *page.Page) {
	for i := range m.stores {
		m.stores[i].dropIf(func(e *Entry[Host]) bool { return leads(e, p) })
	}
}
