package fp

import "math"

// exactSum reports whether the sum x + y, which the host rounded to s, is exact. Subtracting the greater of the two from
// s never rounds, so if that gives back the other one nothing was lost; where the sum is exact both subtractions do.
func exactSum[F float32 | float64](x, y, s F) bool { return F(s-x) == y && F(s-y) == x }

// Add64 returns a + b.
func Add64(a, b uint64, rm Rounding, fl *Flags) uint64 {
	x, y := math.Float64frombits(a), math.Float64frombits(b)
	s := x + y
	r := math.Float64bits(s)
	if rm != RNE || !finite64(r) { // a sum of subnormal size is exact, and so not an underflow
		return binary64.add(a, b, rm, fl)
	}
	if *fl&NX == 0 && !exactSum(x, y, s) {
		*fl |= NX
	}
	return r
}

// Add32 returns a + b.
func Add32(a, b uint32, rm Rounding, fl *Flags) uint32 {
	x, y := math.Float32frombits(a), math.Float32frombits(b)
	s := x + y
	r := math.Float32bits(s)
	if rm != RNE || !finite32(r) {
		return uint32(binary32.add(uint64(a), uint64(b), rm, fl))
	}
	if *fl&NX == 0 && !exactSum(x, y, s) {
		*fl |= NX
	}
	return r
}

// Sub64 returns a - b.
func Sub64(a, b uint64, rm Rounding, fl *Flags) uint64 { return Add64(a, b^sign64, rm, fl) }

// Sub32 returns a - b.
func Sub32(a, b uint32, rm Rounding, fl *Flags) uint32 { return Add32(a, b^sign32, rm, fl) }

// Mul64 returns a * b.
func Mul64(a, b uint64, rm Rounding, fl *Flags) uint64 {
	x, y := math.Float64frombits(a), math.Float64frombits(b)
	p := float64(x * y)
	r := math.Float64bits(p)
	if rm != RNE || !ordinary64(r) {
		return binary64.mul(a, b, rm, fl)
	}
	if *fl&NX == 0 && math.FMA(x, y, -p) != 0 {
		*fl |= NX
	}
	return r
}

// Mul32 returns a * b.
func Mul32(a, b uint32, rm Rounding, fl *Flags) uint32 {
	p := float64(math.Float32frombits(a)) * float64(math.Float32frombits(b)) // exact
	s := float32(p)
	r := math.Float32bits(s)
	if rm != RNE || !ordinary32(r) {
		return uint32(binary32.mul(uint64(a), uint64(b), rm, fl))
	}
	if float64(s) != p {
		*fl |= NX
	}
	return r
}

// Div64 returns a / b.
func Div64(a, b uint64, rm Rounding, fl *Flags) uint64 {
	x, y := math.Float64frombits(a), math.Float64frombits(b)
	q := x / y
	r := math.Float64bits(q)
	if rm != RNE || !ordinary64(r) || !ordinary64(a) {
		return binary64.div(a, b, rm, fl)
	}
	if *fl&NX == 0 && math.FMA(q, y, -x) != 0 {
		*fl |= NX
	}
	return r
}

// Div32 returns a / b.
func Div32(a, b uint32, rm Rounding, fl *Flags) uint32 {
	x, y := math.Float32frombits(a), math.Float32frombits(b)
	q := x / y
	r := math.Float32bits(q)
	if rm != RNE || !ordinary32(r) {
		return uint32(binary32.div(uint64(a), uint64(b), rm, fl))
	}
	if float64(q)*float64(y) != float64(x) {
		*fl |= NX
	}
	return r
}

// Sqrt64 returns the square root of a.
func Sqrt64(a uint64, rm Rounding, fl *Flags) uint64 {
	if rm != RNE || int64(a) < 0 || !ordinary64(a) {
		return binary64.sqrt(a, rm, fl)
	}
	x := math.Float64frombits(a)
	s := math.Sqrt(x)
	if *fl&NX == 0 && math.FMA(s, s, -x) != 0 {
		*fl |= NX
	}
	return math.Float64bits(s)
}

// Sqrt32 returns the square root of a.
func Sqrt32(a uint32, rm Rounding, fl *Flags) uint32 {
	if rm != RNE || int32(a) < 0 || !ordinary32(a) {
		return uint32(binary32.sqrt(uint64(a), rm, fl))
	}
	// Rounding the root first to 53 and then to 24 bits is harmless, because 53 >= 2*24 + 2.
	x := float64(math.Float32frombits(a))
	s := float32(math.Sqrt(x))
	if float64(s)*float64(s) != x {
		*fl |= NX
	}
	return math.Float32bits(s)
}

// FMA64 returns a*b + c, rounded once.
func FMA64(a, b, c uint64, rm Rounding, fl *Flags) uint64 {
	if rm == RNE && *fl&NX != 0 {
		r := math.Float64bits(math.FMA(math.Float64frombits(a), math.Float64frombits(b), math.Float64frombits(c)))
		if ordinary64(r) {
			return r
		}
	}
	return binary64.fma(a, b, c, rm, fl)
}

// FMA32 returns a*b + c, rounded once.
func FMA32(a, b, c uint32, rm Rounding, fl *Flags) uint32 {
	// The product of two singles is exact in a double, so the sum is rounded to 53 bits and then to 24. That differs
	// from rounding once only if the first rounding lands on the middle between two singles.
	const below, middle = 1<<29 - 1, 1 << 28
	p := float64(math.Float32frombits(a)) * float64(math.Float32frombits(b))
	z := float64(math.Float32frombits(c))
	s := p + z
	t := float32(s)
	r := math.Float32bits(t)
	if rm != RNE || !ordinary32(r) || math.Float64bits(s)&below == middle {
		return uint32(binary32.fma(uint64(a), uint64(b), uint64(c), rm, fl))
	}
	if *fl&NX == 0 && (float64(t) != s || !exactSum(p, z, s)) {
		*fl |= NX
	}
	return r
}

// FMSub64 returns a*b - c, rounded once.
func FMSub64(a, b, c uint64, rm Rounding, fl *Flags) uint64 { return FMA64(a, b, c^sign64, rm, fl) }

// FNMSub64 returns -(a*b) + c, rounded once.
func FNMSub64(a, b, c uint64, rm Rounding, fl *Flags) uint64 { return FMA64(a^sign64, b, c, rm, fl) }

// FNMAdd64 returns -(a*b) - c, rounded once.
func FNMAdd64(a, b, c uint64, rm Rounding, fl *Flags) uint64 {
	return FMA64(a^sign64, b, c^sign64, rm, fl)
}

// FMSub32 returns a*b - c, rounded once.
func FMSub32(a, b, c uint32, rm Rounding, fl *Flags) uint32 { return FMA32(a, b, c^sign32, rm, fl) }

// FNMSub32 returns -(a*b) + c, rounded once.
func FNMSub32(a, b, c uint32, rm Rounding, fl *Flags) uint32 { return FMA32(a^sign32, b, c, rm, fl) }

// FNMAdd32 returns -(a*b) - c, rounded once.
func FNMAdd32(a, b, c uint32, rm Rounding, fl *Flags) uint32 {
	return FMA32(a^sign32, b, c^sign32, rm, fl)
}
