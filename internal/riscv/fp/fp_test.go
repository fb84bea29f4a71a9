package fp_test

import (
	"math"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
)

const (
	rne, rtz, rdn, rup, rmm = fp.RNE, fp.RTZ, fp.RDN, fp.RUP, fp.RMM
	nx, uf, of, dz, nv      = fp.NX, fp.UF, fp.OF, fp.DZ, fp.NV

	snan64 = 0x7ff0_0000_0000_0001
	qnan64 = 0xfff8_0000_0000_beef // not canonical
	snan32 = 0x7f80_0001
	qnan32 = 0xffc0_beef
)

var (
	inf       = math.Inf(1)
	negZero   = math.Copysign(0, -1)
	minNormal = 0x1p-1022
	least     = math.SmallestNonzeroFloat64
)

func d(v float64) uint64 { return math.Float64bits(v) }
func s(v float32) uint32 { return math.Float32bits(v) }

// A single in an f register has all ones above it, whatever produced it; what has not reads as the canonical NaN
// (unpriv 21.2).
func TestSinglePrecisionResultsAreBoxed(t *testing.T) {
	for _, v := range []uint32{0, s(1), s(-1), 0x7f80_0000, fp.NaN32, snan32, math.MaxUint32} {
		r := fp.Box32(v)
		if r>>32 != 0xffff_ffff || uint32(r) != v {
			t.Errorf("Box32(%#x) = %#x", v, r)
		}
		if got := fp.Unbox32(r); got != v {
			t.Errorf("Unbox32(%#x) = %#x", r, got)
		}
		for bit := 32; bit < 64; bit++ {
			if got := fp.Unbox32(r ^ 1<<bit); got != fp.NaN32 {
				t.Errorf("Unbox32(%#x) = %#x, want the canonical NaN", r^1<<bit, got)
			}
		}
	}
	for _, in := range instructions {
		if in.result != single {
			continue
		}
		for _, o := range in.cases(10) {
			var fl fp.Flags
			if r := in.got(o, fp.RNE, &fl); r>>32 != 0xffff_ffff {
				t.Errorf("%s %#x = %#x, not boxed", in.name, o[:len(in.operands)], r)
			}
		}
	}
}

func TestArithmeticCorners(t *testing.T) {
	type op = func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64
	sqrt := func(a, _ uint64, rm fp.Rounding, fl *fp.Flags) uint64 { return fp.Sqrt64(a, rm, fl) }
	largest := math.MaxFloat64
	for _, c := range []struct {
		name string
		op   op
		a, b uint64
		rm   fp.Rounding
		want uint64
		fl   fp.Flags
	}{
		{"quiet NaN becomes canonical", fp.Add64, qnan64, d(1), rne, fp.NaN64, 0},
		{"signalling NaN is invalid", fp.Add64, d(1), snan64, rne, fp.NaN64, nv},
		{"one quiet, one signalling", fp.Mul64, qnan64, snan64, rne, fp.NaN64, nv},
		{"inf - inf", fp.Sub64, d(inf), d(inf), rne, fp.NaN64, nv},
		{"inf + inf", fp.Add64, d(inf), d(inf), rne, d(inf), 0},
		{"0 * inf", fp.Mul64, d(negZero), d(inf), rne, fp.NaN64, nv},
		{"x - x is +0", fp.Sub64, d(1), d(1), rne, d(0), 0},
		{"x - x is -0 rounding down", fp.Sub64, d(1), d(1), rdn, d(negZero), 0},
		{"-0 + -0", fp.Add64, d(negZero), d(negZero), rup, d(negZero), 0},
		{"0/0", fp.Div64, d(0), d(negZero), rne, fp.NaN64, nv},
		{"inf/inf", fp.Div64, d(inf), d(-inf), rne, fp.NaN64, nv},
		{"x/-0", fp.Div64, d(1), d(negZero), rne, d(-inf), dz},
		{"inf/0 divides no finite number", fp.Div64, d(inf), d(0), rne, d(inf), 0},
		{"x/inf", fp.Div64, d(-1), d(inf), rne, d(negZero), 0},
		{"sqrt(-1)", sqrt, d(-1), 0, rne, fp.NaN64, nv},
		{"sqrt(-0)", sqrt, d(negZero), 0, rne, d(negZero), 0},
		{"sqrt(-inf)", sqrt, d(-inf), 0, rne, fp.NaN64, nv},

		{"overflow", fp.Add64, d(largest), d(largest), rne, d(inf), of | nx},
		{"overflow towards zero", fp.Add64, d(largest), d(largest), rtz, d(largest), of | nx},
		{"overflow down", fp.Add64, d(largest), d(largest), rdn, d(largest), of | nx},
		{"negative overflow down", fp.Mul64, d(-largest), d(2), rdn, d(-inf), of | nx},
		{"negative overflow up", fp.Mul64, d(-largest), d(2), rup, d(-largest), of | nx},
		{"overflow, ties away", fp.Mul64, d(largest), d(2), rmm, d(inf), of | nx},

		{"exact subnormal is no underflow", fp.Mul64, d(minNormal), d(0.5), rne, d(minNormal / 2), 0},
		{"underflow to zero", fp.Mul64, d(least), d(0.5), rne, d(0), uf | nx},
		{"underflow, ties away", fp.Mul64, d(least), d(0.5), rmm, d(least), uf | nx},
		{"underflow up", fp.Mul64, d(least), d(least), rup, d(least), uf | nx},
		{"negative underflow up", fp.Mul64, d(-least), d(least), rup, d(negZero), uf | nx},
	} {
		for _, start := range []fp.Flags{0, nx} {
			fl := start
			if got := c.op(c.a, c.b, c.rm, &fl); got != c.want || fl != start|c.fl {
				t.Errorf("%s: got %#x flags %#x, want %#x flags %#x", c.name, got, fl, c.want, start|c.fl)
			}
		}
	}
}

