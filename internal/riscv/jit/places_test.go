//go:build linux && amd64

package jit

import (
	"fmt"
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// evaluate executes an instruction as the manual has it.
func evaluate(x *[32]uint64, in isa.Inst) {
	a, b, n := x[in.Rs1], x[in.Rs2], uint(in.Imm)
	word := func(v uint32) uint64 { return uint64(int32(v)) }
	v := map[isa.Op]uint64{
		isa.SLLIW: word(uint32(a) << n),
		isa.SRLIW: word(uint32(a) >> n),
		isa.SLLI:  a << n,
		isa.SRLI:  a >> n,
		isa.OR:    a | b,
		isa.XOR:   a ^ b,
		isa.ADD:   a + b,
		isa.ADDW:  word(uint32(a + b)),
		isa.ADDI:  a + uint64(int64(in.Imm)),
	}[in.Op]
	if in.Rd != 0 {
		x[in.Rd] = v
	}
}

func shift(op isa.Op, rd, rs uint8, n int32) isa.Inst {
	return isa.Inst{Op: op, Rd: rd, Rs1: rs, Imm: n}
}
func regs(op isa.Op, rd, a, b uint8) isa.Inst { return isa.Inst{Op: op, Rd: rd, Rs1: a, Rs2: b} }

// rotations are pieces of code, and how many rotations they take.
var rotations = map[string]struct {
	code []isa.Inst
	n    int
}{
	"word":       {[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 25), regs(isa.OR, 7, 5, 6)}, 1},
	"left first": {[]isa.Inst{shift(isa.SLLIW, 11, 10, 30), shift(isa.SRLIW, 12, 10, 2), regs(isa.OR, 13, 12, 11)}, 1},
	"doubleword": {[]isa.Inst{shift(isa.SRLI, 5, 18, 7), shift(isa.SLLI, 6, 18, 57), regs(isa.OR, 5, 6, 5)}, 1},
	"in place":   {[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 10, 10, 25), regs(isa.OR, 10, 5, 10)}, 1},
	"in place, doubleword": {
		[]isa.Inst{shift(isa.SLLI, 11, 19, 1), shift(isa.SRLI, 19, 19, 63), regs(isa.OR, 19, 11, 19)}, 1},
	"into the register that is rotated": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 25), regs(isa.OR, 10, 5, 6)}, 1},
	"of a sum": {
		[]isa.Inst{regs(isa.ADDW, 10, 10, 11), shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 25), regs(isa.OR, 5, 5, 6), regs(isa.ADDW, 5, 5, 10)}, 1},
	"a shift is read again": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 25), regs(isa.OR, 7, 5, 6), regs(isa.ADD, 11, 6, 7), regs(isa.XOR, 12, 5, 11)}, 1},
	"a shift is read before": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 25), regs(isa.ADD, 11, 6, 7), regs(isa.OR, 7, 5, 6)}, 0},
	"a shift is overwritten": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 25), shift(isa.ADDI, 5, 0, 3), regs(isa.OR, 7, 5, 6)}, 0},
	"what is rotated is overwritten between the shifts": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), regs(isa.ADD, 10, 10, 11), shift(isa.SLLIW, 6, 10, 25), regs(isa.OR, 7, 5, 6)}, 0},
	"what is rotated is added to after the shifts": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 25), regs(isa.ADD, 10, 10, 11), regs(isa.OR, 7, 5, 6)}, 0},
	"what is rotated is overwritten after the shifts": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 25), regs(isa.ADD, 10, 11, 11), regs(isa.OR, 7, 5, 6)}, 1},
	"two at a time": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SRLIW, 28, 10, 11), shift(isa.SLLIW, 6, 10, 25), shift(isa.SLLIW, 29, 10, 21),
			regs(isa.OR, 5, 5, 6), regs(isa.OR, 28, 29, 28), regs(isa.XOR, 5, 5, 28)}, 2},
	"two in place at a time": {
		[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 10, 10, 25), shift(isa.SRLI, 6, 11, 11), shift(isa.SLLI, 11, 11, 53),
			regs(isa.OR, 10, 5, 10), regs(isa.OR, 11, 11, 6)}, 1},
	"31 bits":               {[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 10, 24), regs(isa.OR, 7, 5, 6)}, 0},
	"of different widths":   {[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLI, 6, 10, 25), regs(isa.OR, 7, 5, 6)}, 0},
	"in the same direction": {[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SRLIW, 6, 10, 25), regs(isa.OR, 7, 5, 6)}, 0},
	"of two registers":      {[]isa.Inst{shift(isa.SRLIW, 5, 10, 7), shift(isa.SLLIW, 6, 11, 25), regs(isa.OR, 7, 5, 6)}, 0},
	"of the first shift":    {[]isa.Inst{shift(isa.SRLIW, 10, 10, 7), shift(isa.SLLIW, 6, 10, 25), regs(isa.OR, 7, 10, 6)}, 0},
	"of x0":                 {[]isa.Inst{shift(isa.SRLIW, 5, 0, 7), shift(isa.SLLIW, 6, 0, 25), regs(isa.OR, 7, 5, 6)}, 0},
	"not at all":            {[]isa.Inst{shift(isa.SRLIW, 5, 10, 0), shift(isa.SLLIW, 6, 10, 0), regs(isa.OR, 7, 5, 6)}, 0},
}

