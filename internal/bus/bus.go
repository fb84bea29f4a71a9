// Package bus maps guest-physical address ranges to devices.
//
// The bus is built once, before the first vCPU runs, and is immutable after
// that, so look-ups take no lock. Both engines reach every device through
// Read and Write, on the goroutine of the vCPU that made the access; devices
// that are shared between vCPUs guard their own state.
package bus

import (
	"fmt"
	"slices"
)

// Device is a set of memory-mapped registers. Offsets are relative to where
// the device was mapped and lie within its size; width is 1, 2, 4 or 8 bytes,
// and offset+width does not exceed the size. Values are zero-extended. A
// register that does not exist reads as zero and ignores writes.
type Device interface {
	Read(offset uint64, width int) uint64
	Write(offset uint64, width int, value uint64)
}

type mapping struct {
	base, size uint64
	device     Device
}

// usual is about how many devices a board has.
const usual = 10

// Bus finds the device behind an address. The zero value has no devices.
type Bus struct {
	mappings []mapping // ascending
}

// Map places a device at [base, base+size). It refuses empty, wrapping and
// overlapping ranges.
//
// Preconditions: no vCPU runs yet.
func (b *Bus) Map(base, size uint64, d Device) error {
	if size == 0 || base+size < base {
		return fmt.Errorf("mapping a device at %#x: bad size %#x", base, size)
	}
	i, _ := slices.BinarySearchFunc(b.mappings, base, func(m mapping, base uint64) int {
		if m.base < base {
			return -1
		}
		return 1
	})
	if i > 0 && b.mappings[i-1].base+b.mappings[i-1].size > base ||
		i < len(b.mappings) && base+size > b.mappings[i].base {
		return fmt.Errorf("mapping a device at %#x: overlaps another device", base)
	}
	if b.mappings == nil {
		b.mappings = make([]mapping, 0, usual)
	}
	b.mappings = slices.Insert(b.mappings, i, mapping{base, size, d})
	return nil
}

func (b *Bus) find(gpa uint64, width int) (Device, uint64, bool) {
	for i := range b.mappings {
		m := &b.mappings[i]
		if off := gpa - m.base; gpa >= m.base && off < m.size && m.size-off >= uint64(width) {
			return m.device, off, true
		}
	}
	return nil, 0, false
}

// Read reads width bytes at gpa. ok is false when no device is there, which
// the engine reports to the guest as an access fault.
func (b *Bus) Read(gpa uint64, width int) (value uint64, ok bool) {
	d, off, ok := b.find(gpa, width)
	if !ok {
		return 0, false
	}
	return d.Read(off, width), true
}

// Write writes width bytes at gpa; ok as in Read.
func (b *Bus) Write(gpa uint64, width int, value uint64) (ok bool) {
	d, off, ok := b.find(gpa, width)
	if ok {
		d.Write(off, width, value)
	}
	return ok
}
