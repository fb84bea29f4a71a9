//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// plain emits an instruction that does not jump.
func (t *translator) plain(in *inst) {
	op := in.Op
	if a := accesses[op]; a.width != 0 {
		t.memory(in, a)
		return
	}
	switch {
	case leftToGo(op):
		t.Jmp(t.slow())
	case op >= isa.LR_W && op <= isa.AMOMAXU_D:
		t.atomic(in)
	case op >= isa.FMADD_S && op <= isa.FCVT_S_D:
		t.floating(in)
	case isCSR(op):
		t.csr(in)
	case op == isa.CBO_ZERO:
		t.zeroBlock(in)
	case op == isa.FENCE:
		switch {
		case !t.arena.parallel:
		case in.IsPause():
			t.Jmp(t.slow())
		case in.StoreLoad():
			t.Mfence()
		}
	case in.Rd != 0: // all others do nothing but write rd
		t.integer(in)
	}
}

// integer emits an operation that writes rd, which is not x0.
func (t *translator) integer(in *inst) {
	if t.rotate(in) || t.deferShift(in) {
		return
	}
	t.prepare(in)
	switch op := in.Op; op {
	case isa.LUI:
		t.constant(in)
	case isa.AUIPC:
		d := t.dest(in.Rd, t0)
		t.MovRM(amd64.W64, d, amd64.At(cx, offBase))
		t.ALURI(amd64.ADD, amd64.W64, d, int32(in.off)+in.Imm)
		t.write(in.Rd, d)
	case isa.ADDI:
		t.addImmediate(in)
	case isa.ANDI:
		t.immediate(in, amd64.AND)
	case isa.ORI:
		t.immediate(in, amd64.OR)
	case isa.XORI:
		t.immediate(in, amd64.XOR)
	case isa.ADDIW:
		d := t.dest(in.Rd, t0)
		t.sum32(d, in.Rs1, in.Imm)
		t.writeLow(in.Rd, d)
	case isa.SLTI, isa.SLTIU:
		t.ALURI(amd64.CMP, amd64.W64, t.read(in.Rs1, t0), in.Imm)
		t.set(in, map[isa.Op]amd64.Cond{isa.SLTI: amd64.L, isa.SLTIU: amd64.B}[op])
	case isa.SLT:
		t.compare(in.Rs1, in.Rs2)
		t.set(in, amd64.L)
	case isa.SLTU:
		t.with(amd64.CMP, amd64.W64, t.read(in.Rs1, t0), in.Rs2)
		t.set(in, amd64.B)
	case isa.ADD:
		if in.Rs1 == 0 { // as C.MV has it
			t.move(in, in.Rs2)
			return
		}
		t.binary(in, amd64.ADD, amd64.W64)
	case isa.ADDW:
		t.binary(in, amd64.ADD, amd64.W32)
	case isa.SUB:
		t.binary(in, amd64.SUB, amd64.W64)
	case isa.SUBW:
		t.binary(in, amd64.SUB, amd64.W32)
	case isa.AND:
		t.bitwise(in, amd64.AND)
	case isa.OR:
		t.bitwise(in, amd64.OR)
	case isa.XOR:
		t.bitwise(in, amd64.XOR)
	default:
		switch {
		case op >= isa.MUL && op <= isa.REMUW:
			t.multiply(in)
		case shifts[op].width != 0:
			t.shift(in, shifts[op])
		default:
			t.bits(in)
		}
	}
}

// addImmediate is ADDI, which is also MV and LI.
func (t *translator) addImmediate(in *inst) {
	switch {
	case in.Rs1 == 0:
		t.constant(in)
	case t.inMemory(in):
		t.ALUMI(amd64.ADD, amd64.W64, x(in.Rd), in.Imm)
		t.wrote(in.Rd, false)
	case in.Imm == 0:
		t.move(in, in.Rs1)
	default:
		d := t.dest(in.Rd, t0)
		t.sum(d, in.Rs1, in.Imm)
		t.write(in.Rd, d)
	}
}

// move makes rd what guest register r is.
func (t *translator) move(in *inst, r uint8) {
	d, is := t.dest(in.Rd, t0), place{word: t.isWord(r), low: t.where[r].low}
	t.halfInto(d, r)
	t.writeAs(in.Rd, d, is)
}

// constant makes rd the immediate.
func (t *translator) constant(in *inst) {
	d := t.dest(in.Rd, t0)
	if d == t0 {
		t.MovMI(amd64.W64, x(in.Rd), in.Imm)
		t.wrote(in.Rd, true)
		return
	}
	t.MovRI(d, int64(in.Imm))
	t.writeWord(in.Rd, d)
}

// inMemory reports whether an operation on rd is best done where that lies in memory.
func (t *translator) inMemory(in *inst) bool {
	return in.Rs1 == in.Rd && !t.isHeld(in.Rd) && in.nextD == never && !isPinned(in.Rd)
}