// TestRotations: two shifts and an OR are one instruction if they are a rotation.
func TestRotations(t *testing.T) {
	for name, r := range rotations {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, NewCache(0), func(a *isa.Asm) {
				a.Emit(r.code...)
				a.Op(isa.ECALL)
			})
			code := f.cache.arena.Load().writable[:f.cache.arena.Load().used]
			n := 0
			for i := range code[:len(code)-4] {
				if code[i] == 0xC4 && code[i+1]&0x1F == 3 && code[i+3] == 0xF0 {
					n++
				}
			}
			if n != r.n {
				t.Errorf("it takes %d rotations, want %d", n, r.n)
			}
		})
	}
}

// TestLeavingInTheMiddle: wherever native code is left, all registers are what the
// instructions before have made them, and it goes on from there.
func TestLeavingInTheMiddle(t *testing.T) {
	for name, r := range rotations {
		for at := range len(r.code) + 1 {
			for _, crosses := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d, %v", name, at, crosses), func(t *testing.T) {
					testLeaving(t, slices.Clone(r.code), at, crosses)
				})
			}
		}
	}
}

// testLeaving has a load at an index in the code leave native code: for an entry of the TLB, or
// for good, since what is loaded crosses pages.
func testLeaving(t *testing.T, code []isa.Inst, at int, crosses bool) {
	load := isa.Inst{Op: isa.LD, Rd: 30, Rs1: 20, Imm: 8}
	code = slices.Insert(code, at, load)
	// What else there is to keep.
	before := []isa.Inst{regs(isa.ADDW, 16, 10, 11), regs(isa.ADDW, 10, 10, 11), regs(isa.ADD, 17, 16, 16)}
	code = append(before, code...)
	at += len(before)
	code = append(code, regs(isa.XOR, 17, 16, 17), regs(isa.ADD, 31, 5, 10), regs(isa.ADD, 16, 17, 10))
	f := newFixture(t, NewCache(0), func(a *isa.Asm) {
		a.Emit(code...)
		a.Op(isa.ECALL)
	})
	var want [32]uint64
	for i := range want[1:] {
		want[i+1] = 0x9e37_79b9_7f4a_7c15 * uint64(i+1)
	}
	want[20] = 0x5000
	if crosses {
		want[20] = 0x5000 - 12
	}
	copy(f.h.X[:32], want[:])
	compare := func() {
		t.Helper()
		for r := range want {
			if f.h.X[r] != want[r] {
				t.Errorf("x%d is %#x, want %#x", r, f.h.X[r], want[r])
			}
		}
	}

	stop, left := f.x.Enter(f.code, 100)
	f.want(stop, Slow, left, 100-at, base+4*uint64(at))
	for _, in := range code[:at] {
		evaluate(&want, in)
	}
	compare()
	want[30] = 42
	if miss, ok := f.x.Miss(); ok == crosses {
		t.Fatalf("missed %+v, %v", miss, ok)
	}
	if crosses {
		f.h.X[30], f.h.PC = 42, f.h.PC+4
		if left--; !f.x.Resumable(left) {
			t.Fatal("native code cannot go on")
		}
		stop, left = f.x.Resume(left)
	} else {
		*f.banks[0].At(0x5008) = mmu.Entry[mmu.Host]{Tag: mmu.Tag(0x5008, 1, f.x.Space), To: mmu.HostOf(&page.Page{8: 42}, 0x5008)}
		stop, left = f.x.Retry(left)
	}
	f.want(stop, Slow, left, 100-len(code), base+4*uint64(len(code)))
	for _, in := range code[at+1:] {
		evaluate(&want, in)
	}
	compare()
}

// TestManyRegisters: a straight line that uses all registers over and over again leaves
// them as it should.
func TestManyRegisters(t *testing.T) {
	var code []isa.Inst
	for i := range 200 {
		rd, rs := uint8(1+i*7%31), uint8(1+i*11%31)
		code = append(code, regs([]isa.Op{isa.ADDW, isa.XOR, isa.ADD, isa.OR}[i%4], rd, rs, uint8(1+i*5%31)))
	}
	f := newFixture(t, NewCache(0), func(a *isa.Asm) {
		a.Emit(code...)
		a.Op(isa.ECALL)
	})
	var want [32]uint64
	for i := range want[1:] {
		want[i+1] = 0x9e37_79b9_7f4a_7c15 * uint64(i+1)
	}
	copy(f.h.X[:32], want[:])
	stop, left := f.x.Enter(f.code, 1000)
	f.want(stop, Slow, left, 1000-len(code), base+4*uint64(len(code)))
	for _, in := range code {
		evaluate(&want, in)
	}
	for r := range want {
		if f.h.X[r] != want[r] {
			t.Errorf("x%d is %#x, want %#x", r, f.h.X[r], want[r])
		}
	}
}
