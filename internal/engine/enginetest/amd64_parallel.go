package enginetest

import x64 "github.com/forkd-dev/forkd/internal/riscv/jit/amd64"

// x86ParallelPrograms returns the programs for several vCPUs, and what is easier to write
// with their assembler.
func x86ParallelPrograms() map[string][]byte {
	programs := map[string][]byte{"restart": x86Assemble((*smp).restart), "sweep": x86Assemble((*smp).sweep), "time": x86Assemble((*smp).time)}
	add := func(name string, vcpus int, body func(*smp)) {
		programs[name] = x86Assemble(func(a *smp) { a.parallel(vcpus, func() { body(a) }) })
	}
	for _, n := range manyVCPUs {
		add(spinlockOf(n), n, (*smp).spinlock)
	}
	add("sums", parallelVCPUs, (*smp).sums)
	add("stream", 2, (*smp).stream)
	add("sb", 2, func(a *smp) { a.litmus(func(mine, other x64.Reg) { a.storeLoad(true, mine, other) }) })
	add("sb-relaxed", 2, func(a *smp) { a.litmus(func(mine, other x64.Reg) { a.storeLoad(false, mine, other) }) })
	add("lb", 2, func(a *smp) { a.litmus(a.loadStore) })
	add("ipi", 2, (*smp).pingPong)
	add("shootdown", 2, (*smp).shootdown)
	add("share", parallelVCPUs, (*smp).share)
	add("deliver", 2, func(a *smp) { a.deliver(true) })
	add("take", 2, func(a *smp) { a.deliver(false) })
	add("patch", 2, (*smp).patch)
	add("count-all", parallelVCPUs, (*smp).countAll)
	return programs
}

// sums has every vCPU do each kind of atomic operation on common words.
func (a *smp) sums() {
	const bit, sum, round = x64.R8, x64.R9, x64.R10
	// tagged is the round and the id, a number that no other vCPU has.
	tagged := func(r x64.Reg) {
		a.MovRR(x64.W64, r, round)
		a.ShiftRI(x64.SHL, x64.W64, r, 3)
		a.ALURR(x64.ADD, x64.W64, r, xID)
	}
	// exchange replaces a word by what change makes of it, in RDX, of what is in RAX.
	exchange := func(w x64.Width, word int32, change func(keep x64.Label)) {
		again, keep := a.mark(), a.NewLabel()
		a.MovRM(w, x64.RAX, at(word))
		change(keep)
		a.LockCmpxchg(w, at(word), x64.RDX)
		a.Jcc(x64.NE, again)
		a.Bind(keep)
	}
	a.MovRR(x64.W64, x64.RCX, xID)
	a.MovRI(bit, 1)
	a.ShiftRCL(x64.SHL, x64.W64, bit)
	a.MovRI(sum, 0)
	a.MovRI(round, 1)
	next := a.mark()
	a.MovRI(x64.RAX, 3)
	a.LockXadd(x64.W64, at(sumAdd), x64.RAX)
	a.MovRI(x64.RAX, 3)
	a.LockALUMR(x64.ADD, x64.W32, at(sumAddNarrow), x64.RAX)
	a.LockALUMR(x64.XOR, x64.W64, at(sumXor), bit)
	a.LockALUMR(x64.XOR, x64.W64, at(sumXorPairs), bit)
	a.LockALUMR(x64.OR, x64.W64, at(sumOr), bit)
	tagged(x64.RDX)
	exchange(x64.W64, sumMax, func(keep x64.Label) {
		a.ALURR(x64.CMP, x64.W64, x64.RAX, x64.RDX)
		a.Jcc(x64.GE, keep)
	})
	a.Neg(x64.W32, x64.RDX)
	exchange(x64.W32, sumMin, func(keep x64.Label) {
		a.ALURR(x64.CMP, x64.W32, x64.RAX, x64.RDX)
		a.Jcc(x64.LE, keep)
	})
	tagged(x64.RDX)
	a.XchgMR(x64.W64, at(sumSwap), x64.RDX)
	a.ALURR(x64.ADD, x64.W64, sum, x64.RDX)
	plusOne := func(x64.Label) { a.Lea(x64.W64, x64.RDX, x64.At(x64.RAX, 1)) }
	exchange(x64.W64, sumReserved, plusOne)
	exchange(x64.W32, sumReservedNarrow, plusOne)
	a.ALURI(x64.ADD, x64.W64, round, 1)
	a.compare(round, sumRounds, x64.LE, next)
	a.LockALUMR(x64.ADD, x64.W64, at(sumSwapped), sum)
}

