package riscvtest

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Registers that code with loops keeps for itself, by depth of call: those that
// count the outer and the inner loops, and the address to return to.
var (
	outerCounters = [...]uint8{26, 18}
	innerCounters = [...]uint8{27, 19}
	links         = [...]uint8{30, 1}

	structure = []uint8{26, 18, 27, 19, 30, 1}
)

// Loops appends a program of functions with nested loops, calls, computed
// jumps, walks through memory, and code that rewrites itself. It executes some
// ten to a few hundred thousand instructions, the same ones many times over.
func (c *Coder) Loops() {
	kept := c.Kept
	c.Kept = append(append([]uint8{}, kept...), structure...)
	defer func() { c.Kept = kept }()

	start := c.jump() // over the functions
	var leaves, functions []uint64
	for range 2 + c.Rand.IntN(3) {
		leaves = append(leaves, c.function(1, nil))
	}
	for range 1 + c.Rand.IntN(3) {
		functions = append(functions, c.function(0, leaves))
	}
	c.land(start)
	for _, f := range functions {
		c.call(links[0], f)
	}
}

// function appends a function and returns its address.
func (c *Coder) function(depth int, callees []uint64) uint64 {
	if c.Rand.IntN(3) == 0 { // somewhere else in the page, or at its very end
		for n := c.Rand.IntN(2000); n > 0; n-- {
			c.Raw(1)
		}
	}
	at := c.PC()
	times := 4 + c.Rand.IntN(12)
	if depth == 0 {
		times = 8 + c.Rand.IntN(40)
	}
	c.loop(outerCounters[depth], times, func() {
		for range 1 + c.Rand.IntN(3) {
			c.piece(outerCounters[depth])
			if len(callees) > 0 && c.Rand.IntN(2) == 0 {
				c.call(links[1], callees[c.Rand.IntN(len(callees))])
			}
			if c.Rand.IntN(2) == 0 {
				c.loop(innerCounters[depth], 3+c.Rand.IntN(30), func() { c.piece(innerCounters[depth]) })
			}
		}
	})
	c.Emit(isa.Inst{Op: isa.JALR, Rs1: links[depth]})
	return at
}

// loop appends a loop that runs so many times.
func (c *Coder) loop(counter uint8, times int, body func()) {
	c.Emit(isa.Inst{Op: isa.ADDI, Rd: counter, Imm: int32(times)})
	top := c.PC()
	body()
	c.Emit(isa.Inst{Op: isa.ADDI, Rd: counter, Rs1: counter, Imm: -1})
	// A conditional branch reaches 4 KiB only.
	if back := int32(top - c.PC()); back > -4000 {
		c.Emit(isa.Inst{Op: isa.BNE, Rs1: counter, Imm: back})
		return
	}
	c.Emit(isa.Inst{Op: isa.BEQ, Rs1: counter, Imm: 8})
	c.Emit(isa.Inst{Op: isa.JAL, Imm: int32(top - c.PC())})
}

// piece appends some of what the body of a loop is made of.
func (c *Coder) piece(counter uint8) {
	switch c.Rand.IntN(6) {
	case 0:
		c.walk(counter)
	case 1:
		c.choose(counter)
	case 2:
		if c.Rand.IntN(3) == 0 {
			c.rewrite()
		}
	case 3:
		c.Words(5 + c.Rand.IntN(80))
	}
	c.Straight(3 + c.Rand.IntN(25))
}

// walk moves the base of loads and stores with a loop's counter: by small steps,
// which make some accesses misaligned and some cross pages, or by large ones, to
// a page that was not accessed before.
func (c *Coder) walk(counter uint8) {
	base := [...]uint8{RegStack, RegScratch}[c.Rand.IntN(2)]
	from, shift := uint32(ScratchBase+ScratchSize/2-0x800), c.Rand.IntN(8)
	if c.Rand.IntN(3) == 0 {
		from, shift = DataBase+0x2_0000, 11+c.Rand.IntN(2)
	}
	c.Emit(isa.Inst{Op: isa.SLLI, Rd: 5, Rs1: counter, Imm: int32(shift)})
	c.LI(base, from+uint32(c.Rand.IntN(0x800)))
	c.Emit(isa.Inst{Op: isa.ADD, Rd: base, Rs1: base, Rs2: 5})
}

// choose appends a computed jump to one of four pieces of code.
func (c *Coder) choose(counter uint8) {
	c.Emit(
		isa.Inst{Op: isa.ANDI, Rd: 5, Rs1: counter, Imm: 3},
		isa.Inst{Op: isa.SLLI, Rd: 5, Rs1: 5, Imm: 2},
		isa.Inst{Op: isa.AUIPC, Rd: regLink},
		isa.Inst{Op: isa.ADD, Rd: regLink, Rs1: regLink, Rs2: 5},
		isa.Inst{Op: isa.JALR, Rs1: regLink, Imm: 12},
	)
	var entries, ends [4]int
	for i := range entries {
		entries[i] = c.jump()
	}
	for i := range entries {
		c.land(entries[i])
		c.Straight(1 + c.Rand.IntN(6))
		ends[i] = c.jump()
	}
	for _, end := range ends {
		c.land(end)
	}
}

// rewrite appends an ADDI whose immediate changes each time, after a fence. The
// fence is far enough away at times for the instruction to be in another page.
func (c *Coder) rewrite() {
	add := isa.Inst{Op: isa.ADDI, Rd: 10, Rs1: 10, Imm: 1}
	over := c.jump()
	target := c.PC()
	c.Emit(add, isa.Inst{Op: isa.JALR, Rs1: 6})
	if c.Rand.IntN(2) == 0 {
		for range c.Rand.IntN(1200) {
			c.Raw(1)
		}
	}
	c.land(over)
	change := isa.Encode(add) ^ isa.Encode(isa.Inst{Op: isa.ADDI, Rd: 10, Rs1: 10, Imm: 2})
	c.LI(7, uint32(target))
	c.LI(6, change)
	c.Emit(
		isa.Inst{Op: isa.LW, Rd: 5, Rs1: 7},
		isa.Inst{Op: isa.XOR, Rd: 5, Rs1: 5, Rs2: 6},
		isa.Inst{Op: isa.SW, Rs1: 7, Rs2: 5},
		isa.Inst{Op: isa.FENCE_I},
		isa.Inst{Op: isa.JALR, Rd: 6, Rs1: 7},
	)
}

// call appends a call of the function at an address.
func (c *Coder) call(link uint8, at uint64) {
	c.Emit(isa.Inst{Op: isa.JAL, Rd: link, Imm: int32(at - c.PC())})
}

// jump appends a jump whose target land sets.
func (c *Coder) jump() (at int) { return c.branch(isa.Inst{Op: isa.JAL}) }

// branch appends a branch whose target land sets.
func (c *Coder) branch(in isa.Inst) (at int) {
	at = len(c.Code)
	c.Emit(in)
	return at
}

// land makes the jump or branch at an offset in the code lead to here.
func (c *Coder) land(at int) {
	in := isa.Decode(binary.LittleEndian.Uint32(c.Code[at:]))
	in.Imm = int32(len(c.Code) - at)
	binary.LittleEndian.PutUint32(c.Code[at:], isa.Encode(in))
}
