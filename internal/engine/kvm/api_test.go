//go:build linux && amd64

package kvm

import (
	_ "embed"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

// source is here as the tests may run where there is no source.
//
//go:embed api_linux_amd64_unsafe.go
var source string

// TestRequests: all requests that the source names are in the list of those made.
func TestRequests(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "api_linux_amd64_unsafe.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var named []uint32
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := v.Type.(*ast.Ident); ok && kind.Name == "request" {
			number, err := strconv.ParseUint(v.Values[0].(*ast.BasicLit).Value, 0, 32)
			if err != nil {
				t.Fatal(err)
			}
			named = append(named, uint32(number))
		}
		return true
	})
	listed := Requests()
	slices.Sort(named)
	slices.Sort(listed)
	if len(named) < 20 || !slices.Equal(named, listed) {
		t.Errorf("the source names %#x, the list has %#x", named, listed)
	}
}

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
