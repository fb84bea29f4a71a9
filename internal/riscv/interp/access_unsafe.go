package interp

import (
	"unsafe"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

// The accessors below are what the run loop is made of. They leave out bounds
// checks that hold by construction: register numbers in an op are at most
// hart.Discard, an index into a Code is below slots+2, and a page offset is
// masked. Guests are little-endian, and so are the hosts this is built for.

func get(x *hart.Regs, r uint8) uint64 {
	return *(*uint64)(unsafe.Add(unsafe.Pointer(x), uintptr(r)*8))
}

func set(x *hart.Regs, r uint8, v uint64) {
	*(*uint64)(unsafe.Add(unsafe.Pointer(x), uintptr(r)*8)) = v
}

// find returns the op of the instruction at a byte offset in the page.
func (c *Code) find(offset uint64) *op {
	return (*op)(unsafe.Add(unsafe.Pointer(c), uintptr(offset)*(opSize/2)))
}

// offset is the inverse of find.
func (c *Code) offset(o *op) uint64 {
	return uint64(uintptr(unsafe.Pointer(o))-uintptr(unsafe.Pointer(c))) / (opSize / 2)
}

// skip returns the op at a distance in bytes of memory, not of guest code.
func (o *op) skip(bytes int) *op {
	return (*op)(unsafe.Add(unsafe.Pointer(o), bytes))
}

const offsetMask = page.Size - 1

func load8(p *page.Page, a uint64) uint8 {
	return *(*uint8)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask)))
}

// The wider accessors need an access that does not cross the page's end.

func load16(p *page.Page, a uint64) uint16 {
	return *(*uint16)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask)))
}

func load32(p *page.Page, a uint64) uint32 {
	return *(*uint32)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask)))
}

func load64(p *page.Page, a uint64) uint64 {
	return *(*uint64)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask)))
}

func store8(p *page.Page, a uint64, v uint8) {
	*(*uint8)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask))) = v
}

func store16(p *page.Page, a uint64, v uint16) {
	*(*uint16)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask))) = v
}

func store32(p *page.Page, a uint64, v uint32) {
	*(*uint32)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask))) = v
}

func store64(p *page.Page, a uint64, v uint64) {
	*(*uint64)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask))) = v
}
