//go:build linux && amd64

package jit

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// Host registers with a fixed role while native code runs. The rest of them
// holds guest registers; see pinned.
const (
	t0 = amd64.RAX // scratch
	t1 = amd64.RDX // scratch
	gp = amd64.RCX // host address of the active group, else scratch
	hp = amd64.RBX // the hart, plus bias
	cx = amd64.RBP // the Context
	nr = amd64.R15 // instructions that may still be executed
)

// bias lets one-byte displacements reach all integer registers.
const bias = 128

// pinned are the guest registers that live in host registers, everywhere: code
// thus has no state at the borders of blocks. They are those that compilers use
// most, and that compressed instructions can name.
var pinned = [32]amd64.Reg{
	2:  amd64.R14,
	8:  amd64.R12,
	9:  amd64.R13,
	10: amd64.RSI,
	11: amd64.RDI,
	12: amd64.R8,
	13: amd64.R9,
	14: amd64.R10,
	15: amd64.R11,
}

// isPinned reports whether guest register r lives in a host register. (RAX, the
// zero value, never holds one.)
func isPinned(r uint8) bool { return pinned[r&31] != amd64.RAX }

// translator turns one region after another into code. It belongs to a Cache.
type translator struct {
	amd64.Asm
	region
	arena *arena

	i     int // index of the instruction at hand
	group group
	float bool // the block has checked that floating point may be used
	stubs []stub
	aways []away
	links []link
	resum []resumption

	records int // offset of the first record
	size    int // of everything, in bytes
}

// group is a run of accesses through one base register whose host address is
// known to be in gp.
type group struct {
	active bool
	base   uint8 // guest register
	low    int32 // offset from the base register that gp stands for
	size   int32 // bytes from there to the end of the last access
	store  bool  // some are stores
	end    int   // index of the last access
}

// stub is where code returns to Go at an instruction.
type stub struct {
	label amd64.Label
	site  site
}

// away is a jump to where no code may be yet, out of line.
type away struct {
	label amd64.Label
	off   int32 // from the start of the page
}

// link is a jump to where no code was yet when the jump was translated.
type link struct {
	slot amd64.Label // holds the address to jump to
	miss amd64.Label // which is this until there is code
	off  uint16      // in the page
}

// resumption is a label in front of an instruction of the layout.
type resumption struct {
	index int
	label amd64.Label
	bound bool
}

// translate writes the code of a region to the arena's free space, for code
// that will run there, and returns the entries that it has.
func (t *translator) translate(a *arena, p *page.Page, native *Page, off uint16) error {
	t.arena = a
	t.Reset(a.free(), a.next())
	t.discover(p, native, off)
	t.group, t.float = group{}, false
	t.stubs, t.aways, t.links, t.resum = t.stubs[:0], t.aways[:0], t.links[:0], t.resum[:0]
	for i := range t.seq {
		if t.seq[i].leader {
			t.seq[i].label = t.NewLabel()
		}
	}
	for i := range t.seq {
		t.i = i
		t.instruction(&t.seq[i])
	}
	for i := 0; i < len(t.aways); i++ { // grows no more, but stubs do
		t.Bind(t.aways[i].label)
		t.jumpAway(t.aways[i].off)
	}
	t.emitStubs()
	t.emitSlots()
	if t.Overflow() || t.arena.used+t.size > len(a.writable) {
		return errFull
	}
	if err := t.Finish(); err != nil {
		return err
	}
	t.emitSites()
	return nil
}

// instruction emits one instruction and what belongs before and after it.
func (t *translator) instruction(in *inst) {
	if in.leader {
		t.group, t.float = group{}, false
		t.Bind(in.label)
	}
	if in.start {
		t.charge(in)
	}
	t.execute(in)
	if t.group.active && t.i >= t.group.end {
		t.group.active = false
	}
	for k := range t.resum {
		if r := &t.resum[k]; r.index == t.i+1 && !r.bound {
			t.Bind(r.label)
			r.bound = true
		}
	}
	if in.last && in.jump != nowhere {
		t.jumpTo(in.jump)
	}
}

// charge takes a block's instructions off the budget, or returns to Go.
func (t *translator) charge(in *inst) {
	t.ALURI(amd64.SUB, amd64.W64, nr, int32(in.left))
	t.Jcc(amd64.B, t.stop(site{off: in.off, before: in.left}))
}

