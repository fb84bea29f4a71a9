package board

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd-dev/forkd/internal/device/power"
)

// The boot environment of the amd64 board, in the first MiB of memory. Below it is
// what an engine needs to enter a kernel.
const (
	paramsBase      = 0x1_0000 // boot parameters, one page
	commandLineBase = 0x2_0000
	acpiBase        = 0xe_0000 // ACPI tables
	highMemory      = 0x10_0000

	lapicBase  = 0xfee0_0000
	ioapicBase = 0xfec0_0000
)

// Part is something to be put into guest memory.
type Part struct {
	GPA  uint64
	Data []byte
}

// Params renders the amd64 board: the boot parameters (the kernel's
// Documentation/arch/x86/zero-page), whose address is returned, the command line,
// and ACPI tables.
//
// Preconditions: Validate finds nothing.
func (b *Board) Params() (params uint64, parts []Part) {
	tables, root := b.acpi()
	p := make([]byte, 4096)
	le := binary.LittleEndian
	le.PutUint64(p[0x70:], root)
	le.PutUint16(p[0x1fe:], 0xaa55)
	copy(p[0x202:], "HdrS")
	le.PutUint16(p[0x206:], 0x20f) // of the boot protocol
	p[0x210] = 0xff                // a loader without a number
	le.PutUint32(p[0x218:], uint32(b.InitrdStart))
	le.PutUint32(p[0x21c:], uint32(b.InitrdSize))
	le.PutUint32(p[0x228:], commandLineBase)
	le.PutUint32(p[0x238:], uint32(len(b.CommandLine)))
	const ram, reserved = 1, 2
	type memory struct {
		base, size uint64
		kind       uint32
	}
	ranges := []memory{{0, 0x9_fc00, ram}, {0x9_fc00, highMemory - 0x9_fc00, reserved}}
	for i, r := range b.Map.RAM(b.RAMBytes) {
		if i == 0 {
			r.GPA, r.Size = highMemory, r.Size-highMemory
		}
		ranges = append(ranges, memory{r.GPA, r.Size, ram})
	}
	p[0x1e8] = byte(len(ranges))
	for i, r := range ranges {
		e := p[0x2d0+20*i:]
		le.PutUint64(e, r.base)
		le.PutUint64(e[8:], r.size)
		le.PutUint32(e[16:], r.kind)
	}
	return paramsBase, []Part{
		{paramsBase, p}, {commandLineBase, append([]byte(b.CommandLine), 0)}, {acpiBase, tables},
	}
}

// table is an ACPI table with room for its header (ACPI 6.5, 5.2.6).
func table(signature string, revision byte, body []byte) []byte {
	t := make([]byte, 36, 36+len(body))
	copy(t, signature)
	t = append(t, body...)
	binary.LittleEndian.PutUint32(t[4:], uint32(len(t)))
	t[8] = revision
	copy(t[10:], "FORKD ")
	copy(t[16:], "FORKD   ")
	binary.LittleEndian.PutUint32(t[24:], 1)
	copy(t[28:], "FORK")
	binary.LittleEndian.PutUint32(t[32:], 1)
	t[9] = -sum(t)
	return t
}

func sum(b []byte) (s byte) {
	for _, x := range b {
		s += x
	}
	return s
}

// acpi returns the tables, which go to acpiBase, and the address of their root.
func (b *Board) acpi() (blob []byte, root uint64) {
	place := func(t []byte) uint64 {
		for len(blob)%16 != 0 {
			blob = append(blob, 0)
		}
		at := acpiBase + uint64(len(blob))
		blob = append(blob, t...)
		return at
	}
	dsdt := place(table("DSDT", 2, b.dsdt()))
	fadt := place(table("FACP", 6, b.fadt(dsdt)))
	madt := place(table("APIC", 5, b.madt()))
	var list []byte
	for _, t := range []uint64{fadt, madt} {
		list = binary.LittleEndian.AppendUint64(list, t)
	}
	xsdt := place(table("XSDT", 1, list))
	r := make([]byte, 36) // ACPI 6.5, 5.2.5.3
	copy(r, "RSD PTR ")
	copy(r[9:], "FORKD ")
	r[15] = 2
	binary.LittleEndian.PutUint32(r[20:], uint32(len(r)))
	binary.LittleEndian.PutUint64(r[24:], xsdt)
	r[8] = -sum(r[:20])
	r[32] = -sum(r)
	return blob, place(r)
}

