package enginetest

import (
	"fmt"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	rv "github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Registers of the programs for several vCPUs.
const (
	t3 = 28
	s2 = 18 // the vCPU's id, set by the prologue
	s3 = 19
	s4 = 20
	s5 = 21
	s6 = 22
)

// rvParallelPrograms returns the programs for several vCPUs.
func rvParallelPrograms() map[string][]byte {
	programs := map[string][]byte{"states": rvProgram(rvStates)}
	for _, n := range manyVCPUs {
		programs[spinlockOf(n)] = rvProgram(func(a *rv.Asm) { rvParallel(a, n, rvSpinlock) })
	}
	for name, p := range map[string]struct {
		vcpus int
		body  func(*rv.Asm)
	}{
		"sums":       {parallelVCPUs, rvSums},
		"stream":     {2, rvStream},
		"sb":         {2, rvLitmus(rvStoreLoad(true))},
		"sb-relaxed": {2, rvLitmus(rvStoreLoad(false))},
		"lb":         {2, rvLitmus(rvLoadStore)},
		"ipi":        {2, rvPingPong},
		"shootdown":  {2, rvShootdown},
		"share":      {parallelVCPUs, rvShare},
		"deliver":    {2, rvDeliver(true)},
		"take":       {2, rvDeliver(false)},
		"patch":      {2, rvPatch},
		"count-all":  {parallelVCPUs, rvCountAll},
	} {
		programs[name] = rvProgram(func(a *rv.Asm) { rvParallel(a, p.vcpus, p.body) })
	}
	return programs
}

// SBI extensions.
const (
	sbiHSM    = 0x48534d
	sbiIPI    = 0x735049
	sbiRFence = 0x52464e43
)

// rvParallel starts the other vCPUs, has all of them begin the body at the same
// time with their ids in s2, and powers off when all have ended it. The body keeps
// s0, s1 and s2.
func rvParallel(a *rv.Asm, vcpus int, body func(*rv.Asm)) {
	for id := 1; id < vcpus; id++ {
		a.LI(a0, uint64(id))
		a.LA(a1, "worker")
		a.LI(a2, 0)
		rvCall(a, sbiHSM, 0)
	}
	a.LI(a0, 0)
	a.Label("worker")
	a.LI(s0, rvDevice)
	a.LI(s1, rvRAM+dataOffset)
	a.R(rv.ADD, s2, a0, zero)
	rvMeet(a, "ready", wordReady, vcpus)
	body(a)
	rvFence(a)
	a.LI(t0, 1)
	a.I(rv.ADDI, t1, s1, wordDone)
	a.R(rv.AMOADD_D, zero, t1, t0)
	a.B(rv.BNE, s2, zero, "stop")
	a.LI(t0, uint64(vcpus))
	a.Label("done")
	rvPause(a)
	a.I(rv.LD, t1, s1, wordDone)
	a.B(rv.BNE, t1, t0, "done")
	rvFence(a)
	rvOff(a)
	a.Label("stop")
	rvCall(a, sbiHSM, 1)
	a.J(zero, "stop")
}

func rvFence(a *rv.Asm) {
	a.Emit(rv.Fence(rv.FenceR|rv.FenceW, rv.FenceR|rv.FenceW))
}

func rvPause(a *rv.Asm) { a.Emit(rv.Fence(rv.FenceW, 0)) }

// rvMeet counts the vCPU in at a word and waits until the word has come to n.
func rvMeet(a *rv.Asm, label string, word int32, n int) {
	a.LI(t0, 1)
	a.I(rv.ADDI, t1, s1, word)
	a.R(rv.AMOADD_D, zero, t1, t0)
	a.LI(t0, uint64(n))
	a.Label(label)
	rvPause(a)
	a.I(rv.LD, t1, s1, word)
	a.B(rv.BLT, t1, t0, label)
	rvFence(a)
}

// rvSums has every vCPU do each kind of atomic operation on common words.
func rvSums(a *rv.Asm) {
	amo := func(op rv.Op, rd uint8, word int32, operand uint8) {
		a.I(rv.ADDI, t1, s1, word)
		a.R(op, rd, t1, operand)
	}
	a.LI(t0, 1)
	a.R(rv.SLL, s4, t0, s2) // a bit of its own
	a.LI(s5, 0)             // sum of what came out of the exchange
	a.LI(s3, 1)
	a.Label("round")
	a.LI(t0, 3)
	amo(rv.AMOADD_D, zero, sumAdd, t0)
	amo(rv.AMOADD_W, zero, sumAddNarrow, t0)
	amo(rv.AMOXOR_D, zero, sumXor, s4)
	amo(rv.AMOXOR_D, t2, sumXorPairs, s4)
	amo(rv.AMOOR_D, zero, sumOr, s4)
	a.I(rv.SLLI, t0, s3, 3)
	a.R(rv.ADD, t0, t0, s2)
	amo(rv.AMOMAX_D, zero, sumMax, t0)
	a.R(rv.SUB, t0, zero, t0)
	amo(rv.AMOMIN_W, zero, sumMin, t0)
	a.I(rv.SLLI, t0, s3, 3)
	a.R(rv.ADD, t0, t0, s2)
	amo(rv.AMOSWAP_D, t2, sumSwap, t0)
	a.R(rv.ADD, s5, s5, t2)
	for _, w := range []struct {
		name   string
		lr, sc rv.Op
		word   int32
	}{{"wide", rv.LR_D, rv.SC_D, sumReserved}, {"narrow", rv.LR_W, rv.SC_W, sumReservedNarrow}} {
		a.I(rv.ADDI, t1, s1, w.word)
		a.Label(w.name)
		a.R(w.lr, t0, t1, 0)
		a.I(rv.ADDI, t0, t0, 1)
		a.R(w.sc, t2, t1, t0)
		a.B(rv.BNE, t2, zero, w.name)
	}
	a.I(rv.ADDI, s3, s3, 1)
	a.LI(t0, sumRounds)
	a.B(rv.BGE, t0, s3, "round")
	amo(rv.AMOADD_D, zero, sumSwapped, s5)
}

// rvSpinlock has every vCPU count two words up under a lock.
func rvSpinlock(a *rv.Asm) {
	a.LI(s3, lockRounds)
	a.I(rv.ADDI, s4, s1, lockWord)
	a.Label("round")
	a.LI(t0, 1)
	a.Label("try")
	a.R(rv.AMOSWAP_W, t1, s4, t0)
	a.B(rv.BEQ, t1, zero, "locked")
	rvPause(a)
	a.J(zero, "try")
	a.Label("locked")
	a.Emit(rv.Fence(rv.FenceR, rv.FenceR|rv.FenceW))
	for _, word := range []int32{lockFirst, lockSecond} {
		a.I(rv.LD, t0, s1, word)
		a.I(rv.ADDI, t0, t0, 1)
		a.S(rv.SD, t0, word, s1)
	}
	a.Emit(rv.Fence(rv.FenceR|rv.FenceW, rv.FenceW))
	a.S(rv.SW, zero, 0, s4)
	a.I(rv.ADDI, s3, s3, -1)
	a.B(rv.BNE, s3, zero, "round")
}

// rvStream has vCPU 0 write a number and then a flag, again and again, and vCPU 1
// count how often it sees a flag without its number.
func rvStream(a *rv.Asm) {
	a.LI(s3, streamRounds)
	a.LI(s4, 0)
	a.B(rv.BNE, s2, zero, "reader")
	a.Label("writer")
	a.I(rv.ADDI, s4, s4, 1)
	a.S(rv.SD, s4, streamNumber, s1)
	a.Emit(rv.Fence(rv.FenceW, rv.FenceW))
	a.S(rv.SD, s4, streamFlag, s1)
	a.B(rv.BNE, s4, s3, "writer")
	a.J(zero, "end")
	a.Label("reader")
	a.I(rv.LD, t0, s1, streamFlag)
	a.Emit(rv.Fence(rv.FenceR, rv.FenceR))
	a.I(rv.LD, t1, s1, streamNumber)
	a.B(rv.BGE, t1, t0, "fine")
	a.I(rv.ADDI, s4, s4, 1)
	a.Label("fine")
	a.B(rv.BNE, t0, s3, "reader")
	a.S(rv.SD, s4, streamWrong, s1)
	a.Label("end")
}

// rvLitmus has two vCPUs meet and then do their part of a litmus test, on two words
// that are new each time: mine and other are the addresses of the words in the
// order of the vCPU. The part leaves what it loaded in t0.
func rvLitmus(part func(a *rv.Asm, mine, other uint8)) func(*rv.Asm) {
	return func(a *rv.Asm) {
		const mine, other, result = s5, s6, s4
		a.I(rv.SLLI, t0, s2, 12)
		a.LI(t1, rvRAM+dataOffset+litmusResults)
		a.R(rv.ADD, result, t0, t1)
		a.LI(mine, rvRAM+dataOffset+litmusCells)
		a.I(rv.ADDI, other, mine, 64)
		a.B(rv.BEQ, s2, zero, "first")
		a.I(rv.ADDI, mine, mine, 64)
		a.I(rv.ADDI, other, other, -64)
		a.Label("first")
		a.LI(s3, 0)
		a.Label("round")
		a.I(rv.ADDI, s3, s3, 2)
		a.LI(t0, 1)
		a.I(rv.ADDI, t1, s1, wordMeet)
		a.R(rv.AMOADD_D, zero, t1, t0)
		a.LI(t2, 2000) // looks without a pause, so that both go on at once
		a.Label("meet")
		a.I(rv.LD, t0, s1, wordMeet)
		a.B(rv.BGE, t0, s3, "met")
		a.I(rv.ADDI, t2, t2, -1)
		a.B(rv.BGE, t2, zero, "meet")
		rvPause(a)
		a.J(zero, "meet")
		a.Label("met")
		part(a, mine, other)
		a.S(rv.SD, t0, 0, result)
		a.I(rv.ADDI, result, result, 8)
		a.I(rv.ADDI, mine, mine, 128)
		a.I(rv.ADDI, other, other, 128)
		a.LI(t0, 2*litmusRounds)
		a.B(rv.BNE, s3, t0, "round")
	}
}

// rvStoreLoad is SB: each stores to its word and then loads the other's.
func rvStoreLoad(fence bool) func(a *rv.Asm, mine, other uint8) {
	return func(a *rv.Asm, mine, other uint8) {
		a.LI(t1, 1)
		a.S(rv.SD, t1, 0, mine)
		if fence {
			a.Emit(rv.Fence(rv.FenceW, rv.FenceR))
		}
		a.I(rv.LD, t0, other, 0)
	}
}

// rvLoadStore is LB: each loads the other's word and then stores to its own.
func rvLoadStore(a *rv.Asm, mine, other uint8) {
	a.LI(t1, 1)
	a.I(rv.LD, t0, other, 0)
	a.Emit(rv.Fence(rv.FenceR, rv.FenceW))
	a.S(rv.SD, t1, 0, mine)
}

// rvPingPong has two vCPUs wake each other in turn. Each counts in a word.
func rvPingPong(a *rv.Asm) {
	a.LI(t0, hart.SoftwareInterrupt)
	a.CSR(rv.CSRRS, zero, hart.CSRSie, t0)
	a.LI(s3, pingRounds)
	a.I(rv.SLLI, t0, s2, 3)
	a.R(rv.ADD, s4, s1, t0)
	a.LI(t0, 2)
	a.R(rv.SRL, s5, t0, s2) // the other one's bit
	a.B(rv.BNE, s2, zero, "wait")
	a.Label("send")
	a.R(rv.ADD, a0, s5, zero)
	a.LI(a1, 0)
	rvCall(a, sbiIPI, 0)
	a.B(rv.BEQ, s3, zero, "end")
	a.Label("wait")
	a.CSR(rv.CSRRS, t0, hart.CSRSip, zero)
	a.I(rv.ANDI, t0, t0, int32(hart.SoftwareInterrupt))
	a.B(rv.BNE, t0, zero, "woken")
	a.Op(rv.WFI)
	a.J(zero, "wait")
	a.Label("woken")
	a.CSR(rv.CSRRCI, zero, hart.CSRSip, uint8(hart.SoftwareInterrupt))
	a.I(rv.LD, t0, s4, pingCounts)
	a.I(rv.ADDI, t0, t0, 1)
	a.S(rv.SD, t0, pingCounts, s4)
	a.I(rv.ADDI, s3, s3, -1)
	a.B(rv.BNE, s3, zero, "send")
	a.B(rv.BNE, s2, zero, "send") // vCPU 0 waits for the last answer
	a.Label("end")
}

// Page-table entries, and where the tables of rvShootdown are.
const (
	rvLeaf     = 0xcf // D A X W R V
	rvTables   = rvRAM + dataOffset + 0x8000
	rvWindow   = 0x1_0000_0000
	rvPages    = rvRAM + dataOffset + 0xc000 // two that are mapped in turn
	rvPageSize = 4096
)

// rvShootdown has vCPU 0 write ever greater numbers to the one of two pages that is
// not mapped, map it, have vCPU 1 told, and raise a flag; vCPU 1 counts how often it
// reads a number through the mapping that is smaller than the flag.
func rvShootdown(a *rv.Asm) {
	put := func(at, v uint64) {
		a.LI(t0, at)
		a.LI(t1, v)
		a.S(rv.SD, t1, 0, t0)
	}
	a.B(rv.BNE, s2, zero, "mapped")
	put(rvTables, rvLeaf)                                              // devices
	put(rvTables+2*8, rvRAM>>2|rvLeaf)                                 // RAM
	put(rvTables+rvWindow>>30*8, (rvTables+rvPageSize)>>2|1)           // the window's tables
	put(rvTables+rvPageSize, (rvTables+2*rvPageSize)>>2|1)             //
	put(rvTables+2*rvPageSize+rvWindow>>12&0x1ff*8, rvPages>>2|rvLeaf) // the window
	a.Label("mapped")
	rvMeet(a, "tables", wordMeet, 2)
	a.LI(t0, 8<<60|rvTables>>12)
	a.CSR(rv.CSRRW, zero, hart.CSRSatp, t0)
	a.R(rv.SFENCE_VMA, 0, 0, 0)
	a.LI(s3, shootRounds)
	a.LI(s4, 0)
	a.LI(s5, rvWindow)
	a.B(rv.BNE, s2, zero, "reader")

	a.LI(s6, rvPages)
	a.LI(t3, rvPageSize)
	a.Label("writer")
	a.I(rv.ADDI, s4, s4, 1)
	a.R(rv.XOR, s6, s6, t3) // the other page
	a.S(rv.SD, s4, 0, s6)
	a.I(rv.SRLI, t0, s6, 2)
	a.I(rv.ORI, t0, t0, rvLeaf)
	a.LI(t1, rvTables+2*rvPageSize)
	a.S(rv.SD, t0, 0, t1)
	rvFence(a)
	a.LI(a0, 2)
	a.LI(a1, 0)
	a.LI(a2, rvWindow)
	a.LI(a2+1, rvPageSize)
	rvCall(a, sbiRFence, 1)
	a.R(rv.SFENCE_VMA, 0, s5, 0)
	a.S(rv.SD, s4, streamFlag, s1)
	a.I(rv.LD, t0, s5, 0)
	a.B(rv.BNE, t0, s4, "fail")
	a.B(rv.BNE, s4, s3, "writer")
	a.J(zero, "end")
	a.Label("fail")
	a.S(rv.SD, s4, shootOwn, s1)
	a.S(rv.SD, s3, streamFlag, s1)
	a.J(zero, "end")

	a.Label("reader")
	a.I(rv.LD, t0, s1, streamFlag)
	a.Emit(rv.Fence(rv.FenceR, rv.FenceR))
	a.I(rv.LD, t1, s5, 0)
	a.B(rv.BGE, t1, t0, "fine")
	a.I(rv.ADDI, s4, s4, 1)
	a.Label("fine")
	a.B(rv.BNE, t0, s3, "reader")
	a.S(rv.SD, s4, streamWrong, s1)
	a.Label("end")
}

// rvShare has every vCPU but one read what all have written to a page, write a word
// of its own to it, and wait for the words of the others, page by page and round by
// round. The one, another for each page, only waits.
func rvShare(a *rv.Asm) {
	a.LI(s3, 1) // round
	a.I(rv.SLLI, s6, s2, 6)
	a.Label("round")
	a.LI(s4, rvRAM+dataOffset+sharePages)
	a.LI(s5, shareCount)
	a.Label("page")
	a.I(rv.ANDI, t2, s5, parallelVCPUs-1) // who waits
	for id := range parallelVCPUs {
		a.I(rv.LD, t0, s4, int32(64*id))
	}
	a.B(rv.BEQ, t2, s2, "waits")
	a.R(rv.ADD, t1, s4, s6)
	a.S(rv.SD, s3, 0, t1)
	a.Label("waits")
	for id := range parallelVCPUs {
		label := fmt.Sprint("other", id)
		a.LI(t0, uint64(id))
		a.B(rv.BEQ, t0, t2, label+" waits")
		a.Label(label)
		rvPause(a)
		a.I(rv.LD, t0, s4, int32(64*id))
		a.B(rv.BLT, t0, s3, label)
		a.Label(label + " waits")
	}
	a.LI(t0, rvPageSize)
	a.R(rv.ADD, s4, s4, t0)
	a.I(rv.ADDI, s5, s5, -1)
	a.B(rv.BNE, s5, zero, "page")
	a.I(rv.ADDI, s3, s3, 1)
	a.LI(t0, shareRounds)
	a.B(rv.BGE, t0, s3, "round")
}

// rvDeliver has vCPU 1 wait for one delivery after the other: a flag, and a number in
// a page that it has looked at before. It says when it is ready for each, and counts
// those whose number it did not see. Either the test delivers, or vCPU 0.
func rvDeliver(byVCPU bool) func(*rv.Asm) {
	return func(a *rv.Asm) {
		a.LI(s3, 0)
		a.LI(s4, 0)
		a.LI(s5, rvRAM+dataOffset+sharePages)
		a.LI(s6, rvPageSize)
		a.LI(t3, deliveries)
		a.B(rv.BNE, s2, zero, "next")
		if byVCPU {
			a.Label("deliver")
			a.I(rv.ADDI, s3, s3, 1)
			a.Label("ready for it")
			a.I(rv.LD, t0, s1, deliverReady)
			a.B(rv.BLT, t0, s3, "ready for it")
			a.S(rv.SD, s3, 0, s5)
			a.Emit(rv.Fence(rv.FenceW, rv.FenceW))
			a.S(rv.SD, s3, streamFlag, s1)
			a.R(rv.ADD, s5, s5, s6)
			a.B(rv.BNE, s3, t3, "deliver")
		}
		a.J(zero, "end")

		a.Label("next")
		a.I(rv.ADDI, s3, s3, 1)
		a.I(rv.LD, t0, s5, 0)
		if byVCPU {
			a.Emit(rv.Fence(rv.FenceR, rv.FenceW))
			a.S(rv.SD, s3, deliverReady, s1)
		} else {
			a.S(rv.SD, s3, regSignal, s0)
			a.I(rv.LD, t0, s5, 0) // the caches may have lost it by the access
		}
		a.Label("poll")
		a.I(rv.LD, t0, s1, streamFlag)
		a.B(rv.BLT, t0, s3, "poll")
		a.Emit(rv.Fence(rv.FenceR, rv.FenceR))
		a.I(rv.LD, t0, s5, 0)
		a.B(rv.BEQ, t0, s3, "seen")
		a.I(rv.ADDI, s4, s4, 1)
		a.Label("seen")
		a.R(rv.ADD, s5, s5, s6)
		a.B(rv.BNE, s3, t3, "next")
		a.S(rv.SD, s4, streamWrong, s1)
		a.Label("end")
	}
}

// rvPatch has vCPU 0 write a function that returns a number, and vCPU 1 call it,
// with another number each time, and count the wrong ones. vCPU 1 executes no
// FENCE.I of its own.
func rvPatch(a *rv.Asm) {
	const function = rvRAM + dataOffset + 0x6000
	ret := rv.Encode(rv.Inst{Op: rv.JALR, Rs1: ra})
	a.LI(s3, patchRounds)
	a.LI(s4, 0) // the number
	a.LI(s5, function)
	a.LI(s6, 0) // wrong results
	a.LI(t0, uint64(ret))
	a.S(rv.SW, t0, 4, s5)
	a.Label("round")
	a.I(rv.ADDI, s4, s4, 1)
	a.B(rv.BNE, s2, zero, "caller")
	a.I(rv.SLLI, t0, s4, 20)
	a.I(rv.ORI, t0, t0, int32(rv.Encode(rv.Inst{Op: rv.ADDI, Rd: a0})&0x7ff))
	a.S(rv.SW, t0, 0, s5)
	rvFence(a)
	a.Op(rv.FENCE_I)
	a.LI(a0, 2)
	a.LI(a1, 0)
	rvCall(a, sbiRFence, 0)
	a.S(rv.SD, s4, streamFlag, s1)
	a.I(rv.ANDI, t0, s4, 7) // vCPU 0 calls it seldom, so that it writes unannounced
	a.B(rv.BEQ, t0, zero, "call")
	a.J(zero, "right")
	a.Label("caller")
	a.I(rv.LD, t0, s1, streamFlag)
	a.B(rv.BLT, t0, s4, "caller")
	a.Emit(rv.Fence(rv.FenceR, rv.FenceR))
	a.Label("call")
	a.I(rv.JALR, ra, s5, 0)
	a.B(rv.BEQ, a0, s4, "right")
	a.I(rv.ADDI, s6, s6, 1)
	a.Label("right")
	// vCPU 0 changes the function again when it has been called.
	a.LI(t0, 1)
	a.I(rv.ADDI, t1, s1, wordMeet)
	a.R(rv.AMOADD_D, zero, t1, t0)
	a.I(rv.SLLI, t2, s4, 1)
	a.Label("called")
	a.I(rv.LD, t0, s1, wordMeet)
	a.B(rv.BLT, t0, t2, "called")
	a.B(rv.BNE, s4, s3, "round")
	a.I(rv.ADDI, t1, s1, streamWrong)
	a.R(rv.AMOADD_D, zero, t1, s6)
}

// rvCountAll has every vCPU count in a word of its own until it is told to end.
func rvCountAll(a *rv.Asm) {
	a.I(rv.SLLI, t0, s2, 6)
	a.R(rv.ADD, s3, s1, t0)
	a.Label("loop")
	a.I(rv.LD, t0, s3, countWords)
	a.I(rv.ADDI, t0, t0, 1)
	a.S(rv.SD, t0, countWords, s3)
	a.I(rv.LD, t1, s1, wordStop)
	a.B(rv.BEQ, t1, zero, "loop")
}

// rvStates has vCPU 0 start vCPU 1, wake it from a suspension, start it again when it
// has stopped, and leave what it was told in the shared data.
func rvStates(a *rv.Asm) {
	status := func(word int32) {
		a.LI(a0, 1)
		rvCall(a, sbiHSM, 2)
		a.S(rv.SD, a1, word, s1)
	}
	start := func(label string, word int32) {
		a.LI(a0, 1)
		a.LA(a1, label)
		a.LI(a2, 77)
		rvCall(a, sbiHSM, 0)
		a.S(rv.SD, a0, word, s1)
	}
	await := func(label string, word int32) {
		a.Label(label)
		rvPause(a)
		a.I(rv.LD, t0, s1, word)
		a.B(rv.BEQ, t0, zero, label)
	}
	status(stateBefore)
	start("second", stateStart)
	status(stateStarted)
	start("second", stateStartAgain)
	await("opaque", stateOpaque)
	a.LI(a0, 2)
	a.LI(a1, 0)
	rvCall(a, sbiIPI, 0)
	await("awake", stateAwake)
	a.Label("stopping")
	rvPause(a)
	status(stateStopped)
	a.B(rv.BEQ, a1, zero, "stopping")
	start("third", stateRestart)
	await("third time", stateThird)
	rvOff(a)

	a.Label("second")
	a.LI(s1, rvRAM+dataOffset)
	a.LI(t0, hart.SoftwareInterrupt)
	a.CSR(rv.CSRRS, zero, hart.CSRSie, t0)
	a.S(rv.SD, a1, stateOpaque, s1)
	a.LI(a0, 0)
	rvCall(a, sbiHSM, 3)
	a.CSR(rv.CSRRS, t0, hart.CSRSip, zero)
	a.S(rv.SD, t0, stateAwake, s1)
	// It stops with a translation that has RAM only.
	a.LI(t0, rvTables)
	a.LI(t1, rvRAM>>2|rvLeaf)
	a.S(rv.SD, t1, 2*8, t0)
	a.LI(t0, 8<<60|rvTables>>12)
	a.CSR(rv.CSRRW, zero, hart.CSRSatp, t0)
	rvCall(a, sbiHSM, 1)
	a.Label("third")
	a.LI(s0, rvDevice)
	a.LI(s1, rvRAM+dataOffset)
	a.CSR(rv.CSRRS, t0, hart.CSRSatp, zero)
	a.I(rv.ADDI, t0, t0, 1)
	a.S(rv.SD, t0, regSignal, s0)
	a.S(rv.SD, t0, stateThird, s1)
	a.Label("end")
	rvCall(a, sbiHSM, 1)
	a.J(zero, "end")
}