func (t *translator) immediate(in *inst, op amd64.ALU) {
	word, low := t.isWord(in.Rs1), t.where[in.Rs1].low
	if t.inMemory(in) {
		t.ALUMI(op, amd64.W64, x(in.Rd), in.Imm)
		t.wrote(in.Rd, word)
		return
	}
	d := t.dest(in.Rd, t0)
	switch {
	case op == amd64.AND && in.Imm >= 0:
		t.halfInto(d, in.Rs1)
		t.ALURI(op, amd64.W32, d, in.Imm)
		t.flagged(d)
		t.writeWord(in.Rd, d)
	case low:
		t.halfInto(d, in.Rs1)
		t.ALURI(op, amd64.W32, d, in.Imm)
		t.flagged(d)
		t.writeLow(in.Rd, d)
	default:
		t.readInto(d, in.Rs1)
		t.ALURI(op, amd64.W64, d, in.Imm)
		t.flagged(d)
		t.writeAs(in.Rd, d, place{word: word})
	}
}

// set makes rd 1 if the condition holds, else 0.
func (t *translator) set(in *inst, c amd64.Cond) {
	t.Setcc(c, t0)
	d := t.dest(in.Rd, t0)
	t.MovZX(amd64.W8, d, t0)
	t.writeWord(in.Rd, d)
}

// bitwise emits AND, OR and XOR, which of two words make one.
func (t *translator) bitwise(in *inst, op amd64.ALU) {
	if t.isWord(in.Rs1) && t.isWord(in.Rs2) && (t.where[in.Rs1].low || t.where[in.Rs2].low) {
		t.binary(in, op, amd64.W32)
		return
	}
	word := t.isWord(in.Rs1) && t.isWord(in.Rs2)
	t.binary(in, op, amd64.W64)
	t.where[in.Rd].word = word
}

// binary emits rd = rs1 op rs2; of a width of 32 bits, the sign-extension.
func (t *translator) binary(in *inst, op amd64.ALU, w amd64.Width) {
	a, b := in.Rs1, in.Rs2
	if a != in.Rd && b == in.Rd && op != amd64.SUB {
		a, b = b, a
	}
	if w == amd64.W64 {
		t.whole(a)
		t.whole(b)
	}
	var d amd64.Reg
	switch {
	case op == amd64.ADD && a != in.Rd && t.isHeld(a) && t.isHeld(b):
		d = t.dest(in.Rd, t0)
		t.Lea(w, d, amd64.AtIndex(t.where[a].reg, t.where[b].reg, 1, 0))
	case b == in.Rd && a != in.Rd: // would be overwritten before it is read
		d = t0
		t.halfInto(d, a)
		t.with(op, w, d, b)
	case w == amd64.W64 && b != 0 && t.inMemory(in):
		t.ALUMR(op, w, x(a), t.half(b, t0))
		t.wrote(in.Rd, false)
		return
	default:
		d = t.dest(in.Rd, t0)
		t.halfInto(d, a)
		t.with(op, w, d, b)
		t.flagged(d)
	}
	if w == amd64.W32 {
		t.writeLow(in.Rd, d)
	} else {
		t.write(in.Rd, d)
	}
}

// shifting describes a shift or rotation.
type shifting struct {
	op        amd64.Shift
	width     amd64.Width // zero: not one
	immediate bool
	rotate    bool
}

var shifts = [isa.NumOps]shifting{
	isa.SLLI:  {amd64.SHL, amd64.W64, true, false},
	isa.SRLI:  {amd64.SHR, amd64.W64, true, false},
	isa.SRAI:  {amd64.SAR, amd64.W64, true, false},
	isa.RORI:  {amd64.ROR, amd64.W64, true, true},
	isa.SLLIW: {amd64.SHL, amd64.W32, true, false},
	isa.SRLIW: {amd64.SHR, amd64.W32, true, false},
	isa.SRAIW: {amd64.SAR, amd64.W32, true, false},
	isa.RORIW: {amd64.ROR, amd64.W32, true, true},
	isa.SLL:   {amd64.SHL, amd64.W64, false, false},
	isa.SRL:   {amd64.SHR, amd64.W64, false, false},
	isa.SRA:   {amd64.SAR, amd64.W64, false, false},
	isa.ROL:   {amd64.ROL, amd64.W64, false, true},
	isa.ROR:   {amd64.ROR, amd64.W64, false, true},
	isa.SLLW:  {amd64.SHL, amd64.W32, false, false},
	isa.SRLW:  {amd64.SHR, amd64.W32, false, false},
	isa.SRAW:  {amd64.SAR, amd64.W32, false, false},
	isa.ROLW:  {amd64.ROL, amd64.W32, false, true},
	isa.RORW:  {amd64.ROR, amd64.W32, false, true},
}

