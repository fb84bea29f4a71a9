package amd64

// BtRR sets carry to bit idx of r, idx modulo the width. w is not W8, here and
// in the other bit tests.
func (a *Asm) BtRR(w Width, r, idx Reg) { a.opRR(0xA3|esc|wide[w&15], idx, r) }

// BtsRR is BtRR, then sets the bit.
func (a *Asm) BtsRR(w Width, r, idx Reg) { a.opRR(0xAB|esc|wide[w&15], idx, r) }

// BtrRR is BtRR, then clears the bit.
func (a *Asm) BtrRR(w Width, r, idx Reg) { a.opRR(0xB3|esc|wide[w&15], idx, r) }

// BtcRR is BtRR, then flips the bit.
func (a *Asm) BtcRR(w Width, r, idx Reg) { a.opRR(0xBB|esc|wide[w&15], idx, r) }

// BtRI sets carry to bit n of r, n modulo the width.
func (a *Asm) BtRI(w Width, r Reg, n uint8) { a.bitRI(4, w, r, n) }

// BtsRI is BtRI, then sets the bit.
func (a *Asm) BtsRI(w Width, r Reg, n uint8) { a.bitRI(5, w, r, n) }

// BtrRI is BtRI, then clears the bit.
func (a *Asm) BtrRI(w Width, r Reg, n uint8) { a.bitRI(6, w, r, n) }

// BtcRI is BtRI, then flips the bit.
func (a *Asm) BtcRI(w Width, r Reg, n uint8) { a.bitRI(7, w, r, n) }

func (a *Asm) bitRI(digit Reg, w Width, r Reg, n uint8) {
	p, k := a.rr(0xBA|esc|wide[w&15], digit, r)
	a.endImm(p, k, int32(n), 1)
}

// TestRR sets the flags of x & y.
func (a *Asm) TestRR(w Width, x, y Reg) { a.opRR(0x84|sized[w&15], y, x) }

// TestRI sets the flags of r & imm, imm sign-extended or cut to w.
func (a *Asm) TestRI(w Width, r Reg, imm int32) {
	p, n := a.rr(0xF6|group[w&15], 0, r)
	a.endImm(p, n, imm, immSize(w))
}

// TestMI sets the flags of [m] & imm, imm sign-extended or cut to w.
func (a *Asm) TestMI(w Width, m Mem, imm int32) {
	p, n := a.rm(0xF6|group[w&15], 0, m)
	a.endImm(p, n, imm, immSize(w))
}

// Setcc sets the low byte of r to 1 if c holds, else to 0.
func (a *Asm) Setcc(c Cond, r Reg) { a.opRR(0x90|esc|byteRM|enc(c&15), 0, r) }

// Cmov is d = s if c holds. w is not W8; W32 clears the upper half of d even
// if c does not hold.
func (a *Asm) Cmov(c Cond, w Width, d, s Reg) { a.opRR(0x40|esc|enc(c&15)|wide[w&15], d, s) }

// CmovM is Cmov from memory, which is read even if c does not hold.
func (a *Asm) CmovM(c Cond, w Width, d Reg, m Mem) { a.opRM(0x40|esc|enc(c&15)|wide[w&15], d, m) }

// XchgMR exchanges [m] and r, atomically.
func (a *Asm) XchgMR(w Width, m Mem, r Reg) { a.opRM(0x86|sized[w&15], r, m) }

// LockXadd is r, [m] = [m], [m] + r, atomically.
func (a *Asm) LockXadd(w Width, m Mem, r Reg) { a.opRM(0xC0|esc|lock|sized[w&15], r, m) }

// LockCmpxchg is [m] = r if [m] equals RAX (the zero flag tells), else RAX =
// [m], atomically.
func (a *Asm) LockCmpxchg(w Width, m Mem, r Reg) { a.opRM(0xB0|esc|lock|sized[w&15], r, m) }

// LockALUMR is [m] = [m] op r, atomically. op is not CMP.
func (a *Asm) LockALUMR(op ALU, w Width, m Mem, r Reg) {
	e := op.enc() | lock | sized[w&15]
	if op == CMP {
		e |= bad
	}
	a.opRM(e, r, m)
}

// Mfence orders all earlier loads and stores before all later ones.
func (a *Asm) Mfence() {
	p, n := a.head(0xAE|esc, 0)
	p[n&15] = 0xF0
	a.end(n + 1)
}
