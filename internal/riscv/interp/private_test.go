package interp

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/rate"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
)

// frugal is a machine with a limit of its memory, all of whose code is its own.
type frugal struct {
	*rig
	pages *page.Overlay
}

// newFrugal returns a machine with so many pages of memory, of which it may have quota.
func newFrugal(t *testing.T, pages page.Number, quota int, cache *Cache) *frugal {
	t.Helper()
	empty := page.NewStack(pages)
	defer empty.Release()
	return newFrugalOver(t, empty, quota, cache)
}

// newFrugalOver is newFrugal for a machine that begins with a stack.
func newFrugalOver(t *testing.T, stack *page.Stack, quota int, cache *Cache) *frugal {
	t.Helper()
	o := page.NewOverlay(stack, page.NewArena(), quota)
	t.Cleanup(o.Close)
	mem, err := memory.NewSpace(memory.Slot{Base: rigBase, Pages: o})
	if err != nil {
		t.Fatal(err)
	}
	f := &frugal{&rig{T: t}, o}
	f.m = &Machine{Memory: mem, Codes: NewCodes(mem, cache)}
	f.h = hart.New(0, func() uint64 { return 0 })
	f.h.Power = hart.Started
	f.c.Attach(f.m, f.h)
	return f
}

// call executes what begins at pc until its ECALL, and returns a0.
func (f *frugal) call(pc uint64) uint64 {
	f.Helper()
	f.h.PC = pc
	f.c.Sync()
	if event := f.c.Run(1000); event != Call {
		f.Fatalf("at %#x: event %v", f.h.PC, event)
	}
	return f.h.X[a0]
}

// address returns where page n is.
func address(n int) uint64 { return rigBase + uint64(n)*page.Size }

// held counts the pages that what f executes with leads to.
func (f *frugal) held() int {
	all := make(map[*Code]bool)
	for i := range f.c.fetches {
		for _, e := range f.c.fetches[i] {
			if e.To != nil {
				all[e.To] = true
			}
		}
	}
	return len(all)
}

// TestPrivateCodeIsInTheLimit: what a machine has of its own pages and of code that was
// decoded from them is no more than its limit, but for the little that it may have in any case,
// whether it executes first and grows then, or the other way round.
func TestPrivateCodeIsInTheLimit(t *testing.T) {
	const (
		codes = 1200
		data  = 3000
		quota = 6000
		most  = quota*page.Size + minPrivate*privateBytes
	)
	f := newFrugal(t, codes+data, quota, NewCache(64, testNative()))
	check := func() {
		t.Helper()
		if n := f.pages.Charged()*page.Size + f.m.Codes.Bytes(); n > most {
			t.Fatalf("%d pages and %d bytes of code are %d bytes, want at most %d", f.pages.Charged(), f.m.Codes.Bytes(), n, most)
		}
		if held, has := f.held(), f.m.Codes.Bytes()/privateBytes; held > has {
			t.Fatalf("what executes holds %d decoded pages, and there are %d", held, has)
		}
	}
	for n := range codes {
		f.put(address(n), returns(int32(n)))
	}
	execute := func() {
		for n := range codes {
			if got := f.call(address(n)); got != uint64(n) {
				t.Fatalf("the code of page %d returns %d", n, got)
			}
			check()
		}
	}
	execute()
	before := f.m.Codes.Bytes()
	if before <= minPrivate*privateBytes {
		t.Fatalf("%d bytes of code are kept, although there is room", before)
	}
	for n := codes; n < codes+data; n++ {
		f.put(address(n), []byte{1})
		f.c.Sync()
		check()
	}
	if f.m.Codes.Bytes() >= before {
		t.Error("code has not made room for memory")
	}
	execute()
}

// TestSweepSparesWhatIsUsed: code that is executed again and again stays, beside however much
// that is executed once.
func TestSweepSparesWhatIsUsed(t *testing.T) {
	const once = 3 * minPrivate
	f := newFrugal(t, 1+once, 1+once, NewCache(64, nil))
	for n := range 1 + once {
		f.put(address(n), returns(int32(n)))
	}
	decoded := uint64(0)
	for n := 1; n <= once; n++ {
		before := f.m.Codes.Decoded.Load()
		f.call(address(0))
		decoded += f.m.Codes.Decoded.Load() - before
		f.call(address(n))
	}
	if f.m.Codes.sweeps.Load() == 0 {
		t.Fatal("there was room for all")
	}
	if decoded > 2 { // when first swept, all are alike
		t.Errorf("what is used all the time was decoded %d times", decoded)
	}
}

