//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// access describes a load or store.
type access struct {
	width  amd64.Width // zero: not one
	store  bool
	signed bool
	float  bool
}

var accesses = [isa.NumOps]access{
	isa.LB:  {width: amd64.W8, signed: true},
	isa.LH:  {width: amd64.W16, signed: true},
	isa.LW:  {width: amd64.W32, signed: true},
	isa.LD:  {width: amd64.W64},
	isa.LBU: {width: amd64.W8},
	isa.LHU: {width: amd64.W16},
	isa.LWU: {width: amd64.W32},
	isa.SB:  {width: amd64.W8, store: true},
	isa.SH:  {width: amd64.W16, store: true},
	isa.SW:  {width: amd64.W32, store: true},
	isa.SD:  {width: amd64.W64, store: true},
	isa.FLW: {width: amd64.W32, float: true},
	isa.FLD: {width: amd64.W64, float: true},
	isa.FSW: {width: amd64.W32, store: true, float: true},
	isa.FSD: {width: amd64.W64, store: true, float: true},
}

// memory emits a load or store.
func (t *translator) memory(in *inst, a access) {
	if !a.float {
		t.prepare(in)
	}
	// Whoever stops in a group goes on behind it, so the group comes first.
	begins := !t.group.active && t.formGroup(in, a)
	if a.float {
		t.useFloat()
	}
	if begins {
		t.vacate(gp)
		t.Lea(amd64.W64, gp, t.probe(in.Rs1, t.group.low, t.group.size, t.group.store))
	}
	var m amd64.Mem
	if g := &t.group; g.active && g.base == in.Rs1 {
		m = amd64.At(gp, in.Imm-g.low)
	} else {
		m = t.probe(in.Rs1, in.Imm, int32(a.width), a.store)
	}
	switch {
	case a.store:
		t.store(in, a, m)
	case a.float:
		t.loadFloat(in, a, m)
	default:
		t.load(in, a, m)
	}
}

// probe looks up the page of size bytes at guest register base plus low, and
// returns where they lie, in terms of t1 and perhaps t0. What the TLB does not
// have, or crosses pages, Go does.
func (t *translator) probe(base uint8, low, size int32, store bool) amd64.Mem {
	// All moves come before the first time: later ones might be the first.
	t.computeOf(former)
	t.vacate(t1)
	t.whole(base)
	if !t.isHeld(base) {
		t.fetch(base)
	}
	t.frozen = true
	again := t.NewLabel()
	t.Bind(again)
	bank := int32(offLoads)
	if store {
		bank = offStores
	}
	t.sum32(t1, base, low)
	t.indexBank(bank)
	t.sum(t0, base, low+size-1)
	t.ALURI(amd64.AND, amd64.W64, t0, -page.Size)
	t.ALURM(amd64.OR, amd64.W64, t0, amd64.At(cx, offSpace))
	t.ALURM(amd64.CMP, amd64.W64, t0, amd64.At(t1, entryTag))
	t.Jcc(amd64.NE, t.missed(again, base, low, size, store))
	t.MovRM(amd64.W64, t1, amd64.At(t1, entryTo))
	m := amd64.AtIndex(t1, t.read(base, t0), 1, low)
	t.frozen = false
	return m
}

// load finishes a load from m into an integer register.
func (t *translator) load(in *inst, a access, m amd64.Mem) {
	if in.Rd == 0 {
		return // it was the access that mattered
	}
	d := t.dest(in.Rd, t0)
	switch {
	case a.signed:
		t.MovSXM(a.width, d, m)
		t.writeWord(in.Rd, d)
	case a.width < amd64.W32:
		t.MovZXM(a.width, d, m)
		t.writeWord(in.Rd, d)
	default:
		t.MovRM(a.width, d, m)
		t.write(in.Rd, d)
	}
}

// store finishes a store to m.
func (t *translator) store(in *inst, a access, m amd64.Mem) {
	switch {
	case !a.float && in.Rs2 == 0:
		t.MovMI(a.width, m, 0)
	case !a.float && (t.isHeld(in.Rs2) || t.fetch(in.Rs2)):
		if a.width == amd64.W64 {
			t.whole(in.Rs2)
		}
		t.MovMR(a.width, m, t.where[in.Rs2].reg)
	default:
		if m.Index == t0 && m.Scale != 0 {
			t.Lea(amd64.W64, t1, m)
			m = amd64.At(t1, 0)
		}
		from := x(in.Rs2)
		if a.float {
			from = f(in.Rs2)
		}
		t.MovRM(max(a.width, amd64.W32), t0, from)
		t.MovMR(a.width, m, t0)
	}
}

