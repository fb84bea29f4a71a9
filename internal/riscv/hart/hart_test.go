package hart

import (
	"errors"
	"testing"

	"github.com/forkd-dev/forkd/internal/state"
)

func newHart() *Hart {
	h := New(3, func() uint64 { return 1000 })
	h.Power = Started
	return h
}

// TestLegalValues: what is written, and what is then read (WARL and WLRL
// fields, priv 2.3).
func TestLegalValues(t *testing.T) {
	const all = ^uint64(0)
	for name, test := range map[string]struct {
		csr         uint32
		write, want uint64
	}{
		"priv-12.1.1-sstatus":        {CSRSstatus, all, 0x8000_0002_000c_6122},
		"priv-12.1.1-sstatus-clear":  {CSRSstatus, 0, 0x0000_0002_0000_0000},
		"priv-12.1.1-sstatus-clean":  {CSRSstatus, 2 << 13, 0x0000_0002_0000_4000},
		"priv-12.1.2-stvec":          {CSRStvec, all, all &^ 2},
		"priv-12.1.3-sie":            {CSRSie, all, 0x222},
		"priv-12.1.3-sip":            {CSRSip, all, 0x002},
		"priv-12.1.5-scounteren":     {CSRScounteren, all, 7},
		"priv-12.1.6-sscratch":       {CSRSscratch, all, all},
		"priv-12.1.7-sepc":           {CSRSepc, all, all &^ 1},
		"priv-12.1.8-scause":         {CSRScause, 1<<63 | 5, 1<<63 | 5},
		"priv-12.1.9-stval":          {CSRStval, all, all},
		"priv-12.1.10-senvcfg":       {CSRSenvcfg, all, 0x81},
		"priv-12.1.11-satp":          {CSRSatp, 8<<60 | 0xffff<<44 | 0x12345, 8<<60 | 0x7ff<<44 | 0x12345},
		"priv-12.1.11-satp-bad-mode": {CSRSatp, 9<<60 | 0x12345, 0},
		"unpriv-20.2-fflags":         {CSRFflags, all, 0x1f},
		"unpriv-20.2-frm":            {CSRFrm, all, 7},
		"unpriv-20.2-fcsr":           {CSRFcsr, all, 0xff},
		"stimecmp":                   {CSRStimecmp, all, all},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHart()
			h.Status = StatusFS
			if _, ok := h.WriteCSR(test.csr, test.write); !ok {
				t.Fatal("not writable")
			}
			if got, ok := h.ReadCSR(test.csr); !ok || got != test.want {
				t.Errorf("wrote %#x, read %#x (%v), want %#x", test.write, got, ok, test.want)
			}
		})
	}
}

// TestFloatState: writes make the state dirty, and SD summarises it.
func TestFloatState(t *testing.T) {
	for _, csr := range []uint32{CSRFflags, CSRFrm, CSRFcsr} {
		h := newHart()
		h.Status = 1 << 13 // initial
		h.WriteCSR(csr, 1)
		if v, _ := h.ReadCSR(CSRSstatus); v>>63 != 1 || v&StatusFS != StatusFS {
			t.Errorf("after a write of CSR %#x sstatus is %#x", csr, v)
		}
	}
	h := newHart()
	h.Status = StatusFS
	h.WriteCSR(CSRFcsr, 3<<5|0x11)
	if v, _ := h.ReadCSR(CSRFrm); v != 3 {
		t.Errorf("frm is %d", v)
	}
	if v, _ := h.ReadCSR(CSRFflags); v != 0x11 {
		t.Errorf("fflags is %#x", v)
	}
}

