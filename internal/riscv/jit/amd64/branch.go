package amd64

// Jcc goes to l if c holds. It takes two bytes if l is bound and near.
func (a *Asm) Jcc(c Cond, l Label) { a.branch(0x70|byte(c&15), 0x80|esc|enc(c&15), l) }

// Jmp goes to l. It takes two bytes if l is bound and near.
func (a *Asm) Jmp(l Label) { a.branch(0xEB, 0xE9, l) }

func (a *Asm) branch(short byte, long enc, l Label) {
	if to := a.Offset(l); to >= 0 && a.n+2-to <= 128 {
		p := a.slot()
		p[0], p[1] = short, byte(to-a.n-2)
		a.end(2)
		return
	}
	p, n := a.head(long, 0)
	a.endLabel(p, n, l)
}

// JccTo goes to the address target if c holds. It is six bytes long, the last
// four being the distance.
func (a *Asm) JccTo(c Cond, target uintptr) {
	p, n := a.head(0x80|esc|enc(c&15), 0)
	a.endRel(p, n, a.distance(target))
}

// JmpTo goes to the address target. It is five bytes long, the last four
// being the distance.
func (a *Asm) JmpTo(target uintptr) {
	p, n := a.head(0xE9, 0)
	a.endRel(p, n, a.distance(target))
}

// distance is how far target is from the next instruction.
func (a *Asm) distance(target uintptr) int64 { return int64(target) - int64(a.base) - int64(a.n) }

// JmpR goes to the address in r.
func (a *Asm) JmpR(r Reg) { a.opRR(0xFF, 4, r) }

// JmpM goes to the address in [m].
func (a *Asm) JmpM(m Mem) { a.opRM(0xFF, 4, m) }

// JmpMLabel jumps to the address that is stored at l.
func (a *Asm) JmpMLabel(l Label) {
	const e = 0xFF
	p, n := a.head(e, 0)
	p[n&15] = 4<<3 | 5 // relative to the next instruction
	a.endLabel(p, n+1, l)
}

// CallR calls the address in r.
func (a *Asm) CallR(r Reg) { a.opRR(0xFF, 2, r) }

// Ret returns.
func (a *Asm) Ret() { a.op(0xC3) }

// Pause tells the host that this is a spin loop.
func (a *Asm) Pause() { a.op(0x90 | repF3) }

// Int3 traps.
func (a *Asm) Int3() { a.op(0xCC) }

// nops are the recommended nops by length.
var nops = [10]string{
	"",
	"\x90",
	"\x66\x90",
	"\x0F\x1F\x00",
	"\x0F\x1F\x40\x00",
	"\x0F\x1F\x44\x00\x00",
	"\x66\x0F\x1F\x44\x00\x00",
	"\x0F\x1F\x80\x00\x00\x00\x00",
	"\x0F\x1F\x84\x00\x00\x00\x00\x00",
	"\x66\x0F\x1F\x84\x00\x00\x00\x00\x00",
}

// Nop does nothing in n bytes, by as few instructions as that takes. Where not
// all fit the buffer, the first of them may be there.
func (a *Asm) Nop(n int) {
	for n > 0 && !a.over {
		k := min(n, len(nops)-1)
		copy(a.slot()[:], nops[k])
		a.end(k)
		n -= k
	}
}
