package fp

import (
	"math"
	"math/bits"
)

// format describes an IEEE 754 binary format. The methods of format are the reference arithmetic: integer only (the
// square root apart, which starts from the host's), any rounding mode, all flags. Patterns of the 32-bit format travel
// zero-extended.
type format struct {
	frac  uint // width of the fraction field
	bias  int
	inf   uint64 // +infinity, which is also the mask of the exponent field
	sign  uint64 // mask of the sign bit
	quiet uint64 // the bit that tells quiet NaNs from signalling ones
}

var (
	binary32 = &format{frac: 23, bias: 127, inf: uint64(inf32), sign: uint64(sign32), quiet: 1 << 22}
	binary64 = &format{frac: 52, bias: 1023, inf: inf64, sign: sign64, quiet: 1 << 51}
)

// unit is the position of the leading bit of an unpacked significand. The bit above it is room for a carry.
const unit = 62

// zeroExp is the exponent of an unpacked zero: so low that aligning a zero with any other number shifts the zero.
const zeroExp = -1 << 16

// number is an unpacked finite number, ±sig * 2^(exp-unit). Unless it is zero, bit unit is the highest bit set in sig.
// Bit 0 of sig is sticky where bits were shifted out: it stands for a remainder that is not zero.
type number struct {
	neg bool
	exp int
	sig uint64
}

func (f *format) isNaN(a uint64) bool     { return a&^f.sign > f.inf }
func (f *format) isInf(a uint64) bool     { return a&^f.sign == f.inf }
func (f *format) isZero(a uint64) bool    { return a&^f.sign == 0 }
func (f *format) isSpecial(a uint64) bool { return a&f.inf == f.inf }
func (f *format) canonicalNaN() uint64    { return f.inf | f.quiet }

// signals reports whether a is a signalling NaN.
func (f *format) signals(a uint64) bool { return f.isNaN(a) && a&f.quiet == 0 }

// invalid raises NV and returns the canonical NaN.
func (f *format) invalid(fl *Flags) uint64 {
	*fl |= NV
	return f.canonicalNaN()
}

// nan is the result of an operation on a and b, one of them a NaN.
func (f *format) nan(a, b uint64, fl *Flags) uint64 {
	if f.signals(a) || f.signals(b) {
		*fl |= NV
	}
	return f.canonicalNaN()
}

// signed returns the magnitude mag with the sign neg.
func (f *format) signed(neg bool, mag uint64) uint64 {
	if neg {
		mag |= f.sign
	}
	return mag
}

// unpack takes a finite number apart.
func (f *format) unpack(a uint64) number {
	neg := a&f.sign != 0
	exp := int(a&f.inf>>(f.frac&63)) - f.bias
	sig := a & (f.quiet<<1 - 1)
	if exp > -f.bias {
		return number{neg, exp, (sig | f.quiet<<1) << ((unit - f.frac) & 63)}
	}
	if sig == 0 {
		return number{neg, zeroExp, 0}
	}
	// Subnormal numbers have the exponent of the smallest normal ones and no hidden bit.
	shift := bits.LeadingZeros64(sig) - (63 - unit)
	return number{neg, exp + 1 - int(f.frac) + unit - shift, sig << (shift & 63)}
}

// round packs x, which is not zero, rounding it to the format.
func (f *format) round(x number, rm Rounding, fl *Flags) uint64 {
	extra := (unit - f.frac) & 63
	mask := uint64(1)<<extra - 1
	half := mask>>1 + 1

	var inc uint64 // added below the last place, it carries into it if the mode rounds away from zero
	switch rm {
	case RNE, RMM:
		inc = half
	case RDN:
		if x.neg {
			inc = mask
		}
	case RUP:
		if !x.neg {
			inc = mask
		}
	}

	exp, sig := x.exp+f.bias, x.sig
	tiny := false
	if exp < 1 {
		// Tiny, unless rounding to full precision with an unbounded exponent reaches the smallest normal number.
		tiny = exp < 0 || sig+inc < 2<<unit
		sig = shiftJam(sig, uint(1-exp))
		exp = 1
	}
	rest := sig & mask
	mag := (sig + inc) >> extra
	if rest == half && rm == RNE {
		mag &^= 1
	}
	// The hidden bit, or a carry into it or out of it, adds one to the exponent field.
	mag += uint64(exp-1) << (f.frac & 63)
	if rest != 0 {
		*fl |= NX
		if tiny {
			*fl |= UF
		}
	}
	if mag >= f.inf {
		*fl |= OF | NX
		mag = f.inf
		if inc == 0 {
			mag-- // the largest finite number
		}
	}
	return f.signed(x.neg, mag)
}

