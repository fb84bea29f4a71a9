package interp

import "github.com/forkd-dev/forkd/internal/riscv/isa"

// op is a decoded instruction as the run loop takes it. What an instruction
// needs beyond its registers is in imm, ready to use; see lower and relocate.
type op struct {
	code         code
	rd, rs1, rs2 uint8
	imm          int32
}

// opSize is the size of an op in bytes.
const opSize = 8

// code selects the run loop's case. The length of the instruction is part of
// it: the program counter then does not depend on a load.
type code uint8

const (
	// opLeave is the zero value: no instruction is here, look the program
	// counter up afresh.
	opLeave code = iota
	// opFar is no instruction either: it goes to imm bytes from the page's
	// start. It is where taken branches out of the page lead.
	opFar
	// opIllegal is no instruction of the set; imm has its bits.
	opIllegal
	// opCross is an instruction of four bytes that ends in the next page.
	opCross

	// Instructions of two bytes.
	opCNop
	opCLi
	opCMv
	opCAddi
	opCAddiX
	opCAddiw
	opCAdd
	opCSub
	opCXor
	opCOr
	opCAnd
	opCAddw
	opCSubw
	opCAndi
	opCSlli
	opCSrli
	opCSrai
	opCLw
	opCLd
	opCSw
	opCSd
	opCFld
	opCFsd
	opCJ
	opCJr
	opCJalr
	opCBeqz
	opCBnez
	opCEbreak

	// Instructions of four bytes.
	opNop
	opLi
	opAuipc
	opJ
	opJFar
	opJal
	opJalFar
	opJr
	opJalr
	opBeq
	opBne
	opBlt
	opBge
	opBltu
	opBgeu
	opLb
	opLh
	opLw
	opLd
	opLbu
	opLhu
	opLwu
	opSb
	opSh
	opSw
	opSd
	opFlw
	opFld
	opFsw
	opFsd
	opAddi
	opSlti
	opSltiu
	opXori
	opOri
	opAndi
	opSlli
	opSrli
	opSrai
	opAdd
	opSub
	opSll
	opSlt
	opSltu
	opXor
	opSrl
	opSra
	opOr
	opAnd
	opAddiw
	opSlliw
	opSrliw
	opSraiw
	opAddw
	opSubw
	opSllw
	opSrlw
	opSraw
	opMul
	opMulh
	opMulhsu
	opMulhu
	opDiv
	opDivu
	opRem
	opRemu
	opMulw
	opDivw
	opDivuw
	opRemw
	opRemuw
	opAddUw
	opSh1add
	opSh2add
	opSh3add
	opSh1addUw
	opSh2addUw
	opSh3addUw
	opSlliUw
	opAndn
	opOrn
	opXnor
	opClz
	opCtz
	opCpop
	opClzw
	opCtzw
	opCpopw
	opMax
	opMaxu
	opMin
	opMinu
	opSextB
	opSextH
	opZextH
	opRol
	opRor
	opRori
	opRolw
	opRorw
	opRoriw
	opOrcB
	opRev8
	opBclr
	opBclri
	opBext
	opBexti
	opBinv
	opBinvi
	opBset
	opBseti

	// Instructions of four bytes that the run loop leaves to step.
	opAtomic
	opFloat
	opCSR
	opEcall
	opEbreak
	opSret
	opWfi
	opFenceI
	opSfence
	opCboZero
	opFence
	opPause
	opFarBranch

	// Pairs; the length is that of the first. See fuse.
	opCLdCLd
	opCSdCSd
	opCLdCAddi
	opCAddiCJr
	opCAddiCSd
	opCMvCMv
	opCSdCMv
	opSlliCAdd
	opCSlliCAdd
	opCAddCLd
	opCLdCBeqz
	opCLwBne
	opCLwCBeqz
	opCMvCLd
	opCMvBeq
	opCMvJalFar
	opLdLd
	opSlliCSrli
	opCLdCMv
	opCSdCLi
	opCLwCLw
	opCSdCLd
	opCMvCSd
	opCMvCBeqz
	opCLdSlli
	opCLdCSd
)

// narrowCodes and wideCodes name the case for each operation, by length. An
// operation with several cases is decided in lower.
var narrowCodes = [isa.NumOps]code{
	isa.ADDIW:  opCAddiw,
	isa.SUB:    opCSub,
	isa.XOR:    opCXor,
	isa.OR:     opCOr,
	isa.AND:    opCAnd,
	isa.ADDW:   opCAddw,
	isa.SUBW:   opCSubw,
	isa.ANDI:   opCAndi,
	isa.SLLI:   opCSlli,
	isa.SRLI:   opCSrli,
	isa.SRAI:   opCSrai,
	isa.LW:     opCLw,
	isa.LD:     opCLd,
	isa.SW:     opCSw,
	isa.SD:     opCSd,
	isa.FLD:    opCFld,
	isa.FSD:    opCFsd,
	isa.BEQ:    opCBeqz,
	isa.BNE:    opCBnez,
	isa.LUI:    opCLi,
	isa.EBREAK: opCEbreak,
	isa.JAL:    opCJ,
}

