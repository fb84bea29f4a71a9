package enginetest

import (
	"maps"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	rv "github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Registers by ABI name.
const (
	zero = 0
	ra   = 1
	t0   = 5
	t1   = 6
	t2   = 7
	s0   = 8 // the device, set by the prologue
	s1   = 9 // the shared data, likewise
	a0   = 10
	a1   = 11
	a2   = 12
	a6   = 16
	a7   = 17
)

const (
	rvRAM       = 0x8000_0000
	rvDevice    = 0x1000_0000
	rvPLIC      = 0x0c00_0000
	rvInterrupt = 5
)

var riscv64 = isa{
	ramBase:    rvRAM,
	deviceBase: rvDevice,
	interrupt:  rvInterrupt,
	countPages: 1,
	maxVCPUs:   8,
	loads:      4,
	programs:   rvPrograms(),
	lacks: map[string]string{
		"restart": "the program states starts a vCPU again",
		"halt":    "a vCPU that waits is woken by any interrupt that is enabled, masked or not",
	},
}

func rvPrograms() map[string][]byte {
	programs := map[string][]byte{
		"store":     rvProgram(rvStore),
		"load":      rvProgram(rvLoad),
		"off":       rvProgram(rvOff),
		"reset":     rvProgram(func(a *rv.Asm) { rvReset(a, 1, 0) }),
		"failed":    rvProgram(func(a *rv.Asm) { rvReset(a, 0, 1) }),
		"console":   rvProgram(rvConsole),
		"spin":      rvProgram(rvSpin),
		"count":     rvProgram(rvCount),
		"wait":      rvProgram(rvWait),
		"interrupt": rvProgram(rvHandleInterrupt),
		"masked":    rvProgram(rvMasked),
		"timer":     rvProgram(rvTimer),
		"poll":      rvProgram(rvPoll),
		"touch-all": rvProgram(rvTouchAll),
		"two":       rvProgram(rvTwo),
		"sweep":     rvProgram(rvSweep),
		"time":      rvProgram(rvTime),
	}
	maps.Copy(programs, rvParallelPrograms())
	return programs
}

func rvProgram(body func(*rv.Asm)) []byte {
	a := rv.NewAsm(rvRAM)
	a.LI(s0, rvDevice)
	a.LI(s1, rvRAM+dataOffset)
	body(a)
	return a.Bytes()
}

func rvCall(a *rv.Asm, ext, fn uint64) {
	a.LI(a7, ext)
	a.LI(a6, fn)
	a.Op(rv.ECALL)
}

func rvReset(a *rv.Asm, kind, reason uint64) {
	a.LI(a0, kind)
	a.LI(a1, reason)
	rvCall(a, 0x53525354, 0)
}

func rvOff(a *rv.Asm) { rvReset(a, 0, 0) }

// rvStore writes to the device in each width.
func rvStore(a *rv.Asm) {
	a.LI(t0, 0x0102030405060708)
	a.S(rv.SB, t0, 0x20, s0)
	a.S(rv.SH, t0, 0x22, s0)
	a.S(rv.SW, t0, 0x24, s0)
	a.S(rv.SD, t0, 0x28, s0)
	rvOff(a)
}

// rvLoad reads from the device in each width and leaves the zero-extended
// values in the shared data.
func rvLoad(a *rv.Asm) {
	for i, op := range []rv.Op{rv.LBU, rv.LHU, rv.LWU, rv.LD} {
		a.I(op, t0, s0, int32(regRead+8*i))
		a.S(rv.SD, t0, int32(8*i), s1)
	}
	rvOff(a)
}

// rvConsole prints "hi" through DBCN and "!" through the legacy call.
func rvConsole(a *rv.Asm) {
	a.LI(t0, 'h'|'i'<<8)
	a.S(rv.SH, t0, 0, s1)
	a.LI(a0, 2)
	a.R(rv.ADD, a1, s1, zero)
	a.LI(a2, 0)
	rvCall(a, 0x4442434e, 0)
	a.LI(a0, '!')
	rvCall(a, 1, 0)
	rvOff(a)
}

func rvSpin(a *rv.Asm) {
	a.Label("spin")
	a.J(zero, "spin")
}

// rvCount counts in the shared data until the word behind the counter is not
// zero. It tells when it has begun.
func rvCount(a *rv.Asm) {
	a.LI(t0, 1)
	a.S(rv.SD, t0, 0, s1)
	a.S(rv.SD, zero, regSignal, s0)
	a.Label("loop")
	a.I(rv.LD, t0, s1, 0)
	a.I(rv.ADDI, t0, t0, 1)
	a.S(rv.SD, t0, 0, s1)
	a.I(rv.LD, t1, s1, 8)
	a.B(rv.BEQ, t1, zero, "loop")
	rvOff(a)
}

// rvWait waits for ever, with no interrupt enabled.
func rvWait(a *rv.Asm) {
	a.S(rv.SD, zero, regSignal, s0)
	a.Label("loop")
	a.Op(rv.WFI)
	a.J(zero, "loop")
}

// rvEnableLine enables the device's interrupt in the PLIC and in sie.
func rvEnableLine(a *rv.Asm) {
	a.LI(t0, rvPLIC)
	a.LI(t1, 1)
	a.S(rv.SW, t1, 4*rvInterrupt, t0)
	a.LI(t0, rvPLIC+0x2000)
	a.LI(t1, 1<<rvInterrupt)
	a.S(rv.SW, t1, 0, t0)
	a.LI(t0, rvPLIC+0x20_0000)
	a.S(rv.SW, zero, 0, t0)
	a.LI(t1, hart.ExternalInterrupt)
	a.CSR(rv.CSRRS, zero, hart.CSRSie, t1)
}

// rvHandleInterrupt waits for interrupts; the handler claims, tells the test
// which source it was, has the line lowered and completes. After three it powers
// off.
func rvHandleInterrupt(a *rv.Asm) {
	a.LA(t0, "handler")
	a.CSR(rv.CSRRW, zero, hart.CSRStvec, t0)
	rvEnableLine(a)
	a.CSR(rv.CSRRSI, zero, hart.CSRSstatus, uint8(hart.StatusSIE))
	a.LI(t1, 0x100)
	a.S(rv.SD, t1, regSignal, s0) // ready
	a.Label("loop")
	a.Op(rv.WFI)
	a.J(zero, "loop")
	a.Label("handler")
	a.LI(t0, rvPLIC+0x20_0004)
	a.I(rv.LW, t1, t0, 0)
	a.S(rv.SD, zero, regLower, s0)
	a.S(rv.SW, t1, 0, t0)
	a.S(rv.SD, t1, regSignal, s0)
	a.I(rv.LD, t2, s1, 0)
	a.I(rv.ADDI, t2, t2, 1)
	a.S(rv.SD, t2, 0, s1)
	a.LI(t1, 3)
	a.B(rv.BEQ, t1, t2, "off")
	a.Op(rv.SRET)
	a.Label("off")
	rvOff(a)
}

// rvMasked has the line raised while interrupts are globally off, and waits:
// WFI must end all the same.
func rvMasked(a *rv.Asm) {
	rvEnableLine(a)
	a.S(rv.SD, zero, regRaise, s0)
	a.Op(rv.WFI)
	a.CSR(rv.CSRRS, t0, hart.CSRSip, zero)
	a.S(rv.SD, t0, 0, s1)
	rvOff(a)
}

// rvTimer sets the timer 5 ms ahead, waits for it, and leaves in the shared data
// the times before and after, and sip.
func rvTimer(a *rv.Asm) {
	a.LI(t0, hart.TimerInterrupt)
	a.CSR(rv.CSRRS, zero, hart.CSRSie, t0)
	a.CSR(rv.CSRRS, t0, hart.CSRTime, zero)
	a.S(rv.SD, t0, 0, s1)
	a.LI(t1, 50_000)
	a.R(rv.ADD, t0, t0, t1)
	a.CSR(rv.CSRRW, zero, hart.CSRStimecmp, t0)
	a.Op(rv.WFI)
	a.CSR(rv.CSRRS, t0, hart.CSRTime, zero)
	a.S(rv.SD, t0, 8, s1)
	a.CSR(rv.CSRRS, t0, hart.CSRSip, zero)
	a.S(rv.SD, t0, 16, s1)
	rvOff(a)
}

// rvPoll reads a word until it is not zero.
func rvPoll(a *rv.Asm) {
	a.I(rv.LD, t0, s1, 0)
	a.S(rv.SD, t0, regSignal, s0)
	a.Label("loop")
	a.I(rv.LD, t0, s1, 0)
	a.B(rv.BEQ, t0, zero, "loop")
	a.S(rv.SD, t0, regSignal, s0)
	rvOff(a)
}

// rvTouchAll writes a word to each page behind the shared data.
func rvTouchAll(a *rv.Asm) {
	a.LI(t0, rvRAM+dataOffset)
	a.LI(t1, rvRAM+ramPages*4096)
	a.LI(t2, 4096)
	a.Label("loop")
	a.S(rv.SD, t0, 0, t0)
	a.R(rv.ADD, t0, t0, t2)
	a.B(rv.BLTU, t0, t1, "loop")
	rvOff(a)
}

// rvTwo starts the second vCPU; both add to one word a thousand times, the one
// with LR and SC, the other with AMOADD. The first waits for the interrupt that
// the second sends it when done, and powers off.
func rvTwo(a *rv.Asm) {
	const rounds = 1000
	a.LI(a0, 1)
	a.LA(a1, "second")
	a.LI(a2, 0)
	rvCall(a, 0x48534d, 0)
	a.LI(t0, hart.SoftwareInterrupt)
	a.CSR(rv.CSRRS, zero, hart.CSRSie, t0)
	a.LI(t2, rounds)
	a.Label("reserve")
	a.R(rv.LR_D, t0, s1, 0)
	a.I(rv.ADDI, t0, t0, 1)
	a.R(rv.SC_D, t1, s1, t0)
	a.B(rv.BNE, t1, zero, "reserve")
	a.I(rv.ADDI, t2, t2, -1)
	a.B(rv.BNE, t2, zero, "reserve")
	a.Label("wait")
	a.CSR(rv.CSRRS, t0, hart.CSRSip, zero)
	a.I(rv.ANDI, t0, t0, int32(hart.SoftwareInterrupt))
	a.B(rv.BNE, t0, zero, "off")
	a.Op(rv.WFI)
	a.J(zero, "wait")
	a.Label("off")
	rvOff(a)

	a.Label("second")
	a.LI(s1, rvRAM+dataOffset)
	a.LI(t2, rounds)
	a.LI(t1, 1)
	a.Label("add")
	a.R(rv.AMOADD_D, zero, s1, t1)
	a.I(rv.ADDI, t2, t2, -1)
	a.B(rv.BNE, t2, zero, "add")
	a.LI(a0, 1)
	a.LI(a1, 0)
	rvCall(a, 0x735049, 0)
	a.Label("stop")
	rvCall(a, 0x48534d, 1)
	a.J(zero, "stop")
}

// rvSweep stores a number in page after page, and then the next number in all of them,
// without end. It tells when it has begun.
func rvSweep(a *rv.Asm) {
	a.LI(s3, 0)
	a.LI(t1, rvPageSize)
	a.Label("again")
	a.I(rv.ADDI, s3, s3, 1)
	a.LI(t0, rvRAM+dataOffset+sharePages)
	a.LI(t2, sweepPages)
	a.Label("next")
	a.S(rv.SD, s3, 0, t0)
	a.R(rv.ADD, t0, t0, t1)
	a.I(rv.ADDI, t2, t2, -1)
	a.B(rv.BNE, t2, zero, "next")
	a.LI(t0, 1)
	a.B(rv.BNE, s3, t0, "again")
	a.S(rv.SD, s3, regSignal, s0)
	a.J(zero, "again")
}

// rvTime leaves how fast its time counter counts, in kHz, and tells the counter whenever
// the first word has changed.
func rvTime(a *rv.Asm) {
	a.LI(t0, 10_000)
	a.S(rv.SD, t0, 8, s1)
	a.LI(s3, 0)
	a.Label("again")
	a.CSR(rv.CSRRS, t0, hart.CSRTime, zero)
	a.S(rv.SD, t0, regSignal, s0)
	a.Label("wait")
	a.I(rv.LD, t0, s1, 0)
	a.B(rv.BEQ, t0, s3, "wait")
	a.I(rv.ADDI, s3, t0, 0)
	a.J(zero, "again")
}
