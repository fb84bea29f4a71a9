//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// Floating point is native where the host agrees with the guest to the bit: in
// rounding to nearest-even, with results that are not NaN. The host's sticky
// exception flags are the guest's, and are collected when code returns to Go.
// Whatever else comes up, Go does again with the reference semantics; flags that
// the host has raised by then, the guest would raise as well.

// Scratch registers.
const (
	f0 = amd64.X0
	f1 = amd64.X1
	f2 = amd64.X2
)

// f is where a floating-point register lies in memory.
func f(r uint8) amd64.Mem { return amd64.At(hp, offF+8*int32(r)-bias) }

// fHigh is its upper half.
func fHigh(r uint8) amd64.Mem { return amd64.At(hp, offF+8*int32(r)+4-bias) }

// useFloat makes sure, once per block, that floating-point instructions are
// legal, that the guest has marked its registers dirty, and that it rounds to
// nearest-even; else Go executes them.
func (t *translator) useFloat() {
	if t.float {
		return
	}
	t.TestMI(amd64.W8, amd64.At(cx, offFloat), 1)
	t.Jcc(amd64.E, t.slow())
	t.float = true
}

// floatToX reports whether an operation writes an integer register.
func floatToX(op isa.Op) bool {
	switch op {
	case isa.FLE_S, isa.FLT_S, isa.FEQ_S, isa.FCLASS_S, isa.FCVT_W_S, isa.FCVT_WU_S, isa.FCVT_L_S, isa.FCVT_LU_S, isa.FMV_X_W,
		isa.FLE_D, isa.FLT_D, isa.FEQ_D, isa.FCLASS_D, isa.FCVT_W_D, isa.FCVT_WU_D, isa.FCVT_L_D, isa.FCVT_LU_D, isa.FMV_X_D:
		return true
	}
	return false
}

// floating emits an operation of F or D.
func (t *translator) floating(in *inst) {
	t.useFloat()
	double := in.Op >= isa.FMADD_D
	op := in.Op
	if double && op <= isa.FMV_D_X {
		op = singleOf[op]
	}
	switch op {
	case isa.FADD_S, isa.FSUB_S, isa.FMUL_S, isa.FDIV_S, isa.FSQRT_S:
		t.floatArith(in, op, double)
	case isa.FMADD_S, isa.FMSUB_S, isa.FNMSUB_S, isa.FNMADD_S:
		t.fused(in, op, double)
	case isa.FSGNJ_S, isa.FSGNJN_S, isa.FSGNJX_S:
		t.sign(in, op, double)
	case isa.FEQ_S, isa.FLT_S, isa.FLE_S:
		t.floatCompare(in, op, double)
	case isa.FMV_X_W:
		t.moveToX(in, double)
	case isa.FMV_W_X:
		t.moveFromX(in, double)
	case isa.FCVT_S_W, isa.FCVT_S_L, isa.FCVT_S_WU:
		t.fromInteger(in, op, double)
	case isa.FCVT_W_S, isa.FCVT_L_S:
		t.toInteger(in, op, double)
	case isa.FCVT_D_S, isa.FCVT_S_D:
		t.convert(in)
	default:
		t.Jmp(t.slow())
	}
}

// singleOf names the operation of F that does for singles what an operation of
// D does for doubles.
var singleOf = map[isa.Op]isa.Op{
	isa.FMADD_D: isa.FMADD_S, isa.FMSUB_D: isa.FMSUB_S, isa.FNMSUB_D: isa.FNMSUB_S, isa.FNMADD_D: isa.FNMADD_S,
	isa.FADD_D: isa.FADD_S, isa.FSUB_D: isa.FSUB_S, isa.FMUL_D: isa.FMUL_S, isa.FDIV_D: isa.FDIV_S, isa.FSQRT_D: isa.FSQRT_S,
	isa.FSGNJ_D: isa.FSGNJ_S, isa.FSGNJN_D: isa.FSGNJN_S, isa.FSGNJX_D: isa.FSGNJX_S,
	isa.FMIN_D: isa.FMIN_S, isa.FMAX_D: isa.FMAX_S, isa.FLE_D: isa.FLE_S, isa.FLT_D: isa.FLT_S, isa.FEQ_D: isa.FEQ_S,
	isa.FCLASS_D: isa.FCLASS_S,
	isa.FCVT_W_D: isa.FCVT_W_S, isa.FCVT_D_W: isa.FCVT_S_W, isa.FCVT_WU_D: isa.FCVT_WU_S, isa.FCVT_D_WU: isa.FCVT_S_WU,
	isa.FCVT_L_D: isa.FCVT_L_S, isa.FCVT_D_L: isa.FCVT_S_L, isa.FCVT_LU_D: isa.FCVT_LU_S, isa.FCVT_D_LU: isa.FCVT_S_LU,
	isa.FMV_X_D: isa.FMV_X_W, isa.FMV_D_X: isa.FMV_W_X,
}

