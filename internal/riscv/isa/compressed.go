package isa

// expand returns the 32-bit instruction that the compressed instruction h
// stands for (unpriv 26.8, the RV64 columns). Reserved encodings and the
// all-zero halfword are refused; hints expand to instructions without effect.
func expand(h uint16) (raw uint32, ok bool) {
	in := expandInst(uint32(h))
	if in.Op == ILLEGAL {
		return 0, false
	}
	return Encode(in), true
}

func expandInst(h uint32) Inst {
	switch h & 3 {
	case 0:
		return expandQuadrant0(h)
	case 1:
		return expandQuadrant1(h)
	}
	return expandQuadrant2(h)
}

const (
	regZero = 0
	regRA   = 1
	regSP   = 2
)

// The register fields: full ones at bits 11:7 and 6:2, and the three-bit ones
// that name x8 to x15.
func cRd(h uint32) uint8   { return uint8(h >> 7 & 31) }
func cRs2(h uint32) uint8  { return uint8(h >> 2 & 31) }
func cRs1p(h uint32) uint8 { return uint8(h>>7&7) + 8 }
func cRs2p(h uint32) uint8 { return uint8(h>>2&7) + 8 }

// cImm6 is the signed immediate at 12 | 6:2.
func cImm6(h uint32) int32 { return int32(h<<19)>>31<<5 | int32(h>>2&31) }

// cShamt is the same field taken as a shift amount.
func cShamt(h uint32) int32 { return cImm6(h) & 63 }

// The scaled, unsigned offsets of loads and stores.
func cOffW(h uint32) int32   { return int32(h>>10&7<<3 | h>>6&1<<2 | h>>5&1<<6) }
func cOffD(h uint32) int32   { return int32(h>>10&7<<3 | h>>5&3<<6) }
func cOffWSP(h uint32) int32 { return int32(h>>12&1<<5 | h>>4&7<<2 | h>>2&3<<6) }
func cOffDSP(h uint32) int32 { return int32(h>>12&1<<5 | h>>5&3<<3 | h>>2&7<<6) }

func cStoreWSP(h uint32) int32 { return int32(h>>9&15<<2 | h>>7&3<<6) }
func cStoreDSP(h uint32) int32 { return int32(h>>10&7<<3 | h>>7&7<<6) }

func cOffJ(h uint32) int32 {
	return int32(h<<19)>>31<<11 | int32(h>>11&1<<4|h>>9&3<<8|h>>8&1<<10|h>>7&1<<6|h>>6&1<<7|h>>3&7<<1|h>>2&1<<5)
}

func cOffB(h uint32) int32 {
	return int32(h<<19)>>31<<8 | int32(h>>10&3<<3|h>>5&3<<6|h>>3&3<<1|h>>2&1<<5)
}

func expandQuadrant0(h uint32) Inst {
	switch h >> 13 {
	case 0: // C.ADDI4SPN
		if imm := int32(h>>11&3<<4 | h>>7&15<<6 | h>>6&1<<2 | h>>5&1<<3); imm != 0 {
			return Inst{Op: ADDI, Rd: cRs2p(h), Rs1: regSP, Imm: imm}
		}
	case 1:
		return Inst{Op: FLD, Rd: cRs2p(h), Rs1: cRs1p(h), Imm: cOffD(h)}
	case 2:
		return Inst{Op: LW, Rd: cRs2p(h), Rs1: cRs1p(h), Imm: cOffW(h)}
	case 3:
		return Inst{Op: LD, Rd: cRs2p(h), Rs1: cRs1p(h), Imm: cOffD(h)}
	case 5:
		return Inst{Op: FSD, Rs2: cRs2p(h), Rs1: cRs1p(h), Imm: cOffD(h)}
	case 6:
		return Inst{Op: SW, Rs2: cRs2p(h), Rs1: cRs1p(h), Imm: cOffW(h)}
	case 7:
		return Inst{Op: SD, Rs2: cRs2p(h), Rs1: cRs1p(h), Imm: cOffD(h)}
	}
	return Inst{}
}