// spinlock has every vCPU count two words up under a lock.
func (a *smp) spinlock() {
	const left = x64.R8
	a.MovRI(left, lockRounds)
	round, try, locked := a.mark(), a.mark(), a.NewLabel()
	a.MovRI(x64.RAX, 1)
	a.XchgMR(x64.W32, at(lockWord), x64.RAX)
	a.TestRR(x64.W32, x64.RAX, x64.RAX)
	a.Jcc(x64.E, locked)
	a.Pause()
	a.Jmp(try)
	a.Bind(locked)
	for _, word := range []int32{lockFirst, lockSecond} {
		a.ld(x64.RAX, at(word))
		a.ALURI(x64.ADD, x64.W64, x64.RAX, 1)
		a.st(at(word), x64.RAX)
	}
	a.MovMI(x64.W32, at(lockWord), 0)
	a.ALURI(x64.SUB, x64.W64, left, 1)
	a.Jcc(x64.NE, round)
}

// stream has vCPU 0 write a number and then a flag, again and again, and vCPU 1
// count how often it sees a flag without its number.
func (a *smp) stream() {
	const n = x64.R8
	reader, fine, end := a.NewLabel(), a.NewLabel(), a.NewLabel()
	a.MovRI(n, 0)
	a.compare(xID, 0, x64.NE, reader)
	writer := a.mark()
	a.ALURI(x64.ADD, x64.W64, n, 1)
	a.st(at(streamNumber), n)
	a.st(at(streamFlag), n)
	a.compare(n, streamRounds, x64.NE, writer)
	a.Jmp(end)
	a.Bind(reader)
	a.ld(x64.RAX, at(streamFlag))
	a.ld(x64.RDX, at(streamNumber))
	a.ALURR(x64.CMP, x64.W64, x64.RDX, x64.RAX)
	a.Jcc(x64.GE, fine)
	a.ALURI(x64.ADD, x64.W64, n, 1)
	a.Bind(fine)
	a.compare(x64.RAX, streamRounds, x64.NE, reader)
	a.st(at(streamWrong), n)
	a.Bind(end)
}

// litmus has two vCPUs meet and then do their part of a litmus test, on two words
// that are new each time; each has its own first. The part leaves what it loaded in
// RAX.
func (a *smp) litmus(part func(mine, other x64.Reg)) {
	const mine, other, result, met = x64.R8, x64.R9, x64.R10, x64.R11
	first := a.NewLabel()
	a.MovRR(x64.W64, result, xID)
	a.ShiftRI(x64.SHL, x64.W64, result, 12)
	a.ALURI(x64.ADD, x64.W64, result, dataOffset+litmusResults)
	a.MovRI(mine, dataOffset+litmusCells)
	a.MovRI(other, dataOffset+litmusCells+64)
	a.compare(xID, 0, x64.E, first)
	a.MovRR(x64.W64, x64.RAX, mine)
	a.MovRR(x64.W64, mine, other)
	a.MovRR(x64.W64, other, x64.RAX)
	a.Bind(first)
	a.MovRI(met, 0)
	round := a.mark()
	a.ALURI(x64.ADD, x64.W64, met, 2)
	a.one(wordMeet)
	a.MovRI(x64.RCX, 2000) // looks without a pause, so that both go on at once
	together := a.NewLabel()
	look := a.mark()
	a.ALUMR(x64.CMP, x64.W64, at(wordMeet), met)
	a.Jcc(x64.GE, together)
	a.ALURI(x64.SUB, x64.W64, x64.RCX, 1)
	a.Jcc(x64.G, look)
	a.Pause()
	a.Jmp(look)
	a.Bind(together)
	part(mine, other)
	a.st(x64.At(result, 0), x64.RAX)
	a.ALURI(x64.ADD, x64.W64, result, 8)
	a.ALURI(x64.ADD, x64.W64, mine, 128)
	a.ALURI(x64.ADD, x64.W64, other, 128)
	a.compare(met, 2*litmusRounds, x64.NE, round)
}

