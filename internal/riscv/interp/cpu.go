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
// A CPU, its hart and their Codes are used by one goroutine at a time; there are
// no locks but the one inside Cache.
package interp

import (
	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
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
)

// Machine is what the harts of a machine have in common.
type Machine struct {
	Memory *memory.Space
	Bus    *bus.Bus
	Codes  *Codes
}

// CPU executes the instructions of the hart that it is attached to.
type CPU struct {
	h     *hart.Hart
	m     mmu.MMU
	bus   *bus.Bus
	codes *Codes

	fetch   *mmu.Bank[Code]   // the bank of the present mode
	fetches [2]mmu.Bank[Code] // by hart.Mode
	cross   Code              // holds an instruction that crosses pages

	text *Code  // the current page: what loop executes,
	base uint64 // and its GVA

	end   uint64 // what Retired will be when the budget is used up,
	extra uint64 // but for ops that the loop counted and that are no instructions

	cause, tval uint64 // of the trap that a method reported
	yield       bool   // a device was accessed: return to the caller soon
}

// Attach makes c execute h, with empty caches.
func (c *CPU) Attach(m *Machine, h *hart.Hart) {
	c.h, c.bus, c.codes = h, m.Bus, m.Codes
	c.m.Attach(m.Memory, h)
	c.yield = false
	c.dropFetches()
	c.modeChanged()
}

// Sync must be called before Run whenever something else than Run may have
// touched guest memory since.
func (c *CPU) Sync() {
	if c.m.Sync() {
		c.dropFetches()
	}
}

// Err returns why Run returned Failed.
func (c *CPU) Err() error { return c.m.Err }

func (c *CPU) dropFetches() {
	c.fetches[0].Clear()
	c.fetches[1].Clear()
}

// modeChanged follows a change of privilege mode, SUM or MXR.
func (c *CPU) modeChanged() {
	c.m.Switch(c.h)
	c.fetch = &c.fetches[c.h.Mode&1]
}

// FlushCode is FENCE.I, on this hart's behalf or another's.
func (c *CPU) FlushCode() {
	c.codes.fence()
	c.dropFetches()
}

// FlushAll is SFENCE.VMA without operands.
func (c *CPU) FlushAll() {
	c.m.Flush()
	c.dropFetches()
}

// FlushPage is SFENCE.VMA with an address.
func (c *CPU) FlushPage(va uint64) {
	shift := c.m.FlushPage(va)
	for i := range c.fetches {
		if shift == 12 {
			c.fetches[i].DropPage(va)
		} else {
			c.fetches[i].DropRegion(va, shift)
		}
	}
}

// FlushSpace is SFENCE.VMA with an ASID.
func (c *CPU) FlushSpace(asid uint64) {
	space, kernel := c.m.FlushSpace(asid)
	c.fetches[hart.User].DropSpace(space)
	if kernel {
		c.fetches[hart.Supervisor].Clear()
	}
}

func (c *CPU) satpChanged() {
	c.h.ClearReservation()
	all, kernel := c.m.SetSATP(c.h)
	if all || kernel {
		c.fetches[hart.Supervisor].Clear()
	}
	if all {
		c.fetches[hart.User].Clear()
	}
	c.modeChanged()
}

// trap records an exception for the run loop and returns false.
func (c *CPU) trap(cause, tval uint64) bool {
	c.cause, c.tval = cause, tval
	return false
}
