// Package memory is a machine's guest-physical address space. It is the only
// place where a guest address becomes host bytes.
//
// RAM is a set of slots, each a contiguous range of guest-physical addresses
// (GPA) whose pages live in a page.Overlay. Every access is bounds-checked
// here; a range that is not wholly RAM is an error and changes nothing.
//
// A page moves when it is written for the first time after a fork or a seal:
// the copy lies elsewhere in host memory. Whoever caches host pointers (a vCPU's
// TLB) does so through a View, which tells it what to forget. While several vCPUs
// run in parallel, a page that another one may hold is moved only while that one
// stands still; a page that none holds moves without any ado.
//
// Devices touch guest memory only from bus accesses and posted work (see package
// engine), one at a time. They keep no pointers in between, so that they need no
// View: what they read is what was there when they looked it up, and a page that
// they write is the machine's own and stays where it is.
//
// Lock order: what Share was given, then Space.mu, then the overlays' locks. Watch
// functions are called with none of them held.
package memory

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/page"
)

// ErrRange reports an access outside of RAM.
var ErrRange = errors.New("address is not RAM")

// Slot is a contiguous range of guest-physical addresses backed by RAM.
type Slot struct {
	Base  uint64 // GPA, a multiple of the page size
	Pages page.Top
	// First and Count are the part of Pages that lies there; a Count of zero means
	// all from First on.
	First, Count page.Number
}

// Size returns the slot's size in bytes.
func (s Slot) Size() uint64 {
	if s.Count != 0 {
		return uint64(s.Count) << page.Shift
	}
	return uint64(s.Pages.Limit()-s.First) << page.Shift
}

// check reports a part that the pages do not have, or that another slot has too.
func (s Slot) check(others []region) error {
	if limit := s.Pages.Limit(); s.First > limit || s.Count > limit-s.First {
		return fmt.Errorf("memory slot at %#x has pages %d to %d of %d", s.Base, s.First, uint64(s.First)+uint64(s.Count), limit)
	}
	end := s.First + page.Number(s.Size()>>page.Shift)
	for _, o := range others {
		if o.Pages == s.Pages && s.First < o.First+page.Number(o.Size()>>page.Shift) && o.First < end {
			return fmt.Errorf("memory slots at %#x and %#x have pages in common", o.Base, s.Base)
		}
	}
	return nil
}

// Space is the guest-physical address space. Its slots are fixed when it is
// made; it is safe for concurrent use as far as page look-ups go.
type Space struct {
	slots       []region         // immutable, ascending
	watch       func(gpa uint64) // immutable once vCPUs run
	views       []*View          // immutable once vCPUs run
	exclusively func(func())     // immutable once vCPUs run; may be nil
	generation  atomic.Uint64

	mu   sync.Mutex // guards the contents of views and, while there are several, moves
	lent []int      // indexes of pages that a device at work may write to; guarded by mu
}

// region is a slot and the index of its first page among all pages.
type region struct {
	Slot
	first int
}

// NewSpace returns a space with the given slots. Slots must be page-aligned,
// not wrap, and not overlap.
func NewSpace(slots ...Slot) (*Space, error) {
	slots = slices.Clone(slots)
	slices.SortFunc(slots, func(a, b Slot) int { return cmp.Compare(a.Base, b.Base) })
	sp, end, pages := new(Space), uint64(0), 0
	for _, s := range slots {
		if err := s.check(sp.slots); err != nil {
			return nil, err
		}
		if s.Base%page.Size != 0 || s.Base < end || s.Base+s.Size() < s.Base {
			return nil, fmt.Errorf("memory slot at %#x of %d bytes overlaps another or is misaligned", s.Base, s.Size())
		}
		end = s.Base + s.Size()
		sp.slots = append(sp.slots, region{s, pages})
		pages += int(s.Size() >> page.Shift)
	}
	sp.Share(1, nil)
	return sp, nil
}

// Slots returns the slots in ascending order.
func (s *Space) Slots() []Slot {
	slots := make([]Slot, len(s.slots))
	for i := range s.slots {
		slots[i] = s.slots[i].Slot
	}
	return slots
}

