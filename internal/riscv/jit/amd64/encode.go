package amd64

// enc describes a form of an instruction: the opcode in the low byte, a
// prefix (LOCK, F2, F3) in the next, and the flags below.
type enc uint32

const (
	lock  enc = 0xF0 << 8
	repF2 enc = 0xF2 << 8
	repF3 enc = 0xF3 << 8

	p66     enc = 1 << 16 // prefix 66: 16-bit operand, or part of the opcode
	rexW    enc = 1 << 17 // 64-bit operand
	esc     enc = 1 << 18 // opcode follows 0F
	byteReg enc = 1 << 19 // the reg field is a byte register
	byteRM  enc = 1 << 20 // the rm field is a byte register if it is one at all
	bad     enc = 1 << 31 // there is no such form
)

// What a Width adds to a form; bad where it does not exist. The arrays are
// indexed by Width, of 16 entries to need no bounds check.
var (
	// sized is for the forms whose opcode has a byte/word bit.
	sized = [16]enc{bad, byteReg | byteRM, p66 | 1, bad, 1, bad, bad, bad, rexW | 1,
		bad, bad, bad, bad, bad, bad, bad}
	// group is sized for forms whose reg field extends the opcode.
	group = [16]enc{bad, byteRM, p66 | 1, bad, 1, bad, bad, bad, rexW | 1,
		bad, bad, bad, bad, bad, bad, bad}
	// wide is for forms without bytes.
	wide = [16]enc{bad, bad, p66, bad, 0, bad, bad, bad, rexW,
		bad, bad, bad, bad, bad, bad, bad}
	// quad is for forms with 32 and 64 bits only.
	quad = [16]enc{bad, bad, bad, bad, 0, bad, bad, bad, rexW,
		bad, bad, bad, bad, bad, bad, bad}
	// zext and sext are the loads of a Width into 64 bits.
	zext = [16]enc{bad, esc | byteRM | 0xB6, esc | 0xB7, bad, 0x8B, bad, bad, bad, rexW | 0x8B,
		bad, bad, bad, bad, bad, bad, bad}
	sext = [16]enc{bad, rexW | esc | byteRM | 0xBE, rexW | esc | 0xBF, bad, rexW | 0x63, bad, bad, bad, rexW | 0x8B,
		bad, bad, bad, bad, bad, bad, bad}
)

// scaleBits is the SIB field for a Scale.
var scaleBits = [16]byte{2: 0x40, 4: 0x80, 8: 0xC0}

// immSize is the length of an immediate of width w: it has at most 32 bits.
func immSize(w Width) int { return int(min(w, W32)) }

// isByte reports that v fits an immediate or displacement of one byte.
func isByte(v int32) bool { return v == int32(int8(v)) }

// head encodes what precedes the operands: prefixes, REX if rex is not 0, and
// the opcode.
func (a *Asm) head(e enc, rex byte) (p *slot, n int) {
	a.seen |= e
	p = a.slot()
	if e&p66 != 0 {
		p[0] = 0x66
		n = 1
	}
	if pre := byte(e >> 8); pre != 0 {
		p[n] = pre
		n++
	}
	if rex != 0 {
		p[n&15] = 0x40 | rex
		n++
	}
	if e&esc != 0 {
		p[n&15] = 0x0F
		n++
	}
	p[n&15] = byte(e)
	return p, n + 1
}

// rex computes the REX byte without its 0x40, save where a byte register needs
// one of no other purpose. x is the index register, b the rm or base.
func (e enc) rex(reg, x, b Reg) byte {
	return byte(e>>14)&8 | byte(reg&8)>>1 | byte(x&8)>>2 | byte(b&8)>>3
}

// isHighByte reports that r is encoded as AH to BH if there is no REX.
func isHighByte(r Reg) bool { return r&^3 == 4 }

// rr encodes a form with two registers up to its immediate.
func (a *Asm) rr(e enc, reg, rm Reg) (p *slot, n int) {
	rex := e.rex(reg, 0, rm)
	if e&byteReg != 0 && isHighByte(reg) || e&byteRM != 0 && isHighByte(rm) {
		rex |= 0x40
	}
	p, n = a.head(e, rex)
	p[n&15] = 0xC0 | byte(reg&7)<<3 | byte(rm&7)
	return p, n + 1
}

// rm encodes a form with a register and memory up to its immediate.
func (a *Asm) rm(e enc, reg Reg, m Mem) (p *slot, n int) {
	var x Reg
	sib := byte(0x20) // no index
	if m.Scale != 0 {
		if m.Scale > 8 || m.Scale&(m.Scale-1) != 0 || m.Index == RSP {
			e |= bad
		}
		x = m.Index
		sib = scaleBits[m.Scale&15] | byte(x&7)<<3
	}
	rex := e.rex(reg, x, m.Base)
	if e&byteReg != 0 && isHighByte(reg) {
		rex |= 0x40
	}
	p, n = a.head(e, rex)

	mod, size := byte(0x80), 4
	if isByte(m.Disp) {
		mod, size = 0x40, 1
		if m.Disp == 0 && m.Base&7 != RBP { // RBP and R13 have no form without
			mod, size = 0, 0
		}
	}
	base := byte(m.Base & 7)
	if m.Scale == 0 && base != byte(RSP) { // RSP and R12 are reached by SIB only
		p[n&15] = mod | byte(reg&7)<<3 | base
		n++
	} else {
		p[n&15] = mod | byte(reg&7)<<3 | 4
		p[(n+1)&15] = sib | base
		n += 2
	}
	put32(p, n, uint32(m.Disp))
	return p, n + size
}

// opRR appends a form with two registers.
func (a *Asm) opRR(e enc, reg, rm Reg) {
	_, n := a.rr(e, reg, rm)
	a.end(n)
}

// opRM appends a form with a register and memory.
func (a *Asm) opRM(e enc, reg Reg, m Mem) {
	_, n := a.rm(e, reg, m)
	a.end(n)
}

// op appends a form without operands.
func (a *Asm) op(e enc) {
	_, n := a.head(e, e.rex(0, 0, 0))
	a.end(n)
}

// The prefixes that VEX implies.
const (
	vex66 byte = 1
	vexF3 byte = 2
	vexF2 byte = 3
)

// vex appends an instruction of the opcode map 0F38 with three registers. Of e,
// only the opcode, rexW and bad count.
func (a *Asm) vex(e enc, pp byte, reg, v, rm Reg) {
	a.vexHead(e, 2, pp, reg, v, rm)
	a.end(5)
}

// vexHead encodes an instruction of an opcode map, 2 for 0F38 and 3 for 0F3A, up to its
// immediate.
func (a *Asm) vexHead(e enc, opcodes, pp byte, reg, v, rm Reg) *slot {
	a.seen |= e
	p := a.slot()
	p[0] = 0xC4
	p[1] = 0xE0 | opcodes ^ byte(reg&8)<<4 ^ byte(rm&8)<<2
	p[2] = byte(e>>10)&0x80 | byte(^v&15)<<3 | pp
	p[3] = byte(e)
	p[4] = 0xC0 | byte(reg&7)<<3 | byte(rm&7)
	return p
}