// shiftJam shifts x right by n and makes bit 0 sticky.
func shiftJam(x uint64, n uint) uint64 {
	r := x >> n
	if r<<n != x {
		r |= 1
	}
	return r
}

// sticky folds rest into bit 0 of sig.
func sticky(sig, rest uint64) uint64 {
	if rest != 0 {
		sig |= 1
	}
	return sig
}

// normal brings sig, with its leading bit at unit or above it, to the form that number asks for.
func normal(neg bool, exp int, sig uint64) number {
	carry := sig >> (unit + 1)
	return number{neg, exp + int(carry), sig>>(carry&1) | sig&carry}
}

func (f *format) add(a, b uint64, rm Rounding, fl *Flags) uint64 {
	if f.isSpecial(a) || f.isSpecial(b) {
		return f.addSpecial(a, b, fl)
	}
	x, y := f.unpack(a), f.unpack(b)
	return f.sum(x, 0, y, 0, rm, fl)
}

// addSpecial is a + b where one of them is infinite or a NaN.
func (f *format) addSpecial(a, b uint64, fl *Flags) uint64 {
	switch {
	case f.isNaN(a) || f.isNaN(b):
		return f.nan(a, b, fl)
	case f.isInf(a) && f.isInf(b) && a != b:
		return f.invalid(fl)
	case f.isInf(a):
		return a
	}
	return b
}

// sum returns x + y. xlo and ylo extend the significands below; for a zero they are zero.
func (f *format) sum(x number, xlo uint64, y number, ylo uint64, rm Rounding, fl *Flags) uint64 {
	if x.exp < y.exp {
		x, xlo, y, ylo = y, ylo, x, xlo
	}
	hi, lo := shiftJam128(y.sig, ylo, uint(x.exp-y.exp))
	if x.neg == y.neg {
		if x.sig == 0 {
			return f.signed(x.neg, 0)
		}
		lo, carry := bits.Add64(xlo, lo, 0)
		hi, _ = bits.Add64(x.sig, hi, carry)
		return f.round(normal(x.neg, x.exp, sticky(hi, lo)), rm, fl)
	}
	lo, borrow := bits.Sub64(xlo, lo, 0)
	hi, borrow = bits.Sub64(x.sig, hi, borrow)
	if borrow != 0 {
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
		x.neg = !x.neg
	}
	if hi == 0 {
		if lo == 0 {
			return f.signed(rm == RDN, 0)
		}
		hi, lo = lo, 0
		x.exp -= 64
		if hi>>(unit+1) != 0 { // cannot be shifted left into place
			return f.round(normal(x.neg, x.exp, hi), rm, fl)
		}
	}
	shift := uint(bits.LeadingZeros64(hi)-(63-unit)) & 63
	hi = hi<<shift | lo>>1>>(63-shift)
	return f.round(number{x.neg, x.exp - int(shift), sticky(hi, lo<<shift)}, rm, fl)
}

// shiftJam128 shifts hi:lo right by n and makes the last bit sticky.
func shiftJam128(hi, lo uint64, n uint) (uint64, uint64) {
	if n < 64 {
		return hi >> n, sticky(hi<<(64-n)|lo>>n, lo<<(64-n))
	}
	return 0, sticky(shiftJam(hi, n-64), lo)
}