// storeLoad is SB: each stores to its word and then loads the other's.
func (a *smp) storeLoad(fence bool, mine, other x64.Reg) {
	a.MovRI(x64.RDX, 1)
	a.st(x64.At(mine, 0), x64.RDX)
	if fence {
		a.Mfence()
	}
	a.ld(x64.RAX, x64.At(other, 0))
}

// loadStore is LB: each loads the other's word and then stores to its own.
func (a *smp) loadStore(mine, other x64.Reg) {
	a.MovRI(x64.RDX, 1)
	a.ld(x64.RAX, x64.At(other, 0))
	a.st(x64.At(mine, 0), x64.RDX)
}

// onIPI has a body called for the interrupt that vCPUs send each other. The body may
// use registers that nothing else does. RDI and RAX are changed here, and RDI by the
// handler, which runs only where the program enables interrupts.
func (a *smp) onIPI(body func()) {
	over := a.NewLabel()
	a.Jmp(over)
	handler := a.mark()
	body()
	a.MovRI(x64.R15, x86LAPIC)
	a.MovMI(x64.W32, x64.At(x64.R15, lapicEnd), 0)
	a.raw(0x48, 0xcf) // iretq
	a.Bind(over)
	a.LeaLabel(x64.RAX, handler) // below 64 KiB
	a.MovRI(x64.RDI, int64(gate(0)))
	a.ALURR(x64.OR, x64.W64, x64.RAX, x64.RDI)
	a.MovRI(x64.RDI, x86IDT+16*x86IPIVector)
	a.st(x64.At(x64.RDI, 0), x64.RAX)
	a.MovRI(x64.RDI, x86Descriptor)
	a.MovRI(x64.RAX, x86IDT<<16|0xfff)
	a.st(x64.At(x64.RDI, 0), x64.RAX)
	a.raw(0x0f, 0x01, 0x1f) // lidt [rdi]
}

// sendOther interrupts the other of two vCPUs.
func (a *smp) sendOther() {
	a.MovRI(x64.RAX, 1)
	a.ALURR(x64.SUB, x64.W64, x64.RAX, xID)
	a.ShiftRI(x64.SHL, x64.W64, x64.RAX, 24)
	a.send(commandIPI)
}

// pingPong has two vCPUs wake each other in turn. Each counts in a word.
func (a *smp) pingPong() {
	const left, count, seen = x64.R8, x64.R9, x64.R10
	woken, end := a.NewLabel(), a.NewLabel()
	a.Lea(x64.W64, count, x64.AtIndex(xData, xID, 8, pingCounts))
	a.onIPI(func() { a.ALUMI(x64.ADD, x64.W64, x64.At(count, 0), 1) })
	a.meet(wordMeet, 2)
	a.MovRI(left, pingRounds)
	a.MovRI(seen, 0)
	wait := a.NewLabel()
	a.compare(xID, 0, x64.NE, wait)
	send := a.mark()
	a.sendOther()
	a.compare(left, 0, x64.E, end)
	a.Bind(wait)
	a.raw(0xfa) // cli
	a.ALUMR(x64.CMP, x64.W64, x64.At(count, 0), seen)
	a.Jcc(x64.NE, woken)
	a.raw(0xfb, 0xf4) // sti; hlt: an interrupt in between ends the halt
	a.Jmp(wait)
	a.Bind(woken)
	a.ALURI(x64.ADD, x64.W64, seen, 1)
	a.ALURI(x64.SUB, x64.W64, left, 1)
	a.Jcc(x64.NE, send)
	a.compare(xID, 0, x64.NE, send) // vCPU 0 waits for the last answer
	a.Bind(end)
}

// Where shootdown has its page tables and the pages that are mapped in turn; what it
// maps is far from all else.
const (
	x86Window      = 1 << 39
	x86WindowRoots = dataOffset + 0x8000
	x86WindowEntry = x86WindowRoots + 2*4096
	x86WindowPages = dataOffset + 0xc000
)

