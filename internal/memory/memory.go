// Package memory is a machine's guest-physical address space. It is the only
// place where a guest address becomes host bytes.
//
// RAM is a set of slots, each a contiguous range of guest-physical addresses
// (GPA) whose pages live in a page.Overlay. Every access is bounds-checked
// here; a range that is not wholly RAM is an error and changes nothing.
//
// A page moves when it is written for the first time after a fork or a seal:
// the copy lies elsewhere in host memory. Whoever caches host pointers (a
// vCPU's TLB) compares Moves with the value it saw when it filled its cache,
// and drops what it cached when they differ. Moves may only happen on a vCPU's
// goroutine at an instruction boundary or while all vCPUs are paused; that is
// why devices touch guest memory only from bus accesses and posted work (see
// package engine).
package memory

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/page"
)

// ErrRange reports an access outside of RAM.
var ErrRange = errors.New("address is not RAM")

// Slot is a contiguous range of guest-physical addresses backed by RAM.
type Slot struct {
	Base  uint64 // GPA, a multiple of the page size
	Pages *page.Overlay
}

// Size returns the slot's size in bytes.
func (s Slot) Size() uint64 { return uint64(s.Pages.Limit()) << page.Shift }

// Space is the guest-physical address space. Its slots are fixed when it is
// made; it is safe for concurrent use as far as page look-ups go.
type Space struct {
	slots []Slot // immutable, ascending
	moves atomic.Uint64
	watch func(gpa uint64) // immutable once vCPUs run
}

// NewSpace returns a space with the given slots. Slots must be page-aligned,
// not wrap, and not overlap.
func NewSpace(slots ...Slot) (*Space, error) {
	slots = slices.Clone(slots)
	slices.SortFunc(slots, func(a, b Slot) int { return cmp.Compare(a.Base, b.Base) })
	end := uint64(0)
	for _, s := range slots {
		if s.Base%page.Size != 0 || s.Base < end || s.Base+s.Size() < s.Base {
			return nil, fmt.Errorf("memory slot at %#x of %d bytes overlaps another or is misaligned", s.Base, s.Size())
		}
		end = s.Base + s.Size()
	}
	return &Space{slots: slots}, nil
}

// Slots returns the slots in ascending order. The slice must not be changed.
func (s *Space) Slots() []Slot { return s.slots }

// find returns the slot and page number of a GPA.
func (s *Space) find(gpa uint64) (*page.Overlay, page.Number, bool) {
	for i := range s.slots {
		slot := &s.slots[i]
		if off := gpa - slot.Base; gpa >= slot.Base && off < slot.Size() {
			return slot.Pages, page.Number(off >> page.Shift), true
		}
	}
	return nil, 0, false
}

// ReadPage returns the page that holds gpa, or nil if that is not RAM. The
// page must not be written, and the pointer is stale once Moves changes.
func (s *Space) ReadPage(gpa uint64) *page.Page {
	o, n, ok := s.find(gpa)
	if !ok {
		return nil
	}
	return o.Read(n)
}

// WritePage returns the page that holds gpa for writing, copying it into the
// machine's overlay if needed. It returns nil and no error if gpa is not RAM.
// An error means that the host has no page to give.
func (s *Space) WritePage(gpa uint64) (*page.Page, error) {
	o, n, ok := s.find(gpa)
	if !ok {
		return nil, nil
	}
	p, moved, err := o.Write(n)
	if s.watch != nil {
		s.watch(gpa)
	}
	if moved {
		s.moves.Add(1)
	}
	return p, err
}

// Watch has fn called with an address in every page that WritePage hands out,
// before it is written, be it for a vCPU or a device. An engine that caches what
// it derived from page contents learns in this way what to look at again.
//
// Preconditions: no vCPU runs yet.
func (s *Space) Watch(fn func(gpa uint64)) { s.watch = fn }

// Private reports whether the page that holds gpa is RAM that this machine has
// written, so that WritePage would not move it.
func (s *Space) Private(gpa uint64) bool {
	o, n, ok := s.find(gpa)
	return ok && o.Private(n)
}

// Moves counts the pages that changed their place in host memory.
func (s *Space) Moves() uint64 { return s.moves.Load() }

// Invalidate makes every holder of host pointers drop them; for use after the
// slots' overlays were sealed.
func (s *Space) Invalidate() { s.moves.Add(1) }

// Check returns an error that wraps ErrRange unless [gpa, gpa+n) lies wholly in
// one slot.
func (s *Space) Check(gpa, n uint64) error {
	if gpa+n < gpa {
		return fmt.Errorf("%w: %d bytes at %#x wrap around", ErrRange, n, gpa)
	}
	for _, slot := range s.slots {
		if gpa >= slot.Base && gpa+n <= slot.Base+slot.Size() {
			return nil
		}
	}
	return fmt.Errorf("%w: %d bytes at %#x", ErrRange, n, gpa)
}

// Read copies guest memory at gpa into b.
func (s *Space) Read(gpa uint64, b []byte) error {
	if err := s.Check(gpa, uint64(len(b))); err != nil {
		return err
	}
	for len(b) > 0 {
		n := copy(b, s.ReadPage(gpa)[gpa%page.Size:])
		b, gpa = b[n:], gpa+uint64(n)
	}
	return nil
}

// Write copies b into guest memory at gpa. When the host runs out of pages, the
// part before the first page that it could not give is written.
func (s *Space) Write(gpa uint64, b []byte) error {
	if err := s.Check(gpa, uint64(len(b))); err != nil {
		return err
	}
	for len(b) > 0 {
		p, err := s.WritePage(gpa)
		if err != nil {
			return fmt.Errorf("writing guest memory at %#x: %w", gpa, err)
		}
		n := copy(p[gpa%page.Size:], b)
		b, gpa = b[n:], gpa+uint64(n)
	}
	return nil
}

// The fixed-width accessors read and write little-endian values, as the guest
// sees them. They need not be aligned.

// Uint16 reads a 16-bit value.
func (s *Space) Uint16(gpa uint64) (uint16, error) {
	var b [2]byte
	err := s.Read(gpa, b[:])
	return binary.LittleEndian.Uint16(b[:]), err
}

// Uint32 reads a 32-bit value.
func (s *Space) Uint32(gpa uint64) (uint32, error) {
	var b [4]byte
	err := s.Read(gpa, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// Uint64 reads a 64-bit value.
func (s *Space) Uint64(gpa uint64) (uint64, error) {
	var b [8]byte
	err := s.Read(gpa, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// PutUint16 writes a 16-bit value.
func (s *Space) PutUint16(gpa uint64, v uint16) error {
	var b [2]byte
	binary.LittleEndian.PutUint16(b[:], v)
	return s.Write(gpa, b[:])
}

// PutUint32 writes a 32-bit value.
func (s *Space) PutUint32(gpa uint64, v uint32) error {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	return s.Write(gpa, b[:])
}

// PutUint64 writes a 64-bit value.
func (s *Space) PutUint64(gpa uint64, v uint64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return s.Write(gpa, b[:])
}