// nearest reports whether the rounding mode of an instruction is to nearest-even,
// given that frm is.
func nearest(in *inst) bool { return in.RM == 0 || in.RM == isa.DYN }

// readF moves a floating-point register to a host register. A single that is
// not boxed is left to Go.
func (t *translator) readF(dst amd64.XReg, r uint8, double bool) {
	t.boxed(r, double)
	t.MovsXM(double, dst, f(r))
}

// boxed leaves the instruction to Go if register r does not hold a single.
func (t *translator) boxed(r uint8, double bool) {
	if !double {
		t.ALUMI(amd64.CMP, amd64.W32, fHigh(r), -1)
		t.Jcc(amd64.NE, t.slow())
	}
}

// writeF stores a result, leaving NaNs to Go.
func (t *translator) writeF(r uint8, s amd64.XReg, double bool) {
	t.UcomisXX(double, s, s)
	t.Jcc(amd64.P, t.slow())
	t.MovsMX(double, f(r), s)
	if !double {
		t.MovMI(amd64.W32, fHigh(r), -1)
	}
}

func (t *translator) floatArith(in *inst, op isa.Op, double bool) {
	if !nearest(in) {
		t.Jmp(t.slow())
		return
	}
	kind := map[isa.Op]amd64.FOp{
		isa.FADD_S: amd64.FADD, isa.FSUB_S: amd64.FSUB, isa.FMUL_S: amd64.FMUL, isa.FDIV_S: amd64.FDIV, isa.FSQRT_S: amd64.FSQRT,
	}[op]
	if op == isa.FSQRT_S {
		t.readF(f1, in.Rs1, double)
		t.FRR(kind, double, f0, f1)
	} else {
		t.readF(f0, in.Rs1, double)
		t.boxed(in.Rs2, double)
		t.FRM(kind, double, f0, f(in.Rs2))
	}
	t.writeF(in.Rd, f0, double)
}

func (t *translator) fused(in *inst, op isa.Op, double bool) {
	if !nearest(in) {
		t.Jmp(t.slow())
		return
	}
	t.readF(f1, in.Rs1, double)
	t.readF(f2, in.Rs2, double)
	t.readF(f0, in.Rs3, double)
	kind := map[isa.Op]amd64.FMAKind{
		isa.FMADD_S: amd64.FMADD, isa.FMSUB_S: amd64.FMSUB, isa.FNMSUB_S: amd64.FNMADD, isa.FNMADD_S: amd64.FNMSUB,
	}[op]
	t.FMA(double, kind, f0, f1, f2)
	t.writeF(in.Rd, f0, double)
}

// sign is FSGNJ and its kin; with equal operands they move, change and clear
// the sign.
func (t *translator) sign(in *inst, op isa.Op, double bool) {
	t.boxed(in.Rs1, double)
	t.boxed(in.Rs2, double)
	w, bit := amd64.W64, uint8(63)
	if !double {
		w, bit = amd64.W32, 31
	}
	t.MovRM(w, t0, f(in.Rs1))
	switch {
	case in.Rs1 != in.Rs2:
		t.MovRM(w, t1, f(in.Rs2))
		if op != isa.FSGNJX_S {
			t.BtrRI(w, t0, bit)
		}
		if op == isa.FSGNJN_S {
			t.Not(w, t1)
		}
		t.ShiftRI(amd64.SHR, w, t1, bit)
		t.ShiftRI(amd64.SHL, w, t1, bit)
		t.ALURR(amd64.XOR, w, t0, t1)
	case op == isa.FSGNJN_S:
		t.BtcRI(w, t0, bit)
	case op == isa.FSGNJX_S:
		t.BtrRI(w, t0, bit)
	}
	t.storeF(in.Rd, t0, double)
}

