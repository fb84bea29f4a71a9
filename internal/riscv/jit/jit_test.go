//go:build linux && amd64

package jit

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// fixture executes one page of code at base, without an interpreter to help.
type fixture struct {
	*testing.T
	cache *Cache
	x     Context
	h     *hart.Hart
	page  page.Page
	code  *Page
	banks [2]mmu.Bank[mmu.Host]
}

const base = 0x10000

func newFixture(t *testing.T, cache *Cache, program func(a *isa.Asm)) *fixture {
	t.Helper()
	if !Supported() {
		t.Skip("this host lacks an instruction that native code uses")
	}
	f := &fixture{T: t, cache: cache, h: hart.New(0, func() uint64 { return 0 })}
	a := isa.NewAsm(base)
	program(a)
	copy(f.page[:], a.Bytes())
	f.h.PC = base
	f.x.Loads, f.x.Stores, f.x.Space = &f.banks[0], &f.banks[1], 1<<11
	f.x.Attach(cache, f.h)
	f.x.Switch()
	f.translate(0)
	return f
}

func (f *fixture) translate(off uint16) (blocks int) {
	f.Helper()
	p, made, err := f.cache.Translate(&f.page, f.code, off)
	if err != nil {
		f.Fatal(err)
	}
	f.code = p
	f.x.Sync()
	return made.Blocks
}

// want checks where execution stopped.
func (f *fixture) want(stop, wantStop Stop, left, wantLeft int, pc uint64) {
	f.Helper()
	if stop != wantStop || left != wantLeft || f.h.PC != pc {
		f.Errorf("stopped for %d with %d left at %#x, want %d, %d, %#x", stop, left, f.h.PC, wantStop, wantLeft, pc)
	}
}

// count is a loop of three instructions that adds one to a0 each time round.
func count(a *isa.Asm) {
	a.Label("loop")
	a.I(isa.ADDI, 10, 10, 1)
	a.I(isa.ADDI, 20, 20, 2)
	a.J(0, "loop")
}

// TestBudget: a loop ends when too little is left for another round, and the
// count is exact, wherever it stands.
func TestBudget(t *testing.T) {
	f := newFixture(t, NewCache(0), count)
	for n := range 50 {
		f.h.PC, f.h.X[10], f.h.X[20] = base, 5, 7
		stop, left := f.x.Enter(f.code, n)
		f.want(stop, Spent, left, n%3, base)
		if rounds := uint64(n / 3); f.h.X[10] != 5+rounds || f.h.X[20] != 7+2*rounds {
			t.Errorf("with %d instructions a0 is %d and s4 is %d", n, f.h.X[10], f.h.X[20])
		}
	}
}

// TestMiss: what the TLB lacks is asked for, and looked up again.
func TestMiss(t *testing.T) {
	f := newFixture(t, NewCache(0), func(a *isa.Asm) {
		a.I(isa.ADDI, 5, 0, 1)
		a.I(isa.LD, 10, 11, 8)
		a.I(isa.LW, 12, 11, 20)
		a.Op(isa.ECALL)
	})
	f.h.X[11] = 0x5000
	stop, left := f.x.Enter(f.code, 100)
	f.want(stop, Slow, left, 99, base+4)
	miss, ok := f.x.Miss()
	if miss != (Miss{VA: 0x5008}) || !ok {
		t.Fatalf("missed %+v, %v", miss, ok)
	}
	data := &page.Page{8: 42, 20: 43}
	*f.banks[0].At(miss.VA) = mmu.Entry[mmu.Host]{Tag: mmu.Tag(miss.VA, 1, f.x.Space), To: mmu.HostOf(data, miss.VA)}
	stop, left = f.x.Retry(left)
	f.want(stop, Slow, left, 97, base+12)
	if f.h.X[10] != 42 || f.h.X[12] != 43 {
		t.Errorf("loaded %d and %d", f.h.X[10], f.h.X[12])
	}
	if f.x.Slow() != 1 || f.x.Resumable(left) {
		t.Errorf("ECALL leaves %d instructions, resumable: %v", f.x.Slow(), f.x.Resumable(left))
	}
	// Across the end of a page there is nothing to enter.
	f.h.PC, f.h.X[11] = base, 0x6000-16
	f.x.Enter(f.code, 100)
	if _, ok := f.x.Miss(); ok || f.x.Slow() != 2 {
		t.Errorf("a group that crosses pages: %d instructions, a miss: %v", f.x.Slow(), ok)
	}
}

