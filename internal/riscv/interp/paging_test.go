package interp

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Two virtual pages side by side, mapped to pages that are not.
const (
	crossVA   = 0x4000_0000
	crossLow  = rigData
	crossHigh = rigData + 0x5000
)

// TestDataAcrossPages: an access that crosses pages faults with the address of
// the part that failed, and a store leaves nothing behind (priv 12.1.9).
func TestDataAcrossPages(t *testing.T) {
	ops := []struct {
		op   isa.Op
		size uint64
	}{
		{isa.LH, 2}, {isa.LW, 4}, {isa.LD, 8}, {isa.FLW, 4}, {isa.FLD, 8},
		{isa.SH, 2}, {isa.SW, 4}, {isa.SD, 8}, {isa.FSW, 4}, {isa.FSD, 8},
	}
	pages := []struct {
		name      string
		low, high uint64 // PTE bits
		load      bool   // loads work
		store     bool   // stores work
		fault     uint64 // offset of the failing page's address from the access's page
	}{
		{"both", pteKernel, pteKernel, true, true, 0},
		{"second-absent", pteKernel, 0, false, false, 4096},
		{"second-read-only", pteKernel, pteKernel &^ pteW, true, false, 4096},
		{"first-absent", 0, pteKernel, false, false, 0},
		{"first-read-only", pteKernel &^ pteW, pteKernel, true, false, 0},
	}
	for _, p := range pages {
		for _, o := range ops {
			for back := uint64(1); back < o.size; back++ {
				t.Run(fmt.Sprintf("%s/%v-%d", p.name, o.op, back), func(t *testing.T) {
					va := crossVA + 4096 - back
					isStore := isa.Inst{Op: o.op}.String()[0] == 's' || o.op == isa.FSW || o.op == isa.FSD
					var at uint64
					r := newRig(t, func(a *isa.Asm) {
						a.LI(s0, va)
						a.LI(a0, 0x8899aabbccddeeff)
						a.R(isa.FMV_D_X, 10, a0, 0)
						at = a.PC()
						a.Emit(isa.Inst{Op: o.op, Rd: 11, Rs1: s0, Rs2: 10})
					})
					r.paging()
					r.mapPage(crossVA, crossLow, p.low)
					r.mapPage(crossVA+4096, crossHigh, p.high)
					r.put(crossLow+4088, []byte{1, 2, 3, 4, 5, 6, 7, 8})
					r.put(crossHigh, []byte{9, 10, 11, 12, 13, 14, 15, 16})
					works, cause := p.load, hart.LoadPageFault
					if isStore {
						works, cause = p.store, hart.StorePageFault
					}
					if works {
						r.mustEnd()
						checkCrossed(r, o.op, o.size, back, isStore)
						return
					}
					tval := va
					if p.fault != 0 {
						tval = crossVA + p.fault
					}
					r.mustTrap(cause, tval, at)
					if r.get64(crossLow+4088) != 0x0807060504030201 || r.get64(crossHigh) != 0x100f0e0d0c0b0a09 {
						t.Error("memory was written")
					}
				})
			}
		}
	}
}

func checkCrossed(r *rig, op isa.Op, size, back uint64, isStore bool) {
	r.Helper()
	var b [16]byte
	r.m.Memory.Read(crossLow+4088, b[:8])
	r.m.Memory.Read(crossHigh, b[8:])
	got := binary.LittleEndian.Uint64(b[8-back:]) & (1<<(8*size-1)<<1 - 1)
	want := uint64(0x8899aabbccddeeff)
	if !isStore {
		want, got = got, r.h.X[11]
		if op == isa.FLW || op == isa.FLD {
			got = r.h.F[11]
		}
	}
	if mask := uint64(1)<<(8*size-1)<<1 - 1; got&mask != want&mask {
		r.Errorf("got %#x, want %#x", got&mask, want&mask)
	}
}

