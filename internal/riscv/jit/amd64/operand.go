package amd64

// Reg is a general purpose register, numbered as in the machine encoding.
// With W8 it names the low byte: RSP to RDI mean SPL, BPL, SIL and DIL.
type Reg uint8

// The general purpose registers.
const (
	RAX Reg = iota
	RCX
	RDX
	RBX
	RSP
	RBP
	RSI
	RDI
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
)

// XReg is an SSE register.
type XReg uint8

// The SSE registers.
const (
	X0 XReg = iota
	X1
	X2
	X3
	X4
	X5
	X6
	X7
	X8
	X9
	X10
	X11
	X12
	X13
	X14
	X15
)

// Mem is the operand [Base + Index*Scale + Disp]. Scale 0 means no index;
// otherwise it is 1, 2, 4 or 8 and Index is not RSP.
type Mem struct {
	Base  Reg
	Index Reg
	Scale uint8
	Disp  int32
}

// At is the operand [base + disp].
func At(base Reg, disp int32) Mem { return Mem{Base: base, Disp: disp} }

// AtIndex is the operand [base + index*scale + disp].
func AtIndex(base, index Reg, scale uint8, disp int32) Mem {
	return Mem{Base: base, Index: index, Scale: scale, Disp: disp}
}

// Cond is a condition on the flags. Cond^1 is its negation.
type Cond uint8

// The conditions: overflow, carry (B, AE), zero (E, NE), unsigned order (BE,
// A), sign, parity, signed order.
const (
	O Cond = iota
	NO
	B
	AE
	E
	NE
	BE
	A
	S
	NS
	P
	NP
	L
	GE
	LE
	G
)

// ALU is a two operand operation that sets all the flags.
type ALU uint8

// The operations, numbered as in the machine encoding.
const (
	ADD ALU = iota
	OR
	ADC
	SBB
	AND
	SUB
	XOR
	CMP
)

// Shift is a shift or a rotation, numbered as in the machine encoding.
type Shift uint8

// The shifts.
const (
	ROL Shift = 0
	ROR Shift = 1
	SHL Shift = 4
	SHR Shift = 5
	SAR Shift = 7
)

// Width is the size of an integer operand in bytes. A result of W32 clears
// the upper half of its register; results of W8 and W16 leave the other bits.
type Width uint8

// The widths.
const (
	W8  Width = 1
	W16 Width = 2
	W32 Width = 4
	W64 Width = 8
)

// FOp is a scalar floating point operation; its value is its opcode.
type FOp uint8

// The floating point operations.
const (
	FSQRT FOp = 0x51
	FADD  FOp = 0x58
	FMUL  FOp = 0x59
	FSUB  FOp = 0x5C
	FDIV  FOp = 0x5E
)

// FMAKind selects the signs of a fused multiply-add; its value is its opcode.
type FMAKind uint8

// The kinds, by what becomes of dst.
const (
	FMADD  FMAKind = 0xB9 // dst = b*c + dst
	FMSUB  FMAKind = 0xBB // dst = b*c - dst
	FNMADD FMAKind = 0xBD // dst = -(b*c) + dst
	FNMSUB FMAKind = 0xBF // dst = -(b*c) - dst
)
