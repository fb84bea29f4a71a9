package hart

// CSR numbers (priv 2.2, unpriv 20.2).
const (
	CSRFflags     = 0x001
	CSRFrm        = 0x002
	CSRFcsr       = 0x003
	CSRSeed       = 0x015
	CSRSstatus    = 0x100
	CSRSie        = 0x104
	CSRStvec      = 0x105
	CSRScounteren = 0x106
	CSRSenvcfg    = 0x10a
	CSRSscratch   = 0x140
	CSRSepc       = 0x141
	CSRScause     = 0x142
	CSRStval      = 0x143
	CSRSip        = 0x144
	CSRStimecmp   = 0x14d
	CSRSatp       = 0x180
	CSRCycle      = 0xc00
	CSRTime       = 0xc01
	CSRInstret    = 0xc02
)

// Fields of seed, the CSR of the entropy source (Zkr).
const (
	seedReady uint64 = 2 << 30 // ES16: 16 bits of entropy are there
	seedDead  uint64 = 3 << 30
)

// WriteOnly reports whether a CSR must not be read by an instruction that does not
// write it. Reading seed takes entropy away, so it has to be asked for.
func WriteOnly(csr uint32) bool { return csr == CSRSeed }

// Fields of satp (priv 12.1.11).
const (
	satpModeShift = 60
	satpBare      = 0
	satpSv39      = 8
	satpASIDShift = 44

	// ASIDBits is how many bits of an address-space identifier exist.
	ASIDBits = 11

	satpPPN  uint64 = 1<<44 - 1
	satpASID uint64 = (1<<ASIDBits - 1) << satpASIDShift
)

// Sv39 reports whether translation is on for the value of satp.
func Sv39(satp uint64) bool { return satp>>satpModeShift == satpSv39 }

// RootTable returns the GPA of the root page table that satp names.
func RootTable(satp uint64) uint64 { return satp & satpPPN << 12 }

// ASID returns the address-space identifier in satp.
func ASID(satp uint64) uint64 { return satp & satpASID >> satpASIDShift }

// Effect is what a CSR write may have changed beyond the register.
type Effect uint8

// The effects.
const (
	NoEffect    Effect = iota
	Interrupts         // an interrupt may have become deliverable
	Permissions        // SUM or MXR, and perhaps interrupts
	Translation        // satp
)

// readable reports whether the CSR may be accessed at all in the present mode.
func (h *Hart) accessible(csr uint32) bool {
	if Mode(csr>>8&3) > h.Mode {
		return false
	}
	switch csr {
	case CSRFflags, CSRFrm, CSRFcsr:
		return !h.FloatOff()
	case CSRSeed:
		return h.Mode == Supervisor // as with mseccfg.SSEED set and USEED clear
	case CSRCycle, CSRTime, CSRInstret:
		return h.Mode != User || h.counters>>(csr&3)&1 != 0
	}
	return true
}

// ReadCSR returns the value of a CSR; ok is false if the access is illegal.
func (h *Hart) ReadCSR(csr uint32) (v uint64, ok bool) {
	if !h.accessible(csr) {
		return 0, false
	}
	switch csr {
	case CSRFflags:
		return uint64(h.FCSR & 31), true
	case CSRFrm:
		return uint64(h.FCSR >> 5), true
	case CSRFcsr:
		return uint64(h.FCSR), true
	case CSRSeed:
		return h.seed(), true
	case CSRSstatus:
		return h.sstatus(), true
	case CSRSie:
		return h.enabled, true
	case CSRStvec:
		return h.vector, true
	case CSRScounteren:
		return h.counters, true
	case CSRSenvcfg:
		return h.envcfg, true
	case CSRSscratch:
		return h.scratch, true
	case CSRSepc:
		return h.epc, true
	case CSRScause:
		return h.cause, true
	case CSRStval:
		return h.tval, true
	case CSRSip:
		return h.pending, true
	case CSRStimecmp:
		return h.timecmp, true
	case CSRSatp:
		return h.satp, true
	case CSRTime:
		return h.Time(), true
	case CSRCycle, CSRInstret:
		return h.Retired, true
	}
	return 0, false
}

func (h *Hart) seed() uint64 {
	if h.Seed != nil {
		if entropy, ok := h.Seed(); ok {
			return seedReady | uint64(entropy)
		}
	}
	return seedDead
}

func (h *Hart) sstatus() uint64 {
	v := h.Status | StatusUXL
	if v&StatusFS == StatusFS {
		v |= statusSD
	}
	return v
}

// WriteCSR sets a CSR, keeping of v what is legal; ok is false if the access
// is illegal.
func (h *Hart) WriteCSR(csr uint32, v uint64) (eff Effect, ok bool) {
	if csr>>10 == 3 || !h.accessible(csr) {
		return NoEffect, false
	}
	switch csr {
	case CSRFflags:
		h.writeFCSR(uint64(h.FCSR)&^31 | v&31)
	case CSRFrm:
		h.writeFCSR(uint64(h.FCSR)&31 | v<<5)
	case CSRFcsr:
		h.writeFCSR(v)
	case CSRSeed: // whatever is written
	case CSRSstatus:
		return h.writeStatus(v), true
	case CSRSie:
		h.enabled = v & interruptBits
		return Interrupts, true
	case CSRStvec:
		h.vector = legalVector(v)
	case CSRScounteren:
		h.counters = legalCounters(v)
	case CSRSenvcfg:
		h.envcfg = legalEnvcfg(v)
	case CSRSscratch:
		h.scratch = v
	case CSRSepc:
		h.epc = legalEPC(v)
	case CSRScause:
		h.cause = v
	case CSRStval:
		h.tval = v
	case CSRSip:
		h.setPending(SoftwareInterrupt, v&SoftwareInterrupt != 0)
		return Interrupts, true
	case CSRStimecmp:
		h.SetTimer(v)
		return Interrupts, true
	case CSRSatp:
		if !legalSATP(v) {
			return NoEffect, true // priv 12.1.11: the whole write is ignored
		}
		h.satp = v & (15<<satpModeShift | satpASID | satpPPN)
		return Translation, true
	default:
		return NoEffect, false
	}
	return NoEffect, true
}

func (h *Hart) writeFCSR(v uint64) {
	h.FCSR = uint8(v)
	h.FloatDirty()
}

func (h *Hart) writeStatus(v uint64) Effect {
	changed := h.Status ^ v
	h.Status = v & statusWritable
	switch {
	case changed&(StatusSUM|StatusMXR) != 0:
		return Permissions
	case changed&v&StatusSIE != 0:
		return Interrupts
	}
	return NoEffect
}

func legalVector(v uint64) uint64   { return v &^ 2 }
func legalEPC(v uint64) uint64      { return v &^ 1 }
func legalCounters(v uint64) uint64 { return v & (counterCY | counterTM | counterIR) }
func legalEnvcfg(v uint64) uint64   { return v & (environmentCBZE | environmentFIOM) }

func legalSATP(v uint64) bool {
	mode := v >> satpModeShift
	return mode == satpBare || mode == satpSv39
}