// TestFetchAcrossPages: an instruction of four bytes at the end of a page whose
// successor is absent faults there, and goes on once the page is present.
func TestFetchAcrossPages(t *testing.T) {
	for _, in := range []isa.Inst{
		{Op: isa.ADDI, Rd: a0, Imm: 77},
		{Op: isa.JAL, Rd: a0, Imm: 8},
		{Op: isa.JAL, Rd: a0, Imm: -2046},
		{Op: isa.BEQ, Imm: 8},
		{Op: isa.BEQ, Imm: -62},
		{Op: isa.BNE, Imm: -62},
		{Op: isa.AUIPC, Rd: a0, Imm: 0x1000},
		{Op: isa.JALR, Rd: a0, Rs1: s0, Imm: 16},
		{Op: isa.LD, Rd: a0, Rs1: s0},
	} {
		t.Run(in.String(), func(t *testing.T) {
			const pc = crossVA + 4094
			r := newRig(t, func(a *isa.Asm) {
				a.LI(s0, crossVA)
				a.LI(t0, pc)
				a.I(isa.JALR, 0, t0, 0)
			})
			r.paging()
			r.mapPage(crossVA, crossLow, pteKernel)
			high := r.mapPage(crossVA+4096, crossHigh, 0)
			raw := isa.Encode(in)
			fillECALL(r, crossLow)
			fillECALL(r, crossHigh+2)
			r.put(crossLow+4094, []byte{byte(raw), byte(raw >> 8)})
			r.put(crossHigh, []byte{byte(raw >> 16), byte(raw >> 24)})
			r.mustTrap(hart.FetchPageFault, crossVA+4096, pc)

			r.put64(high, crossHigh>>2|pteKernel)
			r.c.FlushPage(crossVA + 4096)
			r.h.PC = pc
			r.mustEnd()
			want := uint64(pc + 4)
			switch {
			case in.Op == isa.JAL, in.Op == isa.BEQ:
				want = pc + uint64(int64(in.Imm))
			case in.Op == isa.JALR:
				want = crossVA + 16
			}
			if r.h.PC-4 != want {
				t.Errorf("went on at %#x, want %#x", r.h.PC-4, want)
			}
			wantA0 := map[isa.Op]uint64{isa.ADDI: 77, isa.JAL: pc + 4, isa.JALR: pc + 4, isa.AUIPC: pc + 0x1000, isa.LD: r.get64(crossLow)}[in.Op]
			if r.h.X[a0] != wantA0 {
				t.Errorf("a0 is %#x, want %#x", r.h.X[a0], wantA0)
			}
		})
	}
}

// fillECALL makes every even address of a page a place where the program ends.
func fillECALL(r *rig, gpa uint64) {
	r.Helper()
	code := binary.LittleEndian.AppendUint32(nil, isa.Encode(isa.Inst{Op: isa.ECALL}))
	for i := gpa; i+4 <= gpa&^0xfff+4096; i += 4 {
		r.put(i, code)
	}
}

// TestFetchFaults: the causes of a fetch that fails at its first byte.
func TestFetchFaults(t *testing.T) {
	for name, test := range map[string]struct {
		bits, gpa, cause uint64
		user             bool
	}{
		"absent":             {0, rigData, hart.FetchPageFault, false},
		"not-executable":     {pteKernel &^ pteX, rigData, hart.FetchPageFault, false},
		"user-page-from-S":   {pteUser, rigData, hart.FetchPageFault, false},
		"kernel-page-from-U": {pteKernel, rigData, hart.FetchPageFault, true},
		"not-RAM":            {pteKernel, rigDevice, hart.FetchAccess, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(a *isa.Asm) {
				a.LI(t1, crossVA)
				if test.user {
					a.LI(t0, hart.StatusSPP)
					a.CSR(isa.CSRRC, 0, hart.CSRSstatus, t0)
					a.CSR(isa.CSRRW, 0, hart.CSRSepc, t1)
					a.Op(isa.SRET)
				}
				a.I(isa.JALR, 0, t1, 0)
			})
			r.paging()
			r.mapPage(crossVA, test.gpa, test.bits)
			r.mustTrap(test.cause, crossVA, crossVA)
		})
	}
}

// TestEnableTranslation is how Linux turns the MMU on: the very next fetch, at
// the old physical address, must fault and land at the virtual stvec.
func TestEnableTranslation(t *testing.T) {
	var at uint64
	r := newRig(t, func(a *isa.Asm) {
		a.LI(t0, 8<<60|rigTables>>12)
		a.LI(t1, rigVector+sv39Offset)
		a.CSR(isa.CSRRW, 0, hart.CSRStvec, t1)
		a.CSR(isa.CSRRW, 0, hart.CSRSatp, t0)
		at = a.PC()
		a.LI(a0, 1)
	})
	r.mapAt(rigTables, rigBase+sv39Offset, rigBase, 1, pteKernel)
	r.mustTrap(hart.FetchPageFault, at, at)
	if r.h.X[a0] != 0 {
		t.Error("the instruction behind the switch was executed")
	}
}

