//go:build linux && amd64

package kvm

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
)

// Where the kernel puts what a processor without unrestricted mode needs, and what
// nothing else may occupy.
const (
	tssAddress         = 0xfffb_d000
	identityMapAddress = 0xfffb_c000
)

// pins are the inputs of the I/O APIC.
const pins = 24

// vm is one machine.
type vm struct {
	fd      int
	memory  *memory.Space
	bus     *bus.Bus
	console io.Writer
	msrs    []uint32 // that are part of a vCPU's state
	clock   func() time.Duration
	tscKHz  uint64
	vcpus   []*vcpu // immutable
	lines   [pins]line

	startOnce sync.Once              // the first Run
	startErr  error                  // written in startOnce
	frozen    atomic.Pointer[frozen] // time as it was saved; nil from the first Run on

	devices sync.Mutex // held by whoever is at the devices, the ports, or posts

	posts   engine.Posts
	running atomic.Int32          // vCPUs in Run; a vCPU leaves under devices
	serving atomic.Bool           // a goroutine calls what was posted
	failed  atomic.Pointer[error] // of something posted: the machine cannot go on
}

func newVM(e *Engine, cfg engine.Config) (m *vm, err error) {
	m = &vm{memory: cfg.Memory, bus: cfg.Bus, console: cfg.Console, msrs: e.msrs, clock: cfg.Clock, tscKHz: e.tscKHz}
	if m.fd, err = call(e.fd, createVM, 0); err != nil {
		return nil, fmt.Errorf("creating a VM: %w", err)
	}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	if err := m.equip(); err != nil {
		return nil, err
	}
	for id := range cfg.VCPUs {
		v, err := newVCPU(e, m, id)
		if err != nil {
			return nil, err
		}
		m.vcpus = append(m.vcpus, v)
	}
	cfg.Memory.Share(1, nil) // nothing moves, so nobody has to be told
	if cfg.Boot != nil {
		return m, m.boot(cfg.Boot)
	}
	return m, m.restore(cfg.State)
}

// equip gives a VM memory, interrupt controllers and a timer.
func (m *vm) equip() error {
	if _, err := call(m.fd, setTSSAddr, tssAddress); err != nil {
		return fmt.Errorf("placing the TSS: %w", err)
	}
	identity := uint64(identityMapAddress)
	if err := give(m.fd, setIdentityMap, &identity); err != nil {
		return err
	}
	if _, err := call(m.fd, createIRQChip, 0); err != nil {
		return fmt.Errorf("creating the interrupt controller: %w", err)
	}
	pit := [64]byte{}
	if err := give(m.fd, createPIT, &pit); err != nil {
		return err
	}
	for i, s := range m.memory.Slots() {
		flat, ok := s.Pages.(*page.Flat)
		if !ok {
			return errors.New("guest memory does not lie side by side: it must come from the engine's NewMemory")
		}
		region := memoryRegion{slot: uint32(i), gpa: s.Base, size: s.Size(), hva: hostAddress(flat.Memory()[uint64(s.First)<<page.Shift:])}
		if err := give(m.fd, setMemoryRegion, &region); err != nil {
			return fmt.Errorf("mapping %d MiB of memory at %#x: %w", s.Size()>>20, s.Base, err)
		}
	}
	for i := range m.lines {
		m.lines[i] = line{m, uint32(i)}
	}
	return nil
}

// VCPUs implements engine.VM.
func (m *vm) VCPUs() []engine.VCPU {
	vs := make([]engine.VCPU, len(m.vcpus))
	for i, v := range m.vcpus {
		vs[i] = v
	}
	return vs
}

// line is an input of the I/O APIC.
type line struct {
	vm  *vm
	pin uint32
}

// Line implements engine.VM.
func (m *vm) Line(n int) irq.Line { return &m.lines[n] }

// Set implements irq.Line.
func (l *line) Set(high bool) {
	level := irqLevel{irq: l.pin}
	if high {
		level.level = 1
	}
	if err := give(l.vm.fd, irqLine, &level); err != nil {
		panic("BUG: setting an interrupt line: " + err.Error())
	}
}

// Post implements engine.VM. While vCPUs are in Run, a goroutine beside them calls
// what was posted: no vCPU has to leave the guest for it, and one that waits is woken
// by the interrupt that comes of it.
func (m *vm) Post(fn func()) {
	m.posts.Add(fn)
	if m.running.Load() > 0 {
		m.serve()
	}
}

