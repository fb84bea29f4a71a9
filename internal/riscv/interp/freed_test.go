package interp

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// returns is code that ends with v in a0.
func returns(v int32) []byte {
	a := isa.NewAsm(0)
	a.I(isa.ADDI, a0, 0, v)
	a.Op(isa.ECALL)
	return a.Bytes()
}

// TestFreedPageIsNotTranslated: a hart may go on with code of a page that the machine has
// written since, until it executes FENCE.I, and the page as it was may be another machine's by
// then. Nothing of what that one has written is executed, also if the machine has code of so
// many pages that it was forgotten whose the page was.
func TestFreedPageIsNotTranslated(t *testing.T) {
	const (
		pages  = maxPrivate + maxPrivate/8
		code   = rigBase + 5*page.Size
		second = 0x100 // offset of code that is not executed at first
	)
	arena := page.NewArena()
	empty := page.NewStack(pages)
	defer empty.Release()
	o := page.NewOverlay(empty, arena, 0)
	defer o.Close()
	mem, err := memory.NewSpace(memory.Slot{Base: rigBase, Pages: o})
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Memory: mem, Codes: NewCodes(mem, NewCache(64, testNative()))}
	h := hart.New(0, func() uint64 { return 0 })
	h.Power = hart.Started
	r := &rig{T: t, m: m}
	for n := range uint64(pages) {
		r.put(rigBase+n*page.Size, returns(1))
	}
	r.put(code+second, returns(2))
	branch := o.Seal()
	mem.Invalidate()

	var c CPU
	c.Attach(m, h)
	run := func(pc uint64) uint64 {
		t.Helper()
		h.PC = pc
		c.Sync()
		if event := c.Run(100); event != Call {
			t.Fatalf("at %#x: event %v", h.PC, event)
		}
		return h.X[a0]
	}
	run(code)
	const slot = code >> page.Shift % mmu.BankSize // of code, which nothing else may take
	for n := range uint64(pages) {
		if gpa := rigBase + n*page.Size; gpa>>page.Shift%mmu.BankSize != slot {
			run(gpa)
		}
	}
	before := o.Read((code - rigBase) >> page.Shift)
	r.put(code+0x800, []byte{1})
	branch.Release()
	free := o.Unseal()
	if free == nil || o.Read((code-rigBase)>>page.Shift) == before {
		t.Fatal("the page is still the machine's")
	}
	free()

	other := page.NewOverlay(empty, arena, 0)
	defer other.Close()
	for n, p := page.Number(0), (*page.Page)(nil); p != before; n++ {
		if p, _, err = other.Write(n); err != nil {
			t.Fatal(err)
		}
		copy(p[second:], returns(42))
	}
	if got := run(code + second); got != 2 {
		t.Errorf("the code that returns 2 returns %d", got)
	}
}