// TestInterrupts: which interrupt is taken when (priv 12.1.3), and where it goes
// (priv 12.1.2).
func TestInterrupts(t *testing.T) {
	const S, T, E = SoftwareInterrupt, TimerInterrupt, ExternalInterrupt
	for name, test := range map[string]struct {
		pending, enabled uint64
		mode             Mode
		sie              bool
		vector           uint64
		cause            uint64 // zero: none is taken
		pc               uint64
		wake             bool
	}{
		"none":                      {0, S | T | E, Supervisor, true, 0x100, 0, 0, false},
		"not-enabled":               {S | T, E, Supervisor, true, 0x100, 0, 0, false},
		"globally-off":              {T, T, Supervisor, false, 0x100, 0, 0, true},
		"globally-off-in-user-mode": {T, T, User, false, 0x100, 5, 0x100, true},
		"timer":                     {T, T, Supervisor, true, 0x100, 5, 0x100, true},
		"software-before-timer":     {T | S, T | S, Supervisor, true, 0x100, 1, 0x100, true},
		"external-first":            {T | S | E, T | S | E, Supervisor, true, 0x100, 9, 0x100, true},
		"enabled-one-of-three":      {T | S | E, T, Supervisor, true, 0x100, 5, 0x100, true},
		"vectored":                  {E, E, User, true, 0x101, 9, 0x100 + 36, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHart()
			h.PC, h.Mode = 0x4000, test.mode
			h.pending, h.enabled, h.vector = test.pending, test.enabled, test.vector
			if test.sie {
				h.Status |= StatusSIE
			}
			if h.Wake() != test.wake {
				t.Errorf("wake is %v", h.Wake())
			}
			if h.Interruptible() != (test.cause != 0) {
				t.Fatalf("interruptible is %v", h.Interruptible())
			}
			if test.cause == 0 {
				return
			}
			h.Interrupt()
			if h.cause != 1<<63|test.cause || h.PC != test.pc || h.epc != 0x4000 || h.tval != 0 || h.Mode != Supervisor {
				t.Errorf("cause %#x, PC %#x, sepc %#x, stval %#x, mode %d", h.cause, h.PC, h.epc, h.tval, h.Mode)
			}
			if h.Status&StatusSIE != 0 || h.Status&StatusSPIE != 0 != test.sie || h.Status&StatusSPP != 0 != (test.mode == Supervisor) {
				t.Errorf("sstatus is %#x", h.Status)
			}
		})
	}
}

// TestExceptionsAreNotVectored (priv 12.1.2).
func TestExceptionsAreNotVectored(t *testing.T) {
	h := newHart()
	h.vector = 0x101
	h.Trap(LoadPageFault, 7)
	if h.PC != 0x100 {
		t.Errorf("went to %#x", h.PC)
	}
}

// TestTimer is Sstc: the interrupt is pending exactly while time has reached
// stimecmp.
func TestTimer(t *testing.T) {
	now := uint64(1000)
	h := New(0, func() uint64 { return now })
	pending := func() bool { return h.pending&TimerInterrupt != 0 }
	for _, step := range []struct {
		at   uint64
		want bool
	}{{1001, false}, {1000, true}, {999, true}, {NeverTimer, false}, {0, true}} {
		if h.WriteCSR(CSRStimecmp, step.at); pending() != step.want {
			t.Errorf("at %d with stimecmp %d: pending %v", now, step.at, pending())
		}
	}
	h.SetTimer(2000)
	now = 2000
	if h.UpdateTimer(now); !pending() {
		t.Error("not pending when its time has come")
	}
	if h.Deadline() != NeverTimer {
		t.Error("a timer whose interrupt is off has a deadline")
	}
	if h.enabled = TimerInterrupt; h.Deadline() != 2000 {
		t.Errorf("deadline is %d", h.Deadline())
	}
}

// TestSoftwareBit: software may clear SSIP, but not the other pending bits.
func TestSoftwareBit(t *testing.T) {
	h := newHart()
	h.SetSoftware(true)
	h.SetExternal(true)
	h.WriteCSR(CSRSip, 0)
	if h.pending != ExternalInterrupt {
		t.Errorf("sip is %#x", h.pending)
	}
}

func saved(h *Hart) []byte {
	var w state.Writer
	h.Save(w.Section("vcpu/riscv64/0", StateVersion))
	return w.Bytes()
}

func restored(t *testing.T, b []byte) (*Hart, error) {
	t.Helper()
	r, err := state.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.Take("vcpu/riscv64/0", StateVersion)
	if err != nil {
		t.Fatal(err)
	}
	h := Restore(3, func() uint64 { return 1000 }, d)
	return h, d.Done()
}

