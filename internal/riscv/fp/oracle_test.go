package fp_test

import (
	"math"
	"math/big"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
)

// This file is a second implementation of the arithmetic, which shares nothing with the package: values are math/big
// numbers, operations are exact (or carry a sticky bit), and math/big rounds.

// refFormat is an IEEE format: precision in bits, and exponents of its normal numbers 1.f * 2^e.
type refFormat struct {
	single     bool
	prec       uint
	emin, emax int
	nan, quiet uint64
}

var (
	refSingle = &refFormat{true, 24, -126, 127, 0x7fc0_0000, 1 << 22}
	refDouble = &refFormat{false, 53, -1022, 1023, 0x7ff8_0000_0000_0000, 1 << 51}
)

// exactPrec is enough bits for the sum of any two numbers or of a number and a product.
const exactPrec = 5000

var refModes = map[fp.Rounding]big.RoundingMode{
	fp.RNE: big.ToNearestEven,
	fp.RTZ: big.ToZero,
	fp.RDN: big.ToNegativeInf,
	fp.RUP: big.ToPositiveInf,
	fp.RMM: big.ToNearestAway,
}

func (f *refFormat) value(a uint64) float64 {
	if f.single {
		return float64(math.Float32frombits(uint32(a)))
	}
	return math.Float64frombits(a)
}

func (f *refFormat) isNaN(a uint64) bool     { return math.IsNaN(f.value(a)) }
func (f *refFormat) signals(a uint64) bool   { return f.isNaN(a) && a&f.quiet == 0 }
func (f *refFormat) isInf(a uint64) bool     { return math.IsInf(f.value(a), 0) }
func (f *refFormat) big(a uint64) *big.Float { return exact().SetFloat64(f.value(a)) }

func exact() *big.Float { return new(big.Float).SetPrec(exactPrec) }

// pack returns the pattern of v, which must be representable.
func (f *refFormat) pack(v float64) uint64 {
	if f.single {
		return uint64(math.Float32bits(float32(v)))
	}
	return math.Float64bits(v)
}

// round rounds the exact value v, which may be ±0, to the format.
func (f *refFormat) round(v *big.Float, rm fp.Rounding) (uint64, fp.Flags) {
	mode := refModes[rm]
	if v.Sign() == 0 {
		z, _ := v.Float64()
		return f.pack(z), 0
	}
	r := new(big.Float).SetMode(mode).SetPrec(f.prec).Set(v) // as if the exponent were unbounded
	tiny := r.MantExp(nil)-1 < f.emin
	if r.MantExp(nil)-1 > f.emax {
		away := rm == fp.RNE || rm == fp.RMM || rm == fp.RDN && v.Sign() < 0 || rm == fp.RUP && v.Sign() > 0
		if away {
			return f.pack(math.Inf(v.Sign())), fp.OF | fp.NX
		}
		largest := math.Ldexp(2-math.Ldexp(1, 1-int(f.prec)), f.emax)
		return f.pack(math.Copysign(largest, float64(v.Sign()))), fp.OF | fp.NX
	}
	if v.MantExp(nil)-1 < f.emin {
		// Rounding anchor + v to prec bits has the quantum of the subnormal numbers.
		anchor := exact().SetMantExp(big.NewFloat(float64(v.Sign())), f.emin)
		s := exact().Add(v, anchor)
		r = exact().Sub(s.SetMode(mode).SetPrec(f.prec), anchor)
	}
	var fl fp.Flags
	if r.Cmp(v) != 0 {
		fl = fp.NX
		if tiny {
			fl |= fp.UF
		}
	}
	x, acc := r.Float64()
	if acc != big.Exact {
		panic("reference result is not representable")
	}
	return f.pack(math.Copysign(x, float64(v.Sign()))), fl
}

// nan is the result of an operation with a NaN among its operands.
func (f *refFormat) nanResult(operands ...uint64) (uint64, fp.Flags, bool) {
	var fl fp.Flags
	found := false
	for _, a := range operands {
		found = found || f.isNaN(a)
		if f.signals(a) {
			fl = fp.NV
		}
	}
	return f.nan, fl, found
}

func (f *refFormat) add(a, b uint64, rm fp.Rounding) (uint64, fp.Flags) {
	if r, fl, ok := f.nanResult(a, b); ok {
		return r, fl
	}
	return f.sum(f.big(a), f.big(b), rm)
}

