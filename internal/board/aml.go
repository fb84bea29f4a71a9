package board

import (
	"encoding/binary"
	"fmt"
)

// aml writes ACPI machine language (ACPI 6.5 chapter 20): only what a list of
// devices needs. Blocks carry their length in front, so each is written apart.
type aml struct{ b []byte }

// Opcodes (ACPI 6.5, 20.3).
const (
	amlZero    = 0x00
	amlName    = 0x08
	amlByte    = 0x0a
	amlDWord   = 0x0c
	amlString  = 0x0d
	amlScope   = 0x10
	amlBuffer  = 0x11
	amlPackage = 0x12
	amlMethod  = 0x14
	amlExt     = 0x5b
	amlDevice  = 0x82 // behind amlExt
	amlNotify  = 0x86
	amlRoot    = '\\'
	amlParent  = 0x2e // of a name of two segments
)

func (a *aml) bytes(b ...byte) { a.b = append(a.b, b...) }

// block writes an opcode, the length of what follows, and that.
func (a *aml) block(op []byte, body func(*aml)) {
	var inner aml
	body(&inner)
	a.bytes(op...)
	a.length(len(inner.b))
	a.bytes(inner.b...)
}

// length writes a PkgLength (20.2.4), which counts itself.
func (a *aml) length(n int) {
	if n+1 < 1<<6 {
		a.bytes(byte(n + 1))
		return
	}
	if n += 2; n >= 1<<12 {
		panic(fmt.Sprintf("BUG: a block of %d bytes", n))
	}
	a.bytes(1<<6|byte(n&0xf), byte(n>>4))
}

func (a *aml) name(seg string) { a.bytes(amlName); a.segment(seg) }

// segment writes a name of four characters.
func (a *aml) segment(seg string) {
	if len(seg) != 4 {
		panic("BUG: a name of ACPI has four characters, not " + seg)
	}
	a.bytes([]byte(seg)...)
}

func (a *aml) str(s string)   { a.bytes(amlString); a.bytes([]byte(s)...); a.bytes(0) }
func (a *aml) small(v byte)   { a.bytes(amlByte, v) }
func (a *aml) dword(v uint32) { a.bytes(amlDWord); a.b = binary.LittleEndian.AppendUint32(a.b, v) }

func (a *aml) device(seg string, body func(*aml)) {
	a.block([]byte{amlExt, amlDevice}, func(d *aml) {
		d.segment(seg)
		body(d)
	})
}

func (a *aml) method(seg string, arguments byte, body func(*aml)) {
	a.block([]byte{amlMethod}, func(m *aml) {
		m.segment(seg)
		m.bytes(arguments)
		body(m)
	})
}

// list writes a package of that many elements.
func (a *aml) list(n byte, body func(*aml)) {
	a.block([]byte{amlPackage}, func(p *aml) {
		p.bytes(n)
		body(p)
	})
}

// How a device interrupts (6.4.3.6): the flags of a consumer, active high.
const (
	byLevel = 1
	byEdge  = 1 | 1<<1
)

// resources writes a device's _CRS: a window of memory, if its size is not zero, and
// an interrupt (6.4.3).
func (a *aml) resources(base, size, irq uint32, how byte) {
	var r []byte
	if size > 0 {
		r = append(r, 0x86, 9, 0, 1) // 32-bit fixed memory range, writable
		r = binary.LittleEndian.AppendUint32(r, base)
		r = binary.LittleEndian.AppendUint32(r, size)
	}
	r = append(r, 0x89, 6, 0, how, 1) // extended interrupt
	r = binary.LittleEndian.AppendUint32(r, irq)
	r = append(r, 0x79, 0) // end, without a checksum
	a.name("_CRS")
	a.block([]byte{amlBuffer}, func(b *aml) {
		b.small(byte(len(r)))
		b.bytes(r...)
	})
}
