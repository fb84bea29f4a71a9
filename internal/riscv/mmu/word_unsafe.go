package mmu

import (
	"sync/atomic"
	"unsafe"

	"github.com/forkd-dev/forkd/internal/page"
)

// Host says where in host memory a page lies that is mapped at a GVA: it is the
// address of any byte of the page, less the byte's GVA. Page memory is not of the
// Go heap, so that the garbage collector need not know.
type Host uintptr

// HostOf returns the Host of the page p at the page of va.
func HostOf(p *page.Page, va uint64) Host {
	return Host(uintptr(unsafe.Pointer(p)) - uintptr(va&pageMask))
}

// Page returns the page that is mapped at the page of va.
func (h Host) Page(va uint64) *page.Page {
	return (*page.Page)(unsafe.Add(unsafe.Pointer(nil), uintptr(h)+uintptr(va&pageMask)))
}

// of returns what is known of a page.
func (h *holds) of(p *page.Page) *held {
	return &h[uintptr(unsafe.Pointer(p))/pageSize%uintptr(len(h))]
}

// word returns the aligned 64-bit word of p at the offset of gpa. Guests are
// little-endian, and so are the hosts that this code is built for.
func word(p *page.Page, gpa uint64) *uint64 {
	return (*uint64)(unsafe.Add(unsafe.Pointer(p), gpa&(pageSize-8)))
}

// readPTE reads a page-table entry; ok is false if there is no RAM.
func (m *MMU) readPTE(at uint64) (pte uint64, ok bool) {
	p := m.Page(at)
	if p == nil {
		return 0, false
	}
	return atomic.LoadUint64(word(p, at)), true
}

// updatePTE sets bits of a page-table entry; changed tells that it is not any
// more what was read, which has the walk start over (priv 12.3.2 step 9).
func (m *MMU) updatePTE(at, old, pte uint64) (changed bool, f Fault) {
	p, f := m.WritePage(at)
	switch {
	case f != NoFault:
		return false, f
	case p == nil:
		return false, AccessFault
	}
	return !atomic.CompareAndSwapUint64(word(p, at), old, pte), NoFault
}
