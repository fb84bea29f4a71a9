package amd64

import "math"

// ALURR is dst = dst op src.
func (a *Asm) ALURR(op ALU, w Width, dst, src Reg) { a.opRR(op.enc()|sized[w&15], src, dst) }

// ALURM is dst = dst op [m].
func (a *Asm) ALURM(op ALU, w Width, dst Reg, m Mem) { a.opRM(op.enc()|2|sized[w&15], dst, m) }

// ALUMR is [m] = [m] op src.
func (a *Asm) ALUMR(op ALU, w Width, m Mem, src Reg) { a.opRM(op.enc()|sized[w&15], src, m) }

// ALURI is dst = dst op imm, which is sign-extended or cut to w.
func (a *Asm) ALURI(op ALU, w Width, dst Reg, imm int32) {
	e, imm, size := immForm(w, imm)
	p, n := a.rr(e, Reg(op), dst)
	a.endImm(p, n, imm, size)
}

// ALUMI is [m] = [m] op imm, which is sign-extended or cut to w.
func (a *Asm) ALUMI(op ALU, w Width, m Mem, imm int32) {
	e, imm, size := immForm(w, imm)
	p, n := a.rm(e, Reg(op), m)
	a.endImm(p, n, imm, size)
}

// enc is the form that has memory or a second register first.
func (op ALU) enc() enc { return enc(op&7) << 3 }

// immForm is the shortest ALU form for an immediate, and the length of that.
func immForm(w Width, imm int32) (enc, int32, int) {
	if w == W16 {
		imm = int32(int16(imm)) // 0xFFFF is -1 and has the short form
	}
	if w != W8 && isByte(imm) {
		return 0x82 | group[w&15], imm, 1
	}
	return 0x80 | group[w&15], imm, immSize(w)
}

// MovRR is dst = src.
func (a *Asm) MovRR(w Width, dst, src Reg) { a.opRR(0x88|sized[w&15], src, dst) }

// MovRM is dst = [m]. Bytes and words are better loaded by MovZXM, which
// depends on no earlier value of dst.
func (a *Asm) MovRM(w Width, dst Reg, m Mem) { a.opRM(0x8A|sized[w&15], dst, m) }

// MovMR is [m] = src.
func (a *Asm) MovMR(w Width, m Mem, src Reg) { a.opRM(0x88|sized[w&15], src, m) }

// MovRI is dst = imm, 64 bits. It leaves the flags, whatever imm is.
func (a *Asm) MovRI(dst Reg, imm int64) {
	switch {
	case imm == int64(uint32(imm)):
		p, n := a.plusR(0xB8, dst)
		a.endImm(p, n, int32(imm), 4)
	case imm >= math.MinInt32 && imm < 0:
		p, n := a.rr(0xC7|rexW, 0, dst)
		a.endImm(p, n, int32(imm), 4)
	default:
		p, n := a.plusR(0xB8|rexW, dst)
		put32(p, n, uint32(imm))
		a.endImm(p, n+4, int32(imm>>32), 4)
	}
}

// MovMI is [m] = imm, sign-extended or cut to w.
func (a *Asm) MovMI(w Width, m Mem, imm int32) {
	p, n := a.rm(0xC6|group[w&15], 0, m)
	a.endImm(p, n, imm, immSize(w))
}

// MovZX is dst = src, zero-extended from a width to 64 bits.
func (a *Asm) MovZX(from Width, dst, src Reg) { a.opRR(zext[from&15], dst, src) }

// MovZXM is dst = [m], zero-extended from a width to 64 bits.
func (a *Asm) MovZXM(from Width, dst Reg, m Mem) { a.opRM(zext[from&15], dst, m) }

// MovSX is dst = src, sign-extended from a width to 64 bits.
func (a *Asm) MovSX(from Width, dst, src Reg) { a.opRR(sext[from&15], dst, src) }

// MovSXM is dst = [m], sign-extended from a width to 64 bits.
func (a *Asm) MovSXM(from Width, dst Reg, m Mem) { a.opRM(sext[from&15], dst, m) }

// Lea is dst = the address m. w is not W8.
func (a *Asm) Lea(w Width, dst Reg, m Mem) { a.opRM(0x8D|wide[w&15], dst, m) }

// LeaLabel is dst = the address of l.
func (a *Asm) LeaLabel(dst Reg, l Label) {
	const e = 0x8D | rexW
	p, n := a.head(e, e.rex(dst, 0, 0))
	p[n&15] = byte(dst&7)<<3 | 5 // relative to the next instruction
	a.endLabel(p, n+1, l)
}

// ShiftRI is r = r op n. n counts modulo 64 for W64, modulo 32 for the others.
func (a *Asm) ShiftRI(op Shift, w Width, r Reg, n uint8) {
	if n == 1 {
		a.opRR(0xD0|group[w&15], Reg(op), r)
		return
	}
	p, k := a.rr(0xC0|group[w&15], Reg(op), r)
	a.endImm(p, k, int32(n), 1)
}