// fadt describes what there is not: no PC hardware beyond the processor (ACPI 6.5,
// 5.2.9, less the header of 36 bytes).
func (b *Board) fadt(dsdt uint64) []byte {
	f := make([]byte, 276-36)
	at := func(offset int) []byte { return f[offset-36:] }
	const (
		noVGA, noMSI, noCMOS            = 1 << 2, 1 << 3, 1 << 5
		resetSupported, hardwareReduced = 1 << 10, 1 << 20
	)
	binary.LittleEndian.PutUint16(at(109), noVGA|noMSI|noCMOS)
	binary.LittleEndian.PutUint32(at(112), resetSupported|hardwareReduced)
	register := func(offset int, gpa uint64) {
		r := at(offset)
		r[1], r[3] = 8, 1 // of eight bits, in memory, accessed as bytes
		binary.LittleEndian.PutUint64(r[4:], gpa)
	}
	register(116, b.Map.Power+power.ResetControl)
	at(128)[0] = power.ResetValue
	at(131)[0] = 5 // the minor version
	binary.LittleEndian.PutUint64(at(140), dsdt)
	register(244, b.Map.Power+power.SleepControl)
	register(256, b.Map.Power+power.SleepStatus)
	return f
}

// madt lists processors and interrupt controllers (ACPI 6.5, 5.2.12).
func (b *Board) madt() []byte {
	m := binary.LittleEndian.AppendUint32(nil, lapicBase)
	m = binary.LittleEndian.AppendUint32(m, 0)
	for id := range b.VCPUs {
		m = append(m, 0, 8, byte(id), byte(id), 1, 0, 0, 0) // enabled
	}
	m = append(m, 1, 12, 0, 0)
	m = binary.LittleEndian.AppendUint32(m, ioapicBase)
	return binary.LittleEndian.AppendUint32(m, 0)
}

// dsdt lists the devices.
func (b *Board) dsdt() []byte {
	var a aml
	a.name("_S5_")
	a.list(4, func(p *aml) {
		p.small(power.SleepType)
		p.bytes(amlZero, amlZero, amlZero)
	})
	a.block([]byte{amlScope}, func(s *aml) {
		s.bytes(amlRoot)
		s.segment("_SB_")
		for i := range Slots {
			base, irq := b.Map.Slot(i)
			s.device(fmt.Sprintf("VR%02d", i), func(d *aml) {
				d.name("_HID")
				d.str("LNRO0005") // virtio over MMIO (virtio 1.2, 4.2, as kernels have it)
				d.name("_UID")
				d.small(byte(i))
				d.resources(uint32(base), DeviceSize, uint32(irq), byLevel)
			})
		}
		s.device("VGEN", func(d *aml) {
			d.name("_HID")
			d.str("FORK0001")
			d.name("_CID")
			d.str("VM_Gen_Counter") // Microsoft's specification of the VM generation ID
			d.name("_DDN")
			d.str("VM_Gen_Counter")
			d.name("ADDR")
			d.list(2, func(p *aml) {
				p.dword(uint32(b.Map.VMGen))
				p.bytes(amlZero)
			})
		})
		s.device("GED_", func(d *aml) { // ACPI 6.5, 5.6.9
			d.name("_HID")
			d.str("ACPI0013")
			// By edge: the kernel takes the interrupt again and again as long as the
			// input is high, and has the identifier read, which lowers it, later.
			d.resources(0, 0, uint32(b.Map.VMGenIRQ), byEdge)
			d.method("_EVT", 1, func(m *aml) {
				m.bytes(amlNotify, amlRoot, amlParent)
				m.segment("_SB_")
				m.segment("VGEN")
				m.small(0x80)
			})
		})
	})
	return a.b
}
