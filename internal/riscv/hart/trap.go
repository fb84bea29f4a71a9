package hart

// Trap takes an exception at PC into supervisor mode (priv 12.1.1, 12.1.2,
// 12.1.8).
func (h *Hart) Trap(cause, tval uint64) {
	h.epc = h.PC
	h.cause = cause
	h.tval = tval
	h.PC = h.vector &^ 3
	if cause&interruptCause != 0 && h.vector&1 != 0 {
		h.PC += 4 * (cause &^ interruptCause)
	}
	h.Status &^= StatusSPP | StatusSPIE
	if h.Mode == Supervisor {
		h.Status |= StatusSPP
	}
	if h.Status&StatusSIE != 0 {
		h.Status |= StatusSPIE
	}
	h.Status &^= StatusSIE
	h.Mode = Supervisor
	h.ClearReservation()
}

// Return is SRET (priv 12.1.1). The caller has checked that the mode is
// supervisor.
func (h *Hart) Return() {
	h.Mode = User
	if h.Status&StatusSPP != 0 {
		h.Mode = Supervisor
	}
	h.Status &^= StatusSIE | StatusSPP
	if h.Status&StatusSPIE != 0 {
		h.Status |= StatusSIE
	}
	h.Status |= StatusSPIE
	h.PC = h.epc
	h.ClearReservation()
}

// Interruptible reports whether an interrupt would be taken now.
func (h *Hart) Interruptible() bool {
	return h.pending&h.enabled != 0 && (h.Mode == User || h.Status&StatusSIE != 0)
}

// Interrupt takes the most urgent interrupt (priv 12.1.3: external, software,
// timer).
//
// Preconditions: Interruptible.
func (h *Hart) Interrupt() {
	ready := h.pending & h.enabled
	switch {
	case ready&ExternalInterrupt != 0:
		h.Trap(interruptCause|9, 0)
	case ready&SoftwareInterrupt != 0:
		h.Trap(interruptCause|1, 0)
	default:
		h.Trap(interruptCause|5, 0)
	}
}

// Wake reports whether an interrupt is pending and locally enabled, which ends
// a WFI whatever SIE says (priv 3.3.3).
func (h *Hart) Wake() bool { return h.pending&h.enabled != 0 }

// SetExternal sets the level of the interrupt from the interrupt controller.
func (h *Hart) SetExternal(level bool) { h.setPending(ExternalInterrupt, level) }

// SetSoftware raises or clears the software interrupt.
func (h *Hart) SetSoftware(level bool) { h.setPending(SoftwareInterrupt, level) }

// SetTimer writes stimecmp, in ticks (Sstc).
func (h *Hart) SetTimer(at uint64) {
	h.timecmp = at
	h.UpdateTimer(h.Time())
}

// UpdateTimer compares stimecmp with now, in ticks.
func (h *Hart) UpdateTimer(now uint64) { h.setPending(TimerInterrupt, now >= h.timecmp) }

// Deadline returns the tick at which the timer wakes the hart, or NeverTimer.
// A timer whose interrupt is not enabled wakes nothing.
func (h *Hart) Deadline() uint64 {
	if h.enabled&TimerInterrupt == 0 {
		return NeverTimer
	}
	return h.timecmp
}

// TimerArmed reports whether the timer may yet become pending, and is worth
// comparing.
func (h *Hart) TimerArmed() bool { return h.timecmp != NeverTimer || h.pending&TimerInterrupt != 0 }

func (h *Hart) setPending(bit uint64, level bool) {
	if level {
		h.pending |= bit
	} else {
		h.pending &^= bit
	}
}
