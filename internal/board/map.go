package board

import "fmt"

// Map is where a board has its memory and devices: guest-physical addresses, and
// inputs of the interrupt controller. Each device window has DeviceSize bytes.
type Map struct {
	ISA string

	RAMBase     uint64
	MaxRAMBytes uint64
	MaxVCPUs    int

	Power uint64
	VMGen uint64
	RTC   uint64 // zero: the board has none
	Slots uint64 // of virtio devices, one behind the other

	VMGenIRQ int
	RTCIRQ   int
	SlotIRQ  int // of the first slot; the others follow

	maxCommandLine int // what the kernel keeps of it

	// What does not fit between RAMBase and the devices is at another address; zero: all
	// fits.
	lowRAM, highRAM uint64
}

// Range is memory: where it lies, and from which offset into all memory on.
type Range struct{ GPA, Offset, Size uint64 }

// RAM returns where so many bytes of memory lie, in ascending order. The first range is
// where kernels are loaded.
func (m *Map) RAM(bytes uint64) []Range {
	if m.lowRAM == 0 || bytes <= m.lowRAM {
		return []Range{{m.RAMBase, 0, bytes}}
	}
	return []Range{{m.RAMBase, 0, m.lowRAM}, {m.highRAM, m.lowRAM, bytes - m.lowRAM}}
}

// The boards.
var (
	RISCV64 = Map{
		ISA: "riscv64", RAMBase: RAMBase, MaxRAMBytes: MaxRAMBytes, MaxVCPUs: MaxVCPUs,
		Power: PowerBase, VMGen: VMGenBase, RTC: RTCBase, Slots: virtioBase,
		VMGenIRQ: VMGenIRQ, RTCIRQ: RTCIRQ, SlotIRQ: virtioIRQ,
		maxCommandLine: maxCommandLine,
	}
	// AMD64 has its devices above the first 3 GiB of memory; the PC's own interrupt
	// controllers lie above those, and the rest of memory from 4 GiB on. Interrupts are
	// inputs of the I/O APIC which the PC's old controller does not have.
	AMD64 = Map{
		ISA: "amd64", RAMBase: 0, MaxRAMBytes: MaxRAMBytes, MaxVCPUs: 16,
		lowRAM: 3 << 30, highRAM: 4 << 30,
		Power: 0xd000_0000, VMGen: 0xd000_1000, Slots: 0xd000_8000,
		VMGenIRQ: 16, SlotIRQ: 17,
		maxCommandLine: 2047,
	}
)

// For returns the board of an instruction set.
func For(isa string) (*Map, error) {
	for _, m := range []*Map{&RISCV64, &AMD64} {
		if m.ISA == isa {
			return m, nil
		}
	}
	return nil, fmt.Errorf("there is no board for %q", isa)
}

// Slot returns the address of virtio slot i, and its interrupt.
func (m *Map) Slot(i int) (gpa uint64, irq int) {
	return m.Slots + uint64(i)*DeviceSize, m.SlotIRQ + i
}
