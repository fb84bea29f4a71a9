package riscvtest

import "github.com/forkd-dev/forkd/internal/riscv/isa"

// wordOps are what hash functions and compressors consist of.
var wordOps = []isa.Op{
	isa.ADD, isa.SUB, isa.XOR, isa.OR, isa.AND, isa.ADDW, isa.SUBW, isa.ADDW, isa.XOR,
	isa.ADDI, isa.ADDIW, isa.ANDI, isa.ORI, isa.XORI, isa.LUI, isa.SLTU, isa.SLTI, isa.MUL, isa.MULW,
	isa.SLLI, isa.SRLI, isa.SRAI, isa.SLLIW, isa.SRLIW, isa.SRAIW, isa.SLL, isa.SRLW, isa.RORIW,
	isa.SH2ADD, isa.ADD_UW, isa.SLLI_UW, isa.ANDN, isa.SEXT_H,
}

// wordAccesses are their loads and stores.
var wordAccesses = []isa.Op{isa.LBU, isa.LH, isa.LW, isa.LWU, isa.LD, isa.SB, isa.SW, isa.SD}

// Rounds appends loops of Words, some of whose accesses cross pages, and loops without
// accesses.
func (c *Coder) Rounds() {
	kept := c.Kept
	c.Kept = append(append([]uint8{}, kept...), outerCounters[0])
	defer func() { c.Kept = kept }()

	for range 4 {
		if c.Rand.IntN(2) == 0 {
			base := [...]uint8{RegStack, RegScratch}[c.Rand.IntN(2)]
			c.LI(base, ScratchBase+0x1000*uint32(1+c.Rand.IntN(3))-uint32(c.Rand.IntN(16)))
		}
		c.Words(c.Rand.IntN(50))
		c.loop(outerCounters[0], 2+c.Rand.IntN(3), func() {
			c.Words(5 + c.Rand.IntN(250))
			c.Straight(c.Rand.IntN(4))
		})
	}
	for range 4 {
		c.tight(outerCounters[0])
	}
}

// tight appends a loop of arithmetic, on registers that it also counts with, with branches
// out of it that come back to its start or to its end.
func (c *Coder) tight(counter uint8) {
	regs := c.registers(2 + c.Rand.IntN(6))
	c.Emit(isa.Inst{Op: isa.ADDI, Rd: counter, Imm: int32(2 + c.Rand.IntN(30))})
	first, over := c.jump(), c.Rand.IntN(2) == 0
	if !over {
		c.land(first)
	}
	next := c.PC()
	c.Emit(isa.Inst{Op: isa.ADDI, Rd: counter, Rs1: counter, Imm: -1})
	if over {
		c.land(first)
	}
	top := c.PC()
	last := c.branch(isa.Inst{Op: isa.BGE, Rs2: counter})
	var out []int
	for range 1 + c.Rand.IntN(4) {
		for range c.Rand.IntN(6) {
			c.arithmetic(append(regs, counter), regs)
		}
		if c.Rand.IntN(2) == 0 {
			op := branches[c.Rand.IntN(len(branches))]
			out = append(out, c.branch(isa.Inst{Op: op, Rs1: c.pick(regs), Rs2: c.pick(append(regs, 0))}))
		}
	}
	back := func() {
		if c.Rand.IntN(2) == 0 {
			c.Emit(isa.Inst{Op: isa.JAL, Imm: int32(next - c.PC())})
			return
		}
		c.Emit(isa.Inst{Op: isa.ADDI, Rd: counter, Rs1: counter, Imm: -1})
		c.Emit(isa.Inst{Op: isa.BLT, Rs2: counter, Imm: int32(top - c.PC())})
		if c.Rand.IntN(2) == 0 { // else what is out of the loop comes next
			c.Emit(isa.Inst{Op: isa.JAL, Imm: int32(top - c.PC())})
		}
	}
	back()
	for _, at := range out {
		c.land(at)
		for range c.Rand.IntN(4) {
			c.arithmetic(append(regs, counter), regs)
		}
		if c.Rand.IntN(2) == 0 {
			op := divisions[c.Rand.IntN(len(divisions))]
			c.Emit(isa.Inst{Op: op, Rd: c.pick(regs), Rs1: c.pick(regs), Rs2: c.pick(regs)})
		}
		back()
	}
	c.land(last)
}

