//go:build linux && amd64

package jit

import (
	"fmt"
	"math"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// TestDivisionsLeftToGo: native code divides, unless the host's division would trap.
func TestDivisionsLeftToGo(t *testing.T) {
	const minWord = 0xffff_ffff_8000_0000 // as a word the least number
	for _, c := range []struct {
		op   isa.Op
		a, b uint64
		left bool
	}{
		{isa.DIV, 7, math.MaxUint64, false}, {isa.DIV, 7, 0, true}, {isa.DIV, 1 << 63, math.MaxUint64, true}, {isa.DIV, minWord, math.MaxUint64, false},
		{isa.REM, 7, math.MaxUint64, false}, {isa.REM, 7, 0, true}, {isa.REM, 1 << 63, math.MaxUint64, true}, {isa.REM, 1<<63 + 1, 3, false},
		{isa.DIVU, 1 << 63, math.MaxUint64, false}, {isa.DIVU, 7, 0, true}, {isa.DIVU, 7, 1 << 32, false},
		{isa.REMU, 1 << 63, math.MaxUint64, false}, {isa.REMU, 7, 0, true},
		{isa.DIVW, minWord, math.MaxUint64, true}, {isa.DIVW, 1 << 63, math.MaxUint64, false}, {isa.DIVW, 7, 1 << 32, true},
		{isa.REMW, minWord, math.MaxUint64, true}, {isa.REMW, 7, math.MaxUint64, false}, {isa.REMW, 7, 1 << 32, true},
		{isa.DIVUW, minWord, math.MaxUint64, false}, {isa.DIVUW, 7, 1 << 32, true}, {isa.REMUW, minWord, 2, false},
	} {
		t.Run(fmt.Sprintf("%v %#x %#x", c.op, c.a, c.b), func(t *testing.T) {
			f := newFixture(t, NewCache(0), func(a *isa.Asm) {
				a.R(c.op, 5, 6, 11)
				a.Op(isa.ECALL)
			})
			f.h.X[6], f.h.X[11] = c.a, c.b
			stop, left := f.x.Enter(f.code, 10)
			if c.left {
				f.want(stop, Slow, left, 10, base)
			} else {
				f.want(stop, Slow, left, 9, base+4)
			}
		})
	}
}

// TestFlags: a branch on what has just been computed compares nothing, and goes where it
// should.
func TestFlags(t *testing.T) {
	values := []uint64{0, 1, 2, 3, 1 << 31, 1<<31 - 1, 1<<31 + 1, 1 << 32, 1<<32 - 1, 1 << 62, 1 << 63, 1<<63 - 1, 1<<63 + 1, math.MaxUint64, math.MaxUint64 - 1}
	word := func(v uint64) uint64 { return uint64(int32(v)) }
	for _, c := range []struct {
		in   isa.Inst
		want func(a, b uint64) uint64
		free bool // the flags are known
	}{
		{isa.Inst{Op: isa.ANDI, Rd: 12, Rs1: 10, Imm: 1}, func(a, b uint64) uint64 { return a & 1 }, true},
		{isa.Inst{Op: isa.ANDI, Rd: 5, Rs1: 6, Imm: -2}, func(a, b uint64) uint64 { return a &^ 1 }, true},
		{isa.Inst{Op: isa.ORI, Rd: 12, Rs1: 10, Imm: -3}, func(a, b uint64) uint64 { return a | ^uint64(2) }, true},
		{isa.Inst{Op: isa.XORI, Rd: 10, Rs1: 10, Imm: -1}, func(a, b uint64) uint64 { return ^a }, true},
		{isa.Inst{Op: isa.ADDI, Rd: 10, Rs1: 10, Imm: -1}, func(a, b uint64) uint64 { return a - 1 }, true},
		{isa.Inst{Op: isa.ADDI, Rd: 6, Rs1: 6, Imm: 1}, func(a, b uint64) uint64 { return a + 1 }, true},
		{isa.Inst{Op: isa.ADDI, Rd: 12, Rs1: 10, Imm: 1}, func(a, b uint64) uint64 { return a + 1 }, false}, // LEA leaves them
		{isa.Inst{Op: isa.ADDI, Rd: 12, Rs1: 10}, func(a, b uint64) uint64 { return a }, false},
		{isa.Inst{Op: isa.ADDIW, Rd: 10, Rs1: 10, Imm: -1}, func(a, b uint64) uint64 { return word(a - 1) }, true},
		{isa.Inst{Op: isa.ADD, Rd: 10, Rs1: 10, Rs2: 11}, func(a, b uint64) uint64 { return a + b }, true},
		{isa.Inst{Op: isa.ADD, Rd: 12, Rs1: 10, Rs2: 11}, func(a, b uint64) uint64 { return a + b }, false},
		{isa.Inst{Op: isa.SUB, Rd: 12, Rs1: 10, Rs2: 11}, func(a, b uint64) uint64 { return a - b }, true},
		{isa.Inst{Op: isa.SUBW, Rd: 12, Rs1: 10, Rs2: 11}, func(a, b uint64) uint64 { return word(a - b) }, true},
		{isa.Inst{Op: isa.SUB, Rd: 11, Rs1: 10, Rs2: 11}, func(a, b uint64) uint64 { return a - b }, false},
		{isa.Inst{Op: isa.XOR, Rd: 12, Rs1: 10, Rs2: 11}, func(a, b uint64) uint64 { return a ^ b }, true},
		{isa.Inst{Op: isa.SLLI, Rd: 12, Rs1: 10, Imm: 1}, func(a, b uint64) uint64 { return a << 1 }, true},
		{isa.Inst{Op: isa.SRLI, Rd: 12, Rs1: 10, Imm: 63}, func(a, b uint64) uint64 { return a >> 63 }, true},
		{isa.Inst{Op: isa.SRAI, Rd: 12, Rs1: 10, Imm: 1}, func(a, b uint64) uint64 { return uint64(int64(a) >> 1) }, true},
		{isa.Inst{Op: isa.SLLIW, Rd: 12, Rs1: 10, Imm: 31}, func(a, b uint64) uint64 { return word(a << 31) }, true},
		{isa.Inst{Op: isa.SRLIW, Rd: 12, Rs1: 10, Imm: 1}, func(a, b uint64) uint64 { return a & math.MaxUint32 >> 1 }, true},
		{isa.Inst{Op: isa.SRLIW, Rd: 12, Rs1: 10}, func(a, b uint64) uint64 { return word(a) }, false}, // by 0 leaves them
		{isa.Inst{Op: isa.SLLI, Rd: 12, Rs1: 10}, func(a, b uint64) uint64 { return a }, false},
		{isa.Inst{Op: isa.RORI, Rd: 12, Rs1: 10, Imm: 1}, func(a, b uint64) uint64 { return a>>1 | a<<63 }, false},
	} {
		for op, holds := range map[isa.Op]func(v uint64) bool{
			isa.BEQ: func(v uint64) bool { return v == 0 }, isa.BNE: func(v uint64) bool { return v != 0 },
			isa.BLT: func(v uint64) bool { return int64(v) < 0 }, isa.BGE: func(v uint64) bool { return int64(v) >= 0 },
			isa.BLTU: func(uint64) bool { return false }, isa.BGEU: func(uint64) bool { return true },
		} {
			t.Run(fmt.Sprintf("%v and %v", c.in, op), func(t *testing.T) {
				f := newFixture(t, NewCache(0), func(a *isa.Asm) {
					a.I(isa.ADDI, 14, 14, 0) // moves nothing
					a.Emit(c.in)
					a.B(op, c.in.Rd, 0, "taken")
					a.Op(isa.ECALL)
					a.Label("taken")
				})
				if free := c.free && op != isa.BLTU && op != isa.BGEU; f.tests() != 0 == free {
					t.Errorf("it takes %d comparisons with zero", f.tests())
				}
				for _, x := range values {
					for _, y := range values {
						f.h.PC, f.h.X[10], f.h.X[6], f.h.X[11] = base, x, x, y
						stop, left := f.x.Enter(f.code, 10)
						switch v := c.want(x, y); {
						case f.h.X[c.in.Rd] != v:
							t.Errorf("of %#x and %#x it makes %#x, want %#x", x, y, f.h.X[c.in.Rd], v)
						case holds(v):
							f.want(stop, Elsewhere, left, 7, base+16)
						default:
							f.want(stop, Slow, left, 7, base+12)
						}
					}
				}
			})
		}
	}
}

// tests returns how often the code compares a register with zero.
func (f *fixture) tests() (n int) {
	a := f.cache.arena.Load()
	code := a.writable[:a.used]
	for i := range code[1 : len(code)-1] {
		if code[i] != 0x0F && code[i+1] == 0x85 && code[i+2] >= 0xC0 { // TEST, and no JNE
			n++
		}
	}
	return n
}