// Continue implements engine.VM. The host schedules whoever does it, and keeps the limits.
func (m *vm) Continue(fn func()) { m.Post(fn) }

// serve has what was posted called soon, unless that is under way.
func (m *vm) serve() {
	if !m.posts.Pending() || m.serving.Swap(true) {
		return
	}
	go func() {
		err := page.Guard(func() error {
			m.posts.Run(m.whileRunning)
			return nil
		})
		m.serving.Store(false)
		if err != nil {
			m.failed.CompareAndSwap(nil, &err)
			m.vcpus[0].Kick()
			return
		}
		if m.running.Load() > 0 {
			m.serve()
		}
	}()
}

// whileRunning calls fn as atDevices does, if a vCPU is in Run and stays there.
func (m *vm) whileRunning(fn func()) {
	m.atDevices(func() {
		if m.running.Load() > 0 {
			fn()
		}
	})
}

// enter notes that a vCPU is in Run, and calls what was posted before.
func (m *vm) enter() {
	m.running.Add(1)
	m.posts.Run(m.atDevices)
}

// leave notes that a vCPU is not in Run any more. When it was the last one, nothing
// that was posted is being called.
func (m *vm) leave() {
	m.atDevices(func() { m.running.Add(-1) })
}

// Drain implements engine.VM.
func (m *vm) Drain() { m.posts.Run(m.atDevices) }

// CodeBytes implements engine.VM: the processor executes the guest's code where it is.
func (m *vm) CodeBytes() int { return 0 }

// Busy implements engine.VM. A vCPU that waits for an interrupt does so in the kernel, which does not tell.
func (m *vm) Busy() bool { return false }

// Sleep implements engine.VM. The kernel does not tell of the guest's timers either.
func (m *vm) Sleep() time.Duration { return 0 }

// Halted implements engine.VM: every vCPU waits, and none can be interrupted or has yet
// to be started by one that executes. Nothing in the board sends interrupts that cannot
// be masked.
func (m *vm) Halted() bool {
	for _, v := range m.vcpus {
		if halted, err := v.halted(); err != nil || !halted {
			return false
		}
	}
	return true
}

// atDevices calls fn, which may use devices and guest memory as they do.
func (m *vm) atDevices(fn func()) {
	m.devices.Lock()
	defer m.devices.Unlock()
	fn()
}

// Close implements engine.VM.
func (m *vm) Close() error {
	var err error
	for _, v := range m.vcpus {
		err = errors.Join(err, v.close())
	}
	return errors.Join(err, unix.Close(m.fd))
}

// boot has the first vCPU enter a kernel, in 64-bit mode with memory mapped to
// itself (the kernel's Documentation/arch/x86/boot, "64-bit Boot Protocol"). The
// others wait for the first to start them, as they do after a reset.
func (m *vm) boot(b *engine.Boot) error {
	if err := m.writeTables(); err != nil {
		return fmt.Errorf("writing page tables: %w", err)
	}
	return m.vcpus[0].enter(b)
}

// Where boot leaves its tables in guest memory; the kernel makes its own.
const (
	gdtBase  = 0x500
	pml4Base = 0x9000
	pdptBase = 0xa000
	pdBase   = 0xb000 // four pages, for 4 GiB

	codeSelector = 0x10
	dataSelector = 0x18

	pagePresent = 1
	pageWrite   = 2
	pageLarge   = 1 << 7 // of 2 MiB
)

func (m *vm) writeTables() error {
	var err error
	put := func(gpa, value uint64) {
		if err == nil {
			err = m.memory.PutUint64(gpa, value)
		}
	}
	put(gdtBase+codeSelector, 0x00af_9b00_0000_ffff)
	put(gdtBase+dataSelector, 0x00cf_9300_0000_ffff)
	put(pml4Base, pdptBase|pagePresent|pageWrite)
	for gib := range uint64(4) {
		pd := pdBase + gib*page.Size
		put(pdptBase+8*gib, pd|pagePresent|pageWrite)
		for i := range uint64(512) {
			put(pd+8*i, gib<<30|i<<21|pageLarge|pagePresent|pageWrite)
		}
	}
	return err
}