// TestUnsupportedModes: a write of satp with Sv48 or Sv57 changes nothing, which
// is how the kernel finds out (priv 12.1.11).
func TestUnsupportedModes(t *testing.T) {
	for _, mode := range []uint64{1, 7, 9, 10, 15} {
		r := newRig(t, func(a *isa.Asm) {
			a.LI(t0, mode<<60|0x1234)
			a.CSR(isa.CSRRW, 0, hart.CSRSatp, t0)
			a.CSR(isa.CSRRS, a0, hart.CSRSatp, 0)
		})
		r.mustEnd()
		if r.h.X[a0] != 0 {
			t.Errorf("satp is %#x after a write with mode %d", r.h.X[a0], mode)
		}
	}
}

// TestFenceAfterEdit changes a mapping between two loads: after the fence, in
// each of its forms, the new one counts (priv 12.2.1).
func TestFenceAfterEdit(t *testing.T) {
	for name, fence := range map[string]isa.Inst{
		"all":              {Op: isa.SFENCE_VMA},
		"address":          {Op: isa.SFENCE_VMA, Rs1: s0},
		"asid":             {Op: isa.SFENCE_VMA, Rs2: t2},
		"address-and-asid": {Op: isa.SFENCE_VMA, Rs1: s0, Rs2: t2},
	} {
		for _, edit := range []string{"other-page", "invalid", "read-only"} {
			t.Run(name+"/"+edit, func(t *testing.T) {
				var second uint64
				r := newRig(t, func(a *isa.Asm) {
					a.LI(s0, crossVA)
					a.I(isa.LD, a1, s0, 0) // cached
					a.S(isa.SD, a1, 0, s0)
					a.S(isa.SD, t1, 0, t0)
					a.Emit(fence)
					second = a.PC()
					if edit == "read-only" {
						a.S(isa.SD, a1, 0, s0)
					} else {
						a.I(isa.LD, a0, s0, 0)
					}
				})
				r.paging()
				// Not global: the forms with an ASID leave global mappings alone.
				at := r.mapPage(crossVA, crossLow, pteKernel&^pteG)
				r.put64(crossLow, 1)
				r.put64(crossHigh, 2)
				r.h.X[t0] = at
				switch edit {
				case "other-page":
					r.h.X[t1] = crossHigh>>2 | pteKernel&^pteG
				case "read-only":
					r.h.X[t1] = crossLow>>2 | pteKernel&^(pteG|pteW)
				}
				switch edit {
				case "other-page":
					r.mustEnd()
					if r.h.X[a0] != 2 {
						t.Errorf("loaded %d after the fence, want 2", r.h.X[a0])
					}
				case "invalid":
					r.mustTrap(hart.LoadPageFault, crossVA, second)
				case "read-only":
					r.mustTrap(hart.StorePageFault, crossVA, second)
				}
			})
		}
	}
}

// TestToggles: SUM and MXR count at once.
func TestToggles(t *testing.T) {
	t.Run("SUM", func(t *testing.T) {
		var at uint64
		r := newRig(t, func(a *isa.Asm) {
			a.LI(s0, crossVA)
			a.LI(t0, hart.StatusSUM)
			a.CSR(isa.CSRRS, 0, hart.CSRSstatus, t0)
			a.I(isa.LD, a0, s0, 0)
			a.S(isa.SD, a0, 8, s0)
			a.CSR(isa.CSRRC, 0, hart.CSRSstatus, t0)
			at = a.PC()
			a.I(isa.LD, a1, s0, 0)
		})
		r.paging()
		r.mapPage(crossVA, crossLow, pteUser)
		r.put64(crossLow, 5)
		r.mustTrap(hart.LoadPageFault, crossVA, at)
		if r.h.X[a0] != 5 || r.get64(crossLow+8) != 5 {
			t.Error("with SUM set the page was not accessible")
		}
	})
	t.Run("MXR", func(t *testing.T) {
		var at uint64
		r := newRig(t, func(a *isa.Asm) {
			a.LI(s0, crossVA)
			a.LI(t0, hart.StatusMXR)
			a.CSR(isa.CSRRS, 0, hart.CSRSstatus, t0)
			a.I(isa.LD, a0, s0, 0)
			a.CSR(isa.CSRRC, 0, hart.CSRSstatus, t0)
			at = a.PC()
			a.I(isa.LD, a1, s0, 0)
		})
		r.paging()
		r.mapPage(crossVA, crossLow, pteKernel&^(pteR|pteW))
		r.put64(crossLow, 5)
		r.mustTrap(hart.LoadPageFault, crossVA, at)
		if r.h.X[a0] != 5 {
			t.Error("with MXR set the page was not readable")
		}
	})
}

