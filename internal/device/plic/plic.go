// Package plic is the platform-level interrupt controller (RISC-V PLIC 1.0,
// "sifive,plic-1.0.0"): 63 level-triggered sources, and one context for the
// supervisor mode of each hart.
//
// Lines may be set from any goroutine; registers are accessed by vCPUs. One
// mutex guards all state. The output function is called with it held, so it
// must return at once and not call back.
package plic

import (
	"math/bits"
	"sync"

	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/state"
)

const (
	// Sources is the number of interrupt numbers; number 0 does not exist.
	Sources = 64
	// Size is the size of the register window in bytes.
	Size = 0x60_0000

	maxPriority = 7

	// The register blocks (plic 3).
	priorityBase = 0x00_0000
	pendingBase  = 0x00_1000
	enableBase   = 0x00_2000
	enableStride = 0x80
	contextBase  = 0x20_0000
	contextSize  = 0x1000
)

// PLIC is the controller.
type PLIC struct {
	output func(context int, level bool)

	mu       sync.Mutex
	level    uint64 // bit n: line n is high
	pending  uint64
	claimed  uint64 // bit n: claimed by some context, not completed
	priority [Sources]uint8
	contexts []context
}

// context is one hart's view.
type context struct {
	enabled   uint64
	threshold uint8
	raised    bool // what output was last told
}

// New returns a controller with that many contexts. output is called whenever a
// context's interrupt line changes.
func New(contexts int, output func(context int, level bool)) *PLIC {
	return &PLIC{output: output, contexts: make([]context, contexts)}
}

// Line returns input n. A number that does not exist leads nowhere.
func (p *PLIC) Line(n int) irq.Line { return line{p, n} }

type line struct {
	p *PLIC
	n int
}

func (l line) Set(high bool) {
	if l.n <= 0 || l.n >= Sources {
		return
	}
	p, bit := l.p, uint64(1)<<l.n
	p.mu.Lock()
	defer p.mu.Unlock()
	if high {
		p.level |= bit
	} else {
		p.level &^= bit
	}
	p.update()
}

// update runs the gateways and tells the contexts. A gateway forwards a level
// once, and again after completion if it is still high; a request that was
// forwarded stays pending though the line falls (plic 1.2.1, 5). The caller holds
// p.mu.
func (p *PLIC) update() {
	p.pending |= p.level &^ p.claimed
	for i := range p.contexts {
		c := &p.contexts[i]
		if raised := p.best(c) != 0; raised != c.raised {
			c.raised = raised
			p.output(i, raised)
		}
	}
}

// best returns the pending source that the context would be given: the highest
// priority above the threshold, the lowest number among equals (plic 4).
func (p *PLIC) best(c *context) int {
	best, priority := 0, c.threshold
	for m := p.pending & c.enabled; m != 0; m &= m - 1 {
		if n := bits.TrailingZeros64(m); p.priority[n] > priority {
			best, priority = n, p.priority[n]
		}
	}
	return best
}

// Read and Write implement bus.Device. Registers are 32 bits wide; other widths
// read as zero and write nothing.

// Read reads a register; reading a claim register claims (plic 8).
func (p *PLIC) Read(offset uint64, width int) uint64 {
	if width != 4 || offset%4 != 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case offset < pendingBase:
		if n := offset / 4; n < Sources {
			return uint64(p.priority[n])
		}
	case offset < enableBase:
		return half(p.pending, offset-pendingBase)
	case offset < contextBase:
		if c, off := p.context(offset-enableBase, enableStride); c != nil {
			return half(c.enabled, off)
		}
	default:
		c, off := p.context(offset-contextBase, contextSize)
		if c == nil {
			return 0
		}
		switch off {
		case 0:
			return uint64(c.threshold)
		case 4:
			return uint64(p.claim(c))
		}
	}
	return 0
}

// Write writes a register; writing a claim register completes (plic 9).
func (p *PLIC) Write(offset uint64, width int, value uint64) {
	if width != 4 || offset%4 != 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case offset < pendingBase:
		if n := offset / 4; n > 0 && n < Sources {
			p.priority[n] = uint8(value & maxPriority)
		}
	case offset < enableBase: // pending bits are read-only
	case offset < contextBase:
		if c, off := p.context(offset-enableBase, enableStride); c != nil {
			setHalf(&c.enabled, off, value)
			c.enabled &^= 1
		}
	default:
		c, off := p.context(offset-contextBase, contextSize)
		if c == nil {
			return
		}
		switch off {
		case 0:
			c.threshold = uint8(value & maxPriority)
		case 4:
			p.complete(c, value)
		}
	}
	p.update()
}

func (p *PLIC) context(offset, stride uint64) (*context, uint64) {
	if n := offset / stride; n < uint64(len(p.contexts)) {
		return &p.contexts[n], offset % stride
	}
	return nil, 0
}

func (p *PLIC) claim(c *context) int {
	n := p.best(c)
	if n != 0 {
		p.pending &^= 1 << n
		p.claimed |= 1 << n
		p.update()
	}
	return n
}

// complete ignores a source that is not enabled for the context (plic 9).
func (p *PLIC) complete(c *context, n uint64) {
	if n < Sources && c.enabled>>n&1 != 0 {
		p.claimed &^= 1 << n
	}
}

// half and setHalf access a 64-bit set through its two 32-bit registers.
func half(set uint64, offset uint64) uint64 {
	if offset > 4 {
		return 0
	}
	return set >> (8 * offset) & 0xffff_ffff
}

func setHalf(set *uint64, offset, value uint64) {
	if offset > 4 {
		return
	}
	shift := 8 * offset
	*set = *set&^(0xffff_ffff<<shift) | value&0xffff_ffff<<shift
}

const stateVersion = 1

// Save appends the section "irq/plic".
func (p *PLIC) Save(w *state.Writer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := w.Section("irq/plic", stateVersion)
	e.U64(p.level)
	e.U64(p.pending)
	e.U64(p.claimed)
	for _, v := range p.priority {
		e.U8(v)
	}
	e.U32(uint32(len(p.contexts)))
	for _, c := range p.contexts {
		e.U64(c.enabled)
		e.U8(c.threshold)
	}
}

// Restore returns the controller that Save wrote, which must have had as many
// contexts. It calls output for every context that is raised.
func Restore(r *state.Reader, contexts int, output func(context int, level bool)) (*PLIC, error) {
	d, err := r.Take("irq/plic", stateVersion)
	if err != nil {
		return nil, err
	}
	p := New(contexts, output)
	p.level, p.pending, p.claimed = d.U64(), d.U64(), d.U64()
	if (p.level|p.pending|p.claimed)&1 != 0 {
		d.Fail("interrupt source 0 does not exist")
	}
	for i := range p.priority {
		p.priority[i] = d.U8()
		if p.priority[i] > maxPriority || i == 0 && p.priority[i] != 0 {
			d.Fail("interrupt priority is out of range")
		}
	}
	if n := d.U32(); n != uint32(contexts) {
		d.Fail("number of contexts is not that of the vCPUs")
	}
	for i := range p.contexts {
		c := &p.contexts[i]
		c.enabled, c.threshold = d.U64(), d.U8()
		if c.enabled&1 != 0 || c.threshold > maxPriority {
			d.Fail("context has bits that do not exist")
		}
	}
	if err := d.Done(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.update()
	return p, nil
}