// TestTininessAfterRounding has a product whose exact value lies between the greatest subnormal number and the smallest
// normal one, and rounds to the latter. It is tiny only if the same rounding without a lower limit to the exponent
// would stay below it (unpriv 20.4).
func TestTininessAfterRounding(t *testing.T) {
	// (1 + 2^-12)(1 - 2^-12) = 1 - 2^-24 and its like, times the smallest normal single.
	a, b := s(1+0x1p-12), s(0x1p-126*(1-0x1p-12))
	for _, c := range []struct {
		rm   fp.Rounding
		want uint32
		fl   fp.Flags
	}{
		// 1 - 2^-24 has 24 bits: full precision represents it, so it is tiny in every mode.
		{rne, s(0x1p-126), uf | nx},
		{rup, s(0x1p-126), uf | nx},
		{rmm, s(0x1p-126), uf | nx},
		{rtz, s(0x1p-126) - 1, uf | nx},
	} {
		var fl fp.Flags
		if got := fp.Mul32(a, b, c.rm, &fl); got != c.want || fl != c.fl {
			t.Errorf("tiny, rm=%d: got %#x flags %#x, want %#x flags %#x", c.rm, got, fl, c.want, c.fl)
		}
	}
	// (1 + 2^-13)(1 - 2^-13) = 1 - 2^-26 is nearest to 1 even in full precision: not tiny, unless truncated.
	a, b = s(1+0x1p-13), s(0x1p-126*(1-0x1p-13))
	for _, c := range []struct {
		rm   fp.Rounding
		want uint32
		fl   fp.Flags
	}{
		{rne, s(0x1p-126), nx},
		{rup, s(0x1p-126), nx},
		{rmm, s(0x1p-126), nx},
		{rdn, s(0x1p-126) - 1, uf | nx},
	} {
		var fl fp.Flags
		if got := fp.Mul32(a, b, c.rm, &fl); got != c.want || fl != c.fl {
			t.Errorf("not tiny, rm=%d: got %#x flags %#x, want %#x flags %#x", c.rm, got, fl, c.want, c.fl)
		}
	}
}

