package amd64

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// What Finish reports.
var (
	// ErrOverflow: the buffer was too small.
	ErrOverflow = errors.New("amd64: code buffer is full")
	// ErrLabel: a label is used but not bound, bound twice, or not of this Asm.
	ErrLabel = errors.New("amd64: label unbound, bound twice or unknown")
	// ErrRange: the target of a branch is more than 2 GiB away.
	ErrRange = errors.New("amd64: branch target out of reach")
	// ErrOperand: an operand that the instruction does not have.
	ErrOperand = errors.New("amd64: no such form of the instruction")
)

// slotLen is the room that an instruction is encoded in: more than the 15
// bytes that one can have, so that displacements and immediates are stored as
// whole words at any position without further checks.
const slotLen = 32

type slot = [slotLen]byte

// Label is a position in the code of one Asm, known at once or later.
type Label int

// use is a 32-bit field that is to hold the distance to a label.
type use struct {
	at    int
	label Label
}

// Asm appends instructions to a buffer. The zero value has no room; call Reset.
type Asm struct {
	buf    []byte // its length is the limit
	n      int
	base   uintptr
	seen   enc // all the forms emitted, to find bad ones late
	over   bool
	err    error // the first fault other than overflow and bad forms
	labels []int // offset, or -1 while unbound
	uses   []use
	tail   slot // stands in for the buffer where that has no whole slot left
}

// Reset starts new code at the first byte of buf, whatever its length, with
// its capacity as the limit. The code will run at address base. Labels of
// earlier code are forgotten.
func (a *Asm) Reset(buf []byte, base uintptr) {
	a.buf, a.n, a.base = buf[:cap(buf)], 0, base
	a.seen, a.over, a.err = 0, false, nil
	a.labels, a.uses = a.labels[:0], a.uses[:0]
}

// Seek goes on at the offset at, where the code must end before the offset limit.
// Both may be anywhere in the buffer's capacity.
func (a *Asm) Seek(at, limit int) { a.buf, a.n = a.buf[:limit], at }

// Len is the length of the code in bytes or, after a Seek, the offset of its end.
func (a *Asm) Len() int { return a.n }

// Bytes is the code, in the caller's buffer.
func (a *Asm) Bytes() []byte { return a.buf[:a.n] }

// Overflow reports that the buffer was too small for the code.
func (a *Asm) Overflow() bool { return a.over }

// NewLabel makes a label that is not bound yet.
func (a *Asm) NewLabel() Label {
	a.labels = append(a.labels, -1)
	return Label(len(a.labels) - 1)
}

// Bind puts l at the next instruction.
func (a *Asm) Bind(l Label) {
	if uint(l) >= uint(len(a.labels)) || a.labels[l] >= 0 {
		a.fail(ErrLabel)
		return
	}
	a.labels[l] = a.n
}

// Offset is where l is bound, in bytes from the start; -1 if it is not.
func (a *Asm) Offset(l Label) int {
	if uint(l) >= uint(len(a.labels)) {
		return -1
	}
	return a.labels[l]
}

// Finish fills in the distances to labels. An error means that the code must
// not run: ErrOverflow, ErrOperand, ErrRange or ErrLabel, tested by errors.Is.
func (a *Asm) Finish() error {
	switch {
	case a.over:
		return fmt.Errorf("%w: %d bytes hold only a part of it", ErrOverflow, a.n)
	case a.err != nil:
		return a.err
	case a.seen&bad != 0:
		return ErrOperand
	}
	for _, u := range a.uses {
		to := a.Offset(u.label)
		if to < 0 {
			return fmt.Errorf("%w: label %d, used at offset %#x", ErrLabel, u.label, u.at)
		}
		rel := int64(to) - int64(u.at+4)
		if rel != int64(int32(rel)) {
			return fmt.Errorf("%w: label %d, used at offset %#x", ErrRange, u.label, u.at)
		}
		binary.LittleEndian.PutUint32(a.buf[u.at:], uint32(rel))
	}
	a.uses = a.uses[:0]
	return nil
}

// fail remembers the first fault.
func (a *Asm) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// slot is where the next instruction is to be encoded.
func (a *Asm) slot() *slot {
	if len(a.buf)-a.n >= slotLen {
		return (*slot)(a.buf[a.n:])
	}
	return &a.tail
}

// end takes the n bytes in the slot as an instruction.
func (a *Asm) end(n int) {
	if len(a.buf)-a.n >= slotLen {
		a.n += n
		return
	}
	a.endTail(n)
}

// endTail ends an instruction that was encoded in a.tail. On overflow the
// limit becomes the current length, so that nothing shorter slips in later.
func (a *Asm) endTail(n int) {
	if n > len(a.buf)-a.n {
		a.over = true
		a.buf = a.buf[:a.n]
		return
	}
	copy(a.buf[a.n:], a.tail[:n])
	a.n += n
}

// endImm ends with the low size bytes of v; n bytes come before.
func (a *Asm) endImm(p *slot, n int, v int32, size int) {
	put32(p, n, uint32(v))
	a.end(n + size)
}

// endLabel ends with the 32-bit distance to l; n bytes come before.
func (a *Asm) endLabel(p *slot, n int, l Label) {
	if to := a.Offset(l); to >= 0 {
		a.endRel(p, n, int64(to)-int64(a.n))
		return
	}
	a.uses = append(a.uses, use{at: a.n + n, label: l})
	a.endImm(p, n, 0, 4)
}

// endRel ends with the 32-bit distance to what is d bytes after the start of
// the instruction; n bytes come before.
func (a *Asm) endRel(p *slot, n int, d int64) {
	d -= int64(n + 4)
	if d < math.MinInt32 || d > math.MaxInt32 {
		a.fail(ErrRange)
	}
	a.endImm(p, n, int32(d), 4)
}

// put32 stores v at p[n:]; n is below 16.
func put32(p *slot, n int, v uint32) {
	i := n & 15
	binary.LittleEndian.PutUint32(p[i:i+4], v)
}
