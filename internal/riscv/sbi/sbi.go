// Package sbi answers the supervisor binary interface: what firmware does in
// machine mode on real hardware (SBI 2.0: base, TIME, IPI, RFENCE, HSM, SRST,
// DBCN, and the legacy putchar).
//
// It acts on the hart that calls and on what its Host offers: other harts may be
// executing, and are only asked for things. Calls are made by one hart at a time;
// there are no locks.
package sbi

import (
	"io"
	"math/bits"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

// Outcome is what the calling hart does next.
type Outcome uint8

// The outcomes.
const (
	Continue Outcome = iota
	Wait             // until an interrupt is pending
	Stop             // until another hart starts it
	Off              // the machine
	Reset            // the machine
	Failed           // the machine off, after the guest reported a failure
)

// Fence is a remote fence. Exactly one of the forms holds: Code; or a range of
// GVAs, where a Size of zero stands for all, in one address space or in all.
type Fence struct {
	Code    bool
	Start   uint64
	Size    uint64
	ASID    uint64
	HasASID bool
}

// Host is what the machine does for its firmware. What it is asked for takes
// effect on the harts named soon, and in any case before the next instruction of
// one that waits or is stopped.
type Host interface {
	// Interrupt raises the hart's software interrupt.
	Interrupt(id int)
	// Start has a stopped hart start at entry; see hart.Start.
	Start(id int, entry, opaque uint64)
	// Fence returns when none of the harts, given as bits, executes another
	// instruction before the fence.
	Fence(harts uint64, f Fence)
}

// maxHarts is how many harts fit into a set of them.
const maxHarts = 64

// SBI is the firmware of one machine.
type SBI struct {
	Memory  *memory.Space
	Console io.Writer // may be nil
	Host    Host

	// Stopped tells for each hart whether it is stopped, as hart_start and
	// hart_stop see it; a hart may be a little behind.
	Stopped []bool
}

// Extension numbers.
const (
	extLegacyPutchar = 0x01
	extBase          = 0x10
	extTime          = 0x54494d45 // "TIME"
	extIPI           = 0x735049   // "sPI"
	extRFence        = 0x52464e43 // "RFNC"
	extHSM           = 0x48534d   // "HSM"
	extSRST          = 0x53525354 // "SRST"
	extDBCN          = 0x4442434e // "DBCN"
)

// status is an SBI error code (sbi 3).
type status int64

const (
	success          status = 0
	failed           status = -1
	notSupported     status = -2
	invalidParam     status = -3
	invalidAddress   status = -5
	alreadyAvailable status = -6
)

const (
	specVersion = 2 << 24
	// implementation is not one of the registered numbers.
	implementation        = 0x666f726b
	implementationVersion = 1
)

// Call answers the call that h has made: numbers in a7 and a6, arguments in a0
// to a5, results in a0 and a1.
func (s *SBI) Call(h *hart.Hart) Outcome {
	args := h.X[10:16]
	if h.X[17] == extLegacyPutchar {
		s.print([]byte{byte(args[0])})
		h.X[10] = 0
		return Continue
	}
	value, st, outcome := s.dispatch(h, h.X[17], h.X[16], [6]uint64(args))
	h.X[10], h.X[11] = uint64(st), value
	return outcome
}

func (s *SBI) dispatch(h *hart.Hart, ext, fn uint64, a [6]uint64) (value uint64, st status, _ Outcome) {
	switch ext {
	case extBase:
		value, st = base(fn, a[0])
	case extTime:
		if fn != 0 {
			return 0, notSupported, Continue
		}
		h.SetTimer(a[0])
	case extIPI:
		if fn != 0 {
			return 0, notSupported, Continue
		}
		var harts uint64
		harts, st = s.harts(a[0], a[1])
		for ; harts != 0; harts &= harts - 1 {
			s.Host.Interrupt(bits.TrailingZeros64(harts))
		}
	case extRFence:
		st = s.remoteFence(fn, a)
	case extHSM:
		return s.hartState(h, fn, a)
	case extSRST:
		st, outcome := systemReset(fn, a[0], a[1])
		return 0, st, outcome
	case extDBCN:
		value, st = s.debugConsole(fn, a)
	default:
		st = notSupported
	}
	return value, st, Continue
}

// base is the base extension (sbi 4).
func base(fn, arg uint64) (uint64, status) {
	switch fn {
	case 0:
		return specVersion, success
	case 1:
		return implementation, success
	case 2:
		return implementationVersion, success
	case 3:
		switch arg {
		case extLegacyPutchar, extBase, extTime, extIPI, extRFence, extHSM, extSRST, extDBCN:
			return 1, success
		}
		return 0, success
	case 4, 5, 6: // mvendorid, marchid, mimpid
		return 0, success
	}
	return 0, notSupported
}

// harts returns the harts of a mask, all of which must exist (sbi 3.1).
func (s *SBI) harts(mask, first uint64) (uint64, status) {
	n := uint64(len(s.Stopped))
	if first == ^uint64(0) {
		return ^uint64(0) >> (maxHarts - n), success
	}
	if mask != 0 && (first >= n || first+uint64(bits.Len64(mask)) > n) {
		return 0, invalidParam
	}
	if mask == 0 {
		return 0, success
	}
	return mask << first, success
}

// remoteFence is RFENCE (sbi 8).
func (s *SBI) remoteFence(fn uint64, a [6]uint64) status {
	f := Fence{Start: a[2], Size: a[3]}
	switch fn {
	case 0:
		f = Fence{Code: true}
	case 1:
	case 2:
		f.ASID, f.HasASID = a[4], true
	default:
		return notSupported
	}
	if f.Size == ^uint64(0) || f.Start == 0 && f.Size == 0 {
		f.Start, f.Size = 0, 0
	}
	if f.Size > 0 && f.Start+(f.Size-1) < f.Start { // a range may end with the last address
		return invalidAddress
	}
	harts, st := s.harts(a[0], a[1])
	if harts != 0 {
		s.Host.Fence(harts, f)
	}
	return st
}

// hartState is HSM (sbi 9).
func (s *SBI) hartState(h *hart.Hart, fn uint64, a [6]uint64) (value uint64, st status, _ Outcome) {
	switch fn {
	case 0:
		return 0, s.startHart(a[0], a[1], a[2]), Continue
	case 1:
		s.Stopped[h.ID] = true
		return 0, success, Stop
	case 2:
		if a[0] >= uint64(len(s.Stopped)) {
			return 0, invalidParam, Continue
		}
		// A hart in WFI is started as far as software can tell, and a hart
		// suspended through fn 3 is the same here.
		return truth(s.Stopped[a[0]]), success, Continue
	case 3:
		if a[0] != 0 { // only the default retentive suspension
			return 0, invalidParam, Continue
		}
		return 0, success, Wait
	}
	return 0, notSupported, Continue
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (s *SBI) startHart(id, entry, opaque uint64) status {
	if id >= uint64(len(s.Stopped)) {
		return invalidParam
	}
	if !s.Stopped[id] {
		return alreadyAvailable
	}
	if entry%2 != 0 || s.Memory.Check(entry, 2) != nil {
		return invalidAddress
	}
	s.Stopped[id] = false
	s.Host.Start(int(id), entry, opaque)
	return success
}

// systemReset is SRST (sbi 10).
func systemReset(fn, kind, reason uint64) (status, Outcome) {
	if fn != 0 {
		return notSupported, Continue
	}
	switch {
	case kind == 0 && reason == 1:
		return success, Failed
	case kind == 0:
		return success, Off
	case kind == 1 || kind == 2:
		return success, Reset
	}
	return invalidParam, Continue
}

// maxPrint is how many bytes one call writes; the guest calls again with the
// rest, as the interface lets it.
const maxPrint = 4096

// debugConsole is DBCN (sbi 12).
func (s *SBI) debugConsole(fn uint64, a [6]uint64) (value uint64, st status) {
	switch fn {
	case 0:
		b := make([]byte, min(a[0], maxPrint))
		if a[2] != 0 || s.Memory.Read(a[1], b) != nil {
			return 0, invalidParam
		}
		if !s.print(b) {
			return 0, failed
		}
		return uint64(len(b)), success
	case 1: // nothing is ever typed
		return 0, success
	case 2:
		if !s.print([]byte{byte(a[0])}) {
			return 0, failed
		}
		return 0, success
	}
	return 0, notSupported
}

func (s *SBI) print(b []byte) bool {
	if s.Console == nil {
		return true
	}
	_, err := s.Console.Write(b)
	return err == nil
}
