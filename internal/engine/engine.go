// Package engine is the contract between a machine and what executes its
// vCPUs. Package machine, all devices, snapshots and forks stand above it and
// cannot tell the engines apart; package enginetest is the suite that every
// engine passes.
//
// Rules that both sides keep:
//
//   - One goroutine calls Run of a vCPU at a time. While a vCPU waits for an
//     interrupt, Run blocks without using a thread's time.
//   - The guest's loads and stores to devices become bus.Bus calls on the
//     goroutine that is in Run, never exits.
//   - Guest memory is touched by devices only inside a bus call or inside a
//     function given to Post, of which there is one at a time. That is what allows
//     an engine to move pages (package memory).
//   - vCPUs of one machine may execute in parallel, also beside such a call.
//   - State is saved only while no vCPU is in Run.
package engine

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/state"
)

// ISA names a guest instruction set architecture.
type ISA string

// The instruction set architectures.
const (
	RISCV64 ISA = "riscv64" // RV64GC with the extensions that the board's device tree lists
	AMD64   ISA = "amd64"   // x86-64 as the host's processor has it
)

// Engine makes virtual machines.
type Engine interface {
	Name() string
	ISA() ISA
	// Features returns what guests are told that their processor can do; a machine
	// that has been told so can only go on where all of it is there.
	Features() []string
	// NewArena returns an arena for the memory of machines that have it in common.
	NewArena() (*page.Arena, error)
	// NewMemory returns memory for a machine, over a stack to which it takes a
	// reference of its own, from an arena that NewArena has made. quota bounds how many pages the machine may have to
	// itself, however often it is sealed; zero means no bound. The error wraps
	// ErrNoQuota if the engine cannot keep one.
	NewMemory(base *page.Stack, arena *page.Arena, quota int) (page.Top, error)
	NewVM(Config) (VM, error)
}

// ErrNoQuota reports that an engine cannot bound the memory of its guests.
var ErrNoQuota = errors.New("no bound on guest memory is possible")

// Config is what a VM is made of. Exactly one of Boot and State is set.
type Config struct {
	Memory *memory.Space
	// Bus is where the engine maps its interrupt controller. The machine maps
	// the other devices, which need the VM's lines, before the first Run.
	Bus   *bus.Bus
	VCPUs int
	// Clock is the guest's monotonic time since it booted, which its time counter
	// shows. It never goes back, and is safe to call from any goroutine.
	Clock func() time.Duration
	// CPU is how many processors' worth of time the vCPUs get together at most, zero
	// being no bound, and CPUWeight their share where machines compete: twice the
	// weight is twice the time, and zero is the usual weight of 100. An engine that
	// does not schedule its vCPUs itself ignores both.
	CPU       float64
	CPUWeight int
	// Console takes what the guest writes to its firmware's debug console.
	Console io.Writer
	// Entropy feeds the CPU's source of entropy, where the engine has to provide one;
	// nil: that has none. It is safe to call from any goroutine.
	Entropy io.Reader

	Boot  *Boot         // start a kernel, or
	State *state.Reader // take "vcpu/..." and "irq/..." sections from here
}

// Boot is how the first vCPU enters a kernel, as the ISA's boot protocol has
// it; the other vCPUs wait to be started by it.
type Boot struct {
	Entry uint64 // GPA of the kernel's first instruction
	// Params is the GPA of what the kernel is given: the device tree or, on amd64,
	// the boot parameters.
	Params uint64
}

// VM is the part of a machine that the engine owns: vCPUs and the interrupt
// controller.
type VM interface {
	// VCPUs returns the vCPUs, in order of their ids from 0.
	VCPUs() []VCPU
	// Line returns input n of the interrupt controller, n from 1.
	Line(n int) irq.Line
	// Post has fn called while a vCPU is in Run, be it at an instruction boundary of
	// that or beside it, or at the start of the next Run; never while none is. It may
	// be called from any goroutine, returns at once, and keeps order. A vCPU that
	// waits is woken by the interrupt that comes of it.
	Post(fn func())
	// Continue is Post for what the guest has its devices go on with, which it may have them
	// do for ever. It may wait until the guest itself might execute again, by its share and its
	// limit of the host's processors, and keeps no order with what is posted.
	Continue(fn func())
	// Time returns the guest's time counter. It follows Config.Clock, but for what two
	// clocks of the host drift apart.
	//
	// Preconditions: no vCPU is in Run.
	Time() time.Duration
	// Save appends sections for vCPUs and interrupt controller. Posted functions that
	// are pending, and those to be continued, are not part of it: who has posted one does so
	// again in the machine that is made of the state.
	//
	// Preconditions: no vCPU is in Run.
	Save(*state.Writer)
	// Drain runs the posted functions that are pending, but not what they post or what
	// is to be continued: a guest may have its devices find work for ever.
	//
	// Preconditions: no vCPU is in Run.
	Drain()
	// CodeBytes returns how much memory of the host is taken by what the engine keeps to
	// execute code that the guest has for itself. It may be called from any goroutine.
	CodeBytes() int
	// Busy reports whether a vCPU executes, or would if there was a processor for it; false where the
	// engine does not know. It may be called from any goroutine.
	Busy() bool
	// Sleep returns how long the guest will do nothing if nothing comes for it: until its next timer. It is
	// zero while the guest executes, and where the engine does not know. It may be called from any goroutine.
	Sleep() time.Duration
	// Halted reports whether the guest has stopped its vCPUs for good without a word to
	// the machine, so that Run would never return by itself.
	//
	// Preconditions: no vCPU is in Run.
	Halted() bool
	io.Closer
}

// VCPU executes guest instructions.
type VCPU interface {
	// Run executes until something that the machine must know of. An error
	// means that this vCPU cannot go on, for instance because the host has no
	// memory for the guest's page; what the guest does wrong is never an error.
	Run() (Exit, error)
	// Kick makes a current or the next Run return Kicked soon (within a
	// millisecond). It may be called from any goroutine; a later Run may
	// return Kicked spuriously.
	Kick()
	// Counters returns what the vCPU has done since it was made. It may be
	// called from any goroutine; the figures may be a slice old.
	Counters() Counters
}

// Exit is why Run returned.
type Exit int

// The reasons for a return of Run.
const (
	Kicked Exit = iota
	Off         // the guest asked to be powered off
	Reset       // the guest asked for a reset
	Failed      // the guest reported a failure while powering off
)

func (e Exit) String() string {
	names := [...]string{"kicked", "off", "reset", "failed"}
	if e < 0 || int(e) >= len(names) {
		return fmt.Sprintf("exit %d", int(e))
	}
	return names[e]
}

// Counters are monotonic.
type Counters struct {
	// Instructions retired, or what an engine that cannot count them has instead
	// that grows while the guest executes, and only then.
	Instructions   uint64
	PagesDecoded   uint64 // code pages decoded because no other machine had
	PagesInherited uint64 // code pages found decoded
	Translated     uint64 // basic blocks translated because no other machine had

	Busy time.Duration // processor time of the host that the guest's execution took
}

// Add returns the sum of two sets of counters.
func (c Counters) Add(d Counters) Counters {
	return Counters{
		Instructions:   c.Instructions + d.Instructions,
		PagesDecoded:   c.PagesDecoded + d.PagesDecoded,
		PagesInherited: c.PagesInherited + d.PagesInherited,
		Translated:     c.Translated + d.Translated,
		Busy:           c.Busy + d.Busy,
	}
}
