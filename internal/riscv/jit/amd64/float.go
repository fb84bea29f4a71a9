package amd64

// Scalar floating point. double selects float64 (sd), else float32 (ss).

// scalar is the prefix of the arithmetic forms.
func scalar(double bool) enc {
	if double {
		return esc | repF2
	}
	return esc | repF3
}

// packed is the prefix of the forms that follow the packed rule.
func packed(double bool) enc {
	if double {
		return esc | p66
	}
	return esc
}

// MovsXM is x = [m]; the upper part of x becomes 0.
func (a *Asm) MovsXM(double bool, x XReg, m Mem) { a.opRM(0x10|scalar(double), Reg(x), m) }

// MovsMX is [m] = x.
func (a *Asm) MovsMX(double bool, m Mem, x XReg) { a.opRM(0x11|scalar(double), Reg(x), m) }

// MovXX is dst = src, all 128 bits.
func (a *Asm) MovXX(dst, src XReg) { a.opRR(0x28|esc, Reg(dst), Reg(src)) }

// MovqXR is x = r, 64 bits; the upper part of x becomes 0.
func (a *Asm) MovqXR(x XReg, r Reg) { a.opRR(0x6E|esc|p66|rexW, Reg(x), r) }

// MovqRX is r = x, 64 bits.
func (a *Asm) MovqRX(r Reg, x XReg) { a.opRR(0x7E|esc|p66|rexW, Reg(x), r) }

// MovdXR is x = r, 32 bits; the upper part of x becomes 0.
func (a *Asm) MovdXR(x XReg, r Reg) { a.opRR(0x6E|esc|p66, Reg(x), r) }

// MovdRX is r = x, 32 bits; the upper part of r becomes 0.
func (a *Asm) MovdRX(r Reg, x XReg) { a.opRR(0x7E|esc|p66, Reg(x), r) }

// FRR is dst = dst op src; FSQRT is dst = sqrt(src).
func (a *Asm) FRR(op FOp, double bool, dst, src XReg) {
	a.opRR(enc(op)|scalar(double), Reg(dst), Reg(src))
}

// FRM is dst = dst op [m]; FSQRT is dst = sqrt([m]).
func (a *Asm) FRM(op FOp, double bool, dst XReg, m Mem) {
	a.opRM(enc(op)|scalar(double), Reg(dst), m)
}

// UcomisXX compares x and y: zero, parity and carry are all set if they are
// unordered, none if x > y, carry if x < y, zero if equal. Only a signalling
// NaN raises invalid.
func (a *Asm) UcomisXX(double bool, x, y XReg) { a.opRR(0x2E|packed(double), Reg(x), Reg(y)) }

// UcomisXM is UcomisXX with [m].
func (a *Asm) UcomisXM(double bool, x XReg, m Mem) { a.opRM(0x2E|packed(double), Reg(x), m) }

// ComisXX is UcomisXX, but any NaN raises invalid.
func (a *Asm) ComisXX(double bool, x, y XReg) { a.opRR(0x2F|packed(double), Reg(x), Reg(y)) }

// ComisXM is ComisXX with [m].
func (a *Asm) ComisXM(double bool, x XReg, m Mem) { a.opRM(0x2F|packed(double), Reg(x), m) }

// Cvtsi2s is x = r, a signed integer of W32 or W64. The upper part of x stays.
func (a *Asm) Cvtsi2s(double bool, w Width, x XReg, r Reg) {
	a.opRR(0x2A|scalar(double)|quad[w&15], Reg(x), r)
}

// Cvtts2si is r = x, truncated to a signed integer of W32 or W64. What does not
// fit becomes the least integer and raises invalid.
func (a *Asm) Cvtts2si(double bool, w Width, r Reg, x XReg) {
	a.opRR(0x2C|scalar(double)|quad[w&15], r, Reg(x))
}

// Cvts2si is Cvtts2si, but rounded as MXCSR says.
func (a *Asm) Cvts2si(double bool, w Width, r Reg, x XReg) {
	a.opRR(0x2D|scalar(double)|quad[w&15], r, Reg(x))
}

// Cvtss2sd is d = s, float32 to float64.
func (a *Asm) Cvtss2sd(d, s XReg) { a.opRR(0x5A|scalar(false), Reg(d), Reg(s)) }

// Cvtsd2ss is d = s, float64 to float32.
func (a *Asm) Cvtsd2ss(d, s XReg) { a.opRR(0x5A|scalar(true), Reg(d), Reg(s)) }

// XorpsXX is d = d ^ s, all 128 bits.
func (a *Asm) XorpsXX(d, s XReg) { a.opRR(0x57|esc, Reg(d), Reg(s)) }

// AndpsXX is d = d & s, all 128 bits.
func (a *Asm) AndpsXX(d, s XReg) { a.opRR(0x54|esc, Reg(d), Reg(s)) }

// OrpsXX is d = d | s, all 128 bits.
func (a *Asm) OrpsXX(d, s XReg) { a.opRR(0x56|esc, Reg(d), Reg(s)) }

// PcmpeqdXX sets each 32-bit lane of d to ones if it equals that of s, else
// to 0; with d as s, it makes ones.
func (a *Asm) PcmpeqdXX(d, s XReg) { a.opRR(0x76|esc|p66, Reg(d), Reg(s)) }

// FMA is dst = ±(b*c) ± dst, rounded once. Needs FMA. Being VEX encoded, it
// clears the part of dst above 128 bits.
func (a *Asm) FMA(double bool, kind FMAKind, dst, b, c XReg) {
	e := enc(kind)
	if double {
		e |= rexW
	}
	a.vex(e, vex66, Reg(dst), Reg(b), Reg(c))
}

// Ldmxcsr loads the control and status register from 32 bits at m.
func (a *Asm) Ldmxcsr(m Mem) { a.opRM(0xAE|esc, 2, m) }

// Stmxcsr stores the control and status register to 32 bits at m.
func (a *Asm) Stmxcsr(m Mem) { a.opRM(0xAE|esc, 3, m) }
