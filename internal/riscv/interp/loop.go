package interp

import (
	"math"
	"math/bits"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/fp"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// exit is why the run loop returned.
type exit uint8

const (
	exitBudget exit = iota // nothing is left; the next op was not executed
	exitStep               // the op is left to step
	exitFetch              // the hart's PC is not in the fetch bank
)

// loop executes ops from o, in the page c.text at the GVA c.base, until n
// instructions have been executed or something needs more than this loop does.
// It returns where it stopped, in the same form.
//
// The loop makes no calls, so that all of its state stays in registers: a call in
// any case would have the compiler spill the state for every instruction.
func (c *CPU) loop(x *hart.Regs, o *op, n int) (exit, *op, int) {
	var (
		pc uint64 // where a jump leads
		a  uint64 // address of a load or store
		e  *mmu.Entry[page.Page]
	)
	for n > 0 {
		n--
		switch o.code {
		case opLeave:
			n++
			pc = c.base + c.text.offset(o)
			goto enter
		case opFar:
			n++
			pc = c.base + uint64(int64(o.imm))
			goto enter

		// Instructions of two bytes.

		case opCNop:
			o = o.skip(1 * opSize)
		case opCLi:
			set(x, o.rd, uint64(int64(o.imm)))
			o = o.skip(1 * opSize)
		case opCMv:
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCAddi:
			set(x, o.rd, get(x, o.rd)+uint64(int64(o.imm)))
			o = o.skip(1 * opSize)
		case opCAddiX:
			set(x, o.rd, get(x, o.rs1)+uint64(int64(o.imm)))
			o = o.skip(1 * opSize)
		case opCAddiw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rd))+o.imm)))
			o = o.skip(1 * opSize)
		case opCAdd:
			set(x, o.rd, get(x, o.rd)+get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCSub:
			set(x, o.rd, get(x, o.rd)-get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCXor:
			set(x, o.rd, get(x, o.rd)^get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCOr:
			set(x, o.rd, get(x, o.rd)|get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCAnd:
			set(x, o.rd, get(x, o.rd)&get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCAddw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rd)+get(x, o.rs2)))))
			o = o.skip(1 * opSize)
		case opCSubw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rd)-get(x, o.rs2)))))
			o = o.skip(1 * opSize)
		case opCAndi:
			set(x, o.rd, get(x, o.rd)&uint64(int64(o.imm)))
			o = o.skip(1 * opSize)
		case opCSlli:
			set(x, o.rd, get(x, o.rd)<<(uint64(o.imm)&63))
			o = o.skip(1 * opSize)
		case opCSrli:
			set(x, o.rd, get(x, o.rd)>>(uint64(o.imm)&63))
			o = o.skip(1 * opSize)
		case opCSrai:
			set(x, o.rd, uint64(int64(get(x, o.rd))>>(uint64(o.imm)&63)))
			o = o.skip(1 * opSize)
		case opCLw:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(int64(int32(load32(e.To, a)))))
			o = o.skip(1 * opSize)
		case opCLd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
		case opCSw:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			store32(e.To, a, uint32(get(x, o.rs2)))
			o = o.skip(1 * opSize)
		case opCSd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCFld:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) || c.h.FloatOff() {
				goto slow
			}
			c.h.F[o.rd&31] = load64(e.To, a)
			c.h.FloatDirty()
			o = o.skip(1 * opSize)
		case opCFsd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) || c.h.FloatOff() {
				goto slow
			}
			store64(e.To, a, c.h.F[o.rs2&31])
			o = o.skip(1 * opSize)
		case opCJ:
			o = o.skip(int(o.imm))
		case opCJr:
			pc = get(x, o.rs1) &^ 1
			goto jump
		case opCJalr:
			pc = get(x, o.rs1) &^ 1
			set(x, o.rd, c.base+c.text.offset(o)+2)
			goto jump
		case opCBeqz:
			if get(x, o.rs1) == 0 {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(1 * opSize)
			}
		case opCBnez:
			if get(x, o.rs1) != 0 {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(1 * opSize)
			}

		// Instructions of four bytes: moves and jumps.

		case opNop:
			o = o.skip(2 * opSize)
		case opLi:
			set(x, o.rd, uint64(int64(o.imm)))
			o = o.skip(2 * opSize)
		case opAuipc:
			set(x, o.rd, c.base+uint64(int64(o.imm)))
			o = o.skip(2 * opSize)
		case opJ:
			o = o.skip(int(o.imm))
		case opJFar:
			pc = c.base + uint64(int64(o.imm))
			goto enter
		case opJal:
			set(x, o.rd, c.base+c.text.offset(o)+4)
			o = o.skip(int(o.imm))
		case opJalFar:
			set(x, o.rd, c.base+c.text.offset(o)+4)
			pc = c.base + uint64(int64(o.imm))
			goto enter
		case opJr:
			pc = (get(x, o.rs1) + uint64(int64(o.imm))) &^ 1
			goto jump
		case opJalr:
			pc = (get(x, o.rs1) + uint64(int64(o.imm))) &^ 1
			set(x, o.rd, c.base+c.text.offset(o)+4)
			goto jump
		case opBeq:
			if get(x, o.rs1) == get(x, o.rs2) {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(2 * opSize)
			}
		case opBne:
			if get(x, o.rs1) != get(x, o.rs2) {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(2 * opSize)
			}
		case opBlt:
			if int64(get(x, o.rs1)) < int64(get(x, o.rs2)) {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(2 * opSize)
			}
		case opBge:
			if int64(get(x, o.rs1)) >= int64(get(x, o.rs2)) {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(2 * opSize)
			}
		case opBltu:
			if get(x, o.rs1) < get(x, o.rs2) {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(2 * opSize)
			}
		case opBgeu:
			if get(x, o.rs1) >= get(x, o.rs2) {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(2 * opSize)
			}

		// Loads and stores.

		case opLb:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 1, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(int64(int8(load8(e.To, a)))))
			o = o.skip(2 * opSize)
		case opLh:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 2, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(int64(int16(load16(e.To, a)))))
			o = o.skip(2 * opSize)
		case opLw:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(int64(int32(load32(e.To, a)))))
			o = o.skip(2 * opSize)
		case opLd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(2 * opSize)
		case opLbu:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 1, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(load8(e.To, a)))
			o = o.skip(2 * opSize)
		case opLhu:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 2, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(load16(e.To, a)))
			o = o.skip(2 * opSize)
		case opLwu:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(load32(e.To, a)))
			o = o.skip(2 * opSize)
		case opSb:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 1, c.m.Space) {
				goto slow
			}
			store8(e.To, a, uint8(get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opSh:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 2, c.m.Space) {
				goto slow
			}
			store16(e.To, a, uint16(get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opSw:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			store32(e.To, a, uint32(get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opSd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opFlw:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) || c.h.FloatOff() {
				goto slow
			}
			c.h.F[o.rd&31] = fp.Box32(load32(e.To, a))
			c.h.FloatDirty()
			o = o.skip(2 * opSize)
		case opFld:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) || c.h.FloatOff() {
				goto slow
			}
			c.h.F[o.rd&31] = load64(e.To, a)
			c.h.FloatDirty()
			o = o.skip(2 * opSize)
		case opFsw:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) || c.h.FloatOff() {
				goto slow
			}
			store32(e.To, a, uint32(c.h.F[o.rs2&31]))
			o = o.skip(2 * opSize)
		case opFsd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) || c.h.FloatOff() {
				goto slow
			}
			store64(e.To, a, c.h.F[o.rs2&31])
			o = o.skip(2 * opSize)

		// Integer arithmetic.

		case opAddi:
			set(x, o.rd, get(x, o.rs1)+uint64(int64(o.imm)))
			o = o.skip(2 * opSize)
		case opSlti:
			set(x, o.rd, truth(int64(get(x, o.rs1)) < int64(o.imm)))
			o = o.skip(2 * opSize)
		case opSltiu:
			set(x, o.rd, truth(get(x, o.rs1) < uint64(int64(o.imm))))
			o = o.skip(2 * opSize)
		case opXori:
			set(x, o.rd, get(x, o.rs1)^uint64(int64(o.imm)))
			o = o.skip(2 * opSize)
		case opOri:
			set(x, o.rd, get(x, o.rs1)|uint64(int64(o.imm)))
			o = o.skip(2 * opSize)
		case opAndi:
			set(x, o.rd, get(x, o.rs1)&uint64(int64(o.imm)))
			o = o.skip(2 * opSize)
		case opSlli:
			set(x, o.rd, get(x, o.rs1)<<(uint64(o.imm)&63))
			o = o.skip(2 * opSize)
		case opSrli:
			set(x, o.rd, get(x, o.rs1)>>(uint64(o.imm)&63))
			o = o.skip(2 * opSize)
		case opSrai:
			set(x, o.rd, uint64(int64(get(x, o.rs1))>>(uint64(o.imm)&63)))
			o = o.skip(2 * opSize)
		case opAdd:
			set(x, o.rd, get(x, o.rs1)+get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSub:
			set(x, o.rd, get(x, o.rs1)-get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSll:
			set(x, o.rd, get(x, o.rs1)<<(get(x, o.rs2)&63))
			o = o.skip(2 * opSize)
		case opSlt:
			set(x, o.rd, truth(int64(get(x, o.rs1)) < int64(get(x, o.rs2))))
			o = o.skip(2 * opSize)
		case opSltu:
			set(x, o.rd, truth(get(x, o.rs1) < get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opXor:
			set(x, o.rd, get(x, o.rs1)^get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSrl:
			set(x, o.rd, get(x, o.rs1)>>(get(x, o.rs2)&63))
			o = o.skip(2 * opSize)
		case opSra:
			set(x, o.rd, uint64(int64(get(x, o.rs1))>>(get(x, o.rs2)&63)))
			o = o.skip(2 * opSize)
		case opOr:
			set(x, o.rd, get(x, o.rs1)|get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opAnd:
			set(x, o.rd, get(x, o.rs1)&get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opAddiw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rs1))+o.imm)))
			o = o.skip(2 * opSize)
		case opSlliw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rs1))<<(uint32(o.imm)&31))))
			o = o.skip(2 * opSize)
		case opSrliw:
			set(x, o.rd, uint64(int64(int32(uint32(get(x, o.rs1))>>(uint32(o.imm)&31)))))
			o = o.skip(2 * opSize)
		case opSraiw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rs1))>>(uint32(o.imm)&31))))
			o = o.skip(2 * opSize)
		case opAddw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rs1)+get(x, o.rs2)))))
			o = o.skip(2 * opSize)
		case opSubw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rs1)-get(x, o.rs2)))))
			o = o.skip(2 * opSize)
		case opSllw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rs1))<<(get(x, o.rs2)&31))))
			o = o.skip(2 * opSize)
		case opSrlw:
			set(x, o.rd, uint64(int64(int32(uint32(get(x, o.rs1))>>(get(x, o.rs2)&31)))))
			o = o.skip(2 * opSize)
		case opSraw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rs1))>>(get(x, o.rs2)&31))))
			o = o.skip(2 * opSize)
		case opMul:
			set(x, o.rd, get(x, o.rs1)*get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opMulw:
			set(x, o.rd, uint64(int64(int32(get(x, o.rs1)*get(x, o.rs2)))))
			o = o.skip(2 * opSize)
		case opMulh:
			set(x, o.rd, mulh(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opMulhsu:
			set(x, o.rd, mulhsu(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opMulhu:
			set(x, o.rd, mulhu(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opDiv:
			set(x, o.rd, div(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opDivu:
			set(x, o.rd, divu(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opRem:
			set(x, o.rd, rem(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opRemu:
			set(x, o.rd, remu(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opDivw:
			set(x, o.rd, divw(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opDivuw:
			set(x, o.rd, divuw(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opRemw:
			set(x, o.rd, remw(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opRemuw:
			set(x, o.rd, remuw(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)

		// Bit manipulation.

		case opAddUw:
			set(x, o.rd, (get(x, o.rs1)&math.MaxUint32)+get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSh1add:
			set(x, o.rd, get(x, o.rs1)<<1+get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSh2add:
			set(x, o.rd, get(x, o.rs1)<<2+get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSh3add:
			set(x, o.rd, get(x, o.rs1)<<3+get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSh1addUw:
			set(x, o.rd, (get(x, o.rs1)&math.MaxUint32)<<1+get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSh2addUw:
			set(x, o.rd, (get(x, o.rs1)&math.MaxUint32)<<2+get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSh3addUw:
			set(x, o.rd, (get(x, o.rs1)&math.MaxUint32)<<3+get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opSlliUw:
			set(x, o.rd, (get(x, o.rs1)&math.MaxUint32)<<(uint64(o.imm)&63))
			o = o.skip(2 * opSize)
		case opAndn:
			set(x, o.rd, get(x, o.rs1)&^get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opOrn:
			set(x, o.rd, get(x, o.rs1)|^get(x, o.rs2))
			o = o.skip(2 * opSize)
		case opXnor:
			set(x, o.rd, ^(get(x, o.rs1) ^ get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opClz:
			set(x, o.rd, uint64(bits.LeadingZeros64(get(x, o.rs1))))
			o = o.skip(2 * opSize)
		case opCtz:
			set(x, o.rd, uint64(bits.TrailingZeros64(get(x, o.rs1))))
			o = o.skip(2 * opSize)
		case opCpop:
			set(x, o.rd, ones(get(x, o.rs1)))
			o = o.skip(2 * opSize)
		case opClzw:
			set(x, o.rd, uint64(bits.LeadingZeros32(uint32(get(x, o.rs1)))))
			o = o.skip(2 * opSize)
		case opCtzw:
			set(x, o.rd, uint64(bits.TrailingZeros32(uint32(get(x, o.rs1)))))
			o = o.skip(2 * opSize)
		case opCpopw:
			set(x, o.rd, ones((get(x, o.rs1) & math.MaxUint32)))
			o = o.skip(2 * opSize)
		case opMax:
			set(x, o.rd, uint64(max(int64(get(x, o.rs1)), int64(get(x, o.rs2)))))
			o = o.skip(2 * opSize)
		case opMaxu:
			set(x, o.rd, max(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opMin:
			set(x, o.rd, uint64(min(int64(get(x, o.rs1)), int64(get(x, o.rs2)))))
			o = o.skip(2 * opSize)
		case opMinu:
			set(x, o.rd, min(get(x, o.rs1), get(x, o.rs2)))
			o = o.skip(2 * opSize)
		case opSextB:
			set(x, o.rd, uint64(int64(int8(get(x, o.rs1)))))
			o = o.skip(2 * opSize)
		case opSextH:
			set(x, o.rd, uint64(int64(int16(get(x, o.rs1)))))
			o = o.skip(2 * opSize)
		case opZextH:
			set(x, o.rd, get(x, o.rs1)&math.MaxUint16)
			o = o.skip(2 * opSize)
		case opRol:
			set(x, o.rd, bits.RotateLeft64(get(x, o.rs1), int(get(x, o.rs2)&63)))
			o = o.skip(2 * opSize)
		case opRor:
			set(x, o.rd, bits.RotateLeft64(get(x, o.rs1), -int(get(x, o.rs2)&63)))
			o = o.skip(2 * opSize)
		case opRori:
			set(x, o.rd, bits.RotateLeft64(get(x, o.rs1), -int(o.imm)))
			o = o.skip(2 * opSize)
		case opRolw:
			set(x, o.rd, uint64(int64(int32(bits.RotateLeft32(uint32(get(x, o.rs1)), int(get(x, o.rs2)&31))))))
			o = o.skip(2 * opSize)
		case opRorw:
			set(x, o.rd, uint64(int64(int32(bits.RotateLeft32(uint32(get(x, o.rs1)), -int(get(x, o.rs2)&31))))))
			o = o.skip(2 * opSize)
		case opRoriw:
			set(x, o.rd, uint64(int64(int32(bits.RotateLeft32(uint32(get(x, o.rs1)), -int(o.imm))))))
			o = o.skip(2 * opSize)
		case opOrcB:
			set(x, o.rd, orCombine(get(x, o.rs1)))
			o = o.skip(2 * opSize)
		case opRev8:
			set(x, o.rd, bits.ReverseBytes64(get(x, o.rs1)))
			o = o.skip(2 * opSize)
		case opBclr:
			set(x, o.rd, get(x, o.rs1)&^(1<<(get(x, o.rs2)&63)))
			o = o.skip(2 * opSize)
		case opBclri:
			set(x, o.rd, get(x, o.rs1)&^(1<<(uint64(o.imm)&63)))
			o = o.skip(2 * opSize)
		case opBext:
			set(x, o.rd, get(x, o.rs1)>>(get(x, o.rs2)&63)&1)
			o = o.skip(2 * opSize)
		case opBexti:
			set(x, o.rd, get(x, o.rs1)>>(uint64(o.imm)&63)&1)
			o = o.skip(2 * opSize)
		case opBinv:
			set(x, o.rd, get(x, o.rs1)^1<<(get(x, o.rs2)&63))
			o = o.skip(2 * opSize)
		case opBinvi:
			set(x, o.rd, get(x, o.rs1)^1<<(uint64(o.imm)&63))
			o = o.skip(2 * opSize)
		case opBset:
			set(x, o.rd, get(x, o.rs1)|1<<(get(x, o.rs2)&63))
			o = o.skip(2 * opSize)
		case opBseti:
			set(x, o.rd, get(x, o.rs1)|1<<(uint64(o.imm)&63))
			o = o.skip(2 * opSize)

		default:
			goto slow
		}
		continue

	jump: // To pc, which may well be in this page.
		if pc-c.base < page.Size {
			o = c.text.find(pc - c.base)
			continue
		}
	enter: // At pc, in whatever page.
		f := c.fetch.At(pc)
		if f.Tag != mmu.Tag(pc, 1, c.m.Space) {
			c.h.PC = pc
			return exitFetch, o, n
		}
		c.text, c.base = f.To, pc&^offsetMask
		o = f.To.find(pc & offsetMask)
	}
	return exitBudget, o, n

slow:
	return exitStep, o, n
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// ones counts bits without the call that bits.OnesCount64 may be where the
// compiler does not know that the host has an instruction for it.
func ones(v uint64) uint64 {
	v -= v >> 1 & 0x5555555555555555
	v = v&0x3333333333333333 + v>>2&0x3333333333333333
	v = (v + v>>4) & 0x0f0f0f0f0f0f0f0f
	return v * 0x0101010101010101 >> 56
}
