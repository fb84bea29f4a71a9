package fp

import "math"

// Sgnj64 returns a with the sign of b. Like its siblings it looks at no other bit of b, raises nothing, and keeps the
// payload of a NaN.
func Sgnj64(a, b uint64) uint64 { return a&^sign64 | b&sign64 }

// Sgnjn64 returns a with the opposite of the sign of b.
func Sgnjn64(a, b uint64) uint64 { return a&^sign64 | ^b&sign64 }

// Sgnjx64 returns a with its sign multiplied by that of b.
func Sgnjx64(a, b uint64) uint64 { return a ^ b&sign64 }

// Sgnj32 returns a with the sign of b.
func Sgnj32(a, b uint32) uint32 { return a&^sign32 | b&sign32 }

// Sgnjn32 returns a with the opposite of the sign of b.
func Sgnjn32(a, b uint32) uint32 { return a&^sign32 | ^b&sign32 }

// Sgnjx32 returns a with its sign multiplied by that of b.
func Sgnjx32(a, b uint32) uint32 { return a ^ b&sign32 }

// Min64 returns the lesser of a and b; -0 is less than +0. A NaN loses against a number.
func Min64(a, b uint64, fl *Flags) uint64 {
	x, y := math.Float64frombits(a), math.Float64frombits(b)
	switch {
	case x < y:
		return a
	case y < x:
		return b
	case x == y:
		return a | b // the same pattern, or two zeros
	}
	return binary64.preferNumber(a, b, fl)
}

// Max64 returns the greater of a and b; +0 is greater than -0. A NaN loses against a number.
func Max64(a, b uint64, fl *Flags) uint64 {
	x, y := math.Float64frombits(a), math.Float64frombits(b)
	switch {
	case x > y:
		return a
	case y > x:
		return b
	case x == y:
		return a & b
	}
	return binary64.preferNumber(a, b, fl)
}

// Min32 returns the lesser of a and b, as Min64 does.
func Min32(a, b uint32, fl *Flags) uint32 {
	x, y := math.Float32frombits(a), math.Float32frombits(b)
	switch {
	case x < y:
		return a
	case y < x:
		return b
	case x == y:
		return a | b
	}
	return uint32(binary32.preferNumber(uint64(a), uint64(b), fl))
}

// Max32 returns the greater of a and b, as Max64 does.
func Max32(a, b uint32, fl *Flags) uint32 {
	x, y := math.Float32frombits(a), math.Float32frombits(b)
	switch {
	case x > y:
		return a
	case y > x:
		return b
	case x == y:
		return a & b
	}
	return uint32(binary32.preferNumber(uint64(a), uint64(b), fl))
}

// preferNumber is the minimum and the maximum of a and b, one of them a NaN: the other, unless that is a NaN too.
func (f *format) preferNumber(a, b uint64, fl *Flags) uint64 {
	canonical := f.nan(a, b, fl)
	switch {
	case !f.isNaN(a):
		return a
	case !f.isNaN(b):
		return b
	}
	return canonical
}

// Eq64 returns 1 if a = b, else 0. Only signalling NaNs are invalid.
func Eq64(a, b uint64, fl *Flags) uint64 {
	x, y := math.Float64frombits(a), math.Float64frombits(b)
	if x != x || y != y {
		binary64.nan(a, b, fl)
	}
	return truth(x == y)
}

// Lt64 returns 1 if a < b, else 0. Any NaN is invalid.
func Lt64(a, b uint64, fl *Flags) uint64 {
	x, y := math.Float64frombits(a), math.Float64frombits(b)
	if x != x || y != y {
		*fl |= NV
	}
	return truth(x < y)
}

// Le64 returns 1 if a <= b, else 0. Any NaN is invalid.
func Le64(a, b uint64, fl *Flags) uint64 {
	x, y := math.Float64frombits(a), math.Float64frombits(b)
	if x != x || y != y {
		*fl |= NV
	}
	return truth(x <= y)
}

// Eq32 returns 1 if a = b, else 0. Only signalling NaNs are invalid.
func Eq32(a, b uint32, fl *Flags) uint64 {
	x, y := math.Float32frombits(a), math.Float32frombits(b)
	if x != x || y != y {
		binary32.nan(uint64(a), uint64(b), fl)
	}
	return truth(x == y)
}

// Lt32 returns 1 if a < b, else 0. Any NaN is invalid.
func Lt32(a, b uint32, fl *Flags) uint64 { return Lt64(widen(a), widen(b), fl) }

// Le32 returns 1 if a <= b, else 0. Any NaN is invalid.
func Le32(a, b uint32, fl *Flags) uint64 { return Le64(widen(a), widen(b), fl) }

// widen returns the single a as a double, exactly; it stays a NaN if it is one.
func widen(a uint32) uint64 { return math.Float64bits(float64(math.Float32frombits(a))) }

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// The classes of Class32 and Class64, one bit each (unpriv 20.9).
const (
	classNegInf = 1 << iota
	classNegNormal
	classNegSubnormal
	classNegZero
	classPosZero
	classPosSubnormal
	classPosNormal
	classPosInf
	classSignallingNaN
	classQuietNaN
)

// Class64 returns the FCLASS mask of a.
func Class64(a uint64) uint64 { return binary64.class(a) }

// Class32 returns the FCLASS mask of a.
func Class32(a uint32) uint64 { return binary32.class(uint64(a)) }

func (f *format) class(a uint64) uint64 {
	pos, neg := uint64(classPosNormal), uint64(classNegNormal)
	switch {
	case f.signals(a):
		return classSignallingNaN
	case f.isNaN(a):
		return classQuietNaN
	case f.isInf(a):
		pos, neg = classPosInf, classNegInf
	case f.isZero(a):
		pos, neg = classPosZero, classNegZero
	case a&f.inf == 0:
		pos, neg = classPosSubnormal, classNegSubnormal
	}
	if a&f.sign != 0 {
		return neg
	}
	return pos
}