// shift emits a shift or rotation. The host takes the same bits of the count as
// the guest.
func (t *translator) shift(in *inst, s shifting) {
	var d amd64.Reg
	if s.width == amd64.W64 {
		t.whole(in.Rs1)
	}
	switch {
	case s.immediate:
		d = t.dest(in.Rd, t0)
		t.halfInto(d, in.Rs1)
		t.ShiftRI(s.op, s.width, d, uint8(in.Imm))
		if in.Imm != 0 && !s.rotate { // else the flags stay
			t.flagged(d)
		}
	case s.rotate:
		d = t0
		t.readInto(amd64.RCX, in.Rs2)
		t.readInto(d, in.Rs1)
		t.ShiftRCL(s.op, s.width, d)
	default:
		count := t.second(in.Rs2)
		from := t.half(in.Rs1, t0)
		d = t.dest(in.Rd, t0)
		t.ShiftX(s.op, s.width, d, from, count)
	}
	switch {
	case s.width == amd64.W64:
		t.write(in.Rd, d)
	case s.immediate && s.op == amd64.SHR && in.Imm != 0: // which is positive
		t.writeWord(in.Rd, d)
	default:
		t.writeLow(in.Rd, d)
	}
}

// multiply emits the M extension.
func (t *translator) multiply(in *inst) {
	switch in.Op {
	case isa.MUL, isa.MULW:
		t.product(in)
	case isa.MULH:
		t.readInto(t0, in.Rs1)
		t.Imul(amd64.W64, t.read(in.Rs2, t1))
		t.write(in.Rd, t1)
	case isa.MULHU:
		t.readInto(t0, in.Rs1)
		t.Mul(amd64.W64, t.read(in.Rs2, t1))
		t.write(in.Rd, t1)
	case isa.MULHSU:
		// As unsigned, then less rs2 if rs1 is negative.
		t.readInto(t0, in.Rs1)
		t.Mul(amd64.W64, t.read(in.Rs2, t1))
		t.readInto(t0, in.Rs1)
		t.ShiftRI(amd64.SAR, amd64.W64, t0, 63)
		t.with(amd64.AND, amd64.W64, t0, in.Rs2)
		t.ALURR(amd64.SUB, amd64.W64, t1, t0)
		t.write(in.Rd, t1)
	default:
		t.divide(in)
	}
}

// product is MUL and MULW.
func (t *translator) product(in *inst) {
	factor := t.second(in.Rs2)
	if in.Op == isa.MULW {
		t.halfInto(t0, in.Rs1)
		t.ImulRR(amd64.W32, t0, factor)
		t.writeLow(in.Rd, t0)
		return
	}
	t.whole(in.Rs2)
	t.readInto(t0, in.Rs1)
	t.ImulRR(amd64.W64, t0, factor)
	t.write(in.Rd, t0)
}

// divide emits divisions and remainders. Those for which the host's trap, and the
// guest's never do (unpriv 13.2), are left to Go: by zero, and for signed ones those of
// the least of all numbers, which by -1 overflow.
func (t *translator) divide(in *inst) {
	w, signed, result := amd64.W64, false, t0
	switch in.Op {
	case isa.DIVW, isa.DIVUW, isa.REMW, isa.REMUW:
		w = amd64.W32
	}
	switch in.Op {
	case isa.DIV, isa.REM, isa.DIVW, isa.REMW:
		signed = true
	}
	switch in.Op {
	case isa.REM, isa.REMU, isa.REMW, isa.REMUW:
		result = t1
	}
	special := t.slow()
	divisor := t.read(in.Rs2, gp)
	t.readInto(t0, in.Rs1)
	t.TestRR(w, divisor, divisor)
	t.Jcc(amd64.E, special)
	if signed {
		t.MovRR(w, t1, t0)
		t.Neg(w, t1)
		t.Jcc(amd64.O, special)
		if w == amd64.W64 {
			t.Cqo()
		} else {
			t.Cdq()
		}
		t.Idiv(w, divisor)
	} else {
		t.ALURR(amd64.XOR, amd64.W32, t1, t1)
		t.Div(w, divisor)
	}
	if w == amd64.W32 {
		t.MovSX(w, result, result)
	}
	t.write(in.Rd, result)
}