// shootdown has vCPU 0 write ever greater numbers to the one of two pages that is not
// mapped, map it, have vCPU 1 told, and raise a flag; vCPU 1 counts how often it reads
// a number through the mapping that is smaller than the flag.
func (a *smp) shootdown() {
	const n, page, window, told = x64.R8, x64.R9, x64.R10, wordDone + 0x18
	a.MovRI(window, x86Window)
	a.onIPI(func() {
		a.raw(0x41, 0x0f, 0x01, 0x3a) // invlpg [r10]
		a.ALUMI(x64.ADD, x64.W64, at(told), 1)
	})
	reader, fine, end := a.NewLabel(), a.NewLabel(), a.NewLabel()
	mapped := a.NewLabel()
	a.compare(xID, 0, x64.NE, mapped)
	a.raw(0x0f, 0x20, 0xd9) // mov rcx, cr3
	a.MovRI(x64.RAX, x86WindowRoots|3)
	a.st(x64.At(x64.RCX, x86Window>>39*8), x64.RAX)
	for i, next := range []int64{x86WindowRoots + 4096, x86WindowEntry, x86WindowPages} {
		a.MovRI(x64.RDI, int64(x86WindowRoots+4096*i))
		a.MovRI(x64.RAX, next|3) // present, writable
		a.st(x64.At(x64.RDI, 0), x64.RAX)
	}
	a.Bind(mapped)
	a.meet(wordMeet, 2)
	a.MovRI(n, 0)
	a.compare(xID, 0, x64.NE, reader)

	a.MovRI(page, x86WindowPages)
	writer := a.mark()
	a.ALURI(x64.ADD, x64.W64, n, 1)
	a.ALURI(x64.XOR, x64.W64, page, 4096) // the other page
	a.st(x64.At(page, 0), n)
	a.MovRI(x64.RDI, x86WindowEntry)
	a.Lea(x64.W64, x64.RAX, x64.At(page, 3))
	a.st(x64.At(x64.RDI, 0), x64.RAX)
	a.sendOther()
	wait := a.mark()
	a.Pause()
	a.ALUMR(x64.CMP, x64.W64, at(told), n)
	a.Jcc(x64.L, wait)
	a.raw(0x41, 0x0f, 0x01, 0x3a) // invlpg [r10]
	a.st(at(streamFlag), n)
	a.ALUMR(x64.CMP, x64.W64, x64.At(window, 0), n)
	failed := a.NewLabel()
	a.Jcc(x64.NE, failed)
	a.compare(n, shootRounds, x64.NE, writer)
	a.Jmp(end)
	a.Bind(failed)
	a.st(at(shootOwn), n)
	a.MovMI(x64.W64, at(streamFlag), shootRounds)
	a.Jmp(end)

	a.Bind(reader)
	a.raw(0xfb) // sti
	a.ld(x64.RAX, at(streamFlag))
	a.ld(x64.RDX, x64.At(window, 0))
	a.ALURR(x64.CMP, x64.W64, x64.RDX, x64.RAX)
	a.Jcc(x64.GE, fine)
	a.ALURI(x64.ADD, x64.W64, n, 1)
	a.Bind(fine)
	a.compare(x64.RAX, shootRounds, x64.NE, reader)
	a.st(at(streamWrong), n)
	a.Bind(end)
	a.raw(0xfa) // cli
}

// share has every vCPU but one read what all have written to a page, write a word of
// its own to it, and wait for the words of the others, page by page and round by
// round. The one, another for each page, only waits.
func (a *smp) share() {
	const round, page, left, waits = x64.R8, x64.R9, x64.R10, x64.R11
	word := func(id int) x64.Mem { return x64.At(page, int32(64*id)) }
	a.MovRI(round, 1)
	nextRound := a.mark()
	a.MovRI(page, dataOffset+sharePages)
	a.MovRI(left, shareCount)
	nextPage := a.mark()
	a.MovRR(x64.W64, waits, left)
	a.ALURI(x64.AND, x64.W64, waits, parallelVCPUs-1)
	for id := range parallelVCPUs {
		a.ld(x64.RAX, word(id))
	}
	only := a.NewLabel()
	a.ALURR(x64.CMP, x64.W64, waits, xID)
	a.Jcc(x64.E, only)
	a.MovRR(x64.W64, x64.RAX, xID)
	a.ShiftRI(x64.SHL, x64.W64, x64.RAX, 6)
	a.st(x64.AtIndex(page, x64.RAX, 1, 0), round)
	a.Bind(only)
	for id := range parallelVCPUs {
		next := a.NewLabel()
		a.compare(waits, int32(id), x64.E, next)
		look := a.mark()
		a.Pause()
		a.ALUMR(x64.CMP, x64.W64, word(id), round)
		a.Jcc(x64.L, look)
		a.Bind(next)
	}
	a.ALURI(x64.ADD, x64.W64, page, 4096)
	a.ALURI(x64.SUB, x64.W64, left, 1)
	a.Jcc(x64.NE, nextPage)
	a.ALURI(x64.ADD, x64.W64, round, 1)
	a.compare(round, shareRounds, x64.LE, nextRound)
}

