//go:build linux && amd64

package jit

import (
	"math/rand/v2"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// TestCSRs compares native accesses to CSRs with those of package hart, in harts of all
// kinds. What has an effect beyond the register must be left to Go, with nothing changed.
func TestCSRs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	csrs := []uint32{hart.CSRSstatus, hart.CSRSscratch, hart.CSRSepc, hart.CSRScause, hart.CSRStval, hart.CSRSatp, hart.CSRFcsr}
	native := 0
	for range 3000 {
		op := isa.CSRRW + isa.Op(r.IntN(6))
		csr := csrs[r.IntN(len(csrs))]
		if r.IntN(3) == 0 {
			csr = hart.CSRSstatus
		}
		rd, rs1 := uint8(r.IntN(32)), uint8(r.IntN(32)*r.IntN(2))
		f := newFixture(t, testCache, func(a *isa.Asm) {
			a.CSR(op, rd, int32(csr), rs1)
			a.Op(isa.ECALL)
		})
		randomHart(r, f.h)
		want := *f.h
		before := want
		f.x.Enter(f.code, 10)
		if f.h.PC == base {
			if before.Time = nil; !sameHart(before, *f.h) {
				t.Fatalf("op %d of CSR %#x was left to Go, but not before it had an effect", op, csr)
			}
			continue
		}
		native++
		effect := reference(&want, op, csr, rd, rs1)
		want.PC = base + 4
		if effect == hart.Permissions || effect == hart.Translation || effect == hart.Interrupts && want.Interruptible() {
			t.Fatalf("op %d of CSR %#x has effect %d, and was not left to Go", op, csr, effect)
		}
		if !sameHart(want, *f.h) {
			t.Fatalf("op %d of CSR %#x, rd %d, rs1 %d: hart is\n%+v, want\n%+v", op, csr, rd, rs1, *f.h, want)
		}
		if ready := floatReady(f.h); (f.x.float != 0) != ready && csr == hart.CSRSstatus {
			t.Fatalf("op %d of sstatus: floating point is native: %v, want %v", op, !ready, ready)
		}
	}
	if native < 500 {
		t.Errorf("only %d accesses were native", native)
	}
}

var testCache = NewCache(8 << 20)

func randomHart(r *rand.Rand, h *hart.Hart) {
	for i := 1; i < 32; i++ {
		h.X[i] = r.Uint64() >> r.IntN(64)
		if r.IntN(2) == 0 {
			h.X[i] = []uint64{hart.StatusSIE, hart.StatusSUM, hart.StatusFS, hart.StatusSPIE, hart.StatusSPP}[r.IntN(5)]
		}
	}
	h.Mode = hart.Supervisor
	h.WriteCSR(hart.CSRSstatus, r.Uint64())
	for _, csr := range []uint32{hart.CSRSie, hart.CSRSip, hart.CSRSepc, hart.CSRScause, hart.CSRStval, hart.CSRSscratch} {
		h.WriteCSR(csr, r.Uint64()>>r.IntN(64))
	}
	h.FCSR = uint8(r.IntN(2) * r.IntN(256))
	h.Mode = hart.Mode(r.IntN(8) & 1)
	if r.IntN(2) == 0 {
		h.Mode = hart.Supervisor
	}
}

// reference is a CSR instruction (unpriv 7.1) that is legal.
func reference(h *hart.Hart, op isa.Op, csr uint32, rd, rs1 uint8) (effect hart.Effect) {
	operand := uint64(rs1)
	if op <= isa.CSRRC {
		operand = h.X[rs1]
	}
	old, _ := h.ReadCSR(csr)
	switch op {
	case isa.CSRRW, isa.CSRRWI:
		effect, _ = h.WriteCSR(csr, operand)
	case isa.CSRRS, isa.CSRRSI:
		if rs1 != 0 {
			effect, _ = h.WriteCSR(csr, old|operand)
		}
	default:
		if rs1 != 0 {
			effect, _ = h.WriteCSR(csr, old&^operand)
		}
	}
	if rd != 0 {
		h.X[rd] = old
	}
	return effect
}

// sameHart compares harts but for what does not belong to a program's state.
func sameHart(a, b hart.Hart) bool {
	return a.X == b.X && a.F == b.F && a.PC == b.PC && a.Mode == b.Mode && a.FCSR == b.FCSR && a.Status == b.Status &&
		csrsOf(a) == csrsOf(b)
}

func csrsOf(h hart.Hart) (values [8]uint64) {
	h.Mode = hart.Supervisor
	for i, csr := range []uint32{
		hart.CSRSie, hart.CSRSip, hart.CSRSepc, hart.CSRScause, hart.CSRStval, hart.CSRSscratch, hart.CSRSatp, hart.CSRStvec,
	} {
		values[i], _ = h.ReadCSR(csr)
	}
	return values
}
