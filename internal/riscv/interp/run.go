package interp

import "github.com/forkd-dev/forkd/internal/riscv/mmu"

// Run executes at most budget instructions, or one more; a trap counts as one.
// How many it executes does not depend on whether native code does some of them, unless
// the CPU is Prompt.
func (c *CPU) Run(budget int) Event {
	n := budget
	c.end = c.h.Retired + uint64(budget)
	c.extra, c.effort = 0, 0
	event := Budget
	c.m.Err = nil
	for n > 0 && event == Budget && !c.yield && !c.weary(n) {
		n, event = c.resume(n)
	}
	c.yield = false
	c.retire(n)
	return event
}

// retire brings the hart's count of instructions up to date.
func (c *CPU) retire(n int) { c.h.Retired = c.end - c.extra - uint64(n) }

// resume executes from the hart's PC until PC, mode or interrupt enables have
// changed by other means than a jump, and leaves PC behind the last instruction.
func (c *CPU) resume(n int) (int, Event) {
	if c.h.Interruptible() {
		c.h.Interrupt()
		c.modeChanged()
		n--
	}
	if c.native != nil {
		return c.dispatch(n)
	}
	if !c.locate(c.h.PC) {
		return c.except(n - 1)
	}
	n, event, _ := c.interpret(n)
	return n, event
}

// interpret executes n instructions from the hart's PC, in the current page, or
// fewer: until what ends resume, or with native code until the page changes. on
// tells that nothing but the latter, or the end of the n, has stopped it.
func (c *CPU) interpret(n int) (left int, event Event, on bool) {
	if n <= 0 {
		return n, Budget, true
	}
	if n > 1 {
		// Fused ops may execute one more.
		c.end--
		left, event, on = c.stretch(n - 1)
		c.end++
		if left++; left != 1 || !on {
			return left, event, on
		}
		if !c.locate(c.h.PC) {
			left, event = c.except(0)
			return left, event, false
		}
	}
	return c.one()
}

// one is interpret for one instruction. Alone in a page, an op is not fused with
// anything.
func (c *CPU) one() (left int, event Event, on bool) {
	text, slot := c.text, int(c.h.PC&offsetMask/2)
	o := text.ops[slot].plain()
	c.cross.ops[slot] = o
	stub := slot
	if o.code.branches() {
		// It may leave the page through a stub.
		if to := slot + int(o.imm)/opSize; to >= firstStub {
			stub = to
			c.cross.ops[stub] = text.ops[stub]
		}
	}
	c.text = &c.cross
	left, event, on = c.stretch(1)
	c.cross.ops[slot], c.cross.ops[stub] = op{}, op{}
	c.text = text
	return left, event, on
}

// stretch is interpret, but may execute one instruction more.
func (c *CPU) stretch(n int) (left int, event Event, on bool) {
	o := c.text.find(c.h.PC & offsetMask)
	var why exit
	for {
		why, o, n = c.loop(&c.h.X, o, n)
		n += int(c.extra)
		c.extra = 0
		switch why {
		case exitFetch:
			if c.native != nil {
				return n, Budget, true
			}
			if !c.locate(c.h.PC) {
				left, event = c.except(n - 1)
				return left, event, false
			}
			if c.weary(n) {
				return n, Budget, false
			}
			o = c.text.find(c.h.PC & offsetMask)
			continue
		case exitBudget:
			if n > 0 { // ops that were no instructions are not paid for
				continue
			}
			c.h.PC = c.at(o)
			return n, Budget, true
		}
		c.h.PC = c.base + c.text.offset(o)
		if o.code == opCross {
			if !c.fetchCross() {
				left, event = c.except(n)
				return left, event, false
			}
			n++
			c.text = &c.cross
			o = c.text.find(c.h.PC - c.base)
			continue
		}
		plain := o.plain()
		switch c.step(&plain, n) {
		case stepNext:
			o = o.skip(opSize * int(plain.code.length()))
			if c.yield {
				c.h.PC = c.at(o)
				return n, Budget, false
			}
		case stepResume:
			return n, Budget, false
		case stepWait:
			return n, Wait, false
		case stepCall:
			return n, Call, false
		case stepPause:
			return n, Pause, false
		case stepTrap:
			left, event = c.except(n)
			return left, event, false
		}
	}
}

// at returns the address of the instruction that o is, or leads to: o may be half
// of a branch out of the page.
func (c *CPU) at(o *op) uint64 {
	if o.code == opFar {
		return c.base + uint64(int64(o.imm))
	}
	return c.base + c.text.offset(o)
}

// except takes the exception that was recorded, at the hart's PC.
func (c *CPU) except(n int) (int, Event) {
	switch {
	case c.m.Err != nil:
		return n + 1, Failed
	case c.m.IsBlocked:
		return n + 1, Blocked
	}
	c.effort += effortTrap
	c.h.Trap(c.cause, c.tval)
	c.modeChanged()
	return n, Budget
}

// locate makes the page of pc the current one.
func (c *CPU) locate(pc uint64) bool {
	e := c.pages.At(pc)
	if e.Tag != mmu.Tag(pc, 1, c.m.Space) && !c.fillFetch(pc) {
		return false
	}
	c.text, c.base = e.To, pc&^offsetMask
	return true
}
