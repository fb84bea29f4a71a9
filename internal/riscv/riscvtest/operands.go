package riscvtest

import "math/rand/v2"

// Integers are operands at the edges of what instructions distinguish.
var Integers = []uint64{
	0, 1, 2, 3, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff,
	0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1_0000_0000,
	0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0000, 0xffff_ffff_ffff_ffff, 0xffff_ffff_8000_0000,
	0x0123_4567_89ab_cdef, 0x00ff_0000_1100_0001,
}

// Floats are doubles and boxed singles.
var Floats = []uint64{
	0, 1 << 63, // zeros
	0x3ff0_0000_0000_0000, 0xbff0_0000_0000_0000, 0x3fe0_0000_0000_0000, 0x4004_0000_0000_0000, // 1, -1, 0.5, 2.5
	0x7ff0_0000_0000_0000, 0xfff0_0000_0000_0000, // infinities
	0x7ff8_0000_0000_0000, 0x7ff0_0000_0000_0001, 0xffff_ffff_ffff_ffff, // NaNs: quiet, signalling, boxed
	0x0000_0000_0000_0001, 0x000f_ffff_ffff_ffff, 0x0010_0000_0000_0000, 0x7fef_ffff_ffff_ffff, // extremes
	0x41df_ffff_ffc0_0000, 0x41e0_0000_0000_0000, 0x41ef_ffff_ffe0_0000, 0x43e0_0000_0000_0000, 0xc3e0_0000_0000_0000, 0x43f0_0000_0000_0000, // 2^31-1, 2^31, 2^32-1, +-2^63, 2^64
	0x3ff5_5555_5555_5555, 0x4009_21fb_5444_2d18, 0x36a0_0000_0000_0000, 0x47ef_ffff_e000_0000, // 4/3, pi, smallest single, largest single
	0xffff_ffff_0000_0000, 0xffff_ffff_8000_0000, 0xffff_ffff_3f80_0000, 0xffff_ffff_bf80_0000, 0xffff_ffff_3f00_0000, 0xffff_ffff_4020_0000,
	0xffff_ffff_7f80_0000, 0xffff_ffff_ff80_0000, 0xffff_ffff_7fc0_0000, 0xffff_ffff_7f80_0001,
	0xffff_ffff_0000_0001, 0xffff_ffff_007f_ffff, 0xffff_ffff_0080_0000, 0xffff_ffff_7f7f_ffff,
	0xffff_ffff_4f00_0000, 0xffff_ffff_cf00_0000, 0xffff_ffff_4f80_0000, 0xffff_ffff_5f00_0000, 0xffff_ffff_df00_0000,
	0xffff_ffff_3faa_aaab, 0xffff_ffff_4049_0fdb,
	0x0000_0000_3f80_0000, // a single that is not boxed
}

// Integer draws an operand, edges more often than not.
func Integer(rng *rand.Rand) uint64 { return draw(rng, Integers) }

// Float draws the bits of a floating-point operand, likewise.
func Float(rng *rand.Rand) uint64 { return draw(rng, Floats) }

func draw(rng *rand.Rand, edges []uint64) uint64 {
	if rng.IntN(4) == 0 {
		return rng.Uint64()
	}
	return edges[rng.IntN(len(edges))]
}

// Word draws word i of an initial state, in which the registers that random
// code relies on have what it needs.
func Word(rng *rand.Rand, i int) uint64 {
	switch {
	case i == RegStack || i == RegScratch:
		return ScratchBase + ScratchSize/2
	case i == RegAligned:
		return ScratchBase + ScratchSize/4
	case i == 64: // fcsr: a rounding mode
		return uint64(rng.IntN(5)) << 5
	case i >= 32:
		return Float(rng)
	}
	return Integer(rng)
}
