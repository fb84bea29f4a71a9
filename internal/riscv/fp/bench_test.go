package fp_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
)

// operands of the benchmarks; a power of two of them, so that an index is a mask away.
type benchOperands struct {
	d, pos, ints [256]uint64
	s            [256]uint32
}

func newBenchOperands() *benchOperands {
	rng := rand.New(rand.NewPCG(1, 2))
	var o benchOperands
	for i := range o.d {
		x := rng.NormFloat64() * 1000
		o.d[i], o.s[i] = math.Float64bits(x), math.Float32bits(float32(x))
		o.pos[i] = math.Float64bits(math.Abs(x))
		o.ints[i] = rng.Uint64() >> (i % 64)
	}
	return &o
}

var benchOps = []struct {
	name string
	run  func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64)
}{
	{"Loop", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += o.d[i&255] ^ o.d[(i+1)&255] ^ uint64(fl)
		}
		return sink
	}},
	{"Add64", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.Add64(o.d[i&255], o.d[(i+1)&255], rm, &fl)
		}
		return sink
	}},
	{"Mul64", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.Mul64(o.d[i&255], o.d[(i+1)&255], rm, &fl)
		}
		return sink
	}},
	{"Div64", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.Div64(o.d[i&255], o.d[(i+1)&255], rm, &fl)
		}
		return sink
	}},
	{"Sqrt64", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.Sqrt64(o.pos[i&255], rm, &fl)
		}
		return sink
	}},
	{"FMA64", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.FMA64(o.d[i&255], o.d[(i+1)&255], o.d[(i+2)&255], rm, &fl)
		}
		return sink
	}},
	{"Add32", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += uint64(fp.Add32(o.s[i&255], o.s[(i+1)&255], rm, &fl))
		}
		return sink
	}},
	{"FMA32", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += uint64(fp.FMA32(o.s[i&255], o.s[(i+1)&255], o.s[(i+2)&255], rm, &fl))
		}
		return sink
	}},
	{"Lt64", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.Lt64(o.d[i&255], o.d[(i+1)&255], &fl)
		}
		return sink
	}},
	{"Min64", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.Min64(o.d[i&255], o.d[(i+1)&255], &fl)
		}
		return sink
	}},
	{"F64ToI32", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.F64ToI32(o.d[i&255], rm, &fl)
		}
		return sink
	}},
	{"F64ToF32", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += uint64(fp.F64ToF32(o.d[i&255], rm, &fl))
		}
		return sink
	}},
	{"I64ToF64", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += fp.I64ToF64(o.ints[i&255], rm, &fl)
		}
		return sink
	}},
	{"I64ToF32", func(o *benchOperands, n int, rm fp.Rounding, start fp.Flags) (sink uint64) {
		for i := range n {
			fl := start
			sink += uint64(fp.I64ToF32(o.ints[i&255], rm, &fl))
		}
		return sink
	}},
}

// BenchmarkOps measures the functions as an interpreter calls them. flags=NX is the usual state of a guest, flags=0 the
// one before its first inexact result, and with rm=RUP the host's arithmetic is no help. Loop is what the loop costs.
func BenchmarkOps(b *testing.B) {
	states := []struct {
		name string
		rm   fp.Rounding
		fl   fp.Flags
	}{
		{"rm=RNE/flags=NX", fp.RNE, fp.NX},
		{"rm=RNE/flags=0", fp.RNE, 0},
		{"rm=RTZ/flags=NX", fp.RTZ, fp.NX},
		{"rm=RUP/flags=NX", fp.RUP, fp.NX},
	}
	o := newBenchOperands()
	var sink uint64
	for _, op := range benchOps {
		for _, st := range states {
			b.Run(op.name+"/"+st.name, func(b *testing.B) { sink += op.run(o, b.N, st.rm, st.fl) })
		}
	}
	if sink == 0 {
		b.Log("all results cancelled") // keeps the calls alive
	}
}
