package mmu

import (
	"sync/atomic"
	"unsafe"

	"github.com/forkd-dev/forkd/internal/page"
)

// word returns the aligned 64-bit word of p at the offset of gpa. Guests are
// little-endian, and so are the hosts that this code is built for.
func word(p *page.Page, gpa uint64) *uint64 {
	return (*uint64)(unsafe.Add(unsafe.Pointer(p), gpa&(pageSize-8)))
}

// updatePTE sets bits of a page-table entry unless it has changed since it was
// read; the guest's instruction then starts over with the new one
// (priv 12.3.2 step 9).
func (m *MMU) updatePTE(at, old, pte uint64) Fault {
	p := m.WritePage(at)
	if p == nil {
		return AccessFault
	}
	if !atomic.CompareAndSwapUint64(word(p, at), old, pte) {
		return PageFault
	}
	return NoFault
}
