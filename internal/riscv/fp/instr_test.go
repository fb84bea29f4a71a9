package fp_test

import (
	"strings"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
)

// kind is what an operand or a result is: a single or a double in an f register, or an x register.
type kind byte

const (
	single kind = 'S'
	double kind = 'D'
	xreg   kind = 'X'
)

// operands are the registers that an instruction reads; singles are NaN-boxed, or meant not to be.
type operands [3]uint64

// instruction is one instruction of F or D, in three ways: as this package computes it, as the reference does, and as
// it is encoded. All work on 64-bit registers.
type instruction struct {
	name     string
	operands []kind
	result   kind
	rounds   bool   // has a rounding mode
	code     uint32 // encoding without registers and rounding mode
	got      func(in operands, rm fp.Rounding, fl *fp.Flags) uint64
	want     func(in operands, rm fp.Rounding) (uint64, fp.Flags)
}

// encode returns the instruction with operand i in register 10+i and the result in register 13.
func (in *instruction) encode(rm fp.Rounding) uint32 {
	code := in.code | 13<<7
	for i := range in.operands {
		code |= uint32(10+i) << [...]int{15, 20, 27}[i]
	}
	if in.rounds {
		code |= uint32(rm) << 12
	}
	return code
}

// modes are the rounding modes worth trying.
func (in *instruction) modes() []fp.Rounding {
	if in.rounds {
		return []fp.Rounding{fp.RNE, fp.RTZ, fp.RDN, fp.RUP, fp.RMM}
	}
	return []fp.Rounding{fp.RNE}
}

const opFP = 0x53

// fpu is the functions for one format, on unboxed patterns.
type fpu struct {
	kind   kind
	suffix string // of the mnemonic
	code   uint32 // fmt field
	ref    *refFormat
	arith  map[string]func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64
	fused  map[string]func(a, b, c uint64, rm fp.Rounding, fl *fp.Flags) uint64
	toInt  map[string]func(a uint64, rm fp.Rounding, fl *fp.Flags) uint64
	from   map[string]func(x uint64, rm fp.Rounding, fl *fp.Flags) uint64
	class  func(a uint64) uint64
}

type (
	op32    = func(a, b uint32, rm fp.Rounding, fl *fp.Flags) uint32
	fused32 = func(a, b, c uint32, rm fp.Rounding, fl *fp.Flags) uint32
)

// The adapters below give the functions of either format one shape.

func wide2(f op32) func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
	return func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
		return uint64(f(uint32(a), uint32(b), rm, fl))
	}
}

func wide3(f fused32) func(a, b, c uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
	return func(a, b, c uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
		return uint64(f(uint32(a), uint32(b), uint32(c), rm, fl))
	}
}

func wideToInt(f func(a uint32, rm fp.Rounding, fl *fp.Flags) uint64) func(uint64, fp.Rounding, *fp.Flags) uint64 {
	return func(a uint64, rm fp.Rounding, fl *fp.Flags) uint64 { return f(uint32(a), rm, fl) }
}

func wideFrom(f func(x uint64, rm fp.Rounding, fl *fp.Flags) uint32) func(uint64, fp.Rounding, *fp.Flags) uint64 {
	return func(x uint64, rm fp.Rounding, fl *fp.Flags) uint64 { return uint64(f(x, rm, fl)) }
}

func quiet64(f func(a, b uint64) uint64) func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
	return func(a, b uint64, _ fp.Rounding, _ *fp.Flags) uint64 { return f(a, b) }
}

func quiet32(f func(a, b uint32) uint32) func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
	return func(a, b uint64, _ fp.Rounding, _ *fp.Flags) uint64 { return uint64(f(uint32(a), uint32(b))) }
}

func flags64(f func(a, b uint64, fl *fp.Flags) uint64) func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
	return func(a, b uint64, _ fp.Rounding, fl *fp.Flags) uint64 { return f(a, b, fl) }
}

func flags32[R uint32 | uint64](f func(a, b uint32, fl *fp.Flags) R) func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
	return func(a, b uint64, _ fp.Rounding, fl *fp.Flags) uint64 { return uint64(f(uint32(a), uint32(b), fl)) }
}