// ShiftMI is [m] = [m] op n, n as in ShiftRI.
func (a *Asm) ShiftMI(op Shift, w Width, m Mem, n uint8) {
	if n == 1 {
		a.opRM(0xD0|group[w&15], Reg(op), m)
		return
	}
	p, k := a.rm(0xC0|group[w&15], Reg(op), m)
	a.endImm(p, k, int32(n), 1)
}

// ShiftRCL is r = r op CL, CL modulo as in ShiftRI.
func (a *Asm) ShiftRCL(op Shift, w Width, r Reg) { a.opRR(0xD2|group[w&15], Reg(op), r) }

// ShiftX is dst = src op count, the flags left alone: SHL, SHR and SAR of W32
// and W64, count modulo the width. Needs BMI2.
func (a *Asm) ShiftX(op Shift, w Width, dst, src, count Reg) {
	e, pp := 0xF7|quad[w&15], vex66
	switch op {
	case SHL:
	case SHR:
		pp = vexF2
	case SAR:
		pp = vexF3
	default:
		e |= bad
	}
	a.vex(e, pp, dst, count, src)
}

// Rorx is dst = src rotated right by n, the flags left alone, for W32 and W64. Needs BMI2.
func (a *Asm) Rorx(w Width, dst, src Reg, n uint8) {
	p := a.vexHead(0xF0|quad[w&15], 3, vexF2, dst, 0, src)
	p[5] = n
	a.end(6)
}

// ImulRR is dst = dst * src. w is not W8.
func (a *Asm) ImulRR(w Width, dst, src Reg) { a.opRR(0xAF|esc|wide[w&15], dst, src) }

// ImulRM is dst = dst * [m]. w is not W8.
func (a *Asm) ImulRM(w Width, dst Reg, m Mem) { a.opRM(0xAF|esc|wide[w&15], dst, m) }

// ImulRRI is dst = src * imm. w is not W8.
func (a *Asm) ImulRRI(w Width, dst, src Reg, imm int32) {
	if w == W16 {
		imm = int32(int16(imm))
	}
	e, size := 0x69|wide[w&15], immSize(w)
	if isByte(imm) {
		e, size = e|2, 1
	}
	p, n := a.rr(e, dst, src)
	a.endImm(p, n, imm, size)
}

// Mul is RDX:RAX = RAX * r, unsigned.
func (a *Asm) Mul(w Width, r Reg) { a.opRR(0xF6|group[w&15], 4, r) }

// Imul is RDX:RAX = RAX * r, signed.
func (a *Asm) Imul(w Width, r Reg) { a.opRR(0xF6|group[w&15], 5, r) }

// Div is RAX, RDX = RDX:RAX / r, RDX:RAX % r, unsigned. It faults on a zero
// divisor and on a quotient that does not fit.
func (a *Asm) Div(w Width, r Reg) { a.opRR(0xF6|group[w&15], 6, r) }

// Idiv is Div, signed.
func (a *Asm) Idiv(w Width, r Reg) { a.opRR(0xF6|group[w&15], 7, r) }

// Cqo fills RDX with the sign of RAX.
func (a *Asm) Cqo() { a.op(0x99 | rexW) }

// Cdq fills EDX with the sign of EAX.
func (a *Asm) Cdq() { a.op(0x99) }

// Neg is r = -r.
func (a *Asm) Neg(w Width, r Reg) { a.opRR(0xF6|group[w&15], 3, r) }

// Not is r = ^r; it leaves the flags.
func (a *Asm) Not(w Width, r Reg) { a.opRR(0xF6|group[w&15], 2, r) }

// Bswap reverses the bytes of r. w is W32 or W64.
func (a *Asm) Bswap(w Width, r Reg) {
	_, n := a.plusR(0xC8|esc|quad[w&15], r)
	a.end(n)
}

// Lzcnt is d = the leading zeros of s. Needs LZCNT; w is not W8.
func (a *Asm) Lzcnt(w Width, d, s Reg) { a.opRR(0xBD|esc|repF3|wide[w&15], d, s) }

// Tzcnt is d = the trailing zeros of s. Needs BMI1; w is not W8.
func (a *Asm) Tzcnt(w Width, d, s Reg) { a.opRR(0xBC|esc|repF3|wide[w&15], d, s) }

// Popcnt is d = the ones of s. Needs POPCNT; w is not W8.
func (a *Asm) Popcnt(w Width, d, s Reg) { a.opRR(0xB8|esc|repF3|wide[w&15], d, s) }

// Andn is d = ^s1 & s2. Needs BMI1; w is W32 or W64.
func (a *Asm) Andn(w Width, d, s1, s2 Reg) { a.vex(0xF2|quad[w&15], 0, d, s1, s2) }

// plusR encodes a form with the register in the opcode up to its immediate.
func (a *Asm) plusR(e enc, r Reg) (p *slot, n int) {
	return a.head(e|enc(r&7), e.rex(0, 0, r))
}