// TestAccessedAndDirty: the bits come back after software clears them and
// fences.
func TestAccessedAndDirty(t *testing.T) {
	r := newRig(t, func(a *isa.Asm) {
		a.LI(s0, crossVA)
		a.I(isa.LD, a0, s0, 0)
		a.I(isa.LD, a1, t0, 0) // the entry after a load
		a.S(isa.SD, a0, 0, s0)
		a.I(isa.LD, a2, t0, 0) // after a store
		a.S(isa.SD, t1, 0, t0)
		a.Emit(isa.Inst{Op: isa.SFENCE_VMA, Rs1: s0})
		a.S(isa.SD, a0, 0, s0)
	})
	r.paging()
	clean := uint64(crossLow>>2 | pteKernel&^(pteA|pteD))
	at := r.mapPage(crossVA, crossLow, pteKernel&^(pteA|pteD))
	r.h.X[t0], r.h.X[t1] = at, clean
	r.mustEnd()
	for _, check := range []struct {
		when      string
		got, want uint64
	}{
		{"a load", r.h.X[a1], clean | pteA},
		{"a store", r.h.X[a2], clean | pteA | pteD},
		{"clearing, a fence and a store", r.get64(at), clean | pteA | pteD},
	} {
		if check.got != check.want {
			t.Errorf("after %s the entry is %#x, want %#x", check.when, check.got, check.want)
		}
	}
}

// selfModify calls a function, overwrites its first instruction, executes
// FENCE.I if told, and calls it again. a0 and a1 are the results.
func selfModify(a *isa.Asm, target uint64, fence bool) {
	a.LI(s0, target)
	a.I(isa.JALR, 1, s0, 0)
	a.R(isa.ADD, a0, t2, 0)
	a.LI(t1, uint64(isa.Encode(isa.Inst{Op: isa.ADDI, Rd: t2, Imm: 2})))
	a.S(isa.SW, t1, 0, s0)
	if fence {
		a.Op(isa.FENCE_I)
	}
	a.I(isa.JALR, 1, s0, 0)
	a.R(isa.ADD, a1, t2, 0)
}

func returnOne() []byte {
	a := isa.NewAsm(0)
	a.I(isa.ADDI, t2, 0, 1)
	a.I(isa.JALR, 0, 1, 0)
	return a.Bytes()
}

// TestSelfModifyingCode: after FENCE.I a store to instructions is seen
// (unpriv 6.1), on a page of its own, on the page that executes, and on a page
// that was shared with other machines until the store.
func TestSelfModifyingCode(t *testing.T) {
	t.Run("other-page", func(t *testing.T) {
		r := newRig(t, func(a *isa.Asm) { selfModify(a, rigData, true) })
		r.put(rigData, returnOne())
		r.mustEnd()
		if r.h.X[a0] != 1 || r.h.X[a1] != 2 {
			t.Errorf("results %d and %d, want 1 and 2", r.h.X[a0], r.h.X[a1])
		}
	})
	t.Run("same-page", func(t *testing.T) {
		r := newRig(t, func(a *isa.Asm) { selfModify(a, rigCode+0x800, true) })
		r.put(rigCode+0x800, returnOne())
		r.mustEnd()
		if r.h.X[a0] != 1 || r.h.X[a1] != 2 {
			t.Errorf("results %d and %d, want 1 and 2", r.h.X[a0], r.h.X[a1])
		}
	})
	t.Run("again-and-again", func(t *testing.T) {
		// Each round stores another instruction to a page that was decoded since
		// the last store.
		r := newRig(t, func(a *isa.Asm) {
			a.LI(s0, rigData)
			a.LI(a2, 0)
			a.LI(t1, uint64(isa.Encode(isa.Inst{Op: isa.ADDI, Rd: t2, Imm: 1})))
			a.Label("loop")
			a.S(isa.SW, t1, 0, s0)
			a.Op(isa.FENCE_I)
			a.I(isa.JALR, 1, s0, 0)
			a.R(isa.ADD, a2, a2, t2)
			a.LI(t0, 1<<20)
			a.R(isa.ADD, t1, t1, t0)
			a.LI(t0, 10)
			a.B(isa.BNE, t2, t0, "loop")
		})
		r.put(rigData, returnOne())
		r.mustEnd()
		if r.h.X[a2] != 55 {
			t.Errorf("sum is %d, want 55", r.h.X[a2])
		}
	})
	t.Run("written-by-device", func(t *testing.T) {
		r := newRig(t, func(a *isa.Asm) {
			a.LI(s0, rigData)
			a.I(isa.JALR, 1, s0, 0)
			a.R(isa.ADD, a0, t2, 0)
			a.Op(isa.ECALL)
			a.Op(isa.FENCE_I)
			a.I(isa.JALR, 1, s0, 0)
			a.R(isa.ADD, a1, t2, 0)
		})
		r.put(rigData, returnOne())
		r.mustEnd()
		two := isa.NewAsm(0)
		two.I(isa.ADDI, t2, 0, 2)
		r.put(rigData, two.Bytes())
		r.mustEnd()
		if r.h.X[a0] != 1 || r.h.X[a1] != 2 {
			t.Errorf("results %d and %d, want 1 and 2", r.h.X[a0], r.h.X[a1])
		}
	})
}