// storeF writes the bits in s to a floating-point register.
func (t *translator) storeF(r uint8, s amd64.Reg, double bool) {
	if double {
		t.MovMR(amd64.W64, f(r), s)
		return
	}
	t.MovMR(amd64.W32, f(r), s)
	t.MovMI(amd64.W32, fHigh(r), -1)
}

// floatCompare is FEQ, FLT and FLE: unordered operands compare as false.
func (t *translator) floatCompare(in *inst, op isa.Op, double bool) {
	if op == isa.FEQ_S {
		t.readF(f0, in.Rs1, double)
		t.boxed(in.Rs2, double)
		t.UcomisXM(double, f0, f(in.Rs2))
		t.Jcc(amd64.P, t.slow())
		if in.Rd != 0 {
			t.set(in, amd64.E)
		}
		return
	}
	// a < b is b > a, which is false for unordered operands on the host, too.
	t.readF(f0, in.Rs2, double)
	t.boxed(in.Rs1, double)
	t.ComisXM(double, f0, f(in.Rs1))
	if in.Rd != 0 {
		t.set(in, map[isa.Op]amd64.Cond{isa.FLT_S: amd64.A, isa.FLE_S: amd64.AE}[op])
	}
}

func (t *translator) moveToX(in *inst, double bool) {
	if in.Rd == 0 {
		return
	}
	d := t.dest(in.Rd, t0)
	if double {
		t.MovRM(amd64.W64, d, f(in.Rs1))
	} else {
		t.MovSXM(amd64.W32, d, f(in.Rs1))
	}
	t.write(in.Rd, d)
}

func (t *translator) moveFromX(in *inst, double bool) {
	t.storeF(in.Rd, t.read(in.Rs1, t0), double)
}

// fromInteger converts to floating point.
func (t *translator) fromInteger(in *inst, op isa.Op, double bool) {
	if !nearest(in) && !(double && op != isa.FCVT_S_L) { // 32 bits are exact in a double
		t.Jmp(t.slow())
		return
	}
	w := amd64.W64
	from := t.read(in.Rs1, t0)
	switch op {
	case isa.FCVT_S_W:
		w = amd64.W32
	case isa.FCVT_S_WU:
		t.MovRR(amd64.W32, t0, from)
		from = t0
	}
	t.XorpsXX(f0, f0) // the conversion would depend on its last contents
	t.Cvtsi2s(double, w, f0, from)
	t.MovsMX(double, f(in.Rd), f0)
	if !double {
		t.MovMI(amd64.W32, fHigh(in.Rd), -1)
	}
}

// toInteger converts to an integer. The host answers what does not fit with
// one value, which Go looks at again.
func (t *translator) toInteger(in *inst, op isa.Op, double bool) {
	const rtz = 1
	if !nearest(in) && in.RM != rtz {
		t.Jmp(t.slow())
		return
	}
	w := amd64.W64
	if op == isa.FCVT_W_S {
		w = amd64.W32
	}
	t.readF(f0, in.Rs1, double)
	if in.RM == rtz {
		t.Cvtts2si(double, w, t0, f0)
	} else {
		t.Cvts2si(double, w, t0, f0)
	}
	t.MovRR(w, t1, t0)
	t.Neg(w, t1)
	t.Jcc(amd64.O, t.slow()) // only the least value has no negative
	if w == amd64.W32 {
		t.MovSX(w, t0, t0)
	}
	t.write(in.Rd, t0)
}

// convert is between single and double.
func (t *translator) convert(in *inst) {
	if in.Op == isa.FCVT_S_D {
		if !nearest(in) {
			t.Jmp(t.slow())
			return
		}
		t.readF(f1, in.Rs1, true)
		t.Cvtsd2ss(f0, f1)
		t.writeF(in.Rd, f0, false)
		return
	}
	t.readF(f1, in.Rs1, false)
	t.Cvtss2sd(f0, f1)
	t.writeF(in.Rd, f0, true)
}
