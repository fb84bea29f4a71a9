//go:build linux && amd64

package jit

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// stub is where code returns to Go at an instruction.
type stub struct {
	label amd64.Label
	site  site
	state int
}

// back is a way back from Go to a label.
type back struct {
	label, to amd64.Label
	state     int
}

// resumption is a label in front of an instruction of the layout.
type resumption struct {
	index int
	label amd64.Label
	bound bool
}

// stop returns a label that returns to Go for the reason s, from a state.
func (t *translator) stop(s site, state int) amd64.Label {
	l := t.NewLabel()
	t.stubs = append(t.stubs, stub{l, s, state})
	return l
}

// wayBack binds a label, which Go comes back to, to what comes next.
func (t *translator) wayBack(l amd64.Label) {
	t.computeOf(former) // which nothing in memory would bring back
	state := t.snapshot()
	if state == settled {
		t.Bind(l)
		return
	}
	here := t.NewLabel()
	t.Bind(here)
	t.backs = append(t.backs, back{l, here, state})
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
	return t.stop(s, t.snapshot())
}

// resumeAt returns the label where code goes on after Go has executed the
// instruction before the one at index, plus one.
func (t *translator) resumeAt(index int) amd64.Label {
	for _, r := range t.after {
		if r.index == index {
			return r.label + 1
		}
	}
	l := t.NewLabel()
	t.after = append(t.after, resumption{index: index, label: l})
	return l + 1
}

// missed is slow for a look into the TLB, which is repeated from the label probe
// on if all that was missing is an entry for the address low from guest register
// base.
func (t *translator) missed(probe amd64.Label, base uint8, low, size int32, store bool) amd64.Label {
	l := t.slow()
	stub := &t.stubs[len(t.stubs)-1]
	if stub.state != settled {
		inner := probe
		probe = t.NewLabel()
		t.backs = append(t.backs, back{probe, inner, stub.state})
	}
	s := &stub.site
	// Inside of a group gp is to be kept meanwhile.
	s.keep = t.group.active && t.group.base != base
	s.probe, s.base, s.low, s.last, s.store = uint32(probe)+1, base, int16(low), uint8(size-1), store
	// What a store does to the page table must not happen before it is certain.
	s.early = store && !accesses[t.seq[t.i].Op].store && accesses[t.seq[t.i].Op].width != 0
	return l
}

// emitStubs makes room for the records of the returns to Go, and emits the returns and
// the ways back.
func (t *translator) emitStubs() {
	t.records = t.Len()
	t.Nop(siteSize * len(t.stubs))
	for i := range t.stubs {
		s := &t.stubs[i]
		t.Bind(s.label)
		if s.site.keep {
			t.MovMR(amd64.W64, amd64.At(cx, offKept), gp)
		}
		if s.state != settled {
			t.restore(s.state)
			t.settle(0)
		}
		t.MovRI(amd64.RCX, int64(t.arena.used+t.records+i*siteSize))
		t.JmpTo(t.arena.leave)
	}
	for _, b := range t.backs {
		t.Bind(b.label)
		t.unsettle(&t.states[b.state])
		t.Jmp(b.to)
	}
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
	early bool // the instruction is no store: one follows
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
	copy(b[14:], []byte{s.last, s.base, s.count, s.before, s.after, flag(s.float), flag(s.store) | flag(s.keep)<<1 | flag(s.early)<<2})
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
		count: b[16], before: b[17], after: b[18], float: b[19] != 0, store: b[20]&1 != 0, keep: b[20]&2 != 0, early: b[20]&4 != 0,
	}
}
