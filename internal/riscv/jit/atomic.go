//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// atomic emits a read-modify-write (unpriv 14.4). The host's locked operations
// are as strong as any of the guest's orderings. A machine with one vCPU needs
// none, and is spared what they cost.
func (t *translator) atomic(in *inst) {
	w := amd64.W64
	if in.Op <= isa.AMOMAXU_W {
		w = amd64.W32
	}
	load := in.Op == isa.LR_W || in.Op == isa.LR_D
	t.sum32(t0, in.Rs1, 0)
	t.TestRI(amd64.W32, t0, int32(w)-1)
	t.Jcc(amd64.NE, t.slow()) // misaligned
	t.Lea(amd64.W64, t1, t.probe(in.Rs1, 0, 1, !load))
	m := amd64.At(t1, 0)
	switch {
	case load:
		t.loadReserved(in, w, m)
		return
	case in.Op == isa.SC_W || in.Op == isa.SC_D:
		t.storeConditional(in, w)
		return
	}
	t.readInto(t0, in.Rs2)
	switch {
	case !t.arena.parallel:
		t.modify(in, w, m)
	case in.Op == isa.AMOSWAP_W || in.Op == isa.AMOSWAP_D:
		t.XchgMR(w, m, t0)
	case in.Op == isa.AMOADD_W || in.Op == isa.AMOADD_D:
		t.LockXadd(w, m, t0)
	default:
		t.compareAndSwap(in, w, m)
	}
	if in.Rd == 0 {
		return
	}
	if w == amd64.W32 {
		t.MovSX(w, t0, t0)
	}
	t.write(in.Rd, t0)
}

// combine is what an AMO does with the word; SWAP has no such operation.
var combine = map[isa.Op]amd64.ALU{
	isa.AMOADD_W: amd64.ADD, isa.AMOADD_D: amd64.ADD,
	isa.AMOAND_W: amd64.AND, isa.AMOAND_D: amd64.AND,
	isa.AMOOR_W: amd64.OR, isa.AMOOR_D: amd64.OR,
	isa.AMOXOR_W: amd64.XOR, isa.AMOXOR_D: amd64.XOR,
}

// modify combines the word at m with t0 and leaves the old word in t0, which
// need not be atomic.
func (t *translator) modify(in *inst, w amd64.Width, m amd64.Mem) {
	op, ok := combine[in.Op]
	if ok && in.Rd == 0 {
		t.ALUMR(op, w, m, t0)
		return
	}
	t.MovRR(amd64.W64, gp, t0)
	t.MovRM(w, t0, m)
	if ok {
		t.ALURR(op, w, gp, t0)
	}
	t.MovMR(w, m, gp)
}

// compareAndSwap combines the word at m with guest register rs2, which t0 holds
// too, and leaves the old word in t0.
func (t *translator) compareAndSwap(in *inst, w amd64.Width, m amd64.Mem) {
	op := combine[in.Op]
	if in.Rd == 0 {
		t.LockALUMR(op, w, m, t0)
		return
	}
	t.MovRM(w, t0, m)
	again := t.NewLabel()
	t.Bind(again)
	t.MovRR(amd64.W64, gp, t0)
	t.with(op, w, gp, in.Rs2)
	t.LockCmpxchg(w, m, gp)
	t.Jcc(amd64.NE, again)
}

// reservation is where a field of the hart's reservation lies.
func reservation(off int32) amd64.Mem { return amd64.At(hp, off-bias) }

// loadReserved is LR of the word at m.
func (t *translator) loadReserved(in *inst, w amd64.Width, m amd64.Mem) {
	t.MovSXM(w, t0, m)
	t.readInto(t1, in.Rs1)
	t.MovMR(amd64.W64, reservation(offAt), t1)
	t.MovMR(amd64.W64, reservation(offValue), t0)
	t.MovMI(amd64.W8, reservation(offWidth), int32(w))
	t.write(in.Rd, t0)
}

// storeConditional is SC to the word whose address is in t1: a compare-and-swap
// with what LR has read.
func (t *translator) storeConditional(in *inst, w amd64.Width) {
	failed, done := t.NewLabel(), t.NewLabel()
	t.MovRR(amd64.W64, gp, t1)
	t.readInto(t1, in.Rs1)
	t.ALUMI(amd64.CMP, amd64.W8, reservation(offWidth), int32(w))
	t.MovMI(amd64.W8, reservation(offWidth), 0)
	t.Jcc(amd64.NE, failed)
	t.ALUMR(amd64.CMP, amd64.W64, reservation(offAt), t1)
	t.Jcc(amd64.NE, failed)
	t.MovRM(amd64.W64, t0, reservation(offValue))
	from := t.read(in.Rs2, t1)
	if t.arena.parallel {
		t.LockCmpxchg(w, amd64.At(gp, 0), from)
		t.Jcc(amd64.NE, failed)
	} else {
		t.ALUMR(amd64.CMP, w, amd64.At(gp, 0), t0)
		t.Jcc(amd64.NE, failed)
		t.MovMR(w, amd64.At(gp, 0), from)
	}
	t.MovRI(t0, 0)
	t.Jmp(done)
	t.Bind(failed)
	t.MovRI(t0, 1)
	t.Bind(done)
	t.write(in.Rd, t0)
}
