package enginetest

import (
	"encoding/binary"
	"maps"

	"github.com/forkd-dev/forkd/internal/page"
)

// Registers of amd64.
const (
	rax = iota
	rcx
	rdx
	rbx // the device, set by the prologue
	rsp
	rbp
	rsi // the shared data, likewise
	rdi
)

const (
	x86Device    = 0xd000_0000
	x86Interrupt = 17

	x86LAPIC  = 0xfee0_0000
	x86IOAPIC = 0xfec0_0000

	x86IDT         = 0x1000 // free for programs, as are the pages up to 0x9000
	x86Descriptor  = 0x2000
	x86Second      = 0x3000 // where other vCPUs start
	x86Programs    = 0x4000
	x86Vector      = 0x31
	x86TimerVector = 0x32
	x86Code        = 0x10 // selector of the code segment, as the engine leaves it
)

// amd64 programs run in 64-bit mode, with memory mapped to itself.
var amd64 = isa{
	ramBase:    0,
	entry:      x86Programs,
	deviceBase: x86Device,
	interrupt:  x86Interrupt,
	countPages: 4, // three of them page tables, in which most processors set bits
	maxVCPUs:   16,
	loads:      6, // one of 16 bytes is two
	programs:   x86AllPrograms(),
	lacks: map[string]string{
		"masked": "a processor that halts with interrupts off is not woken by one",
		"states": "there are no firmware calls to start and stop vCPUs; see the program restart",
	},
}

func x86AllPrograms() map[string][]byte {
	programs := map[string][]byte{
		"store":     x86Program((*x86).store),
		"load":      x86Program((*x86).load),
		"off":       x86Program((*x86).off),
		"reset":     x86Program(func(a *x86) { a.movImm(rax, 0xfe); a.code(0xe6, 0x64) }),
		"failed":    x86Program(func(a *x86) { a.code(0xe6, 0xf4) }),
		"console":   x86Program((*x86).console),
		"spin":      x86Program(func(a *x86) { a.loop(func() {}) }),
		"count":     x86Program((*x86).count),
		"wait":      x86Program((*x86).wait),
		"halt":      x86Program((*x86).wait), // interrupts are off at first
		"interrupt": x86Program((*x86).handleInterrupt),
		"timer":     x86Program((*x86).timer),
		"poll":      x86Program((*x86).poll),
		"touch-all": x86Program((*x86).touchAll),
		"two":       x86Program((*x86).two),
	}
	maps.Copy(programs, x86ParallelPrograms())
	return programs
}

// x86 assembles a program that starts at x86Programs.
type x86 struct{ b []byte }

func x86Program(body func(*x86)) []byte {
	a := new(x86)
	a.movImm(rbx, x86Device)
	a.movImm(rsi, dataOffset)
	body(a)
	return a.b
}

func (a *x86) code(b ...byte) { a.b = append(a.b, b...) }

// movImm sets a register.
func (a *x86) movImm(r byte, v uint64) {
	a.code(0x48, 0xb8|r)
	a.b = binary.LittleEndian.AppendUint64(a.b, v)
}

// at is the operand that a register and a displacement address.
func (a *x86) at(reg, base byte, disp uint32) {
	a.code(0x80 | reg<<3 | base)
	a.b = binary.LittleEndian.AppendUint32(a.b, disp)
}

// st and ld move 64 bits between a register and memory.
func (a *x86) st(base byte, disp uint32, reg byte) { a.code(0x48, 0x89); a.at(reg, base, disp) }
func (a *x86) ld(reg, base byte, disp uint32)      { a.code(0x48, 0x8b); a.at(reg, base, disp) }

// put32 stores a constant at a physical address.
func (a *x86) put32(address, v uint32) {
	a.movImm(rdi, uint64(address))
	a.movImm(rax, uint64(v))
	a.code(0x89)
	a.at(rax, rdi, 0)
}

func (a *x86) put64(address uint32, v uint64) {
	a.movImm(rdi, uint64(address))
	a.movImm(rax, v)
	a.st(rdi, 0, rax)
}

// loop repeats a body for ever.
func (a *x86) loop(body func()) {
	start := len(a.b)
	body()
	a.code(0xeb, byte(start-len(a.b)-2))
}