// stop returns a label that returns to Go for the reason s.
func (t *translator) stop(s site) amd64.Label {
	l := t.NewLabel()
	t.stubs = append(t.stubs, stub{l, s})
	return l
}

// slow returns a label where Go executes the instruction at hand, and those up
// to the end of the active group, after which code goes on.
func (t *translator) slow() amd64.Label {
	last := t.i
	if t.group.active {
		last = t.group.end
	}
	in, to := &t.seq[t.i], &t.seq[last]
	s := site{off: in.off, count: uint8(last - t.i + 1), before: in.left, float: t.float}
	for i := t.i; i <= last; i++ {
		s.float = s.float || t.seq[i].Op >= isa.FLW && t.seq[i].Op <= isa.FCVT_S_D
	}
	if k := kindOf(to.Op); k == kindPlain && to.next() < page.Size {
		s.next = uint16(to.next())
		if !to.last && !t.seq[last+1].start {
			s.after = t.seq[last+1].left
		}
		s.resume = uint32(t.resumeAt(last + 1))
	}
	return t.stop(s)
}

// resumeAt returns the label where code goes on after Go has executed the
// instruction before the one at index, plus one.
func (t *translator) resumeAt(index int) amd64.Label {
	for _, r := range t.resum {
		if r.index == index {
			return r.label + 1
		}
	}
	l := t.NewLabel()
	t.resum = append(t.resum, resumption{index: index, label: l})
	return l + 1
}

// missed is slow for a look into the TLB, which is repeated from the label probe
// on if all that was missing is an entry for the address low from guest register
// base.
func (t *translator) missed(probe amd64.Label, base uint8, low, size int32, store bool) amd64.Label {
	l := t.slow()
	s := &t.stubs[len(t.stubs)-1].site
	// Inside of a group gp is to be kept meanwhile.
	s.keep = t.group.active && t.group.base != base
	// A store must not happen, not even to the page table, before it is certain.
	if !store || accesses[t.seq[t.i].Op].store || accesses[t.seq[t.i].Op].width == 0 {
		s.probe, s.base, s.low, s.last, s.store = uint32(probe)+1, base, int16(low), uint8(size-1), store
	}
	return l
}

// emitStubs emits the returns to Go and, behind them, their records.
func (t *translator) emitStubs() {
	const stubSize, keepSize = 10, 4
	t.records = t.Len() + stubSize*len(t.stubs)
	for i := range t.stubs {
		if t.stubs[i].site.keep {
			t.records += keepSize
		}
	}
	for i := range t.stubs {
		t.Bind(t.stubs[i].label)
		if t.stubs[i].site.keep {
			t.MovMR(amd64.W64, amd64.At(cx, offKept), gp)
		}
		t.MovRI(amd64.RCX, int64(t.arena.used+t.records+i*siteSize))
		t.JmpTo(t.arena.leave)
	}
	if t.Overflow() {
		return
	}
	t.Nop(t.records + siteSize*len(t.stubs) - t.Len())
}

// emitSlots makes room for the addresses of links.
func (t *translator) emitSlots() {
	const slotSize = 8
	t.Nop(-t.Len() & (slotSize - 1))
	for _, l := range t.links {
		t.Bind(l.slot)
		t.Nop(slotSize)
	}
	t.size = t.Len()
}

// emitSites writes the records of the returns to Go, once all labels are known.
func (t *translator) emitSites() {
	buf := t.arena.writable[t.arena.used+t.records:]
	for i := range t.stubs {
		s := t.stubs[i].site
		if s.resume != 0 {
			s.resume = uint32(t.arena.used + t.Offset(amd64.Label(s.resume-1)))
		}
		if s.probe != 0 {
			s.probe = uint32(t.arena.used + t.Offset(amd64.Label(s.probe-1)))
		}
		s.encode(buf[siteSize*i:])
	}
}

// jumpTo jumps to an offset from the page's start.
func (t *translator) jumpTo(off int32) {
	if i := t.find(off); i >= 0 {
		t.Jmp(t.seq[i].label)
		return
	}
	if inPage(off) && t.native.has(uint16(off)) {
		t.JmpTo(t.arena.address(t.native.entry(uint16(off))))
		return
	}
	t.jumpAway(off)
}