// find returns the region and page number of a GPA.
func (s *Space) find(gpa uint64) (*region, page.Number, bool) {
	for i := range s.slots {
		r := &s.slots[i]
		if off := gpa - r.Base; gpa >= r.Base && off < r.Size() {
			return r, r.First + page.Number(off>>page.Shift), true
		}
	}
	return nil, 0, false
}

// index returns the index of page n of the region among all pages, and gpa where it is.
func (r *region) index(n page.Number) int  { return r.first + int(n-r.First) }
func (r *region) gpa(n page.Number) uint64 { return r.Base + uint64(n-r.First)<<page.Shift }

// ReadPage returns the page that holds gpa, or nil if that is not RAM. The page
// must not be written. The pointer is for use at once: it is stale when the page
// has been written. It panics as page.Overlay.Read does.
func (s *Space) ReadPage(gpa uint64) *page.Page {
	r, n, ok := s.find(gpa)
	if !ok {
		return nil
	}
	return r.Pages.Read(n)
}

// WritePage returns the page that holds gpa for writing, copying it into the
// machine's overlay if needed. It returns nil and no error if gpa is not RAM.
// An error means that the host has no page to give. The pointer is valid until
// the next Invalidate.
//
// Preconditions: the caller is a device (see package engine) and does not hold
// vCPUs up, or none runs.
func (s *Space) WritePage(gpa uint64) (*page.Page, error) {
	r, n, ok := s.find(gpa)
	if !ok {
		return nil, nil
	}
	p, refused, err := s.write(nil, r, n)
	if refused {
		p, err = s.moveExclusively(r, n)
	}
	s.announce(gpa)
	return p, err
}

func (s *Space) moveExclusively(r *region, n page.Number) (p *page.Page, err error) {
	s.exclusively(func() { p, err = s.move(r, n) })
	return p, err
}

// write returns page n for writing, on behalf of a vCPU or, if v is nil, of a
// device. It refuses to move a page that a running vCPU may hold.
func (s *Space) write(v *View, r *region, n page.Number) (p *page.Page, refused bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v == nil && s.exclusively != nil {
		s.lent = append(s.lent, r.index(n)) // also if it has to be moved exclusively first
	}
	if s.exclusively != nil && !r.Pages.Owns(n) && s.reads(v, r.index(n)) {
		return nil, true, nil
	}
	if v == nil {
		p, err = s.moveLocked(r, n)
		return p, false, err
	}
	v.written.set(r.index(n))
	p, _, err = r.Pages.Write(n)
	return p, false, err
}

// move makes page n the machine's own and has everybody forget where it was.
// Nobody who may hold the page executes.
func (s *Space) move(r *region, n page.Number) (*page.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moveLocked(r, n)
}

// moveLocked is move for who holds s.mu.
func (s *Space) moveLocked(r *region, n page.Number) (*page.Page, error) {
	if r.Pages.Owns(n) {
		p, _, err := r.Pages.Write(n)
		return p, err
	}
	old := r.Pages.Read(n)
	p, moved, err := r.Pages.Write(n)
	if moved {
		for _, v := range s.views {
			v.forget(r.index(n), Place{r.gpa(n), old})
		}
	}
	return p, err
}

func (s *Space) announce(gpa uint64) {
	if s.watch != nil {
		s.watch(gpa)
	}
}

// Watch has fn called with an address in every page that WritePage hands out,
// before it is written, be it for a vCPU or a device. An engine that caches what
// it derived from page contents learns in this way what to look at again; see
// also View.Guard.
//
// Preconditions: no vCPU runs yet.
func (s *Space) Watch(fn func(gpa uint64)) { s.watch = fn }

// Return says that no device is at work any more that might write to pages which
// WritePage gave it.
func (s *Space) Return() {
	if s.exclusively == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent = s.lent[:0]
}

// Private reports whether the page that holds gpa is RAM that is this machine's
// alone; see page.Overlay.Private.
func (s *Space) Private(gpa uint64) bool {
	r, n, ok := s.find(gpa)
	return ok && r.Pages.Private(n)
}

