//go:build linux && amd64

package kvm

import "testing"

// TestSizes: a request has the size of its structure in bits 16 to 29 (the kernel's
// include/uapi/asm-generic/ioctl.h), so a structure that is laid out wrong shows.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		what    string
		request request
		size    int
	}{
		{"regs", getRegs, len(bytesOf(new(regs)))},
		{"regs", setRegs, len(bytesOf(new(regs)))},
		{"sregs", getSRegs, len(bytesOf(new(sregs)))},
		{"sregs", setSRegs, len(bytesOf(new(sregs)))},
		{"memory region", setMemoryRegion, len(bytesOf(new(memoryRegion)))},
		{"clock", getClock, len(bytesOf(new(clockData)))},
		{"clock", setClock, len(bytesOf(new(clockData)))},
		{"interrupt level", irqLine, len(bytesOf(new(irqLevel)))},
		{"interrupt chip", getIRQChip, len(bytesOf(new(irqChip)))},
		{"interrupt chip", setIRQChip, len(bytesOf(new(irqChip)))},
		{"XSAVE", getXSave, len(registers{}.xsave)},
		{"XCRs", getXCRs, len(registers{}.xcrs)},
		{"debug registers", getDebugRegs, len(registers{}.debug)},
		{"local APIC", getLAPIC, len(registers{}.lapic)},
		{"events", getVCPUEvents, len(registers{}.events)},
	} {
		if size := int(c.request) >> 16 & 0x3fff; size != c.size {
			t.Errorf("%s: request %#x wants %d bytes, the structure has %d", c.what, uintptr(c.request), size, c.size)
		}
	}
}
