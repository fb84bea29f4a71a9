// Package hart is the architectural state of one RISC-V hart: registers, CSRs
// of supervisor and user mode, traps and interrupts. It touches no memory and
// executes nothing but CSR accesses, traps and SRET.
//
// Machine mode does not exist here: it is the host. Every exception is
// delegated to supervisor mode but an environment call from supervisor mode,
// which is the SBI and never becomes a trap.
//
// Invariants. X[0] is zero; X[Discard] takes what instructions write to x0 and
// means nothing. CSR fields hold only legal values: whatever writes them, the
// guest or a saved state, goes through the same legalising functions. A Hart
// belongs to one goroutine at a time; there are no locks. What comes from
// elsewhere (interrupts, the request to start) is brought to it by its goroutine.
package hart

// Mode is a privilege mode, encoded as in the manuals.
type Mode uint8

// The modes.
const (
	User       Mode = 0
	Supervisor Mode = 1
)

// BlockSize is the size in bytes of the aligned block that CBO.ZERO clears; the
// device tree tells the guest (riscv,cboz-block-size).
const BlockSize = 64

// Discard is the number of the register that takes the results of
// instructions whose destination is x0.
const Discard = 32

// Regs is the integer register file.
type Regs [Discard + 1]uint64

// Power is what a hart is doing, as far as its owner must know.
type Power uint8

// The power states. A waiting hart is in WFI, or suspended through the SBI,
// and goes on when an enabled interrupt is pending.
const (
	Stopped Power = iota
	Started
	Waiting
)

// Bits of sstatus (priv 12.1.1).
const (
	StatusSIE  uint64 = 1 << 1
	StatusSPIE uint64 = 1 << 5
	StatusSPP  uint64 = 1 << 8
	StatusFS   uint64 = 3 << 13
	StatusSUM  uint64 = 1 << 18
	StatusMXR  uint64 = 1 << 19
	StatusUXL  uint64 = 2 << 32 // reads as that: U mode is always 64-bit
	statusSD   uint64 = 1 << 63

	statusWritable = StatusSIE | StatusSPIE | StatusSPP | StatusFS | StatusSUM | StatusMXR
)

// Bits of sip and sie (priv 12.1.3).
const (
	SoftwareInterrupt uint64 = 1 << 1
	TimerInterrupt    uint64 = 1 << 5
	ExternalInterrupt uint64 = 1 << 9

	interruptBits = SoftwareInterrupt | TimerInterrupt | ExternalInterrupt
)

// Exception causes (priv 12.1.8).
const (
	FetchMisaligned uint64 = 0
	FetchAccess     uint64 = 1
	IllegalInst     uint64 = 2
	Breakpoint      uint64 = 3
	LoadMisaligned  uint64 = 4
	LoadAccess      uint64 = 5
	StoreMisaligned uint64 = 6
	StoreAccess     uint64 = 7
	UserCall        uint64 = 8
	FetchPageFault  uint64 = 12
	LoadPageFault   uint64 = 13
	StorePageFault  uint64 = 15
	interruptCause  uint64 = 1 << 63
	environmentCBZE uint64 = 1 << 7
	environmentFIOM uint64 = 1
	counterCY       uint64 = 1
	counterTM       uint64 = 2
	counterIR       uint64 = 4
	NeverTimer      uint64 = 1<<64 - 1 // value of stimecmp that never fires
)

// Hart is the state of one hart.
type Hart struct {
	X    Regs
	F    [32]uint64 // singles are NaN-boxed
	PC   uint64
	ID   int
	Mode Mode

	Power Power

	FCSR   uint8  // fflags in bits 4:0, frm in bits 7:5
	Status uint64 // the writable bits of sstatus; SD and UXL are derived

	enabled  uint64 // sie
	pending  uint64 // sip
	vector   uint64 // stvec
	scratch  uint64 // sscratch
	epc      uint64 // sepc
	cause    uint64 // scause
	tval     uint64 // stval
	counters uint64 // scounteren
	envcfg   uint64 // senvcfg
	satp     uint64
	timecmp  uint64 // stimecmp

	Reservation Reservation // of LR

	Retired uint64        // instructions; the counters cycle and instret
	Time    func() uint64 // the time CSR, in ticks of 100 ns

	// Seed yields entropy for the seed CSR, as long as there is some; nil: there is none.
	Seed func() (entropy uint16, ok bool)
}

// Reservation is what LR leaves for SC. A width of zero is none, so that no
// address can stand for it. The address is a GVA, which is why a change of
// translation ends the reservation.
type Reservation struct {
	At    uint64
	Value uint64 // what LR read, sign-extended
	Width uint8  // bytes
}

// New returns a stopped hart in supervisor mode with all registers zero but
// one: the counters are open to user mode, as firmware leaves them, since the
// kernel's time reads are user code that never asks.
func New(id int, time func() uint64) *Hart {
	return &Hart{ID: id, Mode: Supervisor, counters: legalCounters(^uint64(0)), timecmp: NeverTimer, Time: time}
}

// Start makes the hart run at entry in supervisor mode, with a0 its id and a1
// opaque: the state that both the kernel's boot protocol and SBI hart_start
// ask for (sbi 9.1).
func (h *Hart) Start(entry, opaque uint64) {
	h.Mode = Supervisor
	h.Status &^= StatusSIE
	h.satp = 0
	h.PC = entry
	h.X[10], h.X[11] = uint64(h.ID), opaque
	h.Power = Started
}

// SATP returns the satp register.
func (h *Hart) SATP() uint64 { return h.satp }

// ClearReservation drops the reservation of LR.
func (h *Hart) ClearReservation() { h.Reservation.Width = 0 }

// Reserve sets the reservation to width bytes at the GVA va, which hold value.
func (h *Hart) Reserve(va uint64, width uint8, value uint64) {
	h.Reservation = Reservation{va, value, width}
}

// Reserved reports whether a store-conditional of width bytes at va may succeed,
// and the value that it may replace. The bytes must be exactly those that LR read:
// a larger SC would write outside of the reservation set (unpriv 14.2).
func (h *Hart) Reserved(va uint64, width uint8) (value uint64, ok bool) {
	return h.Reservation.Value, h.Reservation.Width == width && h.Reservation.At == va
}

// FloatOff reports whether floating-point instructions are illegal now.
func (h *Hart) FloatOff() bool { return h.Status&StatusFS == 0 }

// FloatDirty records that the floating-point state changed.
func (h *Hart) FloatDirty() { h.Status |= StatusFS }

// CanZeroBlock reports whether CBO.ZERO is legal in the present mode.
func (h *Hart) CanZeroBlock() bool { return h.Mode == Supervisor || h.envcfg&environmentCBZE != 0 }
