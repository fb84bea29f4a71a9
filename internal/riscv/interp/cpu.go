// Package interp executes RISC-V instructions. It is the reference semantics:
// whatever else executes guest code must agree with it.
//
// Pages of code are decoded once (Code, Cache, Codes). The run loop is one flat
// switch over decoded instructions; loads and stores that hit the TLB, and
// jumps within a page, stay inside it. Everything else is a call of a method of
// CPU: page-table walks, devices, CSRs, floating point, atomics.
//
// Invariants. A CPU is scratch: all that is architectural lives in the hart, and
// a CPU may serve another hart after another Attach. Between calls of Run the
// hart is at an instruction boundary. An instruction that traps has changed
// nothing; a store that crosses pages translates both before it writes to either.
//
// A CPU and its hart are used by one goroutine at a time. Several CPUs may execute
// harts of one machine in parallel: guest memory is accessed as the memory model
// (unpriv 17) asks, with plain accesses of the host for loads and stores, which
// keep at least the order that RISC-V wants on amd64 and arm64 hosts, and its
// atomic operations for the A extension and for fences that need one. Caches of
// one CPU are never touched by another; see memory.View.
package interp

import (
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// Event is why Run returned.
type Event uint8

// The events.
const (
	// Budget: the instructions are used up, or an access to a device may have
	// changed what the caller should look at (interrupt lines, moved pages).
	Budget Event = iota
	// Wait: the hart executed WFI; PC is behind it.
	Wait
	// Call: the hart made an SBI call; PC is behind it.
	Call
	// Failed: the host has no memory for a page of the guest; Err says more.
	// The instruction has not been executed.
	Failed
	// Blocked: a page has to move which other harts of the machine may hold. The
	// instruction has not been executed; stop the others and call Unblock first.
	Blocked
	// Pause: the hart, one of several, executed PAUSE, as it does while it spins; PC
	// is behind it.
	Pause
)

// Machine is what the harts of a machine have in common, and the way from this
// one to the devices.
type Machine struct {
	Memory *memory.Space
	Bus    Bus
	Codes  *Codes
}

// Bus reaches devices, as bus.Bus does. Between an access and the return of Run
// the hart touches neither guest memory nor what it derived from it, so an access
// may let others have their way with those.
type Bus interface {
	Read(gpa uint64, width int) (value uint64, ok bool)
	Write(gpa uint64, width int, value uint64) (ok bool)
}

// CPU executes the instructions of the hart that it is attached to.
type CPU struct {
	// Prompt has a Run end early when it takes longer than so many instructions usually do.
	Prompt bool

	h     *hart.Hart
	m     mmu.MMU
	bus   Bus
	codes *Codes

	fetch   *mmu.Bank[*Code]   // where the run loop looks for pages
	pages   *mmu.Bank[*Code]   // the bank of the present mode
	fetches [2]mmu.Bank[*Code] // by hart.Mode
	native  *jit.Context       // nil: everything is interpreted
	cross   Code               // holds an instruction that crosses pages

	text *Code  // the current page: what loop executes,
	base uint64 // and its GVA

	end   uint64 // what Retired will be when the budget is used up,
	extra uint64 // but for ops that the loop counted and that are no instructions

	cause, tval uint64 // of the trap that a method reported
	yield       bool   // a device was accessed: return to the caller soon
	effort      int    // of the present Run, besides executing instructions
	fleeting    bool   // a fetch bank has what Codes.find called fleeting
	sweeps      uint64 // Codes.sweeps when fetch banks were last dropped for it

	ahead ahead // entries that the hart will want when satp changes
}

// Attach makes c execute h, with empty caches.
func (c *CPU) Attach(m *Machine, h *hart.Hart) {
	c.h, c.bus, c.codes = h, m.Bus, m.Codes
	c.m.Attach(m.Memory, h)
	c.yield, c.ahead, c.sweeps = false, ahead{}, m.Codes.sweeps.Load()
	c.attachNative(m.Codes.shared.native)
	c.dropFetches()
	c.modeChanged()
}

// Sync must be called before Run whenever something else than Run may have
// touched guest memory since.
func (c *CPU) Sync() {
	if c.m.Sync() {
		c.dropFetches()
		c.ahead = ahead{}
	} else if c.fleeting {
		c.dropFetches()
	}
	c.dropSwept()
	if c.native != nil {
		c.native.Sync()
	}
}

// Rest is for who will not call Run for a while. Sync follows before the next.
func (c *CPU) Rest() {
	if c.native != nil {
		c.native.Rest()
	}
}

// Err returns why Run returned Failed.
func (c *CPU) Err() error { return c.m.Err }

// Unblock follows after Run returned Blocked. The error means that the host has
// no memory for the page.
//
// Preconditions: no hart of the machine executes.
func (c *CPU) Unblock() error { return c.m.Unblock() }

func (c *CPU) dropFetches() {
	c.fleeting = false
	c.fetches[0].Clear()
	c.fetches[1].Clear()
	if c.native != nil {
		c.native.Flush()
	}
}

// dropSwept has c hold no page that Codes has dropped to make room.
func (c *CPU) dropSwept() {
	if n := c.codes.sweeps.Load(); n != c.sweeps {
		c.sweeps = n
		c.dropFetches()
	}
}

// modeChanged follows a change of privilege mode, SUM or MXR.
func (c *CPU) modeChanged() {
	c.m.Switch(c.h)
	c.pages = &c.fetches[c.h.Mode&1]
	c.fetch = c.pages
	if x := c.native; x != nil {
		c.fetch = &noPages
		x.Loads, x.Stores, x.Space = c.m.Loads, c.m.Stores, c.m.Space
		x.Switch()
	}
}

// FlushCode is FENCE.I, on this hart's behalf or another's.
func (c *CPU) FlushCode() {
	c.effort += effortCode
	c.codes.fence()
	c.dropFetches()
}

// FlushAll is SFENCE.VMA without operands.
func (c *CPU) FlushAll() {
	c.effort += effortFlush
	c.m.Flush()
	c.dropFetches()
}

// FlushPage is SFENCE.VMA with an address.
func (c *CPU) FlushPage(va uint64) {
	shift := c.m.FlushPage(va)
	for i := range c.fetches {
		dropFetch(&c.fetches[i], va, shift)
		if c.native != nil {
			dropFetch(c.native.Bank(hart.Mode(i)), va, shift)
		}
	}
}

func dropFetch[T comparable](b *mmu.Bank[T], va uint64, shift uint) {
	if shift == 12 {
		b.DropPage(va)
	} else {
		b.DropRegion(va, shift)
	}
}

// FlushSpace is SFENCE.VMA with an ASID.
func (c *CPU) FlushSpace(asid uint64) {
	space, kernel := c.m.FlushSpace(asid)
	c.fetches[hart.User].DropSpace(space)
	if c.native != nil {
		c.native.Bank(hart.User).DropSpace(space)
	}
	if kernel {
		c.dropMode(hart.Supervisor)
	}
}

func (c *CPU) dropMode(m hart.Mode) {
	c.effort += effortMode
	c.fetches[m].Clear()
	if c.native != nil {
		c.native.Bank(m).Clear()
	}
}

func (c *CPU) satpChanged() {
	c.h.ClearReservation()
	all, kernel := c.m.SetSATP(c.h)
	if all || kernel {
		c.dropMode(hart.Supervisor)
	}
	if all {
		c.dropMode(hart.User)
	}
	c.modeChanged()
	c.lookAhead(false)
}

// trap records an exception for the run loop and returns false.
func (c *CPU) trap(cause, tval uint64) bool {
	c.cause, c.tval = cause, tval
	return false
}