// loadFloat finishes a load into a floating-point register. A single is boxed
// (unpriv 21.2).
func (t *translator) loadFloat(in *inst, a access, m amd64.Mem) {
	t.MovRM(a.width, t0, m)
	if a.width == amd64.W32 {
		t.MovRI(t1, -1<<32)
		t.ALURR(amd64.OR, amd64.W64, t0, t1)
	}
	t.MovMR(amd64.W64, f(in.Rd), t0)
}

// maxSpan is how far the accesses of a group may lie apart. If they cross
// pages, they are all done by Go.
const maxSpan = 256

// formGroup begins a group at the instruction at hand, if accesses through the
// same base register follow it: one look into the TLB then serves all. Only what
// follows for certain may turn loads into a group of stores, since a page that is
// only read may not be entered for stores.
func (t *translator) formGroup(in *inst, a access) bool {
	low, high, store := in.Imm, in.Imm+int32(a.width), a.store
	end, certain := t.i, true
	for j := t.i; j < len(t.seq); j++ {
		at := &t.seq[j]
		if j > t.i {
			if at.leader || t.seq[j-1].last || losesGroup(at.Op) {
				break
			}
			certain = certain && !at.start
		}
		if b := accesses[at.Op]; b.width != 0 && at.Rs1 == in.Rs1 {
			lo, hi := min(low, at.Imm), max(high, at.Imm+int32(b.width))
			if hi-lo > maxSpan || b.store && !store && !certain {
				break
			}
			low, high, store, end = lo, hi, store || b.store, j
		}
		if writesX(at) && at.Rd == in.Rs1 {
			break
		}
	}
	if end == t.i || end-t.i >= 255 {
		return false
	}
	t.group = group{active: true, base: in.Rs1, low: low, size: high - low, store: store, end: end}
	return true
}

// writesX reports whether an instruction writes the integer register Rd.
func writesX(in *inst) bool {
	a := accesses[in.Op]
	switch {
	case in.Rd == 0 || a.store || a.float || kindOf(in.Op) == kindBranch:
		return false
	case in.Op >= isa.FMADD_S && in.Op <= isa.FCVT_S_D:
		return floatToX(in.Op)
	}
	return true
}

// losesGroup reports whether the code of an operation does not keep gp, or is
// left to Go in any case.
func losesGroup(op isa.Op) bool {
	switch op {
	case isa.ROL, isa.ROR, isa.ROLW, isa.RORW, isa.FENCE:
		return true
	case isa.DIV, isa.DIVU, isa.REM, isa.REMU, isa.DIVW, isa.DIVUW, isa.REMW, isa.REMUW:
		return true
	}
	return kindOf(op) > kindBranch || leftToGo(op) || isCSR(op) || op >= isa.LR_W && op <= isa.AMOMAXU_D
}

// leftToGo reports whether an operation is always executed by the interpreter.
func leftToGo(op isa.Op) bool {
	switch op {
	case isa.ORC_B,
		isa.AMOMIN_W, isa.AMOMAX_W, isa.AMOMINU_W, isa.AMOMAXU_W,
		isa.AMOMIN_D, isa.AMOMAX_D, isa.AMOMINU_D, isa.AMOMAXU_D,
		isa.FMIN_S, isa.FMAX_S, isa.FCLASS_S, isa.FMIN_D, isa.FMAX_D, isa.FCLASS_D:
		return true
	}
	return false
}

// isCSR reports whether an operation is about a CSR.
func isCSR(op isa.Op) bool { return op >= isa.CSRRW && op <= isa.CSRRCI }

// zeroBlock emits CBO.ZERO.
func (t *translator) zeroBlock(in *inst) {
	t.TestMI(amd64.W8, amd64.At(cx, offZero), 1)
	t.Jcc(amd64.E, t.slow())
	t.Lea(amd64.W64, t1, t.probe(in.Rs1, 0, 1, true))
	t.ALURI(amd64.AND, amd64.W64, t1, -hart.BlockSize)
	for off := int32(0); off < hart.BlockSize; off += 8 {
		t.MovMI(amd64.W64, amd64.At(t1, off), 0)
	}
}
