package enginetest

import (
	"encoding/binary"

	x64 "github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

// Where the programs for several vCPUs keep what vCPUs start with.
const (
	x86Tables    = 0x2010 // the limit and base of the descriptor table
	x86Root      = 0x2020 // of the page tables
	x86Target    = 0x2028 // a far pointer to the code to start with
	x86Stacks    = 0x8000 // of 128 bytes for each vCPU
	x86IPIVector = 0x33

	lapicID          = 0x20
	lapicEnd         = 0xb0
	lapicSpurious    = 0xf0
	lapicCommand     = 0x300
	lapicDestination = 0x310
)

// Registers of these programs, besides those that the body of each uses.
const (
	xDevice = x64.RBX
	xData   = x64.RSI
	xID     = x64.RBP // the vCPU's id
)

// smp assembles a program that starts at x86Programs.
type smp struct{ x64.Asm }

func x86Assemble(body func(*smp)) []byte {
	a := new(smp)
	a.Reset(make([]byte, 0, x86Stacks-x86Programs), x86Programs)
	a.MovRI(xDevice, x86Device)
	a.MovRI(xData, dataOffset)
	body(a)
	if err := a.Finish(); err != nil {
		panic("BUG: assembling a program: " + err.Error())
	}
	return a.Bytes()
}

// raw appends an instruction that only privileged programs have.
func (a *smp) raw(code ...byte) {
	at, room := a.Len(), x86Stacks-x86Programs
	a.Seek(at, room)
	copy(a.Bytes()[at:room], code)
	a.Seek(at+len(code), room)
}

// at is a word of the shared data, and fixed one at a physical address.
func at(word int32) x64.Mem { return x64.At(xData, word) }

func (a *smp) ld(r x64.Reg, m x64.Mem) { a.MovRM(x64.W64, r, m) }
func (a *smp) st(m x64.Mem, r x64.Reg) { a.MovMR(x64.W64, m, r) }

// put32 stores a constant at a physical address. It changes RDI.
func (a *smp) put32(address int64, v int32) {
	a.MovRI(x64.RDI, address)
	a.MovMI(x64.W32, x64.At(x64.RDI, 0), v)
}

// mark binds a new label here.
func (a *smp) mark() x64.Label {
	l := a.NewLabel()
	a.Bind(l)
	return l
}

// compare compares a register with a constant, and jumps to a label if it is so.
func (a *smp) compare(r x64.Reg, v int32, is x64.Cond, to x64.Label) {
	a.ALURI(x64.CMP, x64.W64, r, v)
	a.Jcc(is, to)
}

// await waits until a word is n or more.
func (a *smp) await(m x64.Mem, n int32) {
	again := a.mark()
	a.Pause()
	a.ALUMI(x64.CMP, x64.W64, m, n)
	a.Jcc(x64.L, again)
}

func (a *smp) halt() {
	a.raw(0xfa) // cli
	again := a.mark()
	a.raw(0xf4)
	a.Jmp(again)
}

func (a *smp) off() {
	a.MovRI(x64.RDX, 0x604)
	a.MovRI(x64.RAX, 0x2000)
	a.raw(0x66, 0xef) // out dx, ax
	a.halt()
}

// send has the local APIC send something to a vCPU whose id, shifted to where the
// APIC wants it, is in RAX. It changes RDI.
func (a *smp) send(command int32) {
	a.MovRI(x64.RDI, x86LAPIC)
	a.MovMR(x64.W32, x64.At(x64.RDI, lapicDestination), x64.RAX)
	a.MovMI(x64.W32, x64.At(x64.RDI, lapicCommand), command)
}

// Commands of the local APIC (AMD64 APM volume 2, 16.5).
const (
	commandInit  = 0x4500
	commandStart = 0x4600 | x86Second>>12
	commandIPI   = 0x4000 | x86IPIVector
)

// trampoline is how a vCPU goes from where processors start, in real mode, to 64-bit
// code, with the tables that the first one has left.
var trampoline = []byte{
	0xfa,                   // cli
	0x31, 0xc0, 0x8e, 0xd8, // xor ax, ax; mov ds, ax
	0x66, 0x0f, 0x01, 0x16, x86Tables & 0xff, x86Tables >> 8, // lgdt [x86Tables]
	0x66, 0xa1, x86Root & 0xff, x86Root >> 8, 0x0f, 0x22, 0xd8, // mov eax, [x86Root]; mov cr3, eax
	0x66, 0xb8, 0x20, 0, 0, 0, 0x0f, 0x22, 0xe0, // mov eax, PAE; mov cr4, eax
	0x66, 0xb9, 0x80, 0, 0, 0xc0, // mov ecx, EFER
	0x66, 0xb8, 0, 1, 0, 0, 0x66, 0x31, 0xd2, 0x0f, 0x30, // mov eax, long mode; xor edx, edx; wrmsr
	0x66, 0xb8, 0x11, 0, 0, 0x80, 0x0f, 0x22, 0xc0, // mov eax, protected and paging; mov cr0, eax
	0x66, 0xff, 0x2e, x86Target & 0xff, x86Target >> 8, // jmp far [x86Target]
}

// prepareOthers leaves what other vCPUs start with.
func (a *smp) prepareOthers() {
	code := append([]byte{}, trampoline...)
	for len(code)%8 != 0 {
		code = append(code, 0)
	}
	a.MovRI(x64.RDI, 0)
	for i := 0; i < len(code); i += 8 {
		a.MovRI(x64.RAX, int64(binary.LittleEndian.Uint64(code[i:])))
		a.st(x64.At(x64.RDI, int32(x86Second+i)), x64.RAX)
	}
	a.raw(0x0f, 0x01, 0x04, 0x25, x86Tables&0xff, x86Tables>>8, 0, 0) // sgdt [x86Tables]
	a.raw(0x0f, 0x20, 0xd8)                                           // mov rax, cr3
	a.st(x64.At(x64.RDI, x86Root), x64.RAX)
	a.MovMI(x64.W16, x64.At(x64.RDI, x86Target+4), x86Code)
	a.put32(x86LAPIC+lapicSpurious, 0x1ff)
}

// start starts a vCPU at a label, whatever it is doing.
func (a *smp) start(id int64, label x64.Label) {
	a.MovRI(x64.RDI, 0)
	a.LeaLabel(x64.RAX, label)
	a.MovMR(x64.W32, x64.At(x64.RDI, x86Target), x64.RAX)
	a.MovRI(x64.RAX, id<<24)
	a.send(commandInit)
	a.send(commandStart)
}

// begin sets the registers of these programs on a vCPU that was started.
func (a *smp) begin() {
	a.MovRI(xDevice, x86Device)
	a.MovRI(xData, dataOffset)
	a.MovRI(x64.RDI, x86LAPIC)
	a.MovMI(x64.W32, x64.At(x64.RDI, lapicSpurious), 0x1ff) // on
	a.MovRM(x64.W32, xID, x64.At(x64.RDI, lapicID))
	a.ShiftRI(x64.SHR, x64.W32, xID, 24)
	a.MovRR(x64.W64, x64.RSP, xID)
	a.ShiftRI(x64.SHL, x64.W64, x64.RSP, 7)
	a.ALURI(x64.ADD, x64.W64, x64.RSP, x86Stacks+128)
}

// parallel starts the other vCPUs, has all of them begin the body at the same time,
// and powers off when all have ended it. The body keeps the three registers.
func (a *smp) parallel(vcpus int, body func()) {
	worker := a.NewLabel()
	a.prepareOthers()
	for id := 1; id < vcpus; id++ {
		a.start(int64(id), worker)
	}
	a.Bind(worker)
	a.begin()
	a.meet(wordReady, int32(vcpus))
	body()
	a.one(wordDone)
	stop := a.NewLabel()
	a.compare(xID, 0, x64.NE, stop)
	a.await(at(wordDone), int32(vcpus))
	a.off()
	a.Bind(stop)
	a.halt()
}

// one adds one to a word.
func (a *smp) one(word int32) {
	a.MovRI(x64.RAX, 1)
	a.LockALUMR(x64.ADD, x64.W64, at(word), x64.RAX)
}

// meet counts the vCPU in at a word and waits until the word has come to n.
func (a *smp) meet(word, n int32) {
	a.one(word)
	a.await(at(word), n)
}