// sum rounds x + y; either may be infinite.
func (f *refFormat) sum(x, y *big.Float, rm fp.Rounding) (uint64, fp.Flags) {
	switch {
	case x.IsInf() && y.IsInf() && x.Signbit() != y.Signbit():
		return f.nan, fp.NV
	case x.IsInf():
		return f.pack(math.Inf(x.Sign())), 0
	case y.IsInf():
		return f.pack(math.Inf(y.Sign())), 0
	}
	s := exact().Add(x, y)
	if s.Sign() == 0 {
		neg := x.Signbit() && y.Signbit() || x.Signbit() != y.Signbit() && rm == fp.RDN
		return f.zero(neg), 0
	}
	return f.round(s, rm)
}

func (f *refFormat) zero(neg bool) uint64 {
	if neg {
		return f.pack(math.Copysign(0, -1))
	}
	return 0
}

func (f *refFormat) negate(a uint64) uint64 {
	if f.single {
		return a ^ 1<<31
	}
	return a ^ 1<<63
}

func (f *refFormat) mul(a, b uint64, rm fp.Rounding) (uint64, fp.Flags) {
	if r, fl, ok := f.nanResult(a, b); ok {
		return r, fl
	}
	p, ok := f.product(a, b)
	switch {
	case !ok:
		return f.nan, fp.NV
	case p.IsInf():
		return f.pack(math.Inf(p.Sign())), 0
	}
	return f.round(p, rm)
}

// product multiplies numbers, exactly; ok is false for 0 * inf.
func (f *refFormat) product(a, b uint64) (p *big.Float, ok bool) {
	x, y := f.big(a), f.big(b)
	if x.IsInf() && y.Sign() == 0 || x.Sign() == 0 && y.IsInf() {
		return nil, false
	}
	return exact().Mul(x, y), true
}

func (f *refFormat) fma(a, b, c uint64, rm fp.Rounding) (uint64, fp.Flags) {
	r, fl, nan := f.nanResult(a, b, c)
	if f.isNaN(a) || f.isNaN(b) {
		return r, fl
	}
	p, ok := f.product(a, b)
	switch {
	case !ok:
		return f.nan, fp.NV
	case nan:
		return r, fl
	}
	return f.sum(p, f.big(c), rm)
}

func (f *refFormat) div(a, b uint64, rm fp.Rounding) (uint64, fp.Flags) {
	if r, fl, ok := f.nanResult(a, b); ok {
		return r, fl
	}
	x, y := f.big(a), f.big(b)
	neg := x.Signbit() != y.Signbit()
	inf := f.pack(math.Inf(1))
	if neg {
		inf = f.pack(math.Inf(-1))
	}
	switch {
	case x.IsInf() && y.IsInf(), x.Sign() == 0 && y.Sign() == 0:
		return f.nan, fp.NV
	case x.IsInf():
		return inf, 0
	case y.IsInf(), x.Sign() == 0:
		return f.zero(neg), 0
	case y.Sign() == 0:
		return inf, fp.DZ
	}
	const prec = 200
	q := new(big.Float).SetPrec(prec).SetMode(big.ToZero).Quo(x, y)
	if exact().Mul(q, y).Cmp(x) != 0 {
		sticky := new(big.Float).SetMantExp(big.NewFloat(float64(q.Sign())), q.MantExp(nil)-prec-2)
		q = exact().Add(q, sticky)
	}
	return f.round(q, rm)
}

func (f *refFormat) sqrt(a uint64, rm fp.Rounding) (uint64, fp.Flags) {
	if r, fl, ok := f.nanResult(a); ok {
		return r, fl
	}
	x := f.big(a)
	switch {
	case x.Sign() == 0:
		return a, 0
	case x.Sign() < 0:
		return f.nan, fp.NV
	case x.IsInf():
		return a, 0
	}
	// x = n * 2^(-2*scale) with an integer n of at least 800 bits.
	const scale = 1200
	n, _ := exact().SetMantExp(x, 2*scale).Int(nil)
	root := new(big.Int).Sqrt(n)
	inexact := new(big.Int).Mul(root, root).Cmp(n) != 0
	root.Lsh(root, 1)
	if inexact {
		root.SetBit(root, 0, 1)
	}
	return f.round(exact().SetMantExp(exact().SetInt(root), -scale-1), rm)
}

// convert is the conversion of a from the format from.
func (f *refFormat) convert(from *refFormat, a uint64, rm fp.Rounding) (uint64, fp.Flags) {
	if _, fl, ok := from.nanResult(a); ok {
		return f.nan, fl
	}
	v := from.big(a)
	if v.IsInf() {
		return f.pack(math.Inf(v.Sign())), 0
	}
	return f.round(v, rm)
}