// branchTo is jumpTo under a condition.
func (t *translator) branchTo(c amd64.Cond, off int32) {
	if i := t.find(off); i >= 0 {
		t.Jcc(c, t.seq[i].label)
		return
	}
	if inPage(off) && t.native.has(uint16(off)) {
		t.JccTo(c, t.arena.address(t.native.entry(uint16(off))))
		return
	}
	l := t.NewLabel()
	t.aways = append(t.aways, away{l, off})
	t.Jcc(c, l)
}

// jumpAway jumps to where there was no code when this was translated. Inside of
// the page that may change.
func (t *translator) jumpAway(off int32) {
	if inPage(off) {
		l := link{t.NewLabel(), t.NewLabel(), uint16(off)}
		t.links = append(t.links, l)
		t.JmpMLabel(l.slot)
		t.Bind(l.miss)
	}
	t.MovRM(amd64.W64, t0, amd64.At(cx, offBase))
	if off != 0 {
		t.ALURI(amd64.ADD, amd64.W64, t0, off)
	}
	if inPage(off) {
		t.JmpTo(t.arena.miss)
	} else {
		t.jumpFar()
	}
}

// jumpFar jumps to the guest-virtual address in t0, in whatever page, through
// the bank of pages with native code.
func (t *translator) jumpFar() {
	t.bankEntry(offNatives)
	t.MovRR(amd64.W64, gp, t0)
	t.ALURI(amd64.AND, amd64.W64, gp, -page.Size)
	t.MovMR(amd64.W64, amd64.At(cx, offBase), gp)
	t.ALURM(amd64.OR, amd64.W64, gp, amd64.At(cx, offSpace))
	t.ALURM(amd64.CMP, amd64.W64, gp, amd64.At(t1, entryTag))
	t.JccTo(amd64.NE, t.arena.miss)
	t.MovRM(amd64.W64, t1, amd64.At(t1, entryTo))
	t.MovRR(amd64.W32, gp, t0)
	t.ALURI(amd64.AND, amd64.W32, gp, page.Size-2)
	t.MovRM(amd64.W32, t1, amd64.AtIndex(t1, gp, 2, 0))
	t.ALURM(amd64.ADD, amd64.W64, t1, amd64.At(cx, offCode))
	t.JmpR(t1)
}

// bankEntry leaves the address of the bank's entry for the page of the address
// in t0 in t1.
func (t *translator) bankEntry(bank int32) {
	t.MovRR(amd64.W32, t1, t0)
	t.indexBank(bank)
}

// indexBank turns the address in t1 into that of the bank's entry for it.
func (t *translator) indexBank(bank int32) {
	t.ShiftRI(amd64.SHR, amd64.W32, t1, page.Shift-entryShift)
	t.ALURI(amd64.AND, amd64.W32, t1, bankMask)
	t.ALURM(amd64.ADD, amd64.W64, t1, amd64.At(cx, bank))
}

// x is where a guest register lies in memory.
func x(r uint8) amd64.Mem { return amd64.At(hp, 8*int32(r)-bias) }

// read returns a host register with the value of guest register r, scratch if
// it has to be loaded.
func (t *translator) read(r uint8, scratch amd64.Reg) amd64.Reg {
	switch {
	case r == 0:
		t.MovRI(scratch, 0)
	case isPinned(r):
		return pinned[r]
	default:
		t.MovRM(amd64.W64, scratch, x(r))
	}
	return scratch
}

// readInto moves the value of guest register r to a host register.
func (t *translator) readInto(dst amd64.Reg, r uint8) {
	if s := t.read(r, dst); s != dst {
		t.MovRR(amd64.W64, dst, s)
	}
}

// dest returns the host register to compute guest register r in.
func dest(r uint8, scratch amd64.Reg) amd64.Reg {
	if isPinned(r) {
		return pinned[r]
	}
	return scratch
}

// write makes s the value of guest register r.
func (t *translator) write(r uint8, s amd64.Reg) {
	switch {
	case r == 0 || isPinned(r) && pinned[r] == s:
	case isPinned(r):
		t.MovRR(amd64.W64, pinned[r], s)
	default:
		t.MovMR(amd64.W64, x(r), s)
	}
}

