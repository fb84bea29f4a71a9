package interp

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Registers that the privileged tests use by their ABI names.
const (
	t0 = 5
	t1 = 6
	t2 = 7
	s0 = 8
	a0 = 10
	a1 = 11
	a2 = 12
)

// The layout of a rig's memory.
const (
	rigBase   = 0x8000_0000
	rigSize   = 0x40_0000
	rigCode   = rigBase           // the program
	rigVector = rigBase + 0x1000  // where traps go
	rigData   = rigBase + 0x10000 // for the program
	rigTables = rigBase + 0x20000 // page tables
	rigDevice = 0x1000_0000
)

// rig is a machine for privileged tests: traps and the end of the program both
// come back as SBI calls.
type rig struct {
	*testing.T
	m      *Machine
	h      *hart.Hart
	c      CPU
	device rigRegisters
	tables uint64 // next free page for tables
}

// newRig loads a program, which begins in supervisor mode with translation off.
func newRig(t *testing.T, program func(a *isa.Asm)) *rig {
	t.Helper()
	r := &rig{T: t, tables: rigTables + 0x1000}
	r.m, r.h = newTestMachine(t, rigBase, rigSize)
	b := new(bus.Bus)
	r.m.Bus = b
	if err := b.Map(rigDevice, 0x100, &r.device); err != nil {
		t.Fatal(err)
	}
	a := isa.NewAsm(rigCode)
	program(a)
	a.Op(isa.ECALL)
	r.put(rigCode, a.Bytes())
	v := isa.NewAsm(rigVector)
	v.Op(isa.ECALL)
	r.put(rigVector, v.Bytes())
	r.h.PC = rigCode
	r.csr(hart.CSRStvec, rigVector)
	r.csr(hart.CSRSstatus, hart.StatusFS)
	r.c.Attach(r.m, r.h)
	return r
}

func (r *rig) put(gpa uint64, b []byte) {
	r.Helper()
	if err := r.m.Memory.Write(gpa, b); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) put64(gpa, v uint64) {
	r.Helper()
	if err := r.m.Memory.PutUint64(gpa, v); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) get64(gpa uint64) uint64 {
	r.Helper()
	v, err := r.m.Memory.Uint64(gpa)
	if err != nil {
		r.Fatal(err)
	}
	return v
}

// csr writes a CSR from outside.
func (r *rig) csr(csr uint32, v uint64) {
	r.Helper()
	mode := r.h.Mode
	r.h.Mode = hart.Supervisor
	if _, ok := r.h.WriteCSR(csr, v); !ok {
		r.Fatalf("CSR %#x cannot be written", csr)
	}
	r.h.Mode = mode
}

func (r *rig) readCSR(csr uint32) uint64 {
	r.Helper()
	mode := r.h.Mode
	r.h.Mode = hart.Supervisor
	v, ok := r.h.ReadCSR(csr)
	if !ok {
		r.Fatalf("CSR %#x cannot be read", csr)
	}
	r.h.Mode = mode
	return v
}

// run executes until the program ends or traps, and reports which.
func (r *rig) run() (trapped bool) {
	r.Helper()
	r.c.Sync()
	for range 1000 {
		switch ev := r.c.Run(1000); ev {
		case Budget:
		case Call:
			return r.h.PC == rigVector+4 || r.h.PC == rigVector+4+sv39Offset
		default:
			r.Fatalf("event %d at %#x", ev, r.h.PC)
		}
	}
	r.Fatalf("the program did not end; PC %#x, %s", r.h.PC, describeTrap(r.h))
	return false
}

// mustTrap runs and checks cause, stval and sepc.
func (r *rig) mustTrap(cause, tval, epc uint64) {
	r.Helper()
	if !r.run() {
		r.Fatal("no trap")
	}
	gotCause, gotTval, gotEPC := r.readCSR(hart.CSRScause), r.readCSR(hart.CSRStval), r.readCSR(hart.CSRSepc)
	if gotCause != cause || gotTval != tval || gotEPC != epc {
		r.Fatalf("trap with cause %d, stval %#x, sepc %#x, want %d, %#x, %#x", gotCause, gotTval, gotEPC, cause, tval, epc)
	}
}

func (r *rig) mustEnd() {
	r.Helper()
	if r.run() {
		r.Fatalf("trapped: %s", describeTrap(r.h))
	}
}

// sv39Offset is where mapKernel maps the rig's memory.
const sv39Offset = 0x10_0000_0000

// Page-table entry bits.
const (
	pteV = 1 << iota
	pteR
	pteW
	pteX
	pteU
	pteG
	pteA
	pteD
	pteKernel = pteV | pteR | pteW | pteX | pteG | pteA | pteD
	pteUser   = pteV | pteR | pteW | pteX | pteU | pteA | pteD
)

// paging turns translation on, with all of the memory mapped at its own
// addresses for supervisor mode.
func (r *rig) paging() {
	r.Helper()
	for gpa := uint64(rigBase); gpa < rigBase+rigSize; gpa += 0x20_0000 {
		r.mapAt(rigTables, gpa, gpa, 1, pteKernel)
	}
	r.csr(hart.CSRSatp, 8<<60|rigTables>>12)
	r.c.Attach(r.m, r.h)
}

// mapAt maps va to gpa at a level of the tables under root, and returns where
// the entry is.
func (r *rig) mapAt(root, va, gpa uint64, level int, bits uint64) (at uint64) {
	r.Helper()
	table := root
	for l := 2; ; l-- {
		at = table + va>>(12+9*l)&0x1ff*8
		if l == level {
			r.put64(at, gpa>>2|bits)
			return at
		}
		pte := r.get64(at)
		if pte&pteV == 0 {
			pte = r.tables>>2 | pteV
			r.tables += 0x1000
			r.put64(at, pte)
		}
		table = pte >> 10 << 12
	}
}

// mapPage maps a page in the tables that paging set up.
func (r *rig) mapPage(va, gpa, bits uint64) (at uint64) {
	r.Helper()
	return r.mapAt(rigTables, va, gpa, 0, bits)
}

// rigRegisters is a device that records what is done to it.
type rigRegisters struct {
	reads, writes int
	value         uint64
}

func (d *rigRegisters) Read(offset uint64, width int) uint64 {
	d.reads++
	return 0x8877665544332211 & (1<<(8*width-1)<<1 - 1)
}

func (d *rigRegisters) Write(offset uint64, width int, v uint64) {
	d.writes++
	d.value = v
}
