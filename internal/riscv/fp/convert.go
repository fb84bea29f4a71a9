package fp

import (
	"math"
	"math/bits"
)

// Conversions are named by their types: F32 and F64, and I32, U32, I64, U64 for the W, WU, L and LU of the mnemonics.
// Integers travel as x registers: 32-bit results are sign-extended, the unsigned ones too (unpriv 20.7), and only the
// lower half of a register is read where 32 bits are converted.

// F32ToF64 is FCVT.D.S: exact.
func F32ToF64(a uint32, fl *Flags) uint64 {
	if isNaN32(a) {
		binary32.nan(uint64(a), uint64(a), fl)
		return NaN64
	}
	return widen(a)
}

// F64ToF32 is FCVT.S.D.
func F64ToF32(a uint64, rm Rounding, fl *Flags) uint32 {
	x := math.Float64frombits(a)
	y := float32(x)
	r := math.Float32bits(y)
	switch {
	case float64(y) == x:
		return r // in any mode
	case rm == RNE && ordinary32(r):
		*fl |= NX
		return r
	}
	return narrow(a, rm, fl)
}

func narrow(a uint64, rm Rounding, fl *Flags) uint32 {
	if isNaN64(a) {
		binary64.nan(a, a, fl)
		return NaN32
	}
	// Infinities and zeros are exact and do not get here.
	return uint32(binary32.round(binary64.unpack(a), rm, fl))
}

// I32ToF64 is FCVT.D.W: exact.
func I32ToF64(x uint64) uint64 { return math.Float64bits(float64(int32(x))) }

// U32ToF64 is FCVT.D.WU: exact.
func U32ToF64(x uint64) uint64 { return math.Float64bits(float64(uint32(x))) }

// I64ToF64 is FCVT.D.L.
func I64ToF64(x uint64, rm Rounding, fl *Flags) uint64 {
	if x+1<<53 <= 1<<54 { // so small that it is exact
		return math.Float64bits(float64(int64(x)))
	}
	return binary64.fromInt(x, int64(x) < 0, rm, fl)
}

// U64ToF64 is FCVT.D.LU.
func U64ToF64(x uint64, rm Rounding, fl *Flags) uint64 {
	if x <= 1<<53 {
		return math.Float64bits(float64(int64(x)))
	}
	return binary64.fromInt(x, false, rm, fl)
}

// I32ToF32 is FCVT.S.W.
func I32ToF32(x uint64, rm Rounding, fl *Flags) uint32 { return I64ToF32(uint64(int32(x)), rm, fl) }

// U32ToF32 is FCVT.S.WU.
func U32ToF32(x uint64, rm Rounding, fl *Flags) uint32 { return U64ToF32(uint64(uint32(x)), rm, fl) }

// I64ToF32 is FCVT.S.L.
func I64ToF32(x uint64, rm Rounding, fl *Flags) uint32 {
	if x+1<<24 <= 1<<25 {
		return math.Float32bits(float32(int64(x)))
	}
	return uint32(binary32.fromInt(x, int64(x) < 0, rm, fl))
}

// U64ToF32 is FCVT.S.LU.
func U64ToF32(x uint64, rm Rounding, fl *Flags) uint32 {
	if x <= 1<<24 {
		return math.Float32bits(float32(int64(x)))
	}
	return uint32(binary32.fromInt(x, false, rm, fl))
}

// fromInt converts x, which is not zero; neg tells that x is the two's complement of a negative number.
func (f *format) fromInt(x uint64, neg bool, rm Rounding, fl *Flags) uint64 {
	if neg {
		x = -x
	}
	if x>>(unit+1) != 0 {
		return f.round(normal(neg, unit, x), rm, fl)
	}
	shift := bits.LeadingZeros64(x) - (63 - unit)
	return f.round(number{neg, unit - shift, x << (shift & 63)}, rm, fl)
}