func (f *format) mul(a, b uint64, rm Rounding, fl *Flags) uint64 {
	neg := (a^b)&f.sign != 0
	if f.isSpecial(a) || f.isSpecial(b) {
		switch {
		case f.isNaN(a) || f.isNaN(b):
			return f.nan(a, b, fl)
		case f.isZero(a) || f.isZero(b):
			return f.invalid(fl)
		}
		return f.signed(neg, f.inf)
	}
	if f.isZero(a) || f.isZero(b) {
		return f.signed(neg, 0)
	}
	x, y := f.unpack(a), f.unpack(b)
	hi, lo := bits.Mul64(x.sig<<1, y.sig<<1)
	return f.round(normal(neg, x.exp+y.exp, sticky(hi, lo)), rm, fl)
}

func (f *format) div(a, b uint64, rm Rounding, fl *Flags) uint64 {
	neg := (a^b)&f.sign != 0
	switch {
	case f.isNaN(a) || f.isNaN(b):
		return f.nan(a, b, fl)
	case f.isInf(a) && f.isInf(b), f.isZero(a) && f.isZero(b):
		return f.invalid(fl)
	case f.isInf(a):
		return f.signed(neg, f.inf)
	case f.isInf(b), f.isZero(a):
		return f.signed(neg, 0)
	case f.isZero(b):
		*fl |= DZ
		return f.signed(neg, f.inf)
	}
	x, y := f.unpack(a), f.unpack(b)
	q, rest := bits.Div64(x.sig>>1, x.sig<<63, y.sig)
	// The leading bit of the quotient is at unit or, if the significand of x is not below that of y, at unit+1.
	return f.round(normal(neg, x.exp-y.exp-1, sticky(q, rest)), rm, fl)
}

func (f *format) sqrt(a uint64, rm Rounding, fl *Flags) uint64 {
	switch {
	case f.isNaN(a):
		return f.nan(a, a, fl)
	case f.isZero(a), a == f.inf:
		return a
	case a&f.sign != 0:
		return f.invalid(fl)
	}
	// Split x into an even power of two and m in [1, 4). The host's root of m is the nearest of 53 bits; the sign of
	// the residue m - root² tells on which side of it the exact root lies, and that is all that rounding needs.
	const hidden = 1 << 52
	x := f.unpack(a)
	m, odd := x.sig>>(unit-52), uint(x.exp)&1
	root := math.Float64bits(math.Sqrt(math.Float64frombits((1023+uint64(odd))<<52 | m&(hidden-1))))
	root = root&(hidden-1) | hidden
	// Both terms have up to 106 bits, but their difference has no more than 54.
	residue := int64(m<<52<<odd - root*root)
	sig := root << (unit - 52)
	switch {
	case residue > 0:
		sig++
	case residue < 0:
		sig--
	}
	return f.round(number{false, (x.exp - int(odd)) >> 1, sig}, rm, fl)
}

func (f *format) fma(a, b, c uint64, rm Rounding, fl *Flags) uint64 {
	neg := (a^b)&f.sign != 0
	if f.isSpecial(a) || f.isSpecial(b) || f.isSpecial(c) {
		return f.fmaSpecial(a, b, c, neg, fl)
	}
	x, y, z := f.unpack(a), f.unpack(b), f.unpack(c)
	p := number{neg, zeroExp, 0}
	var lo uint64
	if x.sig != 0 && y.sig != 0 {
		p.sig, lo = bits.Mul64(x.sig<<1, y.sig<<1)
		p.exp = x.exp + y.exp
		if p.sig>>(unit+1) != 0 {
			lo = p.sig<<63 | lo>>1 // the lowest bits of the product are zero, none is lost
			p.sig >>= 1
			p.exp++
		}
	}
	return f.sum(p, lo, z, 0, rm, fl)
}

// fmaSpecial is a*b + c where one of them is infinite or a NaN; neg is the sign of the product.
func (f *format) fmaSpecial(a, b, c uint64, neg bool, fl *Flags) uint64 {
	switch {
	case f.isInf(a) && f.isZero(b), f.isZero(a) && f.isInf(b):
		// Invalid even if c is a quiet NaN (unpriv 20.6).
		return f.invalid(fl)
	case f.isNaN(a) || f.isNaN(b):
		f.nan(a, b, fl)
		return f.nan(c, c, fl)
	case f.isInf(a) || f.isInf(b):
		return f.addSpecial(f.signed(neg, f.inf), c, fl)
	}
	return f.addSpecial(0, c, fl)
}