// Owner returns the layer that holds the page at gpa, which is not private; nil if
// the page is one that no layer stores. See page.Stack.Owner.
func (s *Space) Owner(gpa uint64) *page.Layer {
	r, n, ok := s.find(gpa)
	if !ok {
		return nil
	}
	return r.Pages.Owner(n)
}

// Left returns how many pages more the machine may have before it comes to the limit of its
// memory; a great many if it has none, or one that the host keeps.
func (s *Space) Left() int {
	left := math.MaxInt
	for i := range s.slots {
		if q, ok := s.slots[i].Pages.(interface{ Left() int }); ok {
			left = min(left, q.Left())
		}
	}
	return left
}

// Invalidate makes every holder of host pointers drop all of them; for use after
// the slots' overlays were sealed or packed, while no vCPU runs.
func (s *Space) Invalidate() {
	s.generation.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.views {
		v.forgetAll()
	}
}

// Generation counts the calls of Invalidate.
func (s *Space) Generation() uint64 { return s.generation.Load() }

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
			return writeError(gpa, err)
		}
		n := copy(p[gpa%page.Size:], b)
		b, gpa = b[n:], gpa+uint64(n)
	}
	return nil
}

func writeError(gpa uint64, err error) error {
	return fmt.Errorf("writing guest memory at %#x: %w", gpa, err)
}

// The fixed-width accessors read and write little-endian values, as the guest
// sees them. They need not be aligned. An aligned one is a single access, so that
// a vCPU which accesses the same value meanwhile sees all of it or nothing; and
// accesses through a Space happen in program order, since each look-up of a page
// is a barrier.

// Uint16 reads a 16-bit value.
func (s *Space) Uint16(gpa uint64) (uint16, error) {
	if p := s.aligned(gpa, 2); p != nil {
		return *word[uint16](p, gpa), nil
	}
	var b [2]byte
	err := s.Read(gpa, b[:])
	return binary.LittleEndian.Uint16(b[:]), err
}

// Uint32 reads a 32-bit value.
func (s *Space) Uint32(gpa uint64) (uint32, error) {
	if p := s.aligned(gpa, 4); p != nil {
		return *word[uint32](p, gpa), nil
	}
	var b [4]byte
	err := s.Read(gpa, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// Uint64 reads a 64-bit value.
func (s *Space) Uint64(gpa uint64) (uint64, error) {
	if p := s.aligned(gpa, 8); p != nil {
		return *word[uint64](p, gpa), nil
	}
	var b [8]byte
	err := s.Read(gpa, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// aligned returns the page of an aligned value, or nil.
func (s *Space) aligned(gpa, size uint64) *page.Page {
	if gpa%size != 0 {
		return nil
	}
	return s.ReadPage(gpa)
}

// PutUint16 writes a 16-bit value.
func (s *Space) PutUint16(gpa uint64, v uint16) error {
	p, err := s.alignedWrite(gpa, 2)
	switch {
	case err != nil:
		return err
	case p != nil:
		*word[uint16](p, gpa) = v
		return nil
	}
	var b [2]byte
	binary.LittleEndian.PutUint16(b[:], v)
	return s.Write(gpa, b[:])
}

// PutUint32 writes a 32-bit value.
func (s *Space) PutUint32(gpa uint64, v uint32) error {
	p, err := s.alignedWrite(gpa, 4)
	switch {
	case err != nil:
		return err
	case p != nil:
		*word[uint32](p, gpa) = v
		return nil
	}
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	return s.Write(gpa, b[:])
}

// PutUint64 writes a 64-bit value.
func (s *Space) PutUint64(gpa uint64, v uint64) error {
	p, err := s.alignedWrite(gpa, 8)
	switch {
	case err != nil:
		return err
	case p != nil:
		*word[uint64](p, gpa) = v
		return nil
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return s.Write(gpa, b[:])
}

// alignedWrite returns the page of an aligned value for writing, or nil.
func (s *Space) alignedWrite(gpa, size uint64) (*page.Page, error) {
	if gpa%size != 0 {
		return nil, nil
	}
	p, err := s.WritePage(gpa)
	if err != nil {
		return nil, writeError(gpa, err)
	}
	return p, nil
}
