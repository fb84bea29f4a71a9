package fp_test

import (
	"math"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
)

// The limits of the table in unpriv 20.7, and what rounds past them.
func TestFloatToIntegerOutOfRange(t *testing.T) {
	const (
		maxI32, minI32 = math.MaxInt32, uint64(1<<64 - 1<<31)
		maxI64, minI64 = math.MaxInt64, uint64(1 << 63)
		all            = uint64(math.MaxUint64) // 2^64-1, and 2^32-1 sign-extended
	)
	nan := math.NaN()
	type result struct {
		v  uint64
		fl fp.Flags
	}
	ok := func(v int64) result { return result{uint64(v), 0} }
	rounded := func(v int64) result { return result{uint64(v), nx} }
	bad := func(v uint64) result { return result{v, nv} }
	for _, c := range []struct {
		in               float64
		rm               fp.Rounding
		i32, u32         result
		i64, u64         result
		notRepresentable bool // as a single
	}{
		{in: nan, i32: bad(maxI32), u32: bad(all), i64: bad(maxI64), u64: bad(all)},
		{in: inf, i32: bad(maxI32), u32: bad(all), i64: bad(maxI64), u64: bad(all)},
		{in: -inf, i32: bad(minI32), u32: bad(0), i64: bad(minI64), u64: bad(0)},
		{in: 0x1p31, i32: bad(maxI32), u32: result{minI32, 0}, i64: ok(1 << 31), u64: ok(1 << 31)},
		{in: -0x1p31, i32: ok(-1 << 31), u32: bad(0), i64: ok(-1 << 31), u64: bad(0)},
		{in: 0x1p32, i32: bad(maxI32), u32: bad(all), i64: ok(1 << 32), u64: ok(1 << 32)},
		{in: -0x1p32, i32: bad(minI32), u32: bad(0), i64: ok(-1 << 32), u64: bad(0)},
		{in: 0x1p63, i32: bad(maxI32), u32: bad(all), i64: bad(maxI64), u64: result{1 << 63, 0}},
		{in: -0x1p63, i32: bad(minI32), u32: bad(0), i64: result{minI64, 0}, u64: bad(0)},
		{in: 0x1p64, i32: bad(maxI32), u32: bad(all), i64: bad(maxI64), u64: bad(all)},
		{in: -0x1.000002p63, i32: bad(minI32), u32: bad(0), i64: bad(minI64), u64: bad(0)},
		{in: -1, i32: ok(-1), u32: bad(0), i64: ok(-1), u64: bad(0)},
		{in: negZero, i32: ok(0), u32: ok(0), i64: ok(0), u64: ok(0)},

		// Only what is out of range once rounded is invalid.
		{in: -0.5, rm: rne, i32: rounded(0), u32: rounded(0), i64: rounded(0), u64: rounded(0)},
		{in: -0.5, rm: rtz, i32: rounded(0), u32: rounded(0), i64: rounded(0), u64: rounded(0)},
		{in: -0.5, rm: rdn, i32: rounded(-1), u32: bad(0), i64: rounded(-1), u64: bad(0)},
		{in: -0.5, rm: rup, i32: rounded(0), u32: rounded(0), i64: rounded(0), u64: rounded(0)},
		{in: -0.5, rm: rmm, i32: rounded(-1), u32: bad(0), i64: rounded(-1), u64: bad(0)},
		{in: 0x1p31 - 0.5, rm: rne, i32: bad(maxI32), u32: result{minI32, nx}, i64: rounded(1 << 31), u64: rounded(1 << 31), notRepresentable: true},
		{in: 0x1p31 - 0.5, rm: rtz, i32: rounded(maxI32), u32: rounded(maxI32), i64: rounded(maxI32), u64: rounded(maxI32), notRepresentable: true},
		{in: 0x1p32 - 0.5, rm: rmm, i32: bad(maxI32), u32: bad(all), i64: rounded(1 << 32), u64: rounded(1 << 32), notRepresentable: true},
		{in: 0x1p32 - 0.5, rm: rdn, i32: bad(maxI32), u32: result{all, nx}, i64: rounded(1<<32 - 1), u64: rounded(1<<32 - 1), notRepresentable: true},

		{in: 0.5, rm: rne, i32: rounded(0), u32: rounded(0), i64: rounded(0), u64: rounded(0)},
		{in: 1.5, rm: rne, i32: rounded(2), u32: rounded(2), i64: rounded(2), u64: rounded(2)},
		{in: 2.5, rm: rne, i32: rounded(2), u32: rounded(2), i64: rounded(2), u64: rounded(2)},
		{in: 2.5, rm: rtz, i32: rounded(2), u32: rounded(2), i64: rounded(2), u64: rounded(2)},
		{in: 2.5, rm: rdn, i32: rounded(2), u32: rounded(2), i64: rounded(2), u64: rounded(2)},
		{in: 0.5, rm: rup, i32: rounded(1), u32: rounded(1), i64: rounded(1), u64: rounded(1)},
		{in: 0.5, rm: rmm, i32: rounded(1), u32: rounded(1), i64: rounded(1), u64: rounded(1)},
		{in: 2.5, rm: rmm, i32: rounded(3), u32: rounded(3), i64: rounded(3), u64: rounded(3)},
	} {
		check := func(name string, got uint64, fl fp.Flags, want result) {
			t.Helper()
			if got != want.v || fl != want.fl {
				t.Errorf("%s(%v) rm=%d: got %#x flags %#x, want %#x flags %#x", name, c.in, c.rm, got, fl, want.v, want.fl)
			}
		}
		for _, f := range []struct {
			name   string
			double func(uint64, fp.Rounding, *fp.Flags) uint64
			single func(uint32, fp.Rounding, *fp.Flags) uint64
			want   result
		}{
			{"ToI32", fp.F64ToI32, fp.F32ToI32, c.i32},
			{"ToU32", fp.F64ToU32, fp.F32ToU32, c.u32},
			{"ToI64", fp.F64ToI64, fp.F32ToI64, c.i64},
			{"ToU64", fp.F64ToU64, fp.F32ToU64, c.u64},
		} {
			var fl fp.Flags
			got := f.double(d(c.in), c.rm, &fl)
			check("F64"+f.name, got, fl, f.want)
			if !c.notRepresentable {
				fl = 0
				got = f.single(s(float32(c.in)), c.rm, &fl)
				check("F32"+f.name, got, fl, f.want)
			}
		}
	}
}

