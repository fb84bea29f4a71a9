package interp

import "github.com/forkd-dev/forkd/internal/riscv/mmu"

// Run executes at most budget instructions, or one more; a trap counts as one.
func (c *CPU) Run(budget int) Event {
	n := budget
	c.end = c.h.Retired + uint64(budget)
	c.extra = 0
	event := Budget
	c.m.Err = nil
	for n > 0 && event == Budget && !c.yield {
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
	o, ok := c.enter(c.h.PC)
	if !ok {
		return c.except(n - 1)
	}
	var why exit
	for {
		why, o, n = c.loop(&c.h.X, o, n)
		if why == exitFetch {
			if o, ok = c.enter(c.h.PC); !ok {
				return c.except(n - 1)
			}
			continue
		}
		c.h.PC = c.base + c.text.offset(o)
		switch {
		case why == exitBudget:
			if o.code == opFar { // half of a branch out of the page
				c.h.PC = c.base + uint64(int64(o.imm))
			}
			return n, Budget
		case o.code == opCross:
			if !c.fetchCross() {
				return c.except(n)
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
				c.h.PC = c.base + c.text.offset(o)
				return n, Budget
			}
		case stepResume:
			return n, Budget
		case stepWait:
			return n, Wait
		case stepCall:
			return n, Call
		case stepTrap:
			return c.except(n)
		}
	}
}

// except takes the exception that was recorded, at the hart's PC.
func (c *CPU) except(n int) (int, Event) {
	if c.m.Err != nil {
		return n + 1, Failed
	}
	c.h.Trap(c.cause, c.tval)
	c.modeChanged()
	return n, Budget
}

// enter makes the page of pc the current one and returns the op at pc.
func (c *CPU) enter(pc uint64) (*op, bool) {
	e := c.fetch.At(pc)
	if e.Tag != mmu.Tag(pc, 1, c.m.Space) && !c.fillFetch(pc) {
		return nil, false
	}
	c.text, c.base = e.To, pc&^offsetMask
	return c.text.find(pc & offsetMask), true
}
