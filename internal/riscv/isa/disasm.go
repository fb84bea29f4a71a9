package isa

import "fmt"

var xNames = [32]string{
	"zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4", "a5",
	"a6", "a7", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6",
}

var fNames = [32]string{
	"ft0", "ft1", "ft2", "ft3", "ft4", "ft5", "ft6", "ft7", "fs0", "fs1", "fa0", "fa1", "fa2", "fa3", "fa4", "fa5",
	"fa6", "fa7", "fs2", "fs3", "fs4", "fs5", "fs6", "fs7", "fs8", "fs9", "fs10", "fs11", "ft8", "ft9", "ft10", "ft11",
}

var rmNames = [8]string{"rne", "rtz", "rdn", "rup", "rmm", "?", "?", "dyn"}

// XName returns the ABI name of integer register r.
func XName(r uint8) string { return xNames[r&31] }

// FName returns the ABI name of floating-point register r.
func FName(r uint8) string { return fNames[r&31] }

func (op Op) String() string {
	if op < NumOps {
		return table[op].name
	}
	return fmt.Sprintf("op(%d)", uint8(op))
}

// Float tells which operands of an operation are floating-point registers.
func (op Op) Float() (rd, rs1, rs2 bool) {
	switch op {
	case FLW, FLD, FMV_W_X, FMV_D_X,
		FCVT_S_W, FCVT_S_WU, FCVT_S_L, FCVT_S_LU, FCVT_D_W, FCVT_D_WU, FCVT_D_L, FCVT_D_LU:
		return true, false, false
	case FSW, FSD:
		return false, false, true
	case FMV_X_W, FMV_X_D, FCLASS_S, FCLASS_D, FLE_S, FLT_S, FEQ_S, FLE_D, FLT_D, FEQ_D,
		FCVT_W_S, FCVT_WU_S, FCVT_L_S, FCVT_LU_S, FCVT_W_D, FCVT_WU_D, FCVT_L_D, FCVT_LU_D:
		return false, true, true
	}
	is := op >= FLW && op <= FCVT_S_D
	return is, is, is
}

// exact tells whether a conversion never rounds, so that its rounding mode, which
// assemblers set to zero, says nothing.
func (op Op) exact() bool {
	return op == FCVT_D_W || op == FCVT_D_WU || op == FCVT_D_S
}

// String disassembles the instruction: real mnemonics only, no
// pseudo-instructions, offsets of branches relative to the instruction.
func (in Inst) String() string {
	name := in.Op.String()
	frd, frs1, frs2 := in.Op.Float()
	rd, rs1, rs2 := regName(in.Rd, frd), regName(in.Rs1, frs1), regName(in.Rs2, frs2)
	rm := ""
	if in.RM != DYN && !(in.RM == 0 && in.Op.exact()) {
		rm = ", " + rmNames[in.RM&7]
	}
	switch table[in.Op].form {
	case formR:
		return fmt.Sprintf("%s %s, %s, %s", name, rd, rs1, rs2)
	case formR4:
		return fmt.Sprintf("%s %s, %s, %s, %s%s", name, rd, rs1, rs2, FName(in.Rs3), rm)
	case formRM:
		return fmt.Sprintf("%s %s, %s, %s%s", name, rd, rs1, rs2, rm)
	case formUnary:
		return fmt.Sprintf("%s %s, %s", name, rd, rs1)
	case formURM:
		return fmt.Sprintf("%s %s, %s%s", name, rd, rs1, rm)
	case formI, formShift, formShiftW:
		return fmt.Sprintf("%s %s, %s, %d", name, rd, rs1, in.Imm)
	case formLoad:
		return fmt.Sprintf("%s %s, %d(%s)", name, rd, in.Imm, rs1)
	case formStore:
		return fmt.Sprintf("%s %s, %d(%s)", name, rs2, in.Imm, rs1)
	case formBranch:
		return fmt.Sprintf("%s %s, %s, .%+d", name, rs1, rs2, in.Imm)
	case formU:
		return fmt.Sprintf("%s %s, %#x", name, rd, uint32(in.Imm)>>12)
	case formJ:
		return fmt.Sprintf("%s %s, .%+d", name, rd, in.Imm)
	case formCSR:
		return fmt.Sprintf("%s %s, %#x, %s", name, rd, in.Imm, rs1)
	case formCSRI:
		return fmt.Sprintf("%s %s, %#x, %d", name, rd, in.Imm, in.Rs1)
	case formAMO:
		return fmt.Sprintf("%s %s, %s, (%s)", name, rd, rs2, rs1)
	case formLR:
		return fmt.Sprintf("%s %s, (%s)", name, rd, rs1)
	case formBase:
		return fmt.Sprintf("%s (%s)", name, rs1)
	case formFence2:
		return fmt.Sprintf("%s %s, %s", name, rs1, rs2)
	case formRaw:
		return fmt.Sprintf("%s %#x", name, uint32(in.Imm))
	}
	return name
}

func regName(r uint8, float bool) string {
	if float {
		return FName(r)
	}
	return XName(r)
}