// TestNoStoreBeforeItsTime: a group that begins with a load asks for its page with
// care, since a store that does not happen must not be seen in the page table.
func TestNoStoreBeforeItsTime(t *testing.T) {
	f := newFixture(t, NewCache(0), func(a *isa.Asm) {
		a.I(isa.LD, 10, 11, 0)
		a.S(isa.SD, 10, 8, 11)
		a.Op(isa.ECALL)
	})
	f.h.X[11] = 0x5000
	f.x.Enter(f.code, 100)
	if miss, ok := f.x.Miss(); !ok || miss != (Miss{VA: 0x5000, Store: true, Early: true}) || f.x.Slow() != 2 {
		t.Errorf("%d instructions are left to Go, missed %+v, %v", f.x.Slow(), miss, ok)
	}
}

// TestElsewhere: jumps out of what is known lead back, with the address.
func TestElsewhere(t *testing.T) {
	f := newFixture(t, NewCache(0), func(a *isa.Asm) {
		a.I(isa.JALR, 1, 10, 3)
	})
	f.h.X[10] = 0xdead_beef_0000
	stop, left := f.x.Enter(f.code, 10)
	f.want(stop, Elsewhere, left, 9, 0xdead_beef_0002)
	if f.h.X[1] != base+4 {
		t.Errorf("the link is %#x", f.h.X[1])
	}
	f.h.PC, f.h.X[10] = base, base+0x100 // in the page, but not translated
	stop, left = f.x.Enter(f.code, 10)
	f.want(stop, Elsewhere, left, 9, base+0x102)
}

// TestDirectlyElsewhere: jumps and branches to other pages lead back with the address, too.
func TestDirectlyElsewhere(t *testing.T) {
	for _, to := range []int32{-2, -4096, -0x8_3456, 4096, 4096 + 2, 0x8_0000 - 2, -0x8_0000} {
		f := newFixture(t, NewCache(0), func(a *isa.Asm) {
			a.Emit(isa.Inst{Op: isa.JAL, Rd: 1, Imm: to})
		})
		stop, left := f.x.Enter(f.code, 10)
		f.want(stop, Elsewhere, left, 9, base+uint64(int64(to)))
		if f.h.X[1] != base+4 {
			t.Errorf("the link is %#x", f.h.X[1])
		}
	}
	for _, to := range []int32{-2, -4096, 4094} {
		f := newFixture(t, NewCache(0), func(a *isa.Asm) {
			a.Raw32(0x13) // NOP
			a.Emit(isa.Inst{Op: isa.BEQ, Imm: to}, isa.Inst{Op: isa.ECALL})
		})
		stop, left := f.x.Enter(f.code, 10)
		f.want(stop, Elsewhere, left, 8, base+4+uint64(int64(to)))
	}
}

// TestWayBackLiesApart: what a link leads to until there is code lies where code is that is
// seldom executed, and leads back with the address.
func TestWayBackLiesApart(t *testing.T) {
	f := newFixture(t, NewCache(0), func(a *isa.Asm) {
		a.B(isa.BEQ, 10, 0, "one")
		a.B(isa.BEQ, 11, 0, "two")
		a.Op(isa.ECALL)
		a.Label("one")
		a.Op(isa.ECALL)
		a.Label("two")
	})
	a := f.cache.arena.Load()
	backs := func(from, to int) (n int) {
		for i := from; i+5 <= to; i++ {
			const jump = 0xE9
			rel := int32(binary.LittleEndian.Uint32(a.writable[i+1:]))
			if a.writable[i] == jump && a.address(uint32(i+5))+uintptr(rel) == a.miss {
				n++
			}
		}
		return n
	}
	hot, cold := backs(int(f.code.entry(0)), a.used), backs(coldStart(len(a.writable)), a.cold)
	if hot != 0 || cold != 2 {
		t.Errorf("%d ways back lie in the code and %d apart from it, want 0 and 2", hot, cold)
	}
	stop, left := f.x.Enter(f.code, 10)
	f.want(stop, Elsewhere, left, 9, base+12)
	f.h.PC, f.h.X[10] = base, 1
	stop, left = f.x.Enter(f.code, 10)
	f.want(stop, Elsewhere, left, 8, base+16)
}

// TestNeverWritableAndExecutable looks at what the process has mapped.
func TestNeverWritableAndExecutable(t *testing.T) {
	newFixture(t, NewCache(0), count)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); strings.Contains(line, "forkd-code") {
			seen[f[1]] = true
		}
	}
	if len(seen) != 2 || !seen["rw-s"] || !seen["r-xs"] {
		t.Errorf("code is mapped as %v", seen)
	}
}