// until repeats a body, which sets rax, until that is not zero.
func (a *x86) until(body func()) {
	start := len(a.b)
	body()
	a.code(0x48, 0x85, 0xc0) // test rax, rax
	a.code(0x74, byte(start-len(a.b)-2))
}

func (a *x86) halt() { a.code(0xf4) }

func (a *x86) off() {
	a.movImm(rdx, 0x604)
	a.movImm(rax, 0x2000)
	a.code(0x66, 0xef) // out dx, ax
	a.loop(a.halt)
}

// store writes to the device in each width.
func (a *x86) store() {
	a.movImm(rax, 0x0102030405060708)
	a.code(0x88)
	a.at(rax, rbx, 0x20)
	a.code(0x66, 0x89)
	a.at(rax, rbx, 0x22)
	a.code(0x89)
	a.at(rax, rbx, 0x24)
	a.st(rbx, 0x28, rax)
	a.off()
}

// load reads from the device in each width, the last time 16 bytes.
func (a *x86) load() {
	for i, op := range [][]byte{{0x0f, 0xb6}, {0x0f, 0xb7}, {0x8b}, {0x48, 0x8b}} {
		a.code(op...)
		a.at(rax, rbx, uint32(regRead+8*i))
		a.st(rsi, uint32(8*i), rax)
	}
	const wide = 4 * 8
	a.code(0x0f, 0x20, 0xe0)       // mov rax, cr4
	a.code(0x48, 0x0d, 0, 2, 0, 0) // or rax, OSFXSR
	a.code(0x0f, 0x22, 0xe0)       // mov cr4, rax
	a.code(0x0f, 0x10)             // movups xmm0, the device
	a.at(0, rbx, regRead+wide)
	a.code(0x0f, 0x11) // movups to the shared data
	a.at(0, rsi, wide)
	a.off()
}

func (a *x86) console() {
	a.movImm(rdx, 0x3f8)
	for _, c := range "hi!" {
		a.movImm(rax, uint64(c))
		a.code(0xee) // out dx, al
	}
	a.off()
}

// increment adds one to the first word of the shared data.
func (a *x86) increment() {
	a.ld(rax, rsi, 0)
	a.code(0x48, 0xff, 0xc0) // inc rax
	a.st(rsi, 0, rax)
}

// count counts until the word behind the counter is not zero. It tells when it has
// begun.
func (a *x86) count() {
	a.increment()
	a.st(rbx, regSignal, rax)
	a.until(func() {
		a.increment()
		a.ld(rax, rsi, 8)
	})
	a.off()
}

// wait waits for ever, with interrupts off.
func (a *x86) wait() {
	a.st(rbx, regSignal, rax)
	a.loop(a.halt)
}

// poll reads a word until it is not zero.
func (a *x86) poll() {
	a.ld(rax, rsi, 0)
	a.st(rbx, regSignal, rax)
	a.until(func() { a.ld(rax, rsi, 0) })
	a.st(rbx, regSignal, rax)
	a.off()
}

// touchAll stores in each page of data its address.
func (a *x86) touchAll() {
	a.movImm(rax, dataOffset)
	start := len(a.b)
	a.st(rax, 0, rax)
	a.code(0x48, 0x05) // add rax, a page
	a.b = binary.LittleEndian.AppendUint32(a.b, page.Size)
	a.code(0xeb, byte(start-len(a.b)-2))
}

// gate makes an entry of the interrupt descriptor table (AMD64 APM volume 2, 4.8.4).
func gate(handler int) uint64 {
	const present, interruptGate = 1 << 47, 0xe << 40
	at := uint64(handler)
	return at&0xffff | x86Code<<16 | interruptGate | present | at>>16<<48
}

// handle has a body called for an interrupt, and enables interrupts.
func (a *x86) handle(vector int, body func()) {
	a.code(0xe9) // jmp over it
	jump := len(a.b)
	a.code(0, 0, 0, 0)
	handler := len(a.b)
	body()
	a.put32(x86LAPIC+0xb0, 0) // end of interrupt
	a.code(0x48, 0xcf)        // iretq
	binary.LittleEndian.PutUint32(a.b[jump:], uint32(len(a.b)-handler))

	a.put64(x86IDT+16*uint32(vector), gate(x86Programs+handler))
	a.put64(x86IDT+16*uint32(vector)+8, 0)
	a.put64(x86Descriptor, x86IDT<<16|0xfff)
	a.code(0x0f, 0x01, 0x1c, 0x25) // lidt [x86Descriptor]
	a.b = binary.LittleEndian.AppendUint32(a.b, x86Descriptor)
	a.put32(x86LAPIC+0xf0, 0x1ff) // on
	a.code(0xfb)                  // sti
}

