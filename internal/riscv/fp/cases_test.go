package fp_test

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
)

// edges returns the patterns of the format, of both signs, where arithmetic has its corners.
func (f *refFormat) edges() []uint64 {
	ulp := math.Ldexp(1, 1-int(f.prec))
	least, normal := math.Ldexp(ulp, f.emin), math.Ldexp(1, f.emin)
	values := []float64{
		0, least, 2 * least, 3 * least, normal - least, normal, normal + least, 2 * normal, 2*normal + 2*least, 3 * normal,
		math.Ldexp(1, f.emin/2), math.Ldexp(1, f.emin/2-1), math.Ldexp(1-ulp/2, f.emin/2), math.Ldexp(1, f.emin-int(f.prec)/2+80),
		ulp / 4, ulp / 2, ulp, 0.25, 0.5 - ulp/4, 0.5, 0.5 + ulp/2, 0.75, 1 - ulp/2, 1, 1 + ulp, 1.5, 1.5 + ulp, 2 - ulp, 2, 2.5, 3, 3.5, math.Pi, 10,
		1 / ulp, 2/ulp - 1, 2 / ulp, 1/ulp + 1,
		math.Ldexp(1, f.emax/2), math.Ldexp(1, f.emax/2+1), math.Ldexp(2-ulp, f.emax/2),
		math.Ldexp(1, f.emax-1), math.Ldexp(1, f.emax), math.Ldexp(2-2*ulp, f.emax), math.Ldexp(2-ulp, f.emax), math.Inf(1),
	}
	if !f.single {
		// Where the host's residues would drop out of range.
		for e := -961; e <= -958; e++ {
			values = append(values, math.Ldexp(1, e), math.Ldexp(1+ulp, e))
		}
	}
	patterns := []uint64{f.nan, f.nan | 1, f.pack(math.Inf(1)) | 1, f.pack(math.Inf(1)) | f.quiet>>1}
	for _, v := range values {
		patterns = append(patterns, f.pack(v))
	}
	for _, p := range slices.Clone(patterns) {
		patterns = append(patterns, f.negate(p))
	}
	return patterns
}

// conversionEdges are doubles around the limits of singles and of integers.
func conversionEdges() []uint64 {
	var patterns []uint64
	add := func(v float64) {
		for _, x := range []float64{math.Nextafter(v, 0), v, math.Nextafter(v, math.Inf(1))} {
			patterns = append(patterns, math.Float64bits(x), math.Float64bits(-x))
		}
	}
	for _, e := range []int{31, 32, 63, 64} {
		limit := math.Ldexp(1, e)
		for _, d := range []float64{0, 0.5, 1, 1.5} {
			add(limit - d)
			add(limit + d)
		}
	}
	for _, mantissa := range []float64{1, 1.5, 1 - 0x1p-25, 1 - 0x1p-24, 1 - 0x1.8p-25, 1 + 0x1p-24, 1 + 0x1p-23, 1 + 0x3p-24, 2 - 0x1p-24, 2 - 0x1p-23} {
		for _, e := range []int{-151, -150, -149, -148, -127, -126, -125, 0, 126, 127, 128} {
			add(math.Ldexp(mantissa, e))
		}
	}
	return patterns
}

func integerEdges() []uint64 {
	var patterns []uint64
	for shift := range 64 {
		for d := range uint64(5) {
			patterns = append(patterns, uint64(1)<<shift+d-2, -(uint64(1)<<shift + d - 2))
		}
	}
	for _, width := range []int{24, 53} { // halfway, and next to it
		for shift := 1; width+shift < 64; shift += 5 {
			odd := uint64(1)<<width | 1
			patterns = append(patterns, (odd<<1|1)<<(shift-1), (odd<<1|1)<<(shift-1)+1, (odd<<1|1)<<(shift-1)-1)
		}
	}
	return patterns
}

// edgesOf returns the edge values of registers of kind k.
func edgesOf(k kind) []uint64 {
	switch k {
	case single:
		var boxed []uint64
		for _, p := range refSingle.edges() {
			boxed = append(boxed, fp.Box32(uint32(p)))
		}
		// Not singles: the upper half is zero, or all ones but one bit.
		return append(boxed, 0x3f80_0000, 0xffff_fffe_3f80_0000, 0x7fff_ffff_3f80_0000)
	case double:
		return refDouble.edges()
	}
	return integerEdges()
}

