package interp

import (
	"fmt"
	"math"
	"math/big"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// quotient divides as the manual has it (unpriv 13.2), with numbers that cannot overflow.
func quotient(op isa.Op, a, b uint64) uint64 {
	x, y := new(big.Int).SetUint64(a), new(big.Int).SetUint64(b)
	switch op {
	case isa.DIV, isa.REM:
		x, y = big.NewInt(int64(a)), big.NewInt(int64(b))
	case isa.DIVW, isa.REMW:
		x, y = big.NewInt(int64(int32(a))), big.NewInt(int64(int32(b)))
	case isa.DIVUW, isa.REMUW:
		x, y = big.NewInt(int64(uint32(a))), big.NewInt(int64(uint32(b)))
	}
	q, r := big.NewInt(-1), x
	if y.Sign() != 0 {
		q, r = new(big.Int).QuoRem(x, y, new(big.Int))
	}
	switch op {
	case isa.REM, isa.REMU, isa.REMW, isa.REMUW:
		q = r
	}
	low := new(big.Int).And(q, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
	switch op {
	case isa.DIVW, isa.DIVUW, isa.REMW, isa.REMUW:
		return uint64(int32(low))
	}
	return low
}

// TestDivision divides numbers around all limits by each other, in registers of all kinds.
func TestDivision(t *testing.T) {
	var numbers []uint64
	for _, n := range []uint64{0, 1 << 31, 1 << 32, 1 << 63, 0xdead_beef_0000_0000, 1_000_000_007} {
		for d := range uint64(5) {
			numbers = append(numbers, n+d-2)
		}
	}
	for _, op := range []isa.Op{isa.DIV, isa.DIVU, isa.REM, isa.REMU, isa.DIVW, isa.DIVUW, isa.REMW, isa.REMUW} {
		for _, in := range []isa.Inst{
			{Rd: 12, Rs1: 10, Rs2: 11}, {Rd: 5, Rs1: 6, Rs2: 7}, {Rd: 10, Rs1: 10, Rs2: 11}, {Rd: 11, Rs1: 10, Rs2: 11},
			{Rd: 6, Rs1: 6, Rs2: 10}, {Rd: 6, Rs1: 10, Rs2: 6}, {Rd: 7, Rs1: 10, Rs2: 10}, {Rd: 7, Rs1: 10}, {Rd: 7, Rs2: 10},
		} {
			in.Op = op
			t.Run(fmt.Sprintf("%v x%d, x%d, x%d", op, in.Rd, in.Rs1, in.Rs2), func(t *testing.T) {
				r := newRig(t, func(a *isa.Asm) { a.Emit(in) })
				for _, x := range numbers {
					for _, y := range numbers {
						r.h.PC = rigCode
						if in.Rs1 != 0 {
							r.h.X[in.Rs1] = x
						}
						if in.Rs2 != 0 {
							r.h.X[in.Rs2] = y
						}
						x, y := r.h.X[in.Rs1], r.h.X[in.Rs2]
						r.mustEnd()
						if got, want := r.h.X[in.Rd], quotient(op, x, y); got != want {
							t.Errorf("%v of %#x and %#x is %#x, want %#x", op, x, y, got, want)
						}
					}
				}
			})
		}
	}
}