var wideCodes = [isa.NumOps]code{
	isa.LB:         opLb,
	isa.LH:         opLh,
	isa.LW:         opLw,
	isa.LD:         opLd,
	isa.LBU:        opLbu,
	isa.LHU:        opLhu,
	isa.LWU:        opLwu,
	isa.SB:         opSb,
	isa.SH:         opSh,
	isa.SW:         opSw,
	isa.SD:         opSd,
	isa.SLTI:       opSlti,
	isa.SLTIU:      opSltiu,
	isa.XORI:       opXori,
	isa.ORI:        opOri,
	isa.ANDI:       opAndi,
	isa.SLLI:       opSlli,
	isa.SRLI:       opSrli,
	isa.SRAI:       opSrai,
	isa.ADD:        opAdd,
	isa.SUB:        opSub,
	isa.SLL:        opSll,
	isa.SLT:        opSlt,
	isa.SLTU:       opSltu,
	isa.XOR:        opXor,
	isa.SRL:        opSrl,
	isa.SRA:        opSra,
	isa.OR:         opOr,
	isa.AND:        opAnd,
	isa.ADDIW:      opAddiw,
	isa.SLLIW:      opSlliw,
	isa.SRLIW:      opSrliw,
	isa.SRAIW:      opSraiw,
	isa.ADDW:       opAddw,
	isa.SUBW:       opSubw,
	isa.SLLW:       opSllw,
	isa.SRLW:       opSrlw,
	isa.SRAW:       opSraw,
	isa.MUL:        opMul,
	isa.MULH:       opMulh,
	isa.MULHSU:     opMulhsu,
	isa.MULHU:      opMulhu,
	isa.DIV:        opDiv,
	isa.DIVU:       opDivu,
	isa.REM:        opRem,
	isa.REMU:       opRemu,
	isa.MULW:       opMulw,
	isa.DIVW:       opDivw,
	isa.DIVUW:      opDivuw,
	isa.REMW:       opRemw,
	isa.REMUW:      opRemuw,
	isa.BEQ:        opBeq,
	isa.BNE:        opBne,
	isa.BLT:        opBlt,
	isa.BGE:        opBge,
	isa.BLTU:       opBltu,
	isa.BGEU:       opBgeu,
	isa.AUIPC:      opAuipc,
	isa.FLW:        opFlw,
	isa.FLD:        opFld,
	isa.FSW:        opFsw,
	isa.FSD:        opFsd,
	isa.ECALL:      opEcall,
	isa.EBREAK:     opEbreak,
	isa.SRET:       opSret,
	isa.WFI:        opWfi,
	isa.ADD_UW:     opAddUw,
	isa.SH1ADD:     opSh1add,
	isa.SH2ADD:     opSh2add,
	isa.SH3ADD:     opSh3add,
	isa.SH1ADD_UW:  opSh1addUw,
	isa.SH2ADD_UW:  opSh2addUw,
	isa.SH3ADD_UW:  opSh3addUw,
	isa.SLLI_UW:    opSlliUw,
	isa.ANDN:       opAndn,
	isa.ORN:        opOrn,
	isa.XNOR:       opXnor,
	isa.CLZ:        opClz,
	isa.CTZ:        opCtz,
	isa.CPOP:       opCpop,
	isa.CLZW:       opClzw,
	isa.CTZW:       opCtzw,
	isa.CPOPW:      opCpopw,
	isa.MAX:        opMax,
	isa.MAXU:       opMaxu,
	isa.MIN:        opMin,
	isa.MINU:       opMinu,
	isa.SEXT_B:     opSextB,
	isa.SEXT_H:     opSextH,
	isa.ZEXT_H:     opZextH,
	isa.ROL:        opRol,
	isa.ROR:        opRor,
	isa.RORI:       opRori,
	isa.ROLW:       opRolw,
	isa.RORW:       opRorw,
	isa.RORIW:      opRoriw,
	isa.ORC_B:      opOrcB,
	isa.REV8:       opRev8,
	isa.BCLR:       opBclr,
	isa.BCLRI:      opBclri,
	isa.BEXT:       opBext,
	isa.BEXTI:      opBexti,
	isa.BINV:       opBinv,
	isa.BINVI:      opBinvi,
	isa.BSET:       opBset,
	isa.BSETI:      opBseti,
	isa.LUI:        opLi,
	isa.FENCE_I:    opFenceI,
	isa.SFENCE_VMA: opSfence,
	isa.CBO_ZERO:   opCboZero,
	isa.CSRRW:      opCSR,
	isa.CSRRS:      opCSR,
	isa.CSRRC:      opCSR,
	isa.CSRRWI:     opCSR,
	isa.CSRRSI:     opCSR,
	isa.CSRRCI:     opCSR,
}

// pairs lists the ops that often follow one another, in what the kernel and
// Python execute.
var pairs = [...]struct{ first, second, both code }{
	{opCLd, opCLd, opCLdCLd},
	{opCSd, opCSd, opCSdCSd},
	{opCLd, opCAddi, opCLdCAddi},
	{opCAddi, opCJr, opCAddiCJr},
	{opCAddi, opCSd, opCAddiCSd},
	{opCMv, opCMv, opCMvCMv},
	{opCSd, opCMv, opCSdCMv},
	{opSlli, opCAdd, opSlliCAdd},
	{opCSlli, opCAdd, opCSlliCAdd},
	{opCAdd, opCLd, opCAddCLd},
	{opCLd, opCBeqz, opCLdCBeqz},
	{opCLw, opBne, opCLwBne},
	{opCLw, opCBeqz, opCLwCBeqz},
	{opCMv, opCLd, opCMvCLd},
	{opCMv, opBeq, opCMvBeq},
	{opCMv, opJalFar, opCMvJalFar},
	{opLd, opLd, opLdLd},
	{opSlli, opCSrli, opSlliCSrli},
	{opCLd, opCMv, opCLdCMv},
	{opCSd, opCLi, opCSdCLi},
	{opCLw, opCLw, opCLwCLw},
	{opCSd, opCLd, opCSdCLd},
	{opCMv, opCSd, opCMvCSd},
	{opCMv, opCBeqz, opCMvCBeqz},
	{opCLd, opSlli, opCLdSlli},
	{opCLd, opCSd, opCLdCSd},
}
