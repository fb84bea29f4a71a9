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
// Speed depends on what the compiler makes of this function, which a test looks
// at. It makes no calls, so that all of its state stays in registers: a call in
// any case would have the compiler spill the state for every instruction. Every
// value of a code has a case, so that no bound is checked. What changes with the
// page (text, base) and what is rarely needed (extra) is in c, since each further
// variable of the loop costs moves, and a jump, after each case.
func (c *CPU) loop(x *hart.Regs, o *op, n int) (exit, *op, int) {
	var (
		pc   uint64 // where a jump leads
		a    uint64 // address of a load or store
		v, b uint64 // operands that are used more than once
		e    *mmu.Entry[mmu.Host]
	)
	for n > 0 {
		n--
		switch o.code {
		case opLeave:
			c.extra++
			pc = c.base + c.text.offset(o)
			goto enter
		case opFar:
			c.extra++
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
			v, b = get(x, o.rs1), get(x, o.rs2)
			a, _ = bits.Mul64(v, b)
			set(x, o.rd, a-uint64(int64(v)>>63)&b-uint64(int64(b)>>63)&v)
			o = o.skip(2 * opSize)
		case opMulhsu:
			v, b = get(x, o.rs1), get(x, o.rs2)
			a, _ = bits.Mul64(v, b)
			set(x, o.rd, a-uint64(int64(v)>>63)&b)
			o = o.skip(2 * opSize)
		case opMulhu:
			a, _ = bits.Mul64(get(x, o.rs1), get(x, o.rs2))
			set(x, o.rd, a)
			o = o.skip(2 * opSize)
		case opDiv:
			v, b = get(x, o.rs1), get(x, o.rs2)
			switch {
			case int64(b) == 0:
				v = math.MaxUint64
			case int64(b) == -1: // also for the one quotient that overflows
				v = -v
			default:
				v = uint64(int64(v) / int64(b))
			}
			set(x, o.rd, v)
			o = o.skip(2 * opSize)
		case opDivu:
			v, b = get(x, o.rs1), get(x, o.rs2)
			switch {
			case uint64(b) == 0:
				v = math.MaxUint64
			default:
				v = uint64(uint64(v) / uint64(b))
			}
			set(x, o.rd, v)
			o = o.skip(2 * opSize)
		case opRem:
			v, b = get(x, o.rs1), get(x, o.rs2)
			switch {
			case int64(b) == -1: // also for the one quotient that overflows
				v = 0
			case b != 0:
				v = uint64(int64(v) % int64(b))
			}
			set(x, o.rd, v)
			o = o.skip(2 * opSize)
		case opRemu:
			v, b = get(x, o.rs1), get(x, o.rs2)
			switch {
			case b != 0:
				v = uint64(uint64(v) % uint64(b))
			}
			set(x, o.rd, v)
			o = o.skip(2 * opSize)
		case opDivw:
			v, b = get(x, o.rs1), get(x, o.rs2)
			switch {
			case int32(b) == 0:
				v = math.MaxUint64
			case int32(b) == -1: // also for the one quotient that overflows
				v = uint64(int64(-int32(v)))
			default:
				v = uint64(int64(int32(int32(v) / int32(b))))
			}
			set(x, o.rd, v)
			o = o.skip(2 * opSize)
		case opDivuw:
			v, b = get(x, o.rs1), get(x, o.rs2)
			switch {
			case uint32(b) == 0:
				v = math.MaxUint64
			default:
				v = uint64(int64(int32(uint32(v) / uint32(b))))
			}
			set(x, o.rd, v)
			o = o.skip(2 * opSize)
		case opRemw:
			v, b = get(x, o.rs1), get(x, o.rs2)
			switch {
			case int32(b) == 0:
				v = uint64(int64(int32(v)))
			case int32(b) == -1: // also for the one quotient that overflows
				v = 0
			default:
				v = uint64(int64(int32(int32(v) % int32(b))))
			}
			set(x, o.rd, v)
			o = o.skip(2 * opSize)
		case opRemuw:
			v, b = get(x, o.rs1), get(x, o.rs2)
			switch {
			case uint32(b) == 0:
				v = uint64(int64(int32(v)))
			default:
				v = uint64(int64(int32(uint32(v) % uint32(b))))
			}
			set(x, o.rd, v)
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
		case opClzw:
			set(x, o.rd, uint64(bits.LeadingZeros32(uint32(get(x, o.rs1)))))
			o = o.skip(2 * opSize)
		case opCtzw:
			set(x, o.rd, uint64(bits.TrailingZeros32(uint32(get(x, o.rs1)))))
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

		// Pairs, each in one dispatch. The second op is in its own slot, too.

		case opCLdCLd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
		case opCSdCSd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCLdCAddi:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
			n--
			set(x, o.rd, get(x, o.rd)+uint64(int64(o.imm)))
			o = o.skip(1 * opSize)
		case opCAddiCJr:
			set(x, o.rd, get(x, o.rd)+uint64(int64(o.imm)))
			o = o.skip(1 * opSize)
			n--
			pc = get(x, o.rs1) &^ 1
			goto jump
		case opCAddiCSd:
			set(x, o.rd, get(x, o.rd)+uint64(int64(o.imm)))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCMvCMv:
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCSdCMv:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opSlliCAdd:
			set(x, o.rd, get(x, o.rs1)<<(uint64(o.imm)&63))
			o = o.skip(2 * opSize)
			n--
			set(x, o.rd, get(x, o.rd)+get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCSlliCAdd:
			set(x, o.rd, get(x, o.rd)<<(uint64(o.imm)&63))
			o = o.skip(1 * opSize)
			n--
			set(x, o.rd, get(x, o.rd)+get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCAddCLd:
			set(x, o.rd, get(x, o.rd)+get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
		case opCLdCBeqz:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
			n--
			if get(x, o.rs1) == 0 {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(1 * opSize)
			}
		case opCLwBne:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(int64(int32(load32(e.To, a)))))
			o = o.skip(1 * opSize)
			n--
			if get(x, o.rs1) != get(x, o.rs2) {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(2 * opSize)
			}
		case opCLwCBeqz:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(int64(int32(load32(e.To, a)))))
			o = o.skip(1 * opSize)
			n--
			if get(x, o.rs1) == 0 {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(1 * opSize)
			}
		case opCMvCLd:
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
		case opCMvBeq:
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			if get(x, o.rs1) == get(x, o.rs2) {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(2 * opSize)
			}
		case opCMvJalFar:
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			set(x, o.rd, c.base+c.text.offset(o)+4)
			pc = c.base + uint64(int64(o.imm))
			goto enter
		case opLdLd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(2 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(2 * opSize)
		case opSlliCSrli:
			set(x, o.rd, get(x, o.rs1)<<(uint64(o.imm)&63))
			o = o.skip(2 * opSize)
			n--
			set(x, o.rd, get(x, o.rd)>>(uint64(o.imm)&63))
			o = o.skip(1 * opSize)
		case opCLdCMv:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
			n--
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCSdCLi:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			set(x, o.rd, uint64(int64(o.imm)))
			o = o.skip(1 * opSize)
		case opCLwCLw:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(int64(int32(load32(e.To, a)))))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 4, c.m.Space) {
				goto slow
			}
			set(x, o.rd, uint64(int64(int32(load32(e.To, a)))))
			o = o.skip(1 * opSize)
		case opCSdCLd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
		case opCMvCSd:
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)
		case opCMvCBeqz:
			set(x, o.rd, get(x, o.rs2))
			o = o.skip(1 * opSize)
			n--
			if get(x, o.rs1) == 0 {
				o = o.skip(int(o.imm))
			} else {
				o = o.skip(1 * opSize)
			}
		case opCLdSlli:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
			n--
			set(x, o.rd, get(x, o.rs1)<<(uint64(o.imm)&63))
			o = o.skip(2 * opSize)
		case opCLdCSd:
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Loads.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			set(x, o.rd, load64(e.To, a))
			o = o.skip(1 * opSize)
			n--
			a = get(x, o.rs1) + uint64(int64(o.imm))
			e = c.m.Stores.At(a)
			if e.Tag != mmu.Tag(a, 8, c.m.Space) {
				goto slow
			}
			store64(e.To, a, get(x, o.rs2))
			o = o.skip(1 * opSize)

		// All values have a case, so that the dispatch checks no bound.

		case opIllegal, opCross, opCEbreak, opCpop, opCpopw, opAtomic, opFloat, opCSR, opEcall, opEbreak, opSret, opWfi, opFenceI, opSfence, opCboZero, opFence, opPause, opFarBranch,
			183, 184, 185, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196,
			197, 198, 199, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 212,
			213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223, 224, 225, 226, 227, 228,
			229, 230, 231, 232, 233, 234, 235, 236, 237, 238, 239, 240, 241, 242, 243, 244,
			245, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255:
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