// TestStaleCodeIsForgottenOnce: a guest that writes to its code and never executes FENCE.I has
// its machine remember no more than the pages that are there.
func TestStaleCodeIsForgottenOnce(t *testing.T) {
	const pages = 2 * minPrivate
	f := newFrugal(t, pages, pages, NewCache(64, nil))
	for n := range pages {
		f.put(address(n), returns(int32(n)))
	}
	for range 4 {
		for n := range pages {
			f.call(address(n))
			f.put(address(n)+0x800, []byte{1})
		}
	}
	if n := len(f.m.Codes.stale); n > minPrivate {
		t.Errorf("%d pages are known to be stale", n)
	}
}

// TestNativeCodeIsShared: a machine that has code translated over and over goes on, but it
// does not have the arena replaced all the time, in which what its siblings execute lies.
func TestNativeCodeIsShared(t *testing.T) {
	if !jit.Supported() {
		t.Skip("this host lacks an instruction that native code uses")
	}
	const (
		pages  = 64
		rounds = 20
	)
	cache := NewCache(64, testNative())
	quiet, hostile := newFrugal(t, 1, 0, cache), newFrugal(t, pages, 0, cache)
	hostile.m.Codes.native = rate.NewBucket(0, nativeBurst, 0) // however long this takes
	quiet.put(rigBase, returns(7))
	quiet.call(rigBase)
	blocks := quiet.m.Codes.Translated.Load()
	for round := range rounds {
		for n := range pages {
			hostile.put(address(n), bulky(int32(round)))
			hostile.c.FlushCode()
			if got := hostile.call(address(n)); got != uint64(round) {
				t.Fatalf("the code of page %d returns %d in round %d", n, got, round)
			}
		}
		quiet.call(rigBase)
	}
	if n := quiet.m.Codes.Translated.Load(); n != blocks {
		t.Errorf("%d blocks of a machine that executes the same all the time were translated, and at first %d", n, blocks)
	}
}

// TestSharedCodeIsShared: a machine that executes more of what it has in common with others than
// is kept decoded for all goes on, but it does not have what they execute go all the time.
func TestSharedCodeIsShared(t *testing.T) {
	const (
		pages  = 300
		rounds = 40
	)
	cache := NewCache(64, testNative())
	source := newFrugal(t, pages, 0, cache)
	for n := range pages {
		source.put(address(n), returns(int32(n)))
	}
	stack := source.pages.Seal()
	defer stack.Release()
	quiet, hostile := newFrugalOver(t, stack, 0, cache), newFrugalOver(t, stack, 0, cache)
	hostile.m.Codes.evict = rate.NewBucket(0, evictBurst, 0) // however long this takes
	for range rounds {
		for n := 1; n < pages; n++ {
			if got := hostile.call(address(n)); got != uint64(n) {
				t.Fatalf("the code of page %d returns %d", n, got)
			}
		}
		hostile.c.FlushCode()
		quiet.call(address(0))
		quiet.c.FlushCode()
	}
	if n := quiet.m.Codes.Decoded.Load(); n > evictPart {
		t.Errorf("a page that is executed all the time was decoded %d times in %d rounds", n, rounds)
	}
	// What the machine writes it executes, also if the page was kept as its own before.
	hostile.put(address(pages-1), returns(42))
	hostile.c.FlushCode()
	if got := hostile.call(address(pages - 1)); got != 42 {
		t.Errorf("the code that returns 42 returns %d", got)
	}
}

// bulky is returns after much that takes native code and does nothing.
func bulky(v int32) []byte {
	a := isa.NewAsm(0)
	for range 200 {
		a.B(isa.BNE, 0, 0, "end")
	}
	a.I(isa.ADDI, a0, 0, v)
	a.Label("end")
	a.Op(isa.ECALL)
	return a.Bytes()
}