// handleInterrupt waits for interrupts; the handler has the line lowered and tells
// the test. After three it powers off.
func (a *x86) handleInterrupt() {
	a.handle(x86Vector, func() {
		a.st(rbx, regLower, rax)
		a.movImm(rax, x86Interrupt)
		a.st(rbx, regSignal, rax)
		a.increment()
		a.code(0x48, 0x83, 0xf8, 3) // cmp rax, 3
		a.code(0x75)                // jne over it
		jump := len(a.b)
		a.code(0)
		a.off()
		a.b[jump] = byte(len(a.b) - jump - 1)
	})
	const level = 1 << 15
	a.put32(x86IOAPIC, 0x11+2*x86Interrupt)
	a.put32(x86IOAPIC+0x10, 0)
	a.put32(x86IOAPIC, 0x10+2*x86Interrupt)
	a.put32(x86IOAPIC+0x10, x86Vector|level)
	a.movImm(rax, 0x100)
	a.st(rbx, regSignal, rax) // ready
	a.loop(a.halt)
}

// timestamp leaves the time stamp counter in rax.
func (a *x86) timestamp() {
	a.code(0x0f, 0x31, 0x48, 0xc1, 0xe2, 32, 0x48, 0x09, 0xd0) // rdtsc; shl rdx, 32; or rax, rdx
}

// timer sets the timer 50,000 ticks ahead, waits for it, and leaves in the shared
// data the times before and after, and whether the interrupt came.
func (a *x86) timer() {
	a.handle(x86TimerVector, func() {
		a.movImm(rax, 1)
		a.st(rsi, 16, rax)
	})
	const deadlineMode = 2 << 17
	a.put32(x86LAPIC+0x320, x86TimerVector|deadlineMode)
	a.timestamp()
	a.st(rsi, 0, rax)
	a.code(0x48, 0x05) // add rax, 50000
	a.b = binary.LittleEndian.AppendUint32(a.b, 50_000)
	a.code(0x48, 0x89, 0xc2, 0x48, 0xc1, 0xea, 32) // mov rdx, rax; shr rdx, 32
	a.movImm(rcx, 0x6e0)                           // the deadline
	a.code(0x0f, 0x30)                             // wrmsr
	a.until(func() { a.ld(rax, rsi, 16) })
	a.timestamp()
	a.st(rsi, 8, rax)
	a.off()
}

// two starts the second vCPU, in real mode as processors start; both add to one
// word a thousand times. The first waits for the second and powers off.
func (a *x86) two() {
	second := []byte{
		0xb8, dataOffset >> 4 & 0xff, dataOffset >> 12, 0x8e, 0xd8, // mov ax, data; mov ds, ax
		0xb9, 1000 & 0xff, 1000 >> 8, // mov cx, 1000
		0x66, 0xf0, 0x83, 0x06, 0, 0, 1, // lock add dword [0], 1
		0x49, 0x75, 0xf6, // dec cx; jnz
		0xc6, 0x06, 8, 0, 1, // mov byte [8], 1
		0xf4, 0xeb, 0xfd, // hlt
	}
	for i := 0; i < len(second); i += 8 {
		var word [8]byte
		copy(word[:], second[i:])
		a.put64(x86Second+uint32(i), binary.LittleEndian.Uint64(word[:]))
	}
	a.put32(x86LAPIC+0xf0, 0x1ff)
	for _, command := range []uint32{0x4500, 0x4600 | x86Second>>12} { // INIT, then start at that page
		a.put32(x86LAPIC+0x310, 1<<24)
		a.put32(x86LAPIC+0x300, command)
	}
	a.movImm(rcx, 1000)
	start := len(a.b)
	a.code(0xf0, 0x48, 0x83)
	a.at(rax, rsi, 0) // lock add qword [rsi], 1
	a.code(1)
	a.code(0x48, 0xff, 0xc9) // dec rcx
	a.code(0x75, byte(start-len(a.b)-2))
	a.until(func() { a.ld(rax, rsi, 8) })
	a.off()
}
