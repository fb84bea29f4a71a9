package isa

// form is the layout of an instruction's operands.
type form uint8

const (
	formNone   form = iota
	formR           // rd, rs1, rs2
	formR4          // rd, rs1, rs2, rs3, rm
	formRM          // rd, rs1, rs2, rm
	formUnary       // rd, rs1
	formURM         // rd, rs1, rm
	formI           // rd, rs1, imm12
	formLoad        // rd, imm12(rs1)
	formShift       // rd, rs1, shamt (6 bits)
	formShiftW      // rd, rs1, shamt (5 bits)
	formStore       // rs2, imm12(rs1)
	formBranch      // rs1, rs2, offset
	formU           // rd, imm20
	formJ           // rd, offset
	formCSR         // rd, csr, rs1
	formCSRI        // rd, csr, uimm5 (in Rs1)
	formAMO         // rd, rs2, (rs1)
	formLR          // rd, (rs1)
	formBase        // (rs1)
	formFence2      // rs1, rs2
	formFence       // fm, predecessors and successors, as the immediate
	formRaw         // the bits themselves
)

const (
	hasRd = 1 << iota
	hasRs1
	hasRs2
	hasRs3
	hasRM
)

// forms says which fields each form has, which bits of the word are fixed by
// the operation beyond opcode and funct3 is up to the table, and how the
// immediate lies in the word.
var forms = [...]struct {
	fields uint8
	get    func(raw uint32) int32
	put    func(imm int32) uint32
}{
	formNone:   {},
	formR:      {fields: hasRd | hasRs1 | hasRs2},
	formR4:     {fields: hasRd | hasRs1 | hasRs2 | hasRs3 | hasRM},
	formRM:     {fields: hasRd | hasRs1 | hasRs2 | hasRM},
	formUnary:  {fields: hasRd | hasRs1},
	formURM:    {fields: hasRd | hasRs1 | hasRM},
	formI:      {hasRd | hasRs1, getI, putI},
	formLoad:   {hasRd | hasRs1, getI, putI},
	formShift:  {hasRd | hasRs1, getShift, putShift},
	formShiftW: {hasRd | hasRs1, getShiftW, putShiftW},
	formStore:  {hasRs1 | hasRs2, getS, putS},
	formBranch: {hasRs1 | hasRs2, getB, putB},
	formU:      {hasRd, getU, putU},
	formJ:      {hasRd, getJ, putJ},
	formCSR:    {hasRd | hasRs1, getCSR, putCSR},
	formCSRI:   {hasRd | hasRs1, getCSR, putCSR},
	formAMO:    {fields: hasRd | hasRs1 | hasRs2},
	formLR:     {fields: hasRd | hasRs1},
	formBase:   {fields: hasRs1},
	formFence2: {fields: hasRs1 | hasRs2},
	formFence:  {0, getCSR, putCSR},
	formRaw:    {0, func(raw uint32) int32 { return int32(raw) }, func(imm int32) uint32 { return uint32(imm) }},
}

// The immediates as unpriv 2.2 and 2.3 lay them out.

func getI(raw uint32) int32 { return int32(raw) >> 20 }
func putI(imm int32) uint32 { return uint32(imm) << 20 }

func getShift(raw uint32) int32 { return int32(raw >> 20 & 63) }
func putShift(imm int32) uint32 { return uint32(imm) & 63 << 20 }

func getShiftW(raw uint32) int32 { return int32(raw >> 20 & 31) }
func putShiftW(imm int32) uint32 { return uint32(imm) & 31 << 20 }

func getS(raw uint32) int32 { return int32(raw)>>25<<5 | int32(raw>>7&31) }
func putS(imm int32) uint32 { return uint32(imm)>>5<<25 | uint32(imm)&31<<7 }

func getB(raw uint32) int32 {
	return int32(raw)>>31<<12 | int32(raw>>7&1<<11|raw>>25&0x3f<<5|raw>>8&15<<1)
}
func putB(imm int32) uint32 {
	u := uint32(imm)
	return u>>12&1<<31 | u>>11&1<<7 | u>>5&0x3f<<25 | u>>1&15<<8
}

func getU(raw uint32) int32 { return int32(raw &^ 0xfff) }
func putU(imm int32) uint32 { return uint32(imm) &^ 0xfff }

func getJ(raw uint32) int32 {
	return int32(raw)>>31<<20 | int32(raw>>12&0xff<<12|raw>>20&1<<11|raw>>21&0x3ff<<1)
}
func putJ(imm int32) uint32 {
	u := uint32(imm)
	return u>>20&1<<31 | u>>12&0xff<<12 | u>>11&1<<20 | u>>1&0x3ff<<21
}

func getCSR(raw uint32) int32 { return int32(raw >> 20) }
func putCSR(imm int32) uint32 { return uint32(imm) << 20 }