func TestFormatConversions(t *testing.T) {
	for _, c := range []struct {
		name string
		in   uint64
		rm   fp.Rounding
		want uint32
		fl   fp.Flags
	}{
		{"exact", d(-1.5), rne, s(-1.5), 0},
		{"exact subnormal", d(0x1p-149), rne, 1, 0},
		{"infinity", d(-inf), rne, 0xff80_0000, 0},
		{"quiet NaN", qnan64, rne, fp.NaN32, 0},
		{"signalling NaN", snan64, rne, fp.NaN32, nv},
		{"tie to even", d(1 + 0x1p-24), rne, s(1), nx},
		{"tie away", d(1 + 0x1p-24), rmm, s(1 + 0x1p-23), nx},
		{"overflow", d(0x1p128), rne, 0x7f80_0000, of | nx},
		{"overflow of a rounded up significand", d(0x1.ffffffp127), rne, 0x7f80_0000, of | nx},
		{"underflow", d(0x1p-150), rne, 0, uf | nx},
		{"not tiny", d(0x1p-126 * (1 - 0x1p-26)), rne, s(0x1p-126), nx},
		{"tiny", d(0x1p-126 * (1 - 0x1p-24)), rne, s(0x1p-126), uf | nx},
	} {
		var fl fp.Flags
		if got := fp.F64ToF32(c.in, c.rm, &fl); got != c.want || fl != c.fl {
			t.Errorf("F64ToF32 %s: got %#x flags %#x, want %#x flags %#x", c.name, got, fl, c.want, c.fl)
		}
	}
	for _, c := range []struct {
		in   uint32
		want uint64
		fl   fp.Flags
	}{
		{1, d(0x1p-149), 0},
		{0xff80_0000, d(-inf), 0},
		{qnan32, fp.NaN64, 0},
		{snan32, fp.NaN64, nv},
	} {
		var fl fp.Flags
		if got := fp.F32ToF64(c.in, &fl); got != c.want || fl != c.fl {
			t.Errorf("F32ToF64(%#x): got %#x flags %#x, want %#x flags %#x", c.in, got, fl, c.want, c.fl)
		}
	}
}

func TestIntegerToFloat(t *testing.T) {
	var fl fp.Flags
	const garbage = 0xdead_beef_0000_0000 // W conversions ignore the upper half
	if got := fp.I32ToF64(garbage | 0xffff_ffff); got != d(-1) {
		t.Errorf("I32ToF64 = %#x", got)
	}
	if got := fp.U32ToF32(garbage|1, rne, &fl); got != s(1) || fl != 0 {
		t.Errorf("U32ToF32 = %#x flags %#x", got, fl)
	}
	if got := fp.I64ToF64(1<<63, rne, &fl); got != d(-0x1p63) || fl != 0 {
		t.Errorf("I64ToF64 = %#x flags %#x", got, fl)
	}
	if got := fp.I64ToF64(0, rdn, &fl); got != d(0) || fl != 0 {
		t.Errorf("I64ToF64(0) = %#x flags %#x", got, fl)
	}
	if got := fp.U64ToF32(math.MaxUint64, rtz, &fl); got != s(0x1.fffffep63) || fl != nx {
		t.Errorf("U64ToF32 = %#x flags %#x", got, fl)
	}
}
