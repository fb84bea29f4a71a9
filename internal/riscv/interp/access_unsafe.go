package interp

import (
	"unsafe"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
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

// at returns the address of a byte of guest memory, given its GVA.
func at(h mmu.Host, a uint64) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(nil), uintptr(h)+uintptr(a))
}

// The accessors below need an access that does not cross the page's end.

func load8(h mmu.Host, a uint64) uint8   { return *(*uint8)(at(h, a)) }
func load16(h mmu.Host, a uint64) uint16 { return *(*uint16)(at(h, a)) }
func load32(h mmu.Host, a uint64) uint32 { return *(*uint32)(at(h, a)) }
func load64(h mmu.Host, a uint64) uint64 { return *(*uint64)(at(h, a)) }

func store8(h mmu.Host, a uint64, v uint8)   { *(*uint8)(at(h, a)) = v }
func store16(h mmu.Host, a uint64, v uint16) { *(*uint16)(at(h, a)) = v }
func store32(h mmu.Host, a uint64, v uint32) { *(*uint32)(at(h, a)) = v }
func store64(h mmu.Host, a uint64, v uint64) { *(*uint64)(at(h, a)) = v }
