package interp

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// helped runs a program in a machine that knows what another one has needed, which has
// written to a page in two address spaces. In both it is mapped twice, writable at storeVA and
// executable at codeVA.
func helped(t *testing.T, program func(a *isa.Asm)) *CPU {
	t.Helper()
	empty := page.NewStack(rigSize / page.Size)
	defer empty.Release()
	o := page.NewOverlay(empty, testArena, 0)
	defer o.Close()
	mem, err := memory.NewSpace(memory.Slot{Base: rigBase, Pages: o})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, tables: rigTables + 0x1000, m: &Machine{Memory: mem}}
	a := isa.NewAsm(rigCode)
	a.LI(s0, storeVA)
	a.LI(a2, codeVA)
	a.S(isa.SD, 0, 0, s0)
	a.B(isa.BNE, a1, 0, "program")
	enterSpace(a, 1)
	a.S(isa.SD, 0, 0, s0)
	a.J(0, "end")
	a.Label("program")
	program(a)
	a.Label("end")
	a.Op(isa.ECALL)
	r.put(rigCode, a.Bytes())
	v := isa.NewAsm(rigVector)
	v.Op(isa.ECALL)
	r.put(rigVector, v.Bytes())
	for gpa := uint64(rigBase); gpa < rigBase+rigSize; gpa += 2 << 20 {
		r.mapAt(rigTables, gpa, gpa, 1, pteKernel)
	}
	r.mapPage(storeVA, rigData, pteKernel&^(pteX|pteG))
	r.mapPage(codeVA, rigData, pteKernel&^pteW)
	stack := o.Seal()
	t.Cleanup(stack.Release)

	cache := NewCache(64, testNative())
	begin := func(a1Is uint64) (*CPU, *memory.Space) {
		m, h := newTestMachineOver(t, rigBase, stack, cache)
		h.PC, h.X[a1] = rigCode, a1Is
		h.WriteCSR(hart.CSRStvec, rigVector)
		h.WriteCSR(hart.CSRSatp, spaceSATP(0))
		c := new(CPU)
		c.Attach(m, h)
		return c, m.Memory
	}
	run := func(c *CPU) {
		t.Helper()
		event := Budget
		for range 100 {
			if event = c.Run(1000); event != Budget {
				break
			}
		}
		if event != Call || c.h.PC != rigCode+uint64(len(a.Bytes())) {
			t.Fatalf("event %v at %#x, %s", event, c.h.PC, describeTrap(c.h))
		}
	}
	if _, wanted := cache.Workset(stack); !wanted {
		t.Fatal("nobody wants to learn")
	}
	first, mem := begin(0)
	touches := Touches()
	first.Record(&touches)
	run(first)
	cache.Learn(stack, mem, touches)
	c, mem := begin(1)
	set, _ := cache.Workset(stack)
	if set == nil {
		t.Fatal("nothing was learned")
	}
	c.LookAhead(mem, set)
	run(c)
	return c
}

const (
	storeVA = 0x5000_0000
	codeVA  = 0x5100_0000
)

func spaceSATP(asid uint64) uint64 { return 8<<60 | asid<<44 | rigTables>>12 }

func enterSpace(a *isa.Asm, asid uint64) {
	a.LI(t0, spaceSATP(asid))
	a.CSR(isa.CSRRW, 0, hart.CSRSatp, t0)
}

// TestHelpDoesNotHideStores: what was prepared for a switch of address spaces does not lead past
// those who have to notice that code is written.
func TestHelpDoesNotHideStores(t *testing.T) {
	call := func(a *isa.Asm, v int32) { // writes code that returns v, and calls it
		for i, in := range []isa.Inst{{Op: isa.ADDI, Rd: a0, Imm: v}, {Op: isa.JALR, Rs1: 1}} {
			a.LI(t0, uint64(isa.Encode(in)))
			a.S(isa.SW, t0, int32(4*i), s0)
		}
		a.Op(isa.FENCE_I)
		a.I(isa.JALR, 1, a2, 0)
	}
	c := helped(t, func(a *isa.Asm) {
		call(a, 1)
		enterSpace(a, 1)
		call(a, 2)
	})
	if got := c.h.X[a0]; got != 2 {
		t.Errorf("code that returns 2 was written, and returns %d", got)
	}
}

// TestHelpIsGivenOnce: to go through all that was written at each switch of address spaces
// would take a guest that has written much longer than what it is spared.
func TestHelpIsGivenOnce(t *testing.T) {
	c := helped(t, func(a *isa.Asm) {
		for range 3 {
			enterSpace(a, 1)
			enterSpace(a, 0)
		}
	})
	if len(c.ahead.done) != 2 {
		t.Errorf("help was given for the spaces %#x", c.ahead.done)
	}
	c.ahead.since = make([]uint64, 7)
	if c.lookAhead(false); len(c.ahead.since) != 7 {
		t.Error("memory is looked through again")
	}
}