// cases returns operands for the instruction: the grid of edges for one or two operands, a sample of it for three, and
// n random ones. They are the same in every run.
func (in *instruction) cases(n int) []operands {
	h := fnv.New64()
	h.Write([]byte(in.name))
	rng := rand.New(rand.NewPCG(h.Sum64(), 0))
	var all []operands
	edges := edgesOf(in.operands[0])
	switch len(in.operands) {
	case 1:
		if in.operands[0] == double {
			edges = append(edges, conversionEdges()...)
		}
		for _, a := range edges {
			all = append(all, operands{a})
		}
	case 2:
		for _, a := range edges {
			for _, b := range edges {
				all = append(all, operands{a, b})
			}
		}
	case 3:
		for range 2 * n {
			all = append(all, operands{pick(rng, edges), pick(rng, edges), pick(rng, edges)})
		}
	}
	for range n {
		all = append(all, in.random(rng))
	}
	return all
}

func pick(rng *rand.Rand, from []uint64) uint64 { return from[rng.IntN(len(from))] }

// random returns operands that are likely to do something interesting together.
func (in *instruction) random(rng *rand.Rand) operands {
	switch in.operands[0] {
	case xreg:
		x := rng.Uint64() >> rng.IntN(64)
		x &^= 1<<rng.IntN(64) - 1 // short enough to be exact, now and then
		if rng.IntN(2) == 0 {
			x = -x
		}
		return operands{x}
	case single:
		var o operands
		for i, p := range refSingle.random(rng) {
			o[i] = fp.Box32(uint32(p))
		}
		return o
	}
	return refDouble.random(rng)
}

// random returns three patterns: a anywhere, b such that a*b, a/b or a+b is near some end of the range, c near b or
// near -a*b.
func (f *refFormat) random(rng *rand.Rand) operands {
	lo, hi := f.emin-int(f.prec), f.emax
	ea := lo + rng.IntN(hi-lo+1)
	switch rng.IntN(4) {
	case 0:
		ea = rng.IntN(80) - 40
	case 1:
		ea /= 2
	}
	near := func(e int) int { return e + rng.IntN(7) - 3 }
	targets := []int{
		near(ea), ea + rng.IntN(2*int(f.prec)+10) - int(f.prec) - 5, // sums that overlap
		near(f.emin - ea), near(lo - ea), near(f.emax - ea), // products at the ends
		near(ea - f.emin), near(ea - lo), near(ea - f.emax), // quotients at the ends
		rng.IntN(80) - 40,
	}
	a := f.randomAt(rng, ea)
	b := f.randomAt(rng, targets[rng.IntN(len(targets))])
	c := f.randomAt(rng, near(int(math.Logb(f.value(b)))))
	if rng.IntN(2) == 0 {
		c = f.pack(-(f.value(a) * f.value(b)))
		c += uint64(rng.IntN(3))
		c -= uint64(rng.IntN(3))
		if rng.IntN(4) == 0 {
			c = f.negate(c)
		}
	}
	if rng.IntN(16) == 0 {
		a = rng.Uint64() & (f.negate(0)<<1 - 1)
	}
	return operands{a, b, c}
}

// randomAt returns a number with the exponent e, or as near to it as the format goes; its fraction may be short.
func (f *refFormat) randomAt(rng *rand.Rand, e int) uint64 {
	frac := rng.Uint64() & (1<<(f.prec-1) - 1)
	switch rng.IntN(4) {
	case 0:
		frac &^= 1<<rng.IntN(int(f.prec)) - 1
	case 1:
		frac |= 1<<rng.IntN(int(f.prec)) - 1
	}
	field := min(max(e-f.emin+1, 0), f.emax-f.emin+1)
	p := uint64(field)<<(f.prec-1) | frac
	if e < f.emin {
		p = frac >> min(uint(f.emin-e), f.prec)
	}
	if rng.IntN(2) == 0 {
		p = f.negate(p)
	}
	return p
}
