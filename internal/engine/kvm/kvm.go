//go:build linux && amd64

// Package kvm is the engine that runs guests of the host's own ISA on hardware,
// through Linux's /dev/kvm: amd64 guests on amd64 hosts.
//
// vCPUs, local APICs, the I/O APIC and timers are the kernel's; what guests do to
// devices comes back as exits, which become bus accesses on the goroutine that is in
// Run. Devices, the ports of the firmware and posted functions take place one at a
// time in a machine. Guest memory must be page.Flat: the processor knows no other
// than that which lies side by side.
//
// A vCPU that executes or waits occupies a thread, which uses no time while the vCPU
// waits. A vCPU is told to leave the guest by a signal, SIGURG, which Go programs
// ignore, after a flag that keeps it from entering again: so no such request is lost.
//
// vCPUs are threads, which the host's kernel schedules. So limits on processor time are
// a matter of the control group that the process is in, and Config's are ignored here.
//
// The guest's time stands still until the first Run of a vCPU of the machine, and
// passes from then on. Its time stamp counter shows it: a leaf of CPUID tells how many
// ticks a second has.
//
// Lock order: vm.devices, then the locks of devices; that of vm.posts is a leaf.
package kvm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/page"
)

// Device is what an Engine needs to open.
const Device = "/dev/kvm"

// MaxVCPUs bounds the vCPUs of a machine.
const MaxVCPUs = 16

const apiVersion = 12 // the only one there has been since 2007

// Engine makes machines. It may be used by several goroutines.
type Engine struct {
	fd      int
	runSize int // bytes that a vCPU shares with the kernel
	cpuid   []cpuidEntry
	tscKHz  uint64   // of time stamp counters
	msrs    []uint32 // that are part of a vCPU's state
}

// ErrUnavailable is wrapped by the error of New on a host where the engine cannot
// run at all.
var ErrUnavailable = errors.New("KVM is not available")

// New opens /dev/kvm, and whatever else machines need to have open. The error wraps
// ErrUnavailable and says what is missing.
func New() (*Engine, error) {
	fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: opening %s: %w", ErrUnavailable, Device, err)
	}
	return Use(fd)
}

// Use is New for a process that was given /dev/kvm as an open descriptor, which becomes
// the engine's.
func Use(fd int) (*Engine, error) {
	e := &Engine{fd: fd}
	if err := e.look(); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return e, nil
}

// needed are the capabilities that the engine cannot do without.
var needed = map[string]uintptr{
	"an interrupt controller": capIRQChip, "user memory regions": capUserMemory, "a timer": capPIT,
	"multiprocessing state": capMPState, "vCPU events": capVCPUEvents, "XSAVE": capXSave, "XCRs": capXCRs,
	"a clock that can be set": capAdjustClock, "immediate exits": capImmediateExit,
}

// look finds out what the kernel can do.
func (e *Engine) look() (err error) {
	if v, err := call(e.fd, getAPIVersion, 0); err != nil || v != apiVersion {
		return fmt.Errorf("%s speaks version %d of its interface (%v), not %d", Device, v, err, apiVersion)
	}
	for what, capability := range needed {
		if n, err := call(e.fd, checkExtension, capability); err != nil || n <= 0 {
			return fmt.Errorf("the kernel's KVM lacks %s", what)
		}
	}
	if e.runSize, err = call(e.fd, getVCPUMmapSize, 0); err != nil || e.runSize < os.Getpagesize() {
		return fmt.Errorf("vCPUs share %d bytes with the kernel: %w", e.runSize, err)
	}
	if err := page.PrepareFlats(); err != nil {
		return fmt.Errorf("finding out which memory guests write: %w", err)
	}
	return e.try()
}

// try makes a vCPU, and asks it for what does not differ between vCPUs.
func (e *Engine) try() error {
	fd, err := call(e.fd, createVM, 0)
	if err != nil {
		return fmt.Errorf("creating a VM: %w", err)
	}
	defer unix.Close(fd)
	if _, err := call(fd, createIRQChip, 0); err != nil {
		return fmt.Errorf("creating the interrupt controller: %w", err)
	}
	v := &vcpu{}
	if v.fd, err = call(fd, createVCPU, 0); err != nil {
		return fmt.Errorf("creating a vCPU: %w", err)
	}
	defer unix.Close(v.fd)
	khz, err := call(v.fd, getTSCKHz, 0)
	if err != nil || khz <= 0 {
		return fmt.Errorf("asking how fast the time stamp counter counts: %w", err)
	}
	e.tscKHz = uint64(khz)
	if e.cpuid, err = supportedCPUID(e.fd, e.tscKHz); err != nil {
		return err
	}
	if err := v.setCPUID(e.cpuid); err != nil {
		return err
	}
	e.msrs, err = v.stateMSRs(e.fd)
	return err
}

// Close gives /dev/kvm up. Machines go on.
func (e *Engine) Close() error { return unix.Close(e.fd) }

// Name returns "kvm".
func (e *Engine) Name() string { return "kvm" }

// ISA returns engine.AMD64.
func (e *Engine) ISA() engine.ISA { return engine.AMD64 }

// Features implements engine.Engine: a name for each bit that is set in the leaves of
// CPUID which stand for instructions and registers, such as "cpuid.7.0.ebx.5".
func (e *Engine) Features() []string { return features(e.cpuid) }

// NewArena implements engine.Engine.
func (e *Engine) NewArena() (*page.Arena, error) { return page.NewSharedArena() }

// NewMemory implements engine.Engine. A quota is not possible: what the processor
// writes, the host's kernel has found a page for already.
func (e *Engine) NewMemory(base *page.Stack, arena *page.Arena, quota int) (page.Top, error) {
	if quota > 0 {
		return nil, fmt.Errorf("%w: engine kvm cannot bound a guest's memory by itself", engine.ErrNoQuota)
	}
	return page.NewFlat(base, arena)
}

// NewVM makes a machine from cfg.
func (e *Engine) NewVM(cfg engine.Config) (engine.VM, error) {
	switch {
	case cfg.Memory == nil || cfg.Bus == nil || cfg.Clock == nil:
		return nil, errors.New("making a KVM machine: memory, bus and clock are required")
	case cfg.VCPUs < 1 || cfg.VCPUs > MaxVCPUs:
		return nil, fmt.Errorf("making a KVM machine: %d vCPUs, want 1 to %d", cfg.VCPUs, MaxVCPUs)
	case (cfg.Boot == nil) == (cfg.State == nil):
		return nil, errors.New("making a KVM machine: give either a kernel to boot or a state to restore")
	}
	m, err := newVM(e, cfg)
	if err != nil {
		return nil, fmt.Errorf("making a KVM machine: %w", err)
	}
	return m, nil
}