func exact64(f func(x uint64) uint64) func(x uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
	return func(x uint64, _ fp.Rounding, _ *fp.Flags) uint64 { return f(x) }
}

var fpus = []*fpu{
	{
		kind: single, suffix: ".s", code: 0 << 25, ref: refSingle,
		arith: map[string]func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64{
			"fadd": wide2(fp.Add32), "fsub": wide2(fp.Sub32), "fmul": wide2(fp.Mul32), "fdiv": wide2(fp.Div32),
			"fsqrt": func(a, _ uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
				return uint64(fp.Sqrt32(uint32(a), rm, fl))
			},
			"fsgnj": quiet32(fp.Sgnj32), "fsgnjn": quiet32(fp.Sgnjn32), "fsgnjx": quiet32(fp.Sgnjx32),
			"fmin": flags32(fp.Min32), "fmax": flags32(fp.Max32),
			"feq": flags32(fp.Eq32), "flt": flags32(fp.Lt32), "fle": flags32(fp.Le32),
		},
		fused: map[string]func(a, b, c uint64, rm fp.Rounding, fl *fp.Flags) uint64{
			"fmadd": wide3(fp.FMA32), "fmsub": wide3(fp.FMSub32),
			"fnmsub": wide3(fp.FNMSub32), "fnmadd": wide3(fp.FNMAdd32),
		},
		toInt: map[string]func(a uint64, rm fp.Rounding, fl *fp.Flags) uint64{
			"w": wideToInt(fp.F32ToI32), "wu": wideToInt(fp.F32ToU32),
			"l": wideToInt(fp.F32ToI64), "lu": wideToInt(fp.F32ToU64),
		},
		from: map[string]func(x uint64, rm fp.Rounding, fl *fp.Flags) uint64{
			"w": wideFrom(fp.I32ToF32), "wu": wideFrom(fp.U32ToF32),
			"l": wideFrom(fp.I64ToF32), "lu": wideFrom(fp.U64ToF32),
		},
		class: func(a uint64) uint64 { return fp.Class32(uint32(a)) },
	},
	{
		kind: double, suffix: ".d", code: 1 << 25, ref: refDouble,
		arith: map[string]func(a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64{
			"fadd": fp.Add64, "fsub": fp.Sub64, "fmul": fp.Mul64, "fdiv": fp.Div64,
			"fsqrt": func(a, _ uint64, rm fp.Rounding, fl *fp.Flags) uint64 { return fp.Sqrt64(a, rm, fl) },
			"fsgnj": quiet64(fp.Sgnj64), "fsgnjn": quiet64(fp.Sgnjn64), "fsgnjx": quiet64(fp.Sgnjx64),
			"fmin": flags64(fp.Min64), "fmax": flags64(fp.Max64),
			"feq": flags64(fp.Eq64), "flt": flags64(fp.Lt64), "fle": flags64(fp.Le64),
		},
		fused: map[string]func(a, b, c uint64, rm fp.Rounding, fl *fp.Flags) uint64{
			"fmadd": fp.FMA64, "fmsub": fp.FMSub64, "fnmsub": fp.FNMSub64, "fnmadd": fp.FNMAdd64,
		},
		toInt: map[string]func(a uint64, rm fp.Rounding, fl *fp.Flags) uint64{
			"w": fp.F64ToI32, "wu": fp.F64ToU32, "l": fp.F64ToI64, "lu": fp.F64ToU64,
		},
		from: map[string]func(x uint64, rm fp.Rounding, fl *fp.Flags) uint64{
			"w": exact64(fp.I32ToF64), "wu": exact64(fp.U32ToF64), "l": fp.I64ToF64, "lu": fp.U64ToF64,
		},
		class: fp.Class64,
	},
}

// read and write move patterns out of and into f registers.
func (u *fpu) read(r uint64) uint64 {
	if u.kind == single {
		return uint64(fp.Unbox32(r))
	}
	return r
}

func (u *fpu) write(v uint64) uint64 {
	if u.kind == single {
		return fp.Box32(uint32(v))
	}
	return v
}

// instructions is every computational, conversion, comparison and classification instruction of F and D.
var instructions = func() []*instruction {
	var all []*instruction
	for _, u := range fpus {
		all = append(all, u.computational()...)
		all = append(all, u.signsAndMinMax()...)
		all = append(all, u.comparisons()...)
		all = append(all, u.conversions()...)
	}
	return append(all, formatConversions()...)
}()

func (u *fpu) computational() []*instruction {
	k, ref := u.kind, u.ref
	var all []*instruction
	for _, op := range []struct {
		name string
		code uint32
		want func(a, b uint64, rm fp.Rounding) (uint64, fp.Flags)
	}{
		{"fadd", 0x00, ref.add},
		{"fsub", 0x01, func(a, b uint64, rm fp.Rounding) (uint64, fp.Flags) { return ref.add(a, ref.negate(b), rm) }},
		{"fmul", 0x02, ref.mul},
		{"fdiv", 0x03, ref.div},
		{"fsqrt", 0x0b, func(a, _ uint64, rm fp.Rounding) (uint64, fp.Flags) { return ref.sqrt(a, rm) }},
	} {
		in := u.arithmetic(op.name, op.code<<27, k, op.want)
		in.rounds = true
		if op.name == "fsqrt" {
			in.operands = in.operands[:1]
		}
		all = append(all, in)
	}
	for _, op := range []struct {
		name       string
		code       uint32
		negA, negC bool
	}{
		{"fmadd", 0x43, false, false},
		{"fmsub", 0x47, false, true},
		{"fnmsub", 0x4b, true, false},
		{"fnmadd", 0x4f, true, true},
	} {
		all = append(all, &instruction{
			name: op.name + u.suffix, operands: []kind{k, k, k}, result: k, rounds: true, code: u.code | op.code,
			got: func(in operands, rm fp.Rounding, fl *fp.Flags) uint64 {
				return u.write(u.fused[op.name](u.read(in[0]), u.read(in[1]), u.read(in[2]), rm, fl))
			},
			want: func(in operands, rm fp.Rounding) (uint64, fp.Flags) {
				a, b, c := u.read(in[0]), u.read(in[1]), u.read(in[2])
				if op.negA {
					a = ref.negate(a)
				}
				if op.negC {
					c = ref.negate(c)
				}
				r, fl := ref.fma(a, b, c, rm)
				return u.write(r), fl
			},
		})
	}
	return all
}

// arithmetic makes an instruction of two operands from the functions of that name.
func (u *fpu) arithmetic(name string, code uint32, result kind, want func(a, b uint64, rm fp.Rounding) (uint64, fp.Flags)) *instruction {
	write := u.write
	if result == xreg {
		write = func(v uint64) uint64 { return v }
	}
	return &instruction{
		name: name + u.suffix, operands: []kind{u.kind, u.kind}, result: result, code: code | u.code | opFP,
		got: func(in operands, rm fp.Rounding, fl *fp.Flags) uint64 {
			return write(u.arith[name](u.read(in[0]), u.read(in[1]), rm, fl))
		},
		want: func(in operands, rm fp.Rounding) (uint64, fp.Flags) {
			r, fl := want(u.read(in[0]), u.read(in[1]), rm)
			return write(r), fl
		},
	}
}

func (u *fpu) signsAndMinMax() []*instruction {
	k, ref := u.kind, u.ref
	sign := func(apply func(sa, sb bool) bool) func(a, b uint64, _ fp.Rounding) (uint64, fp.Flags) {
		return func(a, b uint64, _ fp.Rounding) (uint64, fp.Flags) {
			bit := ref.negate(0)
			if sa := a&bit != 0; apply(sa, b&bit != 0) != sa {
				a = ref.negate(a)
			}
			return a, 0
		}
	}
	pick := func(want int) func(a, b uint64, _ fp.Rounding) (uint64, fp.Flags) {
		return func(a, b uint64, _ fp.Rounding) (uint64, fp.Flags) { return ref.pick(a, b, want) }
	}
	return []*instruction{
		u.arithmetic("fsgnj", 0x04<<27|0<<12, k, sign(func(_, sb bool) bool { return sb })),
		u.arithmetic("fsgnjn", 0x04<<27|1<<12, k, sign(func(_, sb bool) bool { return !sb })),
		u.arithmetic("fsgnjx", 0x04<<27|2<<12, k, sign(func(sa, sb bool) bool { return sa != sb })),
		u.arithmetic("fmin", 0x05<<27|0<<12, k, pick(-1)),
		u.arithmetic("fmax", 0x05<<27|1<<12, k, pick(+1)),
	}
}

func (u *fpu) comparisons() []*instruction {
	compare := func(signalling bool, holds func(cmp int) bool) func(a, b uint64, _ fp.Rounding) (uint64, fp.Flags) {
		return func(a, b uint64, _ fp.Rounding) (uint64, fp.Flags) {
			cmp, ordered, fl := u.ref.order(a, b, signalling)
			if ordered && holds(cmp) {
				return 1, fl
			}
			return 0, fl
		}
	}
	return []*instruction{
		u.arithmetic("fle", 0x14<<27|0<<12, xreg, compare(true, func(c int) bool { return c <= 0 })),
		u.arithmetic("flt", 0x14<<27|1<<12, xreg, compare(true, func(c int) bool { return c < 0 })),
		u.arithmetic("feq", 0x14<<27|2<<12, xreg, compare(false, func(c int) bool { return c == 0 })),
		{
			name: "fclass" + u.suffix, operands: []kind{u.kind}, result: xreg, code: 0x1c<<27 | 1<<12 | u.code | opFP,
			got:  func(in operands, _ fp.Rounding, _ *fp.Flags) uint64 { return u.class(u.read(in[0])) },
			want: func(in operands, _ fp.Rounding) (uint64, fp.Flags) { return u.ref.class(u.read(in[0])), 0 },
		},
	}
}

func (u *fpu) conversions() []*instruction {
	var all []*instruction
	for i, name := range []string{"w", "wu", "l", "lu"} {
		t := refInt{signed: !strings.HasSuffix(name, "u"), width: 32}
		if name[0] == 'l' {
			t.width = 64
		}
		code := u.code | uint32(i)<<20 | opFP
		all = append(all, &instruction{
			name: "fcvt." + name + u.suffix, operands: []kind{u.kind}, result: xreg, rounds: true, code: 0x18<<27 | code,
			got: func(in operands, rm fp.Rounding, fl *fp.Flags) uint64 { return u.toInt[name](u.read(in[0]), rm, fl) },
			want: func(in operands, rm fp.Rounding) (uint64, fp.Flags) {
				return u.ref.toInt(t, u.read(in[0]), rm)
			},
		}, &instruction{
			name: "fcvt" + u.suffix + "." + name, operands: []kind{xreg}, result: u.kind, rounds: true, code: 0x1a<<27 | code,
			got: func(in operands, rm fp.Rounding, fl *fp.Flags) uint64 { return u.write(u.from[name](in[0], rm, fl)) },
			want: func(in operands, rm fp.Rounding) (uint64, fp.Flags) {
				r, fl := u.ref.fromInt(t, in[0], rm)
				return u.write(r), fl
			},
		})
	}
	return all
}

func formatConversions() []*instruction {
	return []*instruction{
		{
			name: "fcvt.s.d", operands: []kind{double}, result: single, rounds: true, code: 0x08<<27 | 0<<25 | 1<<20 | opFP,
			got: func(in operands, rm fp.Rounding, fl *fp.Flags) uint64 {
				return fp.Box32(fp.F64ToF32(in[0], rm, fl))
			},
			want: func(in operands, rm fp.Rounding) (uint64, fp.Flags) {
				r, fl := refSingle.convert(refDouble, in[0], rm)
				return fp.Box32(uint32(r)), fl
			},
		},
		{
			name: "fcvt.d.s", operands: []kind{single}, result: double, rounds: true, code: 0x08<<27 | 1<<25 | 0<<20 | opFP,
			got: func(in operands, _ fp.Rounding, fl *fp.Flags) uint64 {
				return fp.F32ToF64(fp.Unbox32(in[0]), fl)
			},
			want: func(in operands, rm fp.Rounding) (uint64, fp.Flags) {
				return refDouble.convert(refSingle, uint64(fp.Unbox32(in[0])), rm)
			},
		},
	}
}