// bits emits the rest of Zba, Zbb and Zbs.
func (t *translator) bits(in *inst) {
	switch in.Op {
	case isa.ADD_UW, isa.SH1ADD, isa.SH2ADD, isa.SH3ADD, isa.SH1ADD_UW, isa.SH2ADD_UW, isa.SH3ADD_UW:
		t.shiftAdd(in)
	case isa.MAX, isa.MAXU, isa.MIN, isa.MINU:
		t.pick(in, map[isa.Op]amd64.Cond{isa.MAX: amd64.L, isa.MAXU: amd64.B, isa.MIN: amd64.G, isa.MINU: amd64.A}[in.Op])
	case isa.BCLR, isa.BEXT, isa.BINV, isa.BSET:
		t.readInto(t0, in.Rs1)
		t.bit(in.Op, t.read(in.Rs2, t1))
		t.write(in.Rd, t0)
	case isa.BCLRI, isa.BEXTI, isa.BINVI, isa.BSETI:
		t.readInto(t0, in.Rs1)
		t.MovRI(t1, int64(in.Imm))
		t.bit(map[isa.Op]isa.Op{isa.BCLRI: isa.BCLR, isa.BEXTI: isa.BEXT, isa.BINVI: isa.BINV, isa.BSETI: isa.BSET}[in.Op], t1)
		t.write(in.Rd, t0)
	case isa.ANDN:
		t.whole(in.Rs1)
		kept := t.second(in.Rs1)
		t.Andn(amd64.W64, t0, t.read(in.Rs2, t0), kept)
		t.write(in.Rd, t0)
	case isa.ORN, isa.XNOR:
		t.readInto(t0, in.Rs2)
		t.Not(amd64.W64, t0)
		t.with(map[isa.Op]amd64.ALU{isa.ORN: amd64.OR, isa.XNOR: amd64.XOR}[in.Op], amd64.W64, t0, in.Rs1)
		t.write(in.Rd, t0)
	default:
		from := t.read(in.Rs1, t0)
		t.unary(in, from, t.dest(in.Rd, t0))
	}
}

// unary emits operations on rs1, whose value is in a, into d.
func (t *translator) unary(in *inst, a, d amd64.Reg) {
	switch in.Op {
	case isa.SLLI_UW:
		t.MovRR(amd64.W32, d, a)
		t.ShiftRI(amd64.SHL, amd64.W64, d, uint8(in.Imm))
	case isa.CLZ:
		t.Lzcnt(amd64.W64, d, a)
	case isa.CLZW:
		t.Lzcnt(amd64.W32, d, a)
	case isa.CTZ:
		t.Tzcnt(amd64.W64, d, a)
	case isa.CTZW:
		t.Tzcnt(amd64.W32, d, a)
	case isa.CPOP:
		t.Popcnt(amd64.W64, d, a)
	case isa.CPOPW:
		t.Popcnt(amd64.W32, d, a)
	case isa.SEXT_B:
		t.MovSX(amd64.W8, d, a)
	case isa.SEXT_H:
		t.MovSX(amd64.W16, d, a)
	case isa.ZEXT_H:
		t.MovZX(amd64.W16, d, a)
	case isa.REV8:
		t.MovRR(amd64.W64, d, a)
		t.Bswap(amd64.W64, d)
	default:
		panic("BUG: no code for " + in.Op.String())
	}
	t.write(in.Rd, d)
}

// shiftAdd emits rd = rs2 + rs1<<n, with rs1 cut to its lower half for UW.
func (t *translator) shiftAdd(in *inst) {
	scale, cut := uint8(1), false
	switch in.Op {
	case isa.SH1ADD, isa.SH1ADD_UW:
		scale = 2
	case isa.SH2ADD, isa.SH2ADD_UW:
		scale = 4
	case isa.SH3ADD, isa.SH3ADD_UW:
		scale = 8
	}
	switch in.Op {
	case isa.ADD_UW, isa.SH1ADD_UW, isa.SH2ADD_UW, isa.SH3ADD_UW:
		cut = true
	}
	t.whole(in.Rs2)
	to, index := t.second(in.Rs2), t0
	if cut {
		t.sum32(t0, in.Rs1, 0)
	} else {
		index = t.read(in.Rs1, t0)
	}
	d := t.dest(in.Rd, t0)
	t.Lea(amd64.W64, d, amd64.AtIndex(to, index, scale, 0))
	t.write(in.Rd, d)
}

// pick makes rd rs2 if the condition holds between rs1 and rs2, else rs1.
func (t *translator) pick(in *inst, c amd64.Cond) {
	t.readInto(t0, in.Rs1)
	b := t.read(in.Rs2, t1)
	t.ALURR(amd64.CMP, amd64.W64, t0, b)
	t.Cmov(c, amd64.W64, t0, b)
	t.write(in.Rd, t0)
}

// bit emits a single-bit operation on t0.
func (t *translator) bit(op isa.Op, index amd64.Reg) {
	switch op {
	case isa.BCLR:
		t.BtrRR(amd64.W64, t0, index)
	case isa.BINV:
		t.BtcRR(amd64.W64, t0, index)
	case isa.BSET:
		t.BtsRR(amd64.W64, t0, index)
	case isa.BEXT:
		t.BtRR(amd64.W64, t0, index)
		t.Setcc(amd64.B, t0)
		t.MovZX(amd64.W8, t0, t0)
	}
}