// deliver has vCPU 1 wait for one delivery after the other: a flag, and a number in a
// page that it has looked at before. It says when it is ready for each, and counts
// those whose number it did not see. Either the test delivers, or vCPU 0.
func (a *smp) deliver(byVCPU bool) {
	const n, wrong, page = x64.R8, x64.R9, x64.R10
	next, end := a.NewLabel(), a.NewLabel()
	a.MovRI(n, 0)
	a.MovRI(wrong, 0)
	a.MovRI(page, dataOffset+sharePages)
	a.compare(xID, 0, x64.NE, next)
	if byVCPU {
		again := a.mark()
		a.ALURI(x64.ADD, x64.W64, n, 1)
		ready := a.mark()
		a.Pause()
		a.ALUMR(x64.CMP, x64.W64, at(deliverReady), n)
		a.Jcc(x64.L, ready)
		a.st(x64.At(page, 0), n)
		a.st(at(streamFlag), n)
		a.ALURI(x64.ADD, x64.W64, page, 4096)
		a.compare(n, deliveries, x64.NE, again)
	}
	a.Jmp(end)

	a.Bind(next)
	a.ALURI(x64.ADD, x64.W64, n, 1)
	a.ld(x64.RAX, x64.At(page, 0))
	if byVCPU {
		a.st(at(deliverReady), n)
	} else {
		a.st(x64.At(xDevice, regSignal), n)
	}
	poll := a.mark()
	a.Pause()
	a.ALUMR(x64.CMP, x64.W64, at(streamFlag), n)
	a.Jcc(x64.L, poll)
	seen := a.NewLabel()
	a.ALUMR(x64.CMP, x64.W64, x64.At(page, 0), n)
	a.Jcc(x64.E, seen)
	a.ALURI(x64.ADD, x64.W64, wrong, 1)
	a.Bind(seen)
	a.ALURI(x64.ADD, x64.W64, page, 4096)
	a.compare(n, deliveries, x64.NE, next)
	a.st(at(streamWrong), wrong)
	a.Bind(end)
}

// patch has vCPU 0 change a function that returns a number, and both call it, and
// count the wrong numbers. A processor that did not change the code itself executes a
// serializing instruction first (AMD64 APM volume 2, 7.6.1).
func (a *smp) patch() {
	const n, function, wrong, met = x64.R8, x64.R9, x64.R10, x64.R11
	caller, call, right := a.NewLabel(), a.NewLabel(), a.NewLabel()
	a.MovRI(n, 0)
	a.MovRI(wrong, 0)
	a.MovRI(function, dataOffset+0x6000+3)         // so that its number is aligned
	a.MovMI(x64.W8, x64.At(function, 0), 0xb8-256) // mov eax, number
	a.MovMI(x64.W8, x64.At(function, 5), 0xc3-256) // ret
	round := a.mark()
	a.ALURI(x64.ADD, x64.W64, n, 1)
	a.compare(xID, 0, x64.NE, caller)
	a.MovMR(x64.W32, x64.At(function, 1), n)
	a.st(at(streamFlag), n)
	a.TestRI(x64.W64, n, 7) // vCPU 0 calls it seldom, so that it writes unannounced
	a.Jcc(x64.E, call)
	a.Jmp(right)
	a.Bind(caller)
	a.Pause()
	a.ALUMR(x64.CMP, x64.W64, at(streamFlag), n)
	a.Jcc(x64.L, caller)
	a.MovRI(x64.RAX, 0)
	a.raw(0x0f, 0xa2) // cpuid
	a.MovRI(xDevice, x86Device)
	a.Bind(call)
	a.CallR(function)
	a.ALURR(x64.CMP, x64.W64, x64.RAX, n)
	a.Jcc(x64.E, right)
	a.ALURI(x64.ADD, x64.W64, wrong, 1)
	a.Bind(right)
	// vCPU 0 changes the function again when it has been called.
	a.one(wordMeet)
	a.Lea(x64.W64, met, x64.AtIndex(n, n, 1, 0))
	called := a.mark()
	a.Pause()
	a.ALUMR(x64.CMP, x64.W64, at(wordMeet), met)
	a.Jcc(x64.L, called)
	a.compare(n, patchRounds, x64.NE, round)
	a.LockALUMR(x64.ADD, x64.W64, at(streamWrong), wrong)
}