// fill translates code until that is in another arena than now.
func fill(t *testing.T, cache *Cache) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var p page.Page
	now := cache.arena.Load()
	for translated := 0; ; translated += page.Size {
		if translated > 64<<20 {
			t.Fatal("the arena does not fill up")
		}
		for i := 0; i < page.Size; i += 4 {
			in := isa.Inst{Op: isa.LD, Rd: uint8(1 + rng.IntN(31)), Rs1: uint8(1 + rng.IntN(31)), Imm: int32(rng.IntN(2000))}
			raw := isa.Encode(in)
			p[i], p[i+1], p[i+2], p[i+3] = byte(raw), byte(raw>>8), byte(raw>>16), byte(raw>>24)
		}
		var native *Page
		for off := 0; off < page.Size; off += 4 {
			if native != nil && native.has(uint16(off)) {
				continue
			}
			var err error
			if native, _, err = cache.Translate(&p, native, uint16(off)); err != nil {
				t.Fatal(err)
			}
		}
		if cache.arena.Load() != now {
			return
		}
	}
}

// TestArenaIsReplaced: when the arena is full, code goes into a new one, and a
// context that still runs in the old one goes on.
func TestArenaIsReplaced(t *testing.T) {
	cache := NewCache(0)
	old := newFixture(t, cache, count)
	fill(t, cache)
	if n := cache.Bytes(); n > minArena {
		t.Errorf("code takes %d bytes", n)
	}
	stop, left := old.x.Enter(old.code, 10)
	old.want(stop, Spent, left, 1, base)
	old.x.Sync()
	if old.x.Usable(old.code) {
		t.Error("code of the old arena counts as usable in the new one")
	}
	old.translate(0)
	stop, left = old.x.Enter(old.code, 10)
	old.want(stop, Spent, left, 1, base)
}

// TestArenasDoNotPileUp: neither pages with code nor contexts that rest keep an arena
// that has been replaced, and one that has not is entered again as if there had been no rest.
func TestArenasDoNotPileUp(t *testing.T) {
	cache := NewCache(0)
	for range 3 {
		f, busy := newFixture(t, cache, count), newFixture(t, cache, count)
		a := cache.arena.Load()
		f.x.Rest()
		if f.x.Usable(f.code) {
			t.Error("code is usable at rest")
		}
		f.x.Sync()
		if !f.x.Usable(f.code) {
			t.Error("code is not usable after a rest")
		}
		stop, left := f.x.Enter(f.code, 10)
		f.want(stop, Spent, left, 1, base)
		f.x.Rest()
		fill(t, cache)
		if a.gone.Load() {
			t.Error("an arena has gone in which somebody executes")
		}
		stop, left = busy.x.Enter(busy.code, 10)
		busy.want(stop, Spent, left, 1, base)
		if busy.x.Sync(); !a.gone.Load() {
			t.Error("an arena is there that nobody needs")
		}
		if f.x.Sync(); f.x.Usable(f.code) {
			t.Error("code of an arena that has gone is usable")
		}
		f.x.Rest()
		busy.x.Rest()
	}
}

// TestRegionIsBounded: a page full of code does not become one region.
func TestRegionIsBounded(t *testing.T) {
	f := newFixture(t, NewCache(0), func(a *isa.Asm) {
		for range page.Size / 4 {
			a.I(isa.ADDI, 10, 10, 1)
		}
	})
	if len(f.cache.tr.seq) > maxRegion {
		t.Errorf("a region has %d instructions", len(f.cache.tr.seq))
	}
	stop, left := f.x.Enter(f.code, 10_000)
	f.want(stop, Elsewhere, left, 10_000-maxRegion, base+4*maxRegion)
}

// FuzzTranslate translates random pages, which must neither fail nor take more
// room than the arena has.
func FuzzTranslate(f *testing.F) {
	if !Supported() {
		f.Skip("this host lacks an instruction that native code uses")
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		b := make([]byte, 400)
		for i := 0; i+4 <= len(b); i += 4 {
			mask, bits := isa.Op(1 + rng.IntN(int(isa.NumOps)-1)).Pattern()
			raw := bits | rng.Uint32()&^mask
			b[i], b[i+1], b[i+2], b[i+3] = byte(raw), byte(raw>>8), byte(raw>>16), byte(raw>>24)
		}
		f.Add(b, uint16(rng.IntN(400)))
	}
	cache := NewCache(0)
	f.Fuzz(func(t *testing.T, b []byte, off uint16) {
		var p page.Page
		for i := 0; i < len(p) && len(b) > 0; i += copy(p[i:], b) {
		}
		off = off % (page.Size - 2) &^ 1
		native, made, err := cache.Translate(&p, nil, off)
		if err != nil || made.Blocks < 1 || made.Share <= 0 || !native.has(off) {
			t.Errorf("translating from %#x: %+v, error %v", off, made, err)
		}
	})
}