// TestSaveRestore: everything comes back, but the reservation does not.
func TestSaveRestore(t *testing.T) {
	h := newHart()
	for i := range h.X[1:Discard] {
		h.X[1+i] = uint64(i) * 0x0101010101
	}
	for i := range h.F {
		h.F[i] = ^uint64(i)
	}
	h.PC, h.Mode, h.Power, h.FCSR, h.Retired = 0x8000_1234, User, Waiting, 0xff, 1<<40
	for i, w := range h.words() {
		*w |= uint64(i) << 8
	}
	h.Status, h.enabled, h.pending = statusWritable, 0x222, 0x202
	h.vector, h.epc, h.counters, h.envcfg = 0x101, 0x8000_0002, 5, 0x81
	h.satp = 8<<60 | 0x7ff<<44 | 0xabc
	h.Reserve(0x1000, 8, 7)

	got, err := restored(t, saved(h))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := got.Reserved(0x1000, 8); ok {
		t.Error("the reservation survived")
	}
	h.ClearReservation()
	h.Reservation = Reservation{}
	h.Time, got.Time = nil, nil
	h.X[Discard] = 0
	if got.X != h.X || got.F != h.F || got.PC != h.PC || got.Mode != h.Mode || got.Power != h.Power || got.FCSR != h.FCSR {
		t.Errorf("restored %+v, want %+v", got, h)
	}
	for i, w := range got.words() {
		if *w != *h.words()[i] {
			t.Errorf("word %d is %#x, want %#x", i, *w, *h.words()[i])
		}
	}
}

// TestRestoreRefuses: values that no hart can hold.
func TestRestoreRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Hart){
		"odd PC":         func(h *Hart) { h.PC = 1 },
		"mode":           func(h *Hart) { h.Mode = 3 },
		"power":          func(h *Hart) { h.Power = 9 },
		"sstatus":        func(h *Hart) { h.Status = 1 << 63 },
		"sie":            func(h *Hart) { h.enabled = 1 },
		"sip":            func(h *Hart) { h.pending = 1 << 11 },
		"stvec":          func(h *Hart) { h.vector = 2 },
		"sepc":           func(h *Hart) { h.epc = 1 },
		"scounteren":     func(h *Hart) { h.counters = 8 },
		"senvcfg":        func(h *Hart) { h.envcfg = 2 },
		"satp mode":      func(h *Hart) { h.satp = 9 << 60 },
		"satp ASID bits": func(h *Hart) { h.satp = 8<<60 | 1<<59 },
	} {
		h := newHart()
		spoil(h)
		if _, err := restored(t, saved(h)); !errors.Is(err, state.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzCSR: whatever is written anywhere, the state can be saved and restored.
func FuzzCSR(f *testing.F) {
	for _, csr := range []uint32{CSRFcsr, CSRSstatus, CSRSie, CSRStvec, CSRSip, CSRSatp, CSRStimecmp, CSRTime, 0x300, 0xfff} {
		f.Add(csr, ^uint64(0), true)
	}
	f.Fuzz(func(t *testing.T, csr uint32, v uint64, user bool) {
		h := newHart()
		h.Status = StatusFS
		if user {
			h.Mode = User
		}
		_, wrote := h.WriteCSR(csr&0xfff, v)
		_, read := h.ReadCSR(csr & 0xfff)
		if wrote && !read {
			t.Fatalf("CSR %#x can be written but not read", csr&0xfff)
		}
		if user && wrote && csr>>8&3 != 0 {
			t.Fatalf("CSR %#x can be written in user mode", csr&0xfff)
		}
		if _, err := restored(t, saved(h)); err != nil {
			t.Fatalf("writing %#x to CSR %#x gives a state that is refused: %v", v, csr&0xfff, err)
		}
	})
}

// The source of entropy is the supervisor's, has each piece once, and says so when it has none.
func TestSeed(t *testing.T) {
	h := New(0, nil)
	if v, ok := h.ReadCSR(CSRSeed); !ok || v != 3<<30 {
		t.Errorf("without a source seed is %#x, %v", v, ok)
	}
	left := []uint16{0xffff, 0x1234}
	h.Seed = func() (uint16, bool) {
		if len(left) == 0 {
			return 0, false
		}
		piece := left[0]
		left = left[1:]
		return piece, true
	}
	for _, want := range []uint64{2<<30 | 0xffff, 2<<30 | 0x1234, 3 << 30} {
		if _, ok := h.WriteCSR(CSRSeed, ^uint64(0)); !ok {
			t.Error("a write is illegal")
		}
		if v, ok := h.ReadCSR(CSRSeed); !ok || v != want {
			t.Errorf("seed is %#x, %v, want %#x", v, ok, want)
		}
	}
	h.Mode = User
	if _, ok := h.ReadCSR(CSRSeed); ok {
		t.Error("a user may read seed")
	}
	if _, ok := h.WriteCSR(CSRSeed, 0); ok {
		t.Error("a user may write seed")
	}
}