// countAll has every vCPU count in a word of its own until it is told to end.
func (a *smp) countAll() {
	const own = x64.R8
	a.MovRR(x64.W64, own, xID)
	a.ShiftRI(x64.SHL, x64.W64, own, 6)
	a.ALURR(x64.ADD, x64.W64, own, xData)
	again := a.mark()
	a.ld(x64.RAX, x64.At(own, countWords))
	a.ALURI(x64.ADD, x64.W64, x64.RAX, 1)
	a.st(x64.At(own, countWords), x64.RAX)
	a.ALUMI(x64.CMP, x64.W64, at(wordStop), 0)
	a.Jcc(x64.E, again)
}

// restart has vCPU 0 start vCPU 1, and start it again elsewhere while it is at work.
func (a *smp) restart() {
	second, third := a.NewLabel(), a.NewLabel()
	a.prepareOthers()
	a.start(1, second)
	a.await(at(stateOpaque), 1)
	a.start(1, third)
	a.await(at(stateThird), 1)
	a.ld(x64.RAX, at(stateOpaque))
	a.st(at(stateRestart), x64.RAX)
	a.MovRI(x64.RCX, 10_000)
	again := a.mark()
	a.Pause()
	a.ALURI(x64.SUB, x64.W64, x64.RCX, 1)
	a.Jcc(x64.NE, again)
	a.off()
	a.Bind(second)
	a.begin()
	work := a.mark()
	a.ALUMI(x64.ADD, x64.W64, at(stateOpaque), 1)
	a.Jmp(work)
	a.Bind(third)
	a.begin()
	a.st(at(stateThird), xID)
	a.halt()
}

// sweep stores a number in page after page, and then the next number in all of them,
// without end. It tells when it has begun.
func (a *smp) sweep() {
	const n, page, left = x64.R8, x64.R9, x64.R10
	a.MovRI(n, 0)
	again := a.mark()
	a.ALURI(x64.ADD, x64.W64, n, 1)
	a.MovRI(page, dataOffset+sharePages)
	a.MovRI(left, sweepPages)
	next := a.mark()
	a.st(x64.At(page, 0), n)
	a.ALURI(x64.ADD, x64.W64, page, 4096)
	a.ALURI(x64.SUB, x64.W64, left, 1)
	a.Jcc(x64.NE, next)
	a.compare(n, 1, x64.NE, again)
	a.st(x64.At(xDevice, regSignal), n)
	a.Jmp(again)
}

// time leaves how fast its time counter counts, in kHz, and tells the counter whenever
// the first word has changed.
func (a *smp) time() {
	const last = x64.R8
	a.MovRI(x64.RAX, 0x4000_0010)
	a.raw(0x0f, 0xa2) // cpuid
	a.MovRI(xDevice, x86Device)
	a.st(at(8), x64.RAX)
	a.MovRI(last, 0)
	again, wait := a.mark(), a.NewLabel()
	a.raw(0x0f, 0x31) // rdtsc
	a.ShiftRI(x64.SHL, x64.W64, x64.RDX, 32)
	a.ALURR(x64.OR, x64.W64, x64.RAX, x64.RDX)
	a.st(x64.At(xDevice, regSignal), x64.RAX)
	a.Bind(wait)
	a.Pause()
	a.ld(x64.RAX, at(0))
	a.ALURR(x64.CMP, x64.W64, x64.RAX, last)
	a.Jcc(x64.E, wait)
	a.MovRR(x64.W64, last, x64.RAX)
	a.Jmp(again)
}