// refInt is an integer type of the conversions.
type refInt struct {
	signed bool
	width  uint
}

// register returns v, reduced to the width, as it stands in an x register.
func (t refInt) register(v *big.Int) uint64 {
	low := new(big.Int).And(v, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
	if t.width == 32 {
		return uint64(int32(low))
	}
	return low
}

// read returns the integer that x holds.
func (t refInt) read(x uint64) *big.Int {
	switch {
	case t.width == 32 && t.signed:
		return big.NewInt(int64(int32(x)))
	case t.width == 32:
		return big.NewInt(int64(uint32(x)))
	case t.signed:
		return big.NewInt(int64(x))
	}
	return new(big.Int).SetUint64(x)
}

func (t refInt) limits() (lowest, highest *big.Int) {
	one := big.NewInt(1)
	if t.signed {
		limit := new(big.Int).Lsh(one, t.width-1)
		return new(big.Int).Neg(limit), new(big.Int).Sub(limit, one)
	}
	return new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(one, t.width), one)
}

func (f *refFormat) fromInt(t refInt, x uint64, rm fp.Rounding) (uint64, fp.Flags) {
	return f.round(exact().SetInt(t.read(x)), rm)
}

func (f *refFormat) toInt(t refInt, a uint64, rm fp.Rounding) (uint64, fp.Flags) {
	lowest, highest := t.limits()
	v := f.value(a)
	switch {
	case math.IsNaN(v), math.IsInf(v, 1):
		return t.register(highest), fp.NV
	case math.IsInf(v, -1):
		return t.register(lowest), fp.NV
	}
	n, fl := refRoundToInt(f.big(a), rm)
	switch {
	case n.Cmp(lowest) < 0:
		return t.register(lowest), fp.NV
	case n.Cmp(highest) > 0:
		return t.register(highest), fp.NV
	}
	return t.register(n), fl
}

func refRoundToInt(v *big.Float, rm fp.Rounding) (*big.Int, fp.Flags) {
	n, acc := v.Int(nil) // truncates
	if acc == big.Exact {
		return n, 0
	}
	rest := exact().Sub(v, exact().SetInt(n))
	half := rest.Abs(rest).Cmp(big.NewFloat(0.5))
	var away bool
	switch rm {
	case fp.RNE:
		away = half > 0 || half == 0 && n.Bit(0) == 1
	case fp.RMM:
		away = half >= 0
	case fp.RDN:
		away = v.Sign() < 0
	case fp.RUP:
		away = v.Sign() > 0
	}
	if away {
		n.Add(n, big.NewInt(int64(v.Sign())))
	}
	return n, fp.NX
}

// order compares a and b; invalid is what an unordered comparison raises.
func (f *refFormat) order(a, b uint64, signalling bool) (cmp int, ordered bool, fl fp.Flags) {
	if _, fl, ok := f.nanResult(a, b); ok {
		if signalling {
			fl = fp.NV
		}
		return 0, false, fl
	}
	return f.big(a).Cmp(f.big(b)), true, 0
}

// pick is minimumNumber (want = -1) or maximumNumber (want = +1).
func (f *refFormat) pick(a, b uint64, want int) (uint64, fp.Flags) {
	_, fl, nan := f.nanResult(a, b)
	switch {
	case f.isNaN(a) && f.isNaN(b):
		return f.nan, fl
	case nan && f.isNaN(a):
		return b, fl
	case nan:
		return a, fl
	}
	cmp := f.big(a).Cmp(f.big(b))
	if cmp == 0 && f.big(a).Signbit() != f.big(b).Signbit() {
		cmp = 1
		if f.big(a).Signbit() {
			cmp = -1
		}
	}
	if cmp == want {
		return a, fl
	}
	return b, fl
}

func (f *refFormat) class(a uint64) uint64 {
	v := f.value(a)
	bit := 0
	switch magnitude := math.Abs(v); {
	case f.signals(a):
		return 1 << 8
	case f.isNaN(a):
		return 1 << 9
	case f.isInf(a):
		bit = 7
	case v == 0:
		bit = 4
	case magnitude < math.Ldexp(1, f.emin):
		bit = 5
	default:
		bit = 6
	}
	if math.Signbit(v) {
		bit = 7 - bit
	}
	return 1 << bit
}