func expandQuadrant1(h uint32) Inst {
	rd := cRd(h)
	switch h >> 13 {
	case 0:
		return Inst{Op: ADDI, Rd: rd, Rs1: rd, Imm: cImm6(h)}
	case 1:
		if rd != 0 {
			return Inst{Op: ADDIW, Rd: rd, Rs1: rd, Imm: cImm6(h)}
		}
	case 2:
		return Inst{Op: ADDI, Rd: rd, Rs1: regZero, Imm: cImm6(h)}
	case 3:
		return expandLUI(h, rd)
	case 4:
		return expandArith(h)
	case 5:
		return Inst{Op: JAL, Rd: regZero, Imm: cOffJ(h)}
	case 6:
		return Inst{Op: BEQ, Rs1: cRs1p(h), Imm: cOffB(h)}
	case 7:
		return Inst{Op: BNE, Rs1: cRs1p(h), Imm: cOffB(h)}
	}
	return Inst{}
}

func expandLUI(h uint32, rd uint8) Inst {
	if rd == regSP { // C.ADDI16SP
		imm := int32(h<<19)>>31<<9 | int32(h>>6&1<<4|h>>5&1<<6|h>>3&3<<7|h>>2&1<<5)
		if imm != 0 {
			return Inst{Op: ADDI, Rd: regSP, Rs1: regSP, Imm: imm}
		}
		return Inst{}
	}
	if imm := cImm6(h) << 12; imm != 0 {
		return Inst{Op: LUI, Rd: rd, Imm: imm}
	}
	return Inst{}
}

func expandArith(h uint32) Inst {
	rd := cRs1p(h)
	switch h >> 10 & 3 {
	case 0:
		return Inst{Op: SRLI, Rd: rd, Rs1: rd, Imm: cShamt(h)}
	case 1:
		return Inst{Op: SRAI, Rd: rd, Rs1: rd, Imm: cShamt(h)}
	case 2:
		return Inst{Op: ANDI, Rd: rd, Rs1: rd, Imm: cImm6(h)}
	}
	ops := [...]Op{SUB, XOR, OR, AND, SUBW, ADDW, ILLEGAL, ILLEGAL}
	if op := ops[h>>12&1<<2|h>>5&3]; op != ILLEGAL {
		return Inst{Op: op, Rd: rd, Rs1: rd, Rs2: cRs2p(h)}
	}
	return Inst{}
}

func expandQuadrant2(h uint32) Inst {
	rd := cRd(h)
	switch h >> 13 {
	case 0:
		return Inst{Op: SLLI, Rd: rd, Rs1: rd, Imm: cShamt(h)}
	case 1:
		return Inst{Op: FLD, Rd: rd, Rs1: regSP, Imm: cOffDSP(h)}
	case 2:
		if rd != 0 {
			return Inst{Op: LW, Rd: rd, Rs1: regSP, Imm: cOffWSP(h)}
		}
	case 3:
		if rd != 0 {
			return Inst{Op: LD, Rd: rd, Rs1: regSP, Imm: cOffDSP(h)}
		}
	case 4:
		return expandJumpOrMove(h, rd)
	case 5:
		return Inst{Op: FSD, Rs2: cRs2(h), Rs1: regSP, Imm: cStoreDSP(h)}
	case 6:
		return Inst{Op: SW, Rs2: cRs2(h), Rs1: regSP, Imm: cStoreWSP(h)}
	case 7:
		return Inst{Op: SD, Rs2: cRs2(h), Rs1: regSP, Imm: cStoreDSP(h)}
	}
	return Inst{}
}

func expandJumpOrMove(h uint32, rd uint8) Inst {
	link, rs2 := h>>12&1 != 0, cRs2(h)
	switch {
	case rs2 != 0 && !link:
		return Inst{Op: ADD, Rd: rd, Rs1: regZero, Rs2: rs2}
	case rs2 != 0:
		return Inst{Op: ADD, Rd: rd, Rs1: rd, Rs2: rs2}
	case rd != 0 && !link:
		return Inst{Op: JALR, Rd: regZero, Rs1: rd}
	case rd != 0:
		return Inst{Op: JALR, Rd: regRA, Rs1: rd}
	case link:
		return Inst{Op: EBREAK}
	}
	return Inst{}
}
