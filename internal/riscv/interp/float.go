package interp

import (
	"github.com/forkd-dev/forkd/internal/riscv/fp"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// float executes the F and D extensions (unpriv 20, 21) but for loads and
// stores. A reserved rounding mode in frm makes instructions that use it
// illegal.
func (c *CPU) float(o *op) bool {
	rm := fp.Rounding(o.imm >> 16 & 7)
	if rm == isa.DYN {
		rm = fp.Rounding(c.h.FCSR >> 5)
	}
	if rm > fp.RMM {
		return c.illegal()
	}
	kind := isa.Op(o.imm)
	flags := fp.Flags(c.h.FCSR & 31)
	if kind <= isa.FMV_W_X {
		c.single(kind, o, rm, &flags)
	} else {
		c.double(kind, o, rm, &flags)
	}
	if uint8(flags) != c.h.FCSR&31 {
		c.h.FCSR = c.h.FCSR&^31 | uint8(flags)
		c.h.FloatDirty()
	}
	return true
}

// single executes the operations of F.
func (c *CPU) single(kind isa.Op, o *op, rm fp.Rounding, fl *fp.Flags) {
	a, b := fp.Unbox32(c.h.F[o.rs1&31]), fp.Unbox32(c.h.F[o.rs2&31])
	var r uint32
	switch kind {
	case isa.FADD_S:
		r = fp.Add32(a, b, rm, fl)
	case isa.FSUB_S:
		r = fp.Sub32(a, b, rm, fl)
	case isa.FMUL_S:
		r = fp.Mul32(a, b, rm, fl)
	case isa.FDIV_S:
		r = fp.Div32(a, b, rm, fl)
	case isa.FSQRT_S:
		r = fp.Sqrt32(a, rm, fl)
	case isa.FMADD_S:
		r = fp.FMA32(a, b, fp.Unbox32(c.h.F[uint8(o.imm>>8)&31]), rm, fl)
	case isa.FMSUB_S:
		r = fp.FMSub32(a, b, fp.Unbox32(c.h.F[uint8(o.imm>>8)&31]), rm, fl)
	case isa.FNMSUB_S:
		r = fp.FNMSub32(a, b, fp.Unbox32(c.h.F[uint8(o.imm>>8)&31]), rm, fl)
	case isa.FNMADD_S:
		r = fp.FNMAdd32(a, b, fp.Unbox32(c.h.F[uint8(o.imm>>8)&31]), rm, fl)
	case isa.FSGNJ_S:
		r = fp.Sgnj32(a, b)
	case isa.FSGNJN_S:
		r = fp.Sgnjn32(a, b)
	case isa.FSGNJX_S:
		r = fp.Sgnjx32(a, b)
	case isa.FMIN_S:
		r = fp.Min32(a, b, fl)
	case isa.FMAX_S:
		r = fp.Max32(a, b, fl)
	case isa.FCVT_S_W:
		r = fp.I32ToF32(get(&c.h.X, o.rs1), rm, fl)
	case isa.FCVT_S_WU:
		r = fp.U32ToF32(get(&c.h.X, o.rs1), rm, fl)
	case isa.FCVT_S_L:
		r = fp.I64ToF32(get(&c.h.X, o.rs1), rm, fl)
	case isa.FCVT_S_LU:
		r = fp.U64ToF32(get(&c.h.X, o.rs1), rm, fl)
	case isa.FMV_W_X:
		r = uint32(get(&c.h.X, o.rs1))
	default:
		c.setX(o.rd, singleToX(kind, c.h.F[o.rs1&31], a, b, rm, fl))
		return
	}
	c.setF(o.rd, fp.Box32(r))
}

// singleToX executes those whose result is an integer.
func singleToX(kind isa.Op, raw uint64, a, b uint32, rm fp.Rounding, fl *fp.Flags) uint64 {
	switch kind {
	case isa.FEQ_S:
		return fp.Eq32(a, b, fl)
	case isa.FLT_S:
		return fp.Lt32(a, b, fl)
	case isa.FLE_S:
		return fp.Le32(a, b, fl)
	case isa.FCLASS_S:
		return fp.Class32(a)
	case isa.FCVT_W_S:
		return fp.F32ToI32(a, rm, fl)
	case isa.FCVT_WU_S:
		return fp.F32ToU32(a, rm, fl)
	case isa.FCVT_L_S:
		return fp.F32ToI64(a, rm, fl)
	case isa.FCVT_LU_S:
		return fp.F32ToU64(a, rm, fl)
	case isa.FMV_X_W:
		return sext32(raw) // the bits as they are, boxed or not
	}
	panic("BUG: not a floating-point instruction: " + kind.String())
}

// double executes the operations of D.
func (c *CPU) double(kind isa.Op, o *op, rm fp.Rounding, fl *fp.Flags) {
	a, b := c.h.F[o.rs1&31], c.h.F[o.rs2&31]
	var r uint64
	switch kind {
	case isa.FADD_D:
		r = fp.Add64(a, b, rm, fl)
	case isa.FSUB_D:
		r = fp.Sub64(a, b, rm, fl)
	case isa.FMUL_D:
		r = fp.Mul64(a, b, rm, fl)
	case isa.FDIV_D:
		r = fp.Div64(a, b, rm, fl)
	case isa.FSQRT_D:
		r = fp.Sqrt64(a, rm, fl)
	case isa.FMADD_D:
		r = fp.FMA64(a, b, c.h.F[uint8(o.imm>>8)&31], rm, fl)
	case isa.FMSUB_D:
		r = fp.FMSub64(a, b, c.h.F[uint8(o.imm>>8)&31], rm, fl)
	case isa.FNMSUB_D:
		r = fp.FNMSub64(a, b, c.h.F[uint8(o.imm>>8)&31], rm, fl)
	case isa.FNMADD_D:
		r = fp.FNMAdd64(a, b, c.h.F[uint8(o.imm>>8)&31], rm, fl)
	case isa.FSGNJ_D:
		r = fp.Sgnj64(a, b)
	case isa.FSGNJN_D:
		r = fp.Sgnjn64(a, b)
	case isa.FSGNJX_D:
		r = fp.Sgnjx64(a, b)
	case isa.FMIN_D:
		r = fp.Min64(a, b, fl)
	case isa.FMAX_D:
		r = fp.Max64(a, b, fl)
	case isa.FCVT_D_S:
		r = fp.F32ToF64(fp.Unbox32(a), fl)
	case isa.FCVT_D_W:
		r = fp.I32ToF64(get(&c.h.X, o.rs1))
	case isa.FCVT_D_WU:
		r = fp.U32ToF64(get(&c.h.X, o.rs1))
	case isa.FCVT_D_L:
		r = fp.I64ToF64(get(&c.h.X, o.rs1), rm, fl)
	case isa.FCVT_D_LU:
		r = fp.U64ToF64(get(&c.h.X, o.rs1), rm, fl)
	case isa.FMV_D_X:
		r = get(&c.h.X, o.rs1)
	case isa.FCVT_S_D:
		r = fp.Box32(fp.F64ToF32(a, rm, fl))
	default:
		c.setX(o.rd, doubleToX(kind, a, b, rm, fl))
		return
	}
	c.setF(o.rd, r)
}

// doubleToX executes those whose result is an integer.
func doubleToX(kind isa.Op, a, b uint64, rm fp.Rounding, fl *fp.Flags) uint64 {
	switch kind {
	case isa.FEQ_D:
		return fp.Eq64(a, b, fl)
	case isa.FLT_D:
		return fp.Lt64(a, b, fl)
	case isa.FLE_D:
		return fp.Le64(a, b, fl)
	case isa.FCLASS_D:
		return fp.Class64(a)
	case isa.FCVT_W_D:
		return fp.F64ToI32(a, rm, fl)
	case isa.FCVT_WU_D:
		return fp.F64ToU32(a, rm, fl)
	case isa.FCVT_L_D:
		return fp.F64ToI64(a, rm, fl)
	case isa.FCVT_LU_D:
		return fp.F64ToU64(a, rm, fl)
	case isa.FMV_X_D:
		return a
	}
	panic("BUG: not a floating-point instruction: " + kind.String())
}
