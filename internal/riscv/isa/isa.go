// Package isa is the instruction set of the guests: RV64GC (IMAFDC, Zicsr,
// Zifencei) with Zba, Zbb, Zbs and Zicboz, and the privileged instructions of
// supervisor mode. It decodes, encodes and disassembles; it executes nothing.
//
// One table (table.go) says what each instruction's bits are, and everything
// else here is derived from it. Compressed instructions are expanded to the
// 32-bit instruction they stand for (compressed.go), so that an Inst never
// tells which of the two it came from but by its Size.
//
// Invariants. Decode accepts every bit pattern: one that is no instruction of
// this set becomes ILLEGAL, never a panic. The register numbers of an Inst are
// below 32. Encode is the inverse of Decode up to bits that have no meaning
// here (aq and rl of atomics, the reserved registers of FENCE).
package isa

// Inst is a decoded instruction. Fields that the operation does not have are
// zero.
type Inst struct {
	Op  Op
	Rd  uint8
	Rs1 uint8
	Rs2 uint8
	Rs3 uint8
	// RM is the rounding mode of a floating-point operation; DYN takes it
	// from frm.
	RM uint8
	// Size is the length in memory: 2 or 4 bytes.
	Size uint8
	// Imm is the immediate, sign-extended where the instruction says so: an
	// offset in bytes for loads, stores and jumps; the value to be added for
	// LUI and AUIPC (low 12 bits zero); a shift amount; a CSR number, in which
	// case the five-bit immediate of CSRRWI and its kin is in Rs1; mode,
	// predecessors and successors of FENCE; and the instruction's own bits for
	// ILLEGAL.
	Imm int32
}

// DYN is the rounding mode that selects frm.
const DYN = 7

// maxRM is the greatest rounding mode that is not reserved.
const maxRM = 4

// Length returns the size in bytes of the instruction that begins with the
// halfword h. Encodings longer than 32 bits are not part of the set; they count
// as 4 bytes and decode to ILLEGAL.
func Length(h uint16) int {
	if h&3 == 3 {
		return 4
	}
	return 2
}

// Decode decodes the instruction at the start of raw. For a compressed
// instruction the upper half of raw is not looked at.
func Decode(raw uint32) Inst {
	if raw&3 != 3 {
		wide, ok := expand(uint16(raw))
		if !ok {
			return Inst{Op: ILLEGAL, Size: 2, Imm: int32(uint16(raw))}
		}
		in := decode32(wide)
		in.Size = 2
		return in
	}
	return decode32(raw)
}

// lookup lists the operations by major opcode (bits 6:2) and funct3 (14:12).
var lookup = buildLookup()

func buildLookup() (l [256][]Op) {
	for op := ILLEGAL + 1; op < NumOps; op++ {
		e := &table[op]
		for key := range uint32(256) {
			bits := key&31<<2 | 3 | key>>5<<12
			if mask := e.mask & 0x707f; bits&mask == e.bits&mask {
				l[key] = append(l[key], op)
			}
		}
	}
	return l
}

func decode32(raw uint32) Inst {
	for _, op := range lookup[raw>>2&31|raw>>12&7<<5] {
		if e := &table[op]; raw&e.mask == e.bits {
			in := e.form.operands(raw)
			if in.RM > maxRM && in.RM != DYN {
				break
			}
			in.Op = op
			return in
		}
	}
	return Inst{Op: ILLEGAL, Size: 4, Imm: int32(raw)}
}

// operands extracts the fields that the form has.
func (f form) operands(raw uint32) Inst {
	in := Inst{Size: 4}
	has := forms[f].fields
	if has&hasRd != 0 {
		in.Rd = uint8(raw >> 7 & 31)
	}
	if has&hasRs1 != 0 {
		in.Rs1 = uint8(raw >> 15 & 31)
	}
	if has&hasRs2 != 0 {
		in.Rs2 = uint8(raw >> 20 & 31)
	}
	if has&hasRs3 != 0 {
		in.Rs3 = uint8(raw >> 27)
	}
	if has&hasRM != 0 {
		in.RM = uint8(raw >> 12 & 7)
	}
	if get := forms[f].get; get != nil {
		in.Imm = get(raw)
	}
	return in
}

// Encode returns the 32-bit encoding of in, whose Size is not looked at. It is
// for trusted callers: an operand that does not fit is cut.
func Encode(in Inst) uint32 {
	e := &table[in.Op]
	raw := e.bits
	has := forms[e.form].fields
	if has&hasRd != 0 {
		raw |= uint32(in.Rd&31) << 7
	}
	if has&hasRs1 != 0 {
		raw |= uint32(in.Rs1&31) << 15
	}
	if has&hasRs2 != 0 {
		raw |= uint32(in.Rs2&31) << 20
	}
	if has&hasRs3 != 0 {
		raw |= uint32(in.Rs3&31) << 27
	}
	if has&hasRM != 0 {
		raw |= uint32(in.RM&7) << 12
	}
	if put := forms[e.form].put; put != nil {
		raw |= put(in.Imm)
	}
	return raw
}

// Pattern returns which bits the operation fixes in a 32-bit encoding, and how.
func (op Op) Pattern() (mask, bits uint32) { return table[op].mask, table[op].bits }