func TestFMACorners(t *testing.T) {
	for _, c := range []struct {
		name    string
		a, b, c uint64
		rm      fp.Rounding
		want    uint64
		fl      fp.Flags
	}{
		{"inf * 0 + quiet NaN is invalid", d(inf), d(0), qnan64, rne, fp.NaN64, nv},
		{"0 * inf + 1", d(0), d(-inf), d(1), rne, fp.NaN64, nv},
		{"quiet NaN alone is not", d(1), qnan64, d(inf), rne, fp.NaN64, 0},
		{"signalling addend", d(1), qnan64, snan64, rne, fp.NaN64, nv},
		{"inf - inf", d(inf), d(1), d(-inf), rne, fp.NaN64, nv},
		{"finite + inf", d(math.MaxFloat64), d(math.MaxFloat64), d(-inf), rne, d(-inf), 0},
		{"overflow only in the product", d(math.MaxFloat64), d(2), d(-math.MaxFloat64), rne, d(math.MaxFloat64), 0},
		{"0*x + -0", d(0), d(1), d(negZero), rne, d(0), 0},
		{"0*x + -0 rounding down", d(0), d(1), d(negZero), rdn, d(negZero), 0},
		{"-0*x + -0", d(negZero), d(1), d(negZero), rne, d(negZero), 0},
		{"zero product", d(0), d(1), d(least), rup, d(least), 0},
		{"cancellation to zero", d(3), d(5), d(-15), rne, d(0), 0},
		{"cancellation to the last bit", d(1 + 0x1p-52), d(1 + 0x1p-52), d(-(1 + 0x1p-51)), rne, d(0x1p-104), 0},
		// The difference has no bit left in the upper word of the sum and fills the lower one.
		{"cancellation of a whole word", d(1 + 0x1p-31), d(1 + 0x1p-32), d(-(1 + 0x1p-31 + 0x1p-32)), rne, d(0x1p-63), 0},
		// (2^26+1)(2^52-2^26+1) = 2^78 + 1, where 2^78 is half a unit in the last place of 2^131.
		{"just above a tie", d(1<<26 + 1), d(1<<52 - 1<<26 + 1), d(0x1p131), rne, d(0x1p131 + 0x1p79), nx},
		{"just below a tie", d(-(1<<26 + 1)), d(1<<52 - 1<<26 + 1), d(0x1p131 + 0x1p79), rne, d(0x1p131), nx},
		{"far below the addend", d(least), d(least), d(1), rup, d(1 + 0x1p-52), nx},
		{"far below the addend, subtracted", d(-least), d(least), d(1), rtz, d(1 - 0x1p-53), nx},
	} {
		for _, start := range []fp.Flags{0, nx} {
			fl := start
			if got := fp.FMA64(c.a, c.b, c.c, c.rm, &fl); got != c.want || fl != start|c.fl {
				t.Errorf("%s: got %#x flags %#x, want %#x flags %#x", c.name, got, fl, c.want, start|c.fl)
			}
		}
	}
	// 2^36 + 1 against half a unit of 2^60: the sum in a double is a tie that the exact one is not.
	fl := nx
	if got := fp.FMA32(s(1<<12+1), s(1<<24-1<<12+1), s(0x1p60), rne, &fl); got != s(0x1p60+0x1p37) {
		t.Errorf("rounded twice: got %#x", got)
	}
}

// Signs of products and sums in the four fused instructions (unpriv 20.6).
func TestFusedSigns(t *testing.T) {
	var fl fp.Flags
	for _, c := range []struct {
		name  string
		got   uint64
		got32 uint32
		want  float64
	}{
		{"fmadd", fp.FMA64(d(2), d(3), d(1), rne, &fl), fp.FMA32(s(2), s(3), s(1), rne, &fl), 7},
		{"fmsub", fp.FMSub64(d(2), d(3), d(1), rne, &fl), fp.FMSub32(s(2), s(3), s(1), rne, &fl), 5},
		{"fnmsub", fp.FNMSub64(d(2), d(3), d(1), rne, &fl), fp.FNMSub32(s(2), s(3), s(1), rne, &fl), -5},
		{"fnmadd", fp.FNMAdd64(d(2), d(3), d(1), rne, &fl), fp.FNMAdd32(s(2), s(3), s(1), rne, &fl), -7},
	} {
		if c.got != d(c.want) || c.got32 != s(float32(c.want)) || fl != 0 {
			t.Errorf("%s: got %#x, %#x flags %#x, want %v", c.name, c.got, c.got32, fl, c.want)
		}
	}
}

// minimumNumber and maximumNumber, as F 2.2 has them (unpriv 20.6).
func TestMinMax(t *testing.T) {
	for _, c := range []struct {
		a, b, min, max uint64
		fl             fp.Flags
	}{
		{d(1), d(2), d(1), d(2), 0},
		{d(negZero), d(0), d(negZero), d(0), 0},
		{d(0), d(negZero), d(negZero), d(0), 0},
		{d(-inf), d(inf), d(-inf), d(inf), 0},
		{d(1), qnan64, d(1), d(1), 0},
		{qnan64, d(1), d(1), d(1), 0},
		{d(1), snan64, d(1), d(1), nv},
		{snan64, d(1), d(1), d(1), nv},
		{qnan64, qnan64, fp.NaN64, fp.NaN64, 0},
		{qnan64, snan64, fp.NaN64, fp.NaN64, nv},
	} {
		var minFlags, maxFlags fp.Flags
		lo, hi := fp.Min64(c.a, c.b, &minFlags), fp.Max64(c.a, c.b, &maxFlags)
		if lo != c.min || hi != c.max || minFlags != c.fl || maxFlags != c.fl {
			t.Errorf("%#x, %#x: min %#x flags %#x, max %#x flags %#x, want %#x, %#x flags %#x",
				c.a, c.b, lo, minFlags, hi, maxFlags, c.min, c.max, c.fl)
		}
	}
}

