package interp

import (
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// Native code (package jit) executes whatever can be translated. The dispatcher
// below chooses: at each place where control may enter native code it does, or
// has the place translated, or, where the page has been written since it was
// decoded, has the reference semantics execute a few instructions. Both give the
// same results to the instruction.

// patch is how many instructions are interpreted where nothing is translated.
const patch = 64

// noPages is what the run loop finds pages in when there is native code: none,
// so that it returns to the dispatcher when control leaves a page.
var noPages mmu.Bank[*Code]

// translation is the native code of a decoded page, and where it comes from.
type translation struct {
	source  *page.Page
	written atomic.Bool // source has been written since it was decoded
	code    atomic.Pointer[jit.Page]
}

// dispatch is resume with native code.
func (c *CPU) dispatch(n int) (int, Event) {
	for n > 0 && !c.weary(n) {
		if !c.locate(c.h.PC) {
			return c.except(n - 1)
		}
		if p := c.nativePage(); p != nil {
			var event Event
			var on bool
			if n, event, on = c.runNative(p, n); !on {
				return n, event
			}
			continue
		}
		left, event, on := c.part(n, patch)
		if !on {
			return left, event
		}
		n = left
	}
	return n, Budget
}

// part interprets at most limit of n instructions.
func (c *CPU) part(n, limit int) (left int, event Event, on bool) {
	if !c.locate(c.h.PC) {
		left, event = c.except(n - 1)
		return left, event, false
	}
	limit = min(limit, n)
	rest := n - limit
	c.end -= uint64(rest)
	left, event, on = c.interpret(limit)
	c.end += uint64(rest)
	return left + rest, event, on
}

// nativePage returns the code of the current page if it has some for the hart's
// PC, or can be made to.
func (c *CPU) nativePage() *jit.Page {
	t, off := &c.text.native, uint16(c.h.PC&offsetMask)
	p := t.code.Load()
	if !c.native.Usable(p) {
		p = nil
	} else if c.native.Has(p, off) {
		return p
	}
	if t.written.Load() || off == page.Size-2 || !c.codes.mayTranslate() {
		return nil
	}
	c.effort += effortTranslate
	p, made, err := c.codes.shared.native.Translate(t.source, p, off)
	if err != nil {
		return nil
	}
	c.codes.translated(made)
	t.code.Store(p)
	c.native.Sync()
	if !c.native.Usable(p) { // somebody has begun another arena in the meantime
		return nil
	}
	return p
}

// runNative executes native code, and what it leaves to the reference semantics,
// as long as it goes on.
func (c *CPU) runNative(p *jit.Page, n int) (int, Event, bool) {
	stop, n := c.native.Enter(p, n)
	for {
		switch stop {
		case jit.Elsewhere:
			return n, Budget, true
		case jit.Spent:
			return c.part(n, n)
		}
		if !c.weary(n) && c.refill() {
			stop, n = c.native.Retry(n)
			continue
		}
		c.effort += effortExit
		left, event, on := c.part(n, c.native.Slow())
		n = left
		if !on {
			return n, event, false
		}
		if !c.native.Resumable(n) || c.weary(n) {
			return n, Budget, true
		}
		stop, n = c.native.Resume(n)
	}
}

// refill enters the page that native code misses in the TLB, if that is what it
// stopped for and the page is RAM that the hart may access. Else the instruction
// has to be executed to see what comes of it.
func (c *CPU) refill() bool {
	miss, ok := c.native.Miss()
	if !ok {
		return false
	}
	c.effort += effortRefill
	moved := c.m.Moved
	var p *page.Page
	var f mmu.Fault
	switch {
	case miss.Early:
		p, f = c.m.FillStoreEarly(miss.VA)
	case miss.Store:
		p, _, f = c.m.FillStore(miss.VA)
	default:
		p, _, f = c.m.FillLoad(miss.VA)
	}
	if c.m.Moved != moved {
		c.effort += effortMove
	}
	return f == mmu.NoFault && p != nil && !(miss.Pinned && c.m.Moved != moved)
}

// attachNative gives c what native code runs on, or takes it away.
func (c *CPU) attachNative(cache *jit.Cache) {
	if cache == nil {
		c.native = nil
		return
	}
	if c.native == nil {
		c.native = new(jit.Context)
	}
	if c.m.View().Shared() {
		cache.SetParallel()
	}
	c.native.Attach(cache, c.h)
}