// F64ToI32 is FCVT.W.D.
func F64ToI32(a uint64, rm Rounding, fl *Flags) uint64 {
	if fitsInt64(a) {
		x := math.Float64frombits(a)
		if v := integer(x, rm); v == int64(int32(v)) {
			*fl |= fraction(x)
			return uint64(v)
		}
	}
	return saturate(a, 1<<64-1<<31, 1<<31-1, fl)
}

// F64ToU32 is FCVT.WU.D.
func F64ToU32(a uint64, rm Rounding, fl *Flags) uint64 {
	if fitsInt64(a) {
		x := math.Float64frombits(a)
		if v := integer(x, rm); v == int64(uint32(v)) {
			*fl |= fraction(x)
			return uint64(int32(v))
		}
	}
	return saturate(a, 0, 1<<64-1, fl)
}

// F64ToI64 is FCVT.L.D.
func F64ToI64(a uint64, rm Rounding, fl *Flags) uint64 {
	const lowest = sign64 | (1023+63)<<52 // -2^63
	if fitsInt64(a) {
		x := math.Float64frombits(a)
		*fl |= fraction(x)
		return uint64(integer(x, rm))
	}
	if a == lowest {
		return 1 << 63
	}
	return saturate(a, 1<<63, 1<<63-1, fl)
}

// F64ToU64 is FCVT.LU.D.
func F64ToU64(a uint64, rm Rounding, fl *Flags) uint64 {
	const limit = (1023 + 64) << 52 // 2^64
	if fitsInt64(a) {
		x := math.Float64frombits(a)
		if v := integer(x, rm); v >= 0 {
			*fl |= fraction(x)
			return uint64(v)
		}
	} else if a < limit {
		return a<<11 | 1<<63 // in [2^63, 2^64) all numbers are integers
	}
	return saturate(a, 0, 1<<64-1, fl)
}

// F32ToI32 is FCVT.W.S. It goes through a double, as its siblings do: that is exact, and a NaN of either kind is as
// invalid there as here.
func F32ToI32(a uint32, rm Rounding, fl *Flags) uint64 { return F64ToI32(widen(a), rm, fl) }

// F32ToU32 is FCVT.WU.S.
func F32ToU32(a uint32, rm Rounding, fl *Flags) uint64 { return F64ToU32(widen(a), rm, fl) }

// F32ToI64 is FCVT.L.S.
func F32ToI64(a uint32, rm Rounding, fl *Flags) uint64 { return F64ToI64(widen(a), rm, fl) }

// F32ToU64 is FCVT.LU.S.
func F32ToU64(a uint32, rm Rounding, fl *Flags) uint64 { return F64ToU64(widen(a), rm, fl) }

// fitsInt64 reports whether a is a number of magnitude below 2^63, for which Go defines the conversion to int64.
func fitsInt64(a uint64) bool { return a<<1 < (1023+63)<<53 }

// integer rounds x, which fitsInt64, to an integer. What a program's casts need is inlined.
func integer(x float64, rm Rounding) int64 {
	v := int64(x)
	if rm == RTZ || float64(v) == x {
		return v
	}
	return adjust(x, v, rm)
}

// fraction returns NX if x, which fitsInt64, is not an integer.
func fraction(x float64) Flags {
	if float64(int64(x)) != x {
		return NX
	}
	return 0
}

// adjust returns x rounded to an integer, where v is x truncated and differs from it.
func adjust(x float64, v int64, rm Rounding) int64 {
	rest := math.Abs(x - float64(v)) // exact, and less than 1
	var away bool
	switch rm {
	case RNE:
		away = rest > 0.5 || rest == 0.5 && v&1 != 0
	case RDN:
		away = x < 0
	case RUP:
		away = x > 0
	case RMM:
		away = rest >= 0.5
	}
	switch {
	case !away:
		return v
	case x < 0:
		return v - 1
	}
	return v + 1
}

// saturate is the result for a NaN, an infinity, or a number out of range (unpriv 20.7, table of FCVT limits): it is
// invalid and, whatever it would have rounded to, not inexact.
func saturate(a, lowest, highest uint64, fl *Flags) uint64 {
	*fl |= NV
	if a&sign64 != 0 && !isNaN64(a) {
		return lowest
	}
	return highest
}
