// Package board is what the guest sees: the memory map, the interrupt map and
// the list of devices, rendered as a device tree. It is data; package machine
// puts the devices behind these addresses and an engine runs vCPUs against
// them. The map never changes for a given version, because snapshots contain
// kernels that have found their devices already.
package board

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The memory map of the riscv64 board (guest-physical addresses and sizes in
// bytes) and its interrupt numbers.
const (
	PowerBase = 0x0010_0000
	RTCBase   = 0x0010_1000
	VMGenBase = 0x0010_2000
	PLICBase  = 0x0c00_0000
	PLICSize  = 0x0060_0000
	RAMBase   = 0x8000_0000

	DeviceSize = 0x1000 // of power, RTC, VM generation ID and virtio windows

	RTCIRQ   = 1
	VMGenIRQ = 2
	Sources  = 63 // interrupt numbers 1 to 63

	virtioBase = 0x1000_1000
	virtioIRQ  = 8

	// TimebaseHz is how fast the time CSR counts.
	TimebaseHz = 10_000_000
)

// Values of the power register.
const (
	PowerOff    = 0x5555
	PowerReset  = 0x7777
	MaxVCPUs    = 8
	MinRAMBytes = 64 << 20
	MaxRAMBytes = 64 << 30
)

// The virtio slots, in the order in which the guest probes them.
const (
	SlotRoot = iota
	SlotScratch
	SlotVsock
	SlotRNG
	SlotConsole
	Slots
)

// VirtioBase returns the address of virtio slot i, and VirtioIRQ its
// interrupt number.
func VirtioBase(i int) uint64 { return virtioBase + uint64(i)*DeviceSize }
func VirtioIRQ(i int) int     { return virtioIRQ + i }

// extensions are the ISA extensions that every riscv64 engine offers, in the
// spelling of the device tree binding.
var extensions = []string{
	"i", "m", "a", "f", "d", "c", "zicboz", "zicntr", "zicsr", "zifencei",
	"zba", "zbb", "zbs", "zkr", "sstc", "svadu",
}

// Extensions returns the ISA extensions that guests are told of.
func Extensions() []string { return slices.Clone(extensions) }

// CBOZBlockSize is the block of cbo.zero in bytes.
const CBOZBlockSize = 64

// Board describes one machine to its guest.
type Board struct {
	Map         *Map // nil: RISCV64
	RAMBytes    uint64
	VCPUs       int
	CommandLine string
	InitrdStart uint64 // GPA; zero size: no initrd
	InitrdSize  uint64
	Seed        []byte // for the kernel's random number generator
}

// maxCommandLine is what the riscv64 kernel keeps of its command line; it cuts
// off the rest without a word (COMMAND_LINE_SIZE, less the final NUL).
const maxCommandLine = 1023

// Validate reports what the board cannot have.
func (b *Board) Validate() error {
	m := cmp.Or(b.Map, &RISCV64)
	if b.VCPUs < 1 || b.VCPUs > m.MaxVCPUs {
		return fmt.Errorf("a machine has 1 to %d vCPUs, not %d", m.MaxVCPUs, b.VCPUs)
	}
	if b.RAMBytes < MinRAMBytes || b.RAMBytes > m.MaxRAMBytes || b.RAMBytes%(2<<20) != 0 {
		return fmt.Errorf("guest memory must be a multiple of 2 MiB from %d MiB to %d MiB, not %d bytes", MinRAMBytes>>20, m.MaxRAMBytes>>20, b.RAMBytes)
	}
	if len(b.CommandLine) > m.maxCommandLine || strings.ContainsRune(b.CommandLine, 0) {
		return fmt.Errorf("kernel command line of %d bytes: it may have %d, and no NUL", len(b.CommandLine), m.maxCommandLine)
	}
	if off := b.InitrdStart - m.RAMBase; b.InitrdSize > 0 &&
		(b.InitrdStart < m.RAMBase || off > b.RAMBytes || b.InitrdSize > b.RAMBytes-off) {
		return fmt.Errorf("initrd of %d bytes at %#x is not within guest memory", b.InitrdSize, b.InitrdStart)
	}
	return nil
}

const (
	phandlePLIC  = 1
	phandlePower = 2
	phandleCPU   = 16 // + vCPU id: its interrupt controller
)

// DeviceTree renders the board as a flattened device tree.
//
// Preconditions: Validate finds nothing.
func (b *Board) DeviceTree() []byte {
	t := &fdt{offsets: make(map[string]uint32)}
	t.node("", func() {
		t.text("compatible", "forkd,soft")
		t.text("model", "forkd")
		t.cells("#address-cells", 2)
		t.cells("#size-cells", 2)
		b.chosen(t)
		b.cpus(t)
		t.node(fmt.Sprintf("memory@%x", uint64(RAMBase)), func() {
			t.text("device_type", "memory")
			t.reg(RAMBase, b.RAMBytes)
		})
		t.node("soc", func() {
			t.text("compatible", "simple-bus")
			t.cells("#address-cells", 2)
			t.cells("#size-cells", 2)
			t.flag("ranges")
			b.devices(t)
		})
		powerNodes(t)
	})
	return t.blob()
}

func (b *Board) chosen(t *fdt) {
	t.node("chosen", func() {
		t.text("bootargs", b.CommandLine)
		if len(b.Seed) > 0 {
			t.bytes("rng-seed", b.Seed)
		}
		if b.InitrdSize > 0 {
			end := b.InitrdStart + b.InitrdSize
			t.cells("linux,initrd-start", uint32(b.InitrdStart>>32), uint32(b.InitrdStart))
			t.cells("linux,initrd-end", uint32(end>>32), uint32(end))
		}
	})
}

func (b *Board) cpus(t *fdt) {
	t.node("cpus", func() {
		t.cells("#address-cells", 1)
		t.cells("#size-cells", 0)
		t.cells("timebase-frequency", TimebaseHz)
		for id := range b.VCPUs {
			t.node(fmt.Sprintf("cpu@%d", id), func() { cpu(t, uint32(id)) })
		}
	})
}

func cpu(t *fdt, id uint32) {
	t.text("device_type", "cpu")
	t.text("compatible", "riscv")
	t.text("status", "okay")
	t.cells("reg", id)
	t.text("mmu-type", "riscv,sv39")
	t.text("riscv,isa", isaString())
	t.text("riscv,isa-base", "rv64i")
	t.text("riscv,isa-extensions", extensions...)
	t.cells("riscv,cboz-block-size", CBOZBlockSize)
	t.node("interrupt-controller", func() {
		t.text("compatible", "riscv,cpu-intc")
		t.flag("interrupt-controller")
		t.cells("#interrupt-cells", 1)
		t.cells("phandle", phandleCPU+id)
	})
}

// isaString is the older single-string spelling: single letters run together,
// the rest separated by underscores.
func isaString() string {
	s := "rv64"
	for _, e := range extensions {
		if len(e) > 1 {
			s += "_"
		}
		s += e
	}
	return s
}

func (b *Board) devices(t *fdt) {
	device := func(name string, base uint64, compatible string, irq uint32) {
		t.node(fmt.Sprintf("%s@%x", name, base), func() {
			t.text("compatible", compatible)
			t.reg(base, DeviceSize)
			t.cells("interrupts", irq)
			t.cells("interrupt-parent", phandlePLIC)
		})
	}
	t.node(fmt.Sprintf("plic@%x", PLICBase), func() {
		t.text("compatible", "sifive,plic-1.0.0", "riscv,plic0")
		t.reg(PLICBase, PLICSize)
		t.flag("interrupt-controller")
		t.cells("#interrupt-cells", 1)
		t.cells("#address-cells", 0)
		t.cells("riscv,ndev", Sources)
		t.cells("phandle", phandlePLIC)
		var contexts []uint32
		for id := range b.VCPUs {
			contexts = append(contexts, phandleCPU+uint32(id), supervisorExternal)
		}
		t.cells("interrupts-extended", contexts...)
	})
	device("rtc", RTCBase, "google,goldfish-rtc", RTCIRQ)
	device("vmgenid", VMGenBase, "microsoft,vmgenid", VMGenIRQ)
	for i := range Slots {
		device("virtio", VirtioBase(i), "virtio,mmio", uint32(VirtioIRQ(i)))
	}
}

// supervisorExternal is the S-mode external interrupt (priv 3.1.9).
const supervisorExternal = 9

// powerNodes describes the power register through the generic syscon drivers.
func powerNodes(t *fdt) {
	t.node(fmt.Sprintf("power@%x", PowerBase), func() {
		t.text("compatible", "syscon")
		t.reg(PowerBase, DeviceSize)
		t.cells("phandle", phandlePower)
	})
	for _, action := range []struct {
		name  string
		value uint32
	}{{"poweroff", PowerOff}, {"reboot", PowerReset}} {
		t.node(action.name, func() {
			t.text("compatible", "syscon-"+action.name)
			t.cells("regmap", phandlePower)
			t.cells("offset", 0)
			t.cells("value", action.value)
		})
	}
}