// feq is quiet, flt and fle are signalling (unpriv 20.8).
func TestComparisons(t *testing.T) {
	for _, c := range []struct {
		a, b       uint64
		eq, lt, le uint64
		eqFlags    fp.Flags
		ltFlags    fp.Flags
	}{
		{d(1), d(1), 1, 0, 1, 0, 0},
		{d(1), d(2), 0, 1, 1, 0, 0},
		{d(2), d(1), 0, 0, 0, 0, 0},
		{d(negZero), d(0), 1, 0, 1, 0, 0},
		{qnan64, d(1), 0, 0, 0, 0, nv},
		{qnan64, qnan64, 0, 0, 0, 0, nv},
		{d(1), snan64, 0, 0, 0, nv, nv},
	} {
		var eq, lt, le fp.Flags
		got := [3]uint64{fp.Eq64(c.a, c.b, &eq), fp.Lt64(c.a, c.b, &lt), fp.Le64(c.a, c.b, &le)}
		if got != [3]uint64{c.eq, c.lt, c.le} || eq != c.eqFlags || lt != c.ltFlags || le != c.ltFlags {
			t.Errorf("%#x, %#x: eq, lt, le = %v flags %#x, %#x, %#x", c.a, c.b, got, eq, lt, le)
		}
	}
	var eq, lt fp.Flags
	fp.Eq32(qnan32, s(1), &eq)
	fp.Lt32(qnan32, s(1), &lt)
	if eq != 0 || lt != nv {
		t.Errorf("quiet single NaN: feq flags %#x, flt flags %#x", eq, lt)
	}
	fp.Eq32(snan32, s(1), &eq)
	if eq != nv {
		t.Errorf("signalling single NaN: feq flags %#x", eq)
	}
}

func TestClass(t *testing.T) {
	for _, c := range []struct {
		double uint64
		single uint32
		bit    int
	}{
		{d(-inf), 0xff80_0000, 0},
		{d(-1), s(-1), 1},
		{d(-least), 0x8000_0001, 2},
		{d(negZero), 0x8000_0000, 3},
		{d(0), 0, 4},
		{d(minNormal - least), 0x007f_ffff, 5},
		{d(minNormal), 0x0080_0000, 6},
		{d(inf), 0x7f80_0000, 7},
		{snan64, snan32, 8},
		{qnan64, qnan32, 9},
	} {
		if got := fp.Class64(c.double); got != 1<<c.bit {
			t.Errorf("Class64(%#x) = %#x, want bit %d", c.double, got, c.bit)
		}
		if got := fp.Class32(c.single); got != 1<<c.bit {
			t.Errorf("Class32(%#x) = %#x, want bit %d", c.single, got, c.bit)
		}
	}
}

// Sign injection moves bits and keeps payloads.
func TestSignInjection(t *testing.T) {
	const sign = 1 << 63
	if got := fp.Sgnj64(snan64, d(-1)); got != snan64|sign {
		t.Errorf("fsgnj.d = %#x", got)
	}
	if got := fp.Sgnjn64(snan64, d(-1)); got != snan64 {
		t.Errorf("fsgnjn.d = %#x", got)
	}
	if got := fp.Sgnjx64(snan64|sign, d(-1)); got != snan64 {
		t.Errorf("fsgnjx.d = %#x", got)
	}
	if got := fp.Sgnj32(snan32, s(-1)); got != snan32|1<<31 {
		t.Errorf("fsgnj.s = %#x", got)
	}
}

func TestNothingAllocates(t *testing.T) {
	cases := make([][]operands, len(instructions))
	for i, in := range instructions {
		cases[i] = in.cases(20)
		cases[i] = cases[i][len(cases[i])-20:]
	}
	var fl fp.Flags
	n := testing.AllocsPerRun(1, func() {
		for i, in := range instructions {
			for _, o := range cases[i] {
				for rm := fp.RNE; rm <= 7; rm++ { // the reserved modes too
					in.got(o, rm, &fl)
				}
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
