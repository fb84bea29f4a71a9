package interp

import (
	"sync"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// lower turns a decoded instruction into what the run loop executes.
//
// Branches and AUIPC keep their offsets until relocate. The grouped cases carry
// the operation in imm: opAtomic and opFloat as isa.Op in the low byte (opFloat
// with rs3 and the rounding mode above it), opCSR as CSR number with the
// operation above it.
func lower(in isa.Inst) op {
	o := op{rd: destination(in.Rd), rs1: in.Rs1, rs2: in.Rs2, imm: in.Imm}
	if in.Op == isa.ILLEGAL {
		o.code = opIllegal
		return o
	}
	if in.Size == 2 {
		return lowerNarrow(in, o)
	}
	return lowerWide(in, o)
}

func destination(rd uint8) uint8 {
	if rd == 0 {
		return hart.Discard
	}
	return rd
}

func lowerNarrow(in isa.Inst, o op) op {
	switch in.Op {
	case isa.ADDI:
		switch {
		case in.Rd == 0:
			o.code = opCNop
		case in.Rs1 == 0:
			o.code = opCLi
		case in.Rs1 == in.Rd:
			o.code = opCAddi
		default:
			o.code = opCAddiX
		}
	case isa.ADD:
		o.code = opCAdd
		if in.Rs1 == 0 {
			o.code = opCMv
		}
	case isa.JALR:
		o.code = opCJalr
		if in.Rd == 0 {
			o.code = opCJr
		}
	case isa.FLD:
		o.code, o.rd = opCFld, in.Rd
	default:
		o.code = narrowCodes[in.Op]
	}
	return o
}

func lowerWide(in isa.Inst, o op) op {
	switch op := in.Op; {
	case op == isa.ADDI:
		o.code = opAddi
		if in.Rs1 == 0 {
			o.code = opLi
		}
	case op == isa.JAL:
		o.code = opJal
		if in.Rd == 0 {
			o.code = opJ
		}
	case op == isa.JALR:
		o.code = opJalr
		if in.Rd == 0 {
			o.code = opJr
		}
	case op == isa.FENCE:
		o.code = lowerFence(in)
	case op == isa.FLW || op == isa.FLD:
		o.code, o.rd = wideCodes[op], in.Rd
	case op >= isa.CSRRW && op <= isa.CSRRCI:
		// rd stays as written: x0 there means that the CSR is not read.
		o.code, o.rd, o.imm = opCSR, in.Rd, in.Imm|int32(op)<<16
	case wideCodes[op] != opLeave:
		o.code = wideCodes[op]
	case op >= isa.LR_W && op <= isa.AMOMAXU_D:
		o.code, o.imm = opAtomic, int32(op)
	case op >= isa.FLW && op <= isa.FCVT_S_D:
		o.code, o.rd, o.imm = opFloat, in.Rd, int32(op)|int32(in.Rs3)<<8|int32(in.RM)<<16
	default:
		panic("BUG: no case for " + op.String())
	}
	return o
}

// narrowOps has the op of every compressed instruction; decoding a page is
// mostly looking things up here.
var narrowOps = sync.OnceValue(func() *[1 << 16]op {
	t := new([1 << 16]op)
	for h := range t {
		if h&3 != 3 {
			t[h] = lower(isa.Decode(uint32(h)))
		}
	}
	return t
})

// lowerFence: a host that keeps all order but that of a store with a later load
// needs to do something for few fences.
func lowerFence(in isa.Inst) code {
	switch {
	case in.IsPause():
		return opPause
	case in.StoreLoad() || !strongOrder:
		return opFence
	}
	return opNop
}
