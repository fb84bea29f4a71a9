//go:build linux && amd64

package jit

import (
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// A kernel enters and leaves by way of a few CSRs, and disables interrupts all the
// time. Those accesses are native as long as nothing follows from them but a change of
// the register.

// field is where a part of the hart lies.
func field(off uintptr) amd64.Mem { return amd64.At(hp, int32(off)-bias) }

// words are the CSRs of supervisor mode that are read and, if legal is not zero,
// written as they are, but for the bits that legal lacks.
var words = map[int32]struct {
	at    uintptr
	legal int32
}{
	hart.CSRSscratch: {hart.OffsetScratch, -1},
	hart.CSRSepc:     {hart.OffsetEPC, -2},
	hart.CSRScause:   {hart.OffsetCause, -1},
	hart.CSRStval:    {hart.OffsetTval, -1},
}

// csr emits a CSR instruction (unpriv 7.1).
func (t *translator) csr(in *inst) {
	immediate := in.Op >= isa.CSRRWI
	exchange := in.Op == isa.CSRRW || in.Op == isa.CSRRWI
	word, plain := words[in.Imm]
	slow := t.slow()
	switch {
	case in.Imm == hart.CSRSstatus && (!exchange && (immediate || in.Rs1 == 0)):
		t.supervisor(slow)
		t.statusBit(in, slow)
	case in.Imm == hart.CSRSstatus && !immediate:
		t.supervisor(slow)
		t.status(in, slow)
	case plain && !exchange && in.Rs1 == 0:
		t.supervisor(slow)
		t.MovRM(amd64.W64, t0, field(word.at))
		t.write(in.Rd, t0)
	case plain && in.Op == isa.CSRRW:
		t.supervisor(slow)
		t.readInto(t1, in.Rs1)
		if word.legal != -1 {
			t.ALURI(amd64.AND, amd64.W64, t1, word.legal)
		}
		t.MovRM(amd64.W64, t0, field(word.at))
		t.MovMR(amd64.W64, field(word.at), t1)
		t.write(in.Rd, t0)
	default:
		t.Jmp(slow)
	}
}

// supervisor goes to the label slow unless the hart is in supervisor mode. A page may
// be executed in both.
func (t *translator) supervisor(slow amd64.Label) {
	t.ALUMI(amd64.CMP, amd64.W8, field(offMode), int32(hart.Supervisor))
	t.Jcc(amd64.NE, slow)
}

// statusBit emits an access to sstatus that can set or clear no other bit than SIE.
func (t *translator) statusBit(in *inst, slow amd64.Label) {
	sie := int32(in.Rs1) & int32(hart.StatusSIE)
	set := in.Op == isa.CSRRSI
	if set && sie != 0 {
		t.deliverable(slow)
	}
	if in.Rd != 0 {
		t.MovRM(amd64.W64, t0, field(offStatus))
	}
	switch {
	case sie == 0:
	case set:
		t.ALUMI(amd64.OR, amd64.W64, field(offStatus), sie)
	default:
		t.ALUMI(amd64.AND, amd64.W64, field(offStatus), ^sie)
	}
	t.readStatus(in)
}

// status emits an access to sstatus with a register. What has to do with translation,
// Go does.
func (t *translator) status(in *inst, slow amd64.Label) {
	t.MovRM(amd64.W64, t0, field(offStatus))
	t.readInto(t1, in.Rs1)
	switch in.Op {
	case isa.CSRRS:
		t.ALURI(amd64.AND, amd64.W64, t1, int32(hart.StatusWritable))
		t.ALURR(amd64.OR, amd64.W64, t1, t0)
	case isa.CSRRC:
		t.Not(amd64.W64, t1)
		t.ALURR(amd64.AND, amd64.W64, t1, t0)
	default:
		t.ALURI(amd64.AND, amd64.W64, t1, int32(hart.StatusWritable))
	}
	t.MovRR(amd64.W64, gp, t0)
	t.ALURR(amd64.XOR, amd64.W64, gp, t1)
	t.TestRI(amd64.W32, gp, int32(hart.StatusSUM|hart.StatusMXR))
	t.Jcc(amd64.NE, slow)
	if in.Op != isa.CSRRC {
		calm := t.NewLabel()
		t.ALURR(amd64.AND, amd64.W32, gp, t1)
		t.TestRI(amd64.W32, gp, int32(hart.StatusSIE))
		t.Jcc(amd64.E, calm)
		t.deliverable(slow)
		t.Bind(calm)
	}
	t.MovMR(amd64.W64, field(offStatus), t1)
	t.allowFloat()
	t.readStatus(in)
}

// allowFloat notes whether floating point may be native after t1 has become the
// hart's Status; see floatReady.
func (t *translator) allowFloat() {
	t.float = false
	t.Not(amd64.W32, t1)
	t.TestRI(amd64.W32, t1, int32(hart.StatusFS))
	t.Setcc(amd64.E, t1)
	t.ALUMI(amd64.CMP, amd64.W8, field(offFCSR), 1<<5)
	t.Setcc(amd64.B, gp)
	t.ALURR(amd64.AND, amd64.W32, t1, gp)
	t.MovMR(amd64.W8, amd64.At(cx, offFloat), t1)
}

// deliverable goes to the label slow if an interrupt is only waiting for SIE.
func (t *translator) deliverable(slow amd64.Label) {
	t.MovRM(amd64.W64, gp, field(hart.OffsetPending))
	t.ALURM(amd64.AND, amd64.W64, gp, field(hart.OffsetEnabled))
	t.Jcc(amd64.NE, slow)
}

// readStatus makes rd what sstatus reads as if Hart.Status is t0.
func (t *translator) readStatus(in *inst) {
	if in.Rd == 0 {
		return
	}
	const dirty = 14 // the upper bit of FS; SD is set if both are
	t.Lea(amd64.W64, t1, amd64.AtIndex(t0, t0, 1, 0))
	t.ALURR(amd64.AND, amd64.W32, t1, t0)
	t.ALURI(amd64.AND, amd64.W32, t1, 1<<dirty)
	t.ShiftRI(amd64.SHL, amd64.W64, t1, 63-dirty)
	t.ALURR(amd64.OR, amd64.W64, t0, t1)
	t.MovRI(t1, int64(hart.StatusUXL))
	t.ALURR(amd64.OR, amd64.W64, t0, t1)
	t.write(in.Rd, t0)
}