var (
	branches  = []isa.Op{isa.BEQ, isa.BNE, isa.BLT, isa.BGE, isa.BLTU, isa.BGEU}
	divisions = []isa.Op{isa.DIV, isa.DIVU, isa.REM, isa.REMU, isa.DIVW, isa.DIVUW, isa.REMW, isa.REMUW}
)

// Words appends n instructions as hash functions consist of: straight lines of
// arithmetic on a few registers, or on nearly all, in which two shifts and an OR make
// rotations, with loads and stores in between.
func (c *Coder) Words(n int) {
	regs := c.registers(3 + c.Rand.IntN(24))
	for n > 0 {
		if c.Rand.IntN(4) == 0 {
			n -= c.rotation(regs)
		} else {
			c.word(regs)
			n--
		}
	}
}

// registers draws some registers that may be written.
func (c *Coder) registers(n int) (regs []uint8) {
	for _, r := range c.Rand.Perm(32) {
		if len(regs) < n && !c.keeps(uint8(r)) {
			regs = append(regs, uint8(r))
		}
	}
	return regs
}

// word appends an instruction on some of regs.
func (c *Coder) word(regs []uint8) {
	if c.Rand.IntN(8) == 0 {
		op := wordAccesses[c.Rand.IntN(len(wordAccesses))]
		base := [...]uint8{RegStack, RegScratch, RegAligned}[c.Rand.IntN(3)]
		c.Emit(isa.Inst{Op: op, Rd: c.pick(regs), Rs1: base, Rs2: c.pick(regs), Imm: int32(c.Rand.IntN(48)) - 24})
		return
	}
	c.arithmetic(regs, regs)
}

// arithmetic appends an instruction that reads some of from and writes one of to.
func (c *Coder) arithmetic(from, to []uint8) {
	op := wordOps[c.Rand.IntN(len(wordOps))]
	mask, bits := op.Pattern()
	in := isa.Decode(bits | c.Rand.Uint32()&^mask)
	in.Rd, in.Rs1, in.Rs2 = c.pick(to), c.pick(from), c.pick(from)
	switch c.Rand.IntN(12) {
	case 0, 1, 2, 3:
		in.Rs1 = in.Rd
	case 4:
		in = isa.Inst{Op: isa.ADD, Rd: in.Rd, Rs2: in.Rs2}
	case 5:
		in = isa.Inst{Op: isa.ADDI, Rd: in.Rd, Rs1: in.Rs1}
	}
	c.Emit(in)
}

// rotation appends two shifts and an OR, with other instructions in between, and
// returns how many instructions that are. Most of the time they make a rotation.
func (c *Coder) rotation(regs []uint8) (n int) {
	width, left, right := 32, isa.SLLIW, isa.SRLIW
	if c.Rand.IntN(3) == 0 {
		width, left, right = 64, isa.SLLI, isa.SRLI
	}
	k := 1 + c.Rand.IntN(width-1)
	of, a, b, to := c.pick(regs), c.pick(regs), c.pick(regs), c.pick(regs)
	first := isa.Inst{Op: left, Rd: a, Rs1: of, Imm: int32(k)}
	second := isa.Inst{Op: right, Rd: b, Rs1: of, Imm: int32(width - k)}
	if c.Rand.IntN(2) == 0 {
		first.Op, second.Op = right, left
	}
	switch c.Rand.IntN(8) {
	case 0:
		second.Imm = int32(c.Rand.IntN(width))
	case 1, 2:
		second.Rd = of // which is rotated in place
		b, to = of, of
	case 3:
		to = of
	}
	between := func() {
		for ; c.Rand.IntN(2) == 0; n++ {
			c.word(regs)
		}
	}
	c.Emit(first)
	between()
	c.Emit(second)
	between()
	or := isa.Inst{Op: isa.OR, Rd: to, Rs1: a, Rs2: b}
	if c.Rand.IntN(2) == 0 {
		or.Rs1, or.Rs2 = b, a
	}
	c.Emit(or)
	return n + 3
}

// pick draws one of regs.
func (c *Coder) pick(regs []uint8) uint8 { return regs[c.Rand.IntN(len(regs))] }
