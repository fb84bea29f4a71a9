// Package fp is the floating-point arithmetic of RISC-V's F and D extensions (version 2.2), bit for bit.
//
// Every function is pure: operands and results are bit patterns, the rounding mode is an argument, and exceptions are
// OR-ed into the accrued flags that the caller passes. Nothing allocates, nothing panics, and every bit pattern is a
// valid operand. The functions are safe for concurrent use as long as callers do not share a Flags; there are no locks.
//
// # How it is fast and still exact
//
// The host's own floating point computes results rounded to nearest-even, but Go has no access to the exceptions it
// raised. In the mode RNE, and where a result is plainly in the normal range, the only exception it can have raised is
// NX. Most guests run with NX accrued already, because little clears it, and then there is nothing left to find out;
// otherwise the residue of the operation, which the host can compute exactly, tells. Everything else (the other modes,
// infinities and NaNs, results near the ends of the range) goes to the integer implementation in soft.go, which serves
// both formats from one body.
//
// # Invariants
//
//   - A result that is a NaN is the canonical NaN of its format: payloads are never propagated (unpriv 20.3).
//   - Tininess is detected after rounding (unpriv 20.4).
//   - Results and flags do not depend on the host: Go's float32 and float64 operations are IEEE 754 with rounding to
//     nearest-even on all its platforms, and products are rounded explicitly so that the compiler cannot fuse them
//     with a following addition.
//
// Callers resolve the dynamic rounding mode and refuse the reserved ones before they call; a reserved mode is
// treated as RTZ here.
package fp

// Flags is a set of accrued exceptions, laid out as in fcsr (unpriv 20.2).
type Flags uint8

// The accrued exceptions.
const (
	NX Flags = 1 << iota // inexact
	UF                   // underflow: tiny after rounding, and inexact
	OF                   // overflow
	DZ                   // division of a finite number by zero
	NV                   // invalid operation
)

// Rounding is a rounding mode, encoded as in the rm field and in frm (unpriv 20.2).
type Rounding uint8

// The rounding modes.
const (
	RNE Rounding = iota // to nearest, ties to even
	RTZ                 // towards zero
	RDN                 // towards minus infinity
	RUP                 // towards plus infinity
	RMM                 // to nearest, ties away from zero
)

// The canonical NaNs.
const (
	NaN32 uint32 = 0x7fc0_0000
	NaN64 uint64 = 0x7ff8_0000_0000_0000
)

const (
	sign32 uint32 = 1 << 31
	sign64 uint64 = 1 << 63
	inf32  uint32 = 0x7f80_0000
	inf64  uint64 = 0x7ff0_0000_0000_0000
)

const boxed uint64 = 0xffff_ffff_0000_0000

// Box32 returns the register that holds the single v: NaN-boxed, all ones above it (unpriv 21.2).
func Box32(v uint32) uint64 { return boxed | uint64(v) }

// Unbox32 returns the single that the register r holds. A register whose upper half is not all ones does not hold a
// single and reads as the canonical NaN. Moves and stores (FMV.X.W, FSW) take the lower half without this check.
func Unbox32(r uint64) uint32 {
	if r >= boxed {
		return uint32(r)
	}
	return NaN32
}

// finite64 reports whether r is neither infinite nor a NaN. If a result is finite, so were the operands.
func finite64(r uint64) bool { return r<<1 < inf64<<1 }

func finite32(r uint32) bool { return r<<1 < inf32<<1 }

// ordinary64 reports whether r is finite and at least 2^-960. A result that rounded to r is then neither an overflow
// nor tiny (a value that is tiny after rounding to full precision may still become the smallest normal number, but no
// greater one), and the residue of an operation that began or ended with r is no smaller than the subnormal numbers.
func ordinary64(r uint64) bool {
	const least = (1023 - 960) << 53
	return r<<1-least < inf64<<1-least
}

// ordinary32 reports whether r is finite and above the smallest normal number. Residues are computed in doubles.
func ordinary32(r uint32) bool {
	const least = 2 << 24
	return r<<1-least < inf32<<1-least
}

func isNaN64(a uint64) bool { return a<<1 > inf64<<1 }

func isNaN32(a uint32) bool { return a<<1 > inf32<<1 }