// TestSharedCode: machines over one layer share decoded pages, and one that
// modifies its code changes nothing for the others.
func TestSharedCode(t *testing.T) {
	parent := newRig(t, func(a *isa.Asm) { selfModify(a, rigData, true) })
	parent.put(rigData, returnOne())
	overlay := parent.m.Memory.Slots()[0].Pages
	stack := overlay.Seal()
	defer stack.Release()
	shared := NewCache(64, testNative())
	child := func(modify bool) (*Codes, [2]uint64) {
		m, h := newTestMachineOver(t, rigBase, stack, shared)
		h.PC = rigCode
		if !modify {
			h.PC = rigData // returns to address 2, which ends in a trap
		}
		h.WriteCSR(hart.CSRStvec, rigVector)
		var c CPU
		c.Attach(m, h)
		for c.Run(100) == Budget {
		}
		return m.Codes, [2]uint64{h.X[a0], h.X[a1]}
	}
	first, got := child(true)
	if got != [2]uint64{1, 2} {
		t.Errorf("first child got %v", got)
	}
	if first.Decoded.Load() == 0 || first.Inherited.Load() != 0 {
		t.Errorf("first child decoded %d pages and inherited %d", first.Decoded.Load(), first.Inherited.Load())
	}
	second, got := child(true)
	if got != [2]uint64{1, 2} {
		t.Errorf("second child got %v", got)
	}
	if second.Inherited.Load() != 2 || second.Decoded.Load() != 1 {
		t.Errorf("second child decoded %d pages and inherited %d, want 1 and 2", second.Decoded.Load(), second.Inherited.Load())
	}
}

// TestCacheIsBounded: more pages than fit are decoded again, not kept.
func TestCacheIsBounded(t *testing.T) {
	c := NewCache(10, testNative())
	for range 3 {
		for range 50 {
			c.find(new(page.Page), func() *page.Layer { return nil }, func() bool { return true })
		}
		if len(c.pages) > 10 {
			t.Fatalf("cache has %d pages", len(c.pages))
		}
	}
}

// TestCacheForgetsFreedLayers: the memory of a layer is used again, and what was
// decoded there must not be taken for what is there then.
func TestCacheForgetsFreedLayers(t *testing.T) {
	c := NewCache(10, testNative())
	base := page.NewStack(2)
	defer base.Release()
	sealed := func(b byte) *page.Stack {
		o := page.NewOverlay(base, testArena, 0)
		defer o.Close()
		p, _, err := o.Write(1)
		if err != nil {
			t.Fatal(err)
		}
		p[0] = b
		return o.Seal()
	}
	find := func(s *page.Stack) bool {
		_, decoded := c.find(s.Get(1), func() *page.Layer { return s.Owner(1) }, func() bool { return true })
		return decoded
	}
	first, second := sealed(1), sealed(2)
	defer second.Release()
	if !find(first) || !find(second) || find(first) {
		t.Fatal("pages are not decoded once")
	}
	first.Release()
	if len(c.pages) != 1 || len(c.layers) != 1 {
		t.Errorf("%d pages and %d layers are known, want one each", len(c.pages), len(c.layers))
	}
	if find(second) {
		t.Error("the page of a layer that is in use was forgotten")
	}
}
