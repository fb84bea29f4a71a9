package hart

import "github.com/forkd-dev/forkd/internal/state"

// StateVersion is the version of the section that Save writes.
const StateVersion = 1

// Save writes all architectural state but the reservation, which a saved hart
// loses: an SC after a restore fails, as after any trap.
func (h *Hart) Save(e *state.Encoder) {
	for _, v := range h.X[1:Discard] {
		e.U64(v)
	}
	for _, v := range h.F {
		e.U64(v)
	}
	e.U64(h.PC)
	e.U8(uint8(h.Mode))
	e.U8(uint8(h.Power))
	e.U8(h.FCSR)
	for _, v := range h.words() {
		e.U64(*v)
	}
}

// words lists the 64-bit registers in the order in which they are saved.
func (h *Hart) words() []*uint64 {
	return []*uint64{
		&h.Status, &h.enabled, &h.pending, &h.vector, &h.scratch, &h.epc, &h.cause, &h.tval,
		&h.counters, &h.envcfg, &h.satp, &h.timecmp, &h.Retired,
	}
}

// Restore returns the hart that Save wrote. Values that no hart can hold are
// refused through d; the caller checks d.Done.
func Restore(id int, time func() uint64, d *state.Decoder) *Hart {
	h := New(id, time)
	for i := range h.X[1:Discard] {
		h.X[1+i] = d.U64()
	}
	for i := range h.F {
		h.F[i] = d.U64()
	}
	h.PC = d.U64()
	h.Mode, h.Power = Mode(d.U8()), Power(d.U8())
	h.FCSR = d.U8()
	for _, v := range h.words() {
		*v = d.U64()
	}
	if reason := h.illegal(); reason != "" {
		d.Fail(reason)
	}
	return h
}

// illegal names a field that holds a value no execution leads to.
func (h *Hart) illegal() string {
	switch {
	case h.PC&1 != 0:
		return "program counter is odd"
	case h.Mode > Supervisor:
		return "privilege mode does not exist"
	case h.Power > Waiting:
		return "power state does not exist"
	case h.Status&^statusWritable != 0:
		return "sstatus has reserved bits"
	case (h.enabled|h.pending)&^interruptBits != 0:
		return "sie or sip has reserved bits"
	case h.vector != legalVector(h.vector) || h.epc != legalEPC(h.epc):
		return "stvec or sepc has reserved bits"
	case h.counters != legalCounters(h.counters) || h.envcfg != legalEnvcfg(h.envcfg):
		return "scounteren or senvcfg has reserved bits"
	case !legalSATP(h.satp) || h.satp&^(15<<satpModeShift|satpASID|satpPPN) != 0:
		return "satp has reserved bits"
	}
	return ""
}