// with applies op to dst and guest register r.
func (t *translator) with(op amd64.ALU, w amd64.Width, dst amd64.Reg, r uint8) {
	switch {
	case r == 0:
		t.ALURI(op, w, dst, 0)
	case isPinned(r):
		t.ALURR(op, w, dst, pinned[r])
	default:
		t.ALURM(op, w, dst, x(r))
	}
}

// site is what the record of a return to Go says.
type site struct {
	off    uint16 // of the first instruction that was not executed
	next   uint16 // where code resumes, if it does
	count  uint8  // instructions that the interpreter executes; zero: the budget is used up
	before uint8  // instructions of the block that were charged and not executed
	after  uint8  // those that are charged when code resumes
	float  bool   // the code that resumes counts on native floating point
	resume uint32 // where, as an offset in the arena; zero: nowhere

	// For a look into the TLB that failed, where it begins; zero: it was none. It is
	// for the bytes 0 to last from low behind guest register base.
	probe uint32
	low   int16
	last  uint8
	base  uint8
	store bool
	keep  bool // gp is needed there
}

// siteSize is the size of an encoded site.
const siteSize = 24

func (s site) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], s.off)
	le.PutUint16(b[2:], s.next)
	le.PutUint32(b[4:], s.resume)
	le.PutUint32(b[8:], s.probe)
	le.PutUint16(b[12:], uint16(s.low))
	copy(b[14:], []byte{s.last, s.base, s.count, s.before, s.after, flag(s.float), flag(s.store) | flag(s.keep)<<1})
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func decodeSite(b []byte) site {
	le := binary.LittleEndian
	return site{
		off: le.Uint16(b[0:]), next: le.Uint16(b[2:]),
		resume: le.Uint32(b[4:]), probe: le.Uint32(b[8:]),
		low: int16(le.Uint16(b[12:])), last: b[14], base: b[15],
		count: b[16], before: b[17], after: b[18], float: b[19] != 0, store: b[20]&1 != 0, keep: b[20]&2 != 0,
	}
}

// execute emits the instruction proper.
func (t *translator) execute(in *inst) {
	switch kindOf(in.Op) {
	case kindBranch:
		t.branch(in)
	case kindJump:
		if in.Rd != 0 {
			t.link(in)
		}
	case kindIndirect:
		t.indirect(in)
	case kindLeave:
		t.Jmp(t.slow())
	default:
		t.plain(in)
	}
}

// link sets rd to the address behind the instruction.
func (t *translator) link(in *inst) {
	d := dest(in.Rd, t1)
	t.MovRM(amd64.W64, d, amd64.At(cx, offBase))
	t.ALURI(amd64.ADD, amd64.W64, d, in.next())
	t.write(in.Rd, d)
}

// indirect is JALR.
func (t *translator) indirect(in *inst) {
	t.sum(t0, in.Rs1, in.Imm)
	t.ALURI(amd64.AND, amd64.W64, t0, -2)
	if in.Rd != 0 {
		t.link(in)
	}
	t.jumpFar()
}

// sum leaves guest register r plus imm in dst.
func (t *translator) sum(dst amd64.Reg, r uint8, imm int32) {
	switch {
	case isPinned(r) && imm != 0:
		t.Lea(amd64.W64, dst, amd64.At(pinned[r], imm))
	default:
		t.readInto(dst, r)
		if imm != 0 {
			t.ALURI(amd64.ADD, amd64.W64, dst, imm)
		}
	}
}

var conditions = map[isa.Op]amd64.Cond{
	isa.BEQ: amd64.E, isa.BNE: amd64.NE, isa.BLT: amd64.L, isa.BGE: amd64.GE, isa.BLTU: amd64.B, isa.BGEU: amd64.AE,
}

func (t *translator) branch(in *inst) {
	t.compare(in.Rs1, in.Rs2)
	t.branchTo(conditions[in.Op], int32(in.off)+in.Imm)
}

// compare sets the flags for guest registers a and b.
func (t *translator) compare(a, b uint8) {
	switch {
	case b == 0 && isPinned(a):
		t.TestRR(amd64.W64, pinned[a], pinned[a])
	case b == 0 && a != 0:
		t.ALUMI(amd64.CMP, amd64.W64, x(a), 0)
	case !isPinned(a) && a != 0 && isPinned(b):
		t.ALUMR(amd64.CMP, amd64.W64, x(a), pinned[b])
	default:
		t.with(amd64.CMP, amd64.W64, t.read(a, t0), b)
	}
}
