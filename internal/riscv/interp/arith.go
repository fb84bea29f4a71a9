package interp

import (
	"math"
	"math/bits"
)

// The M extension (unpriv 13). Division never traps: by zero it gives all ones
// and the dividend, and on overflow the dividend and zero.

func mulhu(a, b uint64) uint64 {
	high, _ := bits.Mul64(a, b)
	return high
}

func mulh(a, b uint64) uint64 {
	high := mulhu(a, b)
	return high - uint64(int64(a)>>63)&b - uint64(int64(b)>>63)&a
}

func mulhsu(a, b uint64) uint64 {
	return mulhu(a, b) - uint64(int64(a)>>63)&b
}

func div(a, b uint64) uint64 {
	switch {
	case b == 0:
		return math.MaxUint64
	case int64(b) == -1:
		return -a // also right for the one quotient that overflows
	}
	return uint64(int64(a) / int64(b))
}

func divu(a, b uint64) uint64 {
	if b == 0 {
		return math.MaxUint64
	}
	return a / b
}

func rem(a, b uint64) uint64 {
	switch {
	case b == 0:
		return a
	case int64(b) == -1:
		return 0
	}
	return uint64(int64(a) % int64(b))
}

func remu(a, b uint64) uint64 {
	if b == 0 {
		return a
	}
	return a % b
}

// The word forms take the lower halves and sign-extend the result.

func divw(a, b uint64) uint64 { return sext32(div(sext32(a), sext32(b))) }
func remw(a, b uint64) uint64 { return sext32(rem(sext32(a), sext32(b))) }

func divuw(a, b uint64) uint64 { return sext32(divu(a&math.MaxUint32, b&math.MaxUint32)) }
func remuw(a, b uint64) uint64 { return sext32(remu(a&math.MaxUint32, b&math.MaxUint32)) }

func sext32(v uint64) uint64 { return uint64(int64(int32(v))) }

// orCombine sets every byte that is not zero to all ones.
func orCombine(a uint64) uint64 {
	const low7 = 0x7f7f7f7f7f7f7f7f
	high := ((a & low7) + low7 | a) &^ low7 // the top bit of each such byte
	return high >> 7 * 0xff
}
