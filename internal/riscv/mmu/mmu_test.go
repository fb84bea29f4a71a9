package mmu

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

const (
	ramBase  = 0x8000_0000
	ramPages = 1024
	root     = ramBase
	sv39     = 8 << 60
)

// testArena is shared, since its memory comes in large pieces.
var testArena = page.NewArena()

// fixture is an MMU over some RAM, with page tables that tests build.
type fixture struct {
	*testing.T
	MMU
	hart *hart.Hart
	mem  *memory.Space
	next uint64 // GPA of the next free page
}

func newFixture(t *testing.T) *fixture {
	stack := page.NewStack(ramPages)
	overlay := page.NewOverlay(stack, testArena, 0)
	t.Cleanup(func() { overlay.Close(); stack.Release() })
	mem, err := memory.NewSpace(memory.Slot{Base: ramBase, Pages: overlay})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, mem: mem, next: root + page.Size}
	f.hart = hart.New(0, func() uint64 { return 0 })
	f.setSATP(sv39 | root>>12)
	f.Attach(mem, f.hart)
	return f
}

func (f *fixture) setSATP(v uint64) {
	f.hart.Mode = hart.Supervisor
	if _, ok := f.hart.WriteCSR(hart.CSRSatp, v); !ok {
		f.Fatal("satp cannot be written")
	}
}

// mode sets privilege, SUM and MXR.
func (f *fixture) mode(m hart.Mode, status uint64) {
	f.hart.Mode = m
	f.hart.Status = status
	f.Switch(f.hart)
}

func (f *fixture) alloc() uint64 {
	f.next += page.Size
	return f.next - page.Size
}

// entry returns the GPA of the page-table entry for va at a level, making the
// tables above it.
func (f *fixture) entry(va uint64, level int) uint64 {
	table := uint64(root)
	for l := levels - 1; ; l-- {
		at := table + va>>(12+9*l)&0x1ff*8
		if l == level {
			return at
		}
		pte := f.read(at)
		if pte&pteV == 0 {
			pte = f.alloc()>>2 | pteV
			f.write(at, pte)
		}
		table = pte & ptePPN << 2
	}
}

func (f *fixture) read(gpa uint64) uint64 {
	v, err := f.mem.Uint64(gpa)
	if err != nil {
		f.Fatal(err)
	}
	return v
}

func (f *fixture) write(gpa, v uint64) {
	if err := f.mem.PutUint64(gpa, v); err != nil {
		f.Fatal(err)
	}
	f.Sync()
}

// mapPage maps va at a level and returns where its entry is.
func (f *fixture) mapPage(va, gpa uint64, level int, bits uint64) (at uint64) {
	at = f.entry(va, level)
	f.write(at, gpa>>2|bits)
	return at
}

const (
	rwx  = pteV | pteR | pteW | pteX | pteA | pteD
	user = rwx | pteU
)

// TestWalk is the translation algorithm, step by step.
func TestWalk(t *testing.T) {
	const va = 0x12_3456_7000
	const target = ramBase + 0x10_0000
	const SUM, MXR = hart.StatusSUM, hart.StatusMXR
	U, S := hart.User, hart.Supervisor
	tests := []struct {
		name   string
		bits   uint64
		level  int
		gpa    uint64
		mode   hart.Mode
		status uint64
		access Access
		fault  Fault
		want   uint64 // bits that the walk must have added
	}{
		{name: "priv-12.3.2-step3-not-valid", bits: rwx &^ pteV, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step3-write-only", bits: rwx &^ pteR, mode: S, access: Store, fault: PageFault},
		{name: "priv-12.3.2-step3-write-exec", bits: pteV | pteW | pteX | pteA | pteD, mode: S, access: Fetch, fault: PageFault},
		{name: "priv-12.3.2-step3-reserved-N", bits: rwx | 1<<63, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step3-reserved-PBMT", bits: rwx | 1<<61, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step3-reserved-54", bits: rwx | 1<<54, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step3-software-bits", bits: rwx | 3<<8, mode: S, access: Load},
		{name: "priv-12.3.2-step4-no-level-left", bits: pteV, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step4-pointer-with-A", bits: pteV | pteA, level: 1, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step4-pointer-with-D", bits: pteV | pteD, level: 1, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step4-pointer-with-U", bits: pteV | pteU, level: 1, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step5-load", bits: rwx, mode: S, access: Load},
		{name: "priv-12.3.2-step5-store", bits: rwx, mode: S, access: Store},
		{name: "priv-12.3.2-step5-fetch", bits: rwx, mode: S, access: Fetch},
		{name: "priv-12.3.2-step5-store-to-read-only", bits: rwx &^ pteW, mode: S, access: Store, fault: PageFault},
		{name: "priv-12.3.2-step5-fetch-not-executable", bits: rwx &^ pteX, mode: S, access: Fetch, fault: PageFault},
		{name: "priv-12.3.2-step5-load-execute-only", bits: pteV | pteX | pteA, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step5-load-execute-only-MXR", bits: pteV | pteX | pteA, mode: S, status: MXR, access: Load},
		{name: "priv-12.3.2-step5-store-execute-only-MXR", bits: pteV | pteX | pteA, mode: S, status: MXR, access: Store, fault: PageFault},
		{name: "priv-12.3.2-step5-user-page-from-U", bits: user, mode: U, access: Load},
		{name: "priv-12.3.2-step5-kernel-page-from-U", bits: rwx, mode: U, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step5-kernel-page-fetched-from-U", bits: rwx, mode: U, access: Fetch, fault: PageFault},
		{name: "priv-12.3.2-step5-user-page-from-S", bits: user, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step5-user-page-from-S-with-SUM", bits: user, mode: S, status: SUM, access: Load},
		{name: "priv-12.3.2-step5-user-page-stored-from-S-with-SUM", bits: user, mode: S, status: SUM, access: Store},
		{name: "priv-12.3.2-step5-user-page-fetched-from-S-with-SUM", bits: user, mode: S, status: SUM, access: Fetch, fault: PageFault},
		{name: "priv-12.3.2-step5-kernel-page-from-S-with-SUM", bits: rwx, mode: S, status: SUM, access: Store},
		{name: "priv-12.3.2-step6-aligned-2M", bits: rwx, level: 1, gpa: ramBase + 0x20_0000, mode: S, access: Load},
		{name: "priv-12.3.2-step6-misaligned-2M", bits: rwx, level: 1, gpa: ramBase + 0x20_1000, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step6-aligned-1G", bits: rwx, level: 2, gpa: ramBase, mode: S, access: Load},
		{name: "priv-12.3.2-step6-misaligned-1G", bits: rwx, level: 2, gpa: ramBase + 0x20_0000, mode: S, access: Load, fault: PageFault},
		{name: "priv-12.3.2-step9-load-sets-A", bits: rwx &^ (pteA | pteD), mode: S, access: Load, want: pteA},
		{name: "priv-12.3.2-step9-fetch-sets-A", bits: rwx &^ (pteA | pteD), mode: S, access: Fetch, want: pteA},
		{name: "priv-12.3.2-step9-store-sets-A-and-D", bits: rwx &^ (pteA | pteD), mode: S, access: Store, want: pteA | pteD},
		{name: "priv-12.3.2-step9-store-sets-D", bits: rwx &^ pteD, mode: S, access: Store, want: pteD},
		{name: "priv-12.3.2-step9-fault-sets-nothing", bits: rwx &^ (pteA | pteD | pteW), mode: S, access: Store, fault: PageFault},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			gpa := test.gpa
			if gpa == 0 {
				gpa = target
			}
			at := f.mapPage(va, gpa, test.level, test.bits)
			f.mode(test.mode, test.status)
			got, fault := f.Translate(va|0x123, test.access)
			if fault != test.fault {
				t.Fatalf("fault %d, want %d", fault, test.fault)
			}
			if pte := f.read(at); pte != gpa>>2|test.bits|test.want {
				t.Errorf("entry is %#x, want %#x", pte, gpa>>2|test.bits|test.want)
			}
			offset := uint64(1)<<(12+9*test.level) - 1
			if want := gpa | (va|0x123)&offset; fault == NoFault && got != want {
				t.Errorf("translated to %#x, want %#x", got, want)
			}
		})
	}
}

// TestWalk/priv-12.4.1: bits 63 to 39 must equal bit 38.
func TestCanonical(t *testing.T) {
	f := newFixture(t)
	f.mapPage(0x3f_ffff_f000, ramBase, 0, rwx)
	f.mapPage(0x40_0000_0000, ramBase, 0, rwx) // the lowest address of the upper half
	for va, want := range map[uint64]Fault{
		0x0000_003f_ffff_f000: NoFault,
		0x0000_0040_0000_0000: PageFault,
		0xffff_ffc0_0000_0000: NoFault,
		0xffff_ff80_0000_0000: PageFault,
		0x8000_003f_ffff_f000: PageFault,
		0x1_0000_0000_0000:    PageFault,
	} {
		if _, fault := f.Translate(va, Load); fault != want {
			t.Errorf("translating %#x: fault %d, want %d", va, fault, want)
		}
	}
}

// TestTableOutsideRAM is priv 12.3.2 step 2: an access fault, of the kind of the
// access that was tried.
func TestTableOutsideRAM(t *testing.T) {
	f := newFixture(t)
	f.write(f.entry(0x4000_0000, 2), 0x1000>>2|pteV)
	for a, want := range map[Access]uint64{Fetch: hart.FetchAccess, Load: hart.LoadAccess, Store: hart.StoreAccess} {
		_, fault := f.Translate(0x4000_0000, a)
		if fault != AccessFault || fault.Cause(a) != want {
			t.Errorf("access %d: fault %d with cause %d, want cause %d", a, fault, fault.Cause(a), want)
		}
	}
}

func TestBare(t *testing.T) {
	f := newFixture(t)
	f.setSATP(0)
	f.SetSATP(f.hart)
	if gpa, fault := f.Translate(0xdead_beef_0000, Store); gpa != 0xdead_beef_0000 || fault != NoFault {
		t.Errorf("bare translation gave %#x, fault %d", gpa, fault)
	}
	if p, _, fault := f.FillLoad(0x1000); p != nil || fault != NoFault {
		t.Errorf("an address that is not RAM gave page %p, fault %d", p, fault)
	}
}

// cached reports whether the TLB would satisfy a load of one byte.
func (f *fixture) cached(va uint64) bool { return f.Loads.At(va).Tag == Tag(va, 1, f.Space) }

func (f *fixture) fill(vas ...uint64) {
	f.Helper()
	for _, va := range vas {
		if _, _, fault := f.FillLoad(va); fault != NoFault {
			f.Fatalf("loading from %#x: fault %d", va, fault)
		}
		if !f.cached(va) {
			f.Fatalf("%#x is not in the TLB after a load", va)
		}
	}
}

// TestTag: one comparison covers translation, address space and page crossing.
func TestTag(t *testing.T) {
	f := newFixture(t)
	f.mapPage(0x1000, ramBase, 0, rwx)
	f.mapPage(0x2000, ramBase, 0, rwx)
	f.fill(0x1000, 0x2000)
	for _, test := range []struct {
		va, size uint64
		hit      bool
	}{
		{0x1000, 8, true}, {0x1ff8, 8, true}, {0x1ff9, 8, false}, {0x1fff, 1, true}, {0x1fff, 2, false}, {0x3000, 1, false},
		{0x1000 + BankSize*page.Size, 1, false},
	} {
		if hit := f.Loads.At(test.va).Tag == Tag(test.va, test.size, f.Space); hit != test.hit {
			t.Errorf("%d bytes at %#x: hit %v, want %v", test.size, test.va, hit, test.hit)
		}
	}
	var empty Bank[Host]
	for _, va := range []uint64{0, ^uint64(0) &^ 0xfff} {
		if empty.At(va).Tag == Tag(va, 1, valid) {
			t.Errorf("an empty bank has %#x", va)
		}
	}
}

func TestFences(t *testing.T) {
	const (
		small  = 0x1000
		other  = 0x5000
		global = 0x9000
		large  = 0x4020_0000
	)
	setup := func(t *testing.T) *fixture {
		f := newFixture(t)
		f.setSATP(sv39 | 3<<44 | root>>12)
		f.SetSATP(f.hart)
		f.mapPage(small, ramBase, 0, user)
		f.mapPage(other, ramBase, 0, user)
		f.mapPage(global, ramBase, 0, user|pteG)
		f.mapPage(large, ramBase+0x20_0000, 1, user)
		f.mode(hart.User, 0)
		f.fill(small, other, global, large+0x3000)
		return f
	}
	check := func(f *fixture, want map[uint64]bool) {
		f.Helper()
		for va, want := range want {
			if got := f.cached(va); got != want {
				f.Errorf("%#x cached: %v, want %v", va, got, want)
			}
		}
	}
	t.Run("all", func(t *testing.T) {
		f := setup(t)
		f.Flush()
		check(f, map[uint64]bool{small: false, other: false, global: false, large + 0x3000: false})
	})
	t.Run("priv-12.2.1-address", func(t *testing.T) {
		f := setup(t)
		if shift := f.FlushPage(small + 0x10); shift != 12 {
			t.Errorf("a small page was flushed as one of 1<<%d bytes", shift)
		}
		check(f, map[uint64]bool{small: false, other: true, global: true, large + 0x3000: true})
	})
	t.Run("priv-12.2.1-address-in-large-page", func(t *testing.T) {
		f := setup(t)
		if shift := f.FlushPage(large + 0x1f_0000); shift != 21 {
			t.Errorf("a large page was flushed as one of 1<<%d bytes", shift)
		}
		check(f, map[uint64]bool{small: true, other: true, large + 0x3000: false})
	})
	t.Run("priv-12.2.1-asid", func(t *testing.T) {
		f := setup(t)
		f.FlushSpace(4)
		check(f, map[uint64]bool{small: true, other: true, large + 0x3000: true})
		f.FlushSpace(3)
		check(f, map[uint64]bool{small: false, other: false, large + 0x3000: false})
	})
	t.Run("giant-page", func(t *testing.T) {
		f := setup(t)
		f.mapPage(0x8000_0000, ramBase, 2, user)
		f.fill(0x8000_0000 + 0x12_3000)
		f.FlushPage(0x8000_0000 + 0x3000_0000)
		check(f, map[uint64]bool{0x8000_0000 + 0x12_3000: false})
	})
}

// TestAddressSpaces: user entries survive a change of satp under their ASID and
// are not seen under another.
func TestAddressSpaces(t *testing.T) {
	f := newFixture(t)
	f.mapPage(0x1000, ramBase, 0, user)
	to := func(asid uint64) {
		f.setSATP(sv39 | asid<<44 | root>>12)
		f.SetSATP(f.hart)
		f.mode(hart.User, 0)
	}
	to(1)
	f.fill(0x1000)
	to(2)
	if f.cached(0x1000) {
		t.Error("an entry of ASID 1 is seen under ASID 2")
	}
	to(1)
	if !f.cached(0x1000) {
		t.Error("an entry of ASID 1 is gone after a switch to ASID 2 and back")
	}
}

// TestKernelEntries: supervisor entries survive a change of satp if they are
// global, and only then.
func TestKernelEntries(t *testing.T) {
	f := newFixture(t)
	f.mapPage(0x1000, ramBase, 0, rwx|pteG)
	f.fill(0x1000)
	change := func() (all, kernel bool) {
		f.setSATP(sv39 | 7<<44 | root>>12)
		return f.SetSATP(f.hart)
	}
	if all, kernel := change(); all || kernel || !f.cached(0x1000) {
		t.Errorf("with global entries only, a change of satp flushed (all %v, kernel %v)", all, kernel)
	}
	f.mapPage(0x2000, ramBase, 0, rwx)
	f.fill(0x2000)
	if _, kernel := change(); kernel || f.cached(0x2000) {
		t.Errorf("after a change of satp an entry that is not global is there: %v; fetch bank flushed: %v", f.cached(0x2000), kernel)
	}
	if _, fault := f.Translate(0x2000, Fetch); fault != NoFault {
		t.Fatalf("fault %d", fault)
	}
	if _, kernel := change(); !kernel {
		t.Error("after a fetch through a mapping that is not global, a change of satp leaves the fetch bank")
	}
	f.fill(0x1000)
	f.setSATP(0)
	if all, _ := f.SetSATP(f.hart); !all || f.cached(0x1000) {
		t.Error("a change of translation mode did not flush everything (priv 12.1.11)")
	}
}

// TestInvalidIsNotCached: making an entry valid needs no fence.
func TestInvalidIsNotCached(t *testing.T) {
	f := newFixture(t)
	at := f.mapPage(0x1000, ramBase, 0, 0)
	if _, _, fault := f.FillLoad(0x1000); fault != PageFault {
		t.Fatalf("fault %d", fault)
	}
	f.write(at, ramBase>>2|rwx)
	f.fill(0x1000)
}

// TestMove: when a store moves a page into the overlay, loads see the new place.
func TestMove(t *testing.T) {
	f := newFixture(t)
	const gpa = ramBase + 0x20_0000
	f.mapPage(0x1000, gpa, 0, rwx)
	f.mapPage(0x7000, gpa, 0, rwx) // an alias
	f.fill(0x1000, 0x7000)
	old := f.Loads.At(0x7000).To.Page(0x7000)
	p, _, fault := f.FillStore(0x1000)
	if fault != NoFault || p == old {
		t.Fatalf("store got page %p (was %p), fault %d", p, old, fault)
	}
	p[5] = 42
	for _, va := range []uint64{0x1000, 0x7000} {
		if f.cached(va) && f.Loads.At(va).To.Page(va) == old {
			t.Errorf("the TLB still has the old page at %#x", va)
		}
		if p, _, _ := f.FillLoad(va); p[5] != 42 {
			t.Errorf("a load at %#x does not see the store", va)
		}
	}
	if f.Sync() {
		t.Error("the MMU does not know of its own move")
	}
	// A move by somebody else is forgotten in Sync, and nothing but that.
	const other = ramBase + 0x30_0000
	f.mapPage(0x8000, other, 0, rwx)
	f.fill(0x8000)
	f.mem.PutUint64(other, 1)
	if f.Sync() {
		t.Error("a foreign move of one page emptied everything")
	}
	if f.cached(0x8000) || !f.cached(0x1000) {
		t.Errorf("after a foreign move: the page cached %v, another %v", f.cached(0x8000), f.cached(0x1000))
	}
	if p, _, _ := f.FillLoad(0x8000); p[0] != 1 {
		t.Error("a load does not see what was written to the page's new place")
	}
	f.mem.Invalidate()
	if !f.Sync() || f.cached(0x1000) {
		t.Error("an invalidation left something")
	}
}

// TestMoveOfManyTimesLoaded: however often a page was loaded from, in whatever order, and whatever
// lies at a place that it has in common with others, no load sees it where it was.
func TestMoveOfManyTimesLoaded(t *testing.T) {
	const gpa = ramBase + 0x20_0000
	for aliases := 1; aliases <= 5; aliases++ {
		f := newFixture(t)
		var vas []uint64
		for i := range uint64(aliases) {
			vas = append(vas, 0x1000+i*0x3000)
			f.mapPage(vas[i], gpa, 0, rwx)
		}
		// What is displaced by another page, and comes back, is counted twice.
		f.mapPage(vas[0]+BankSize*pageSize, ramBase+0x30_0000, 0, rwx)
		f.fill(vas...)
		f.fill(vas[0] + BankSize*pageSize)
		f.fill(vas...)
		old := f.Loads.At(vas[0]).To.Page(vas[0])
		if _, _, fault := f.FillStore(vas[aliases-1]); fault != NoFault {
			t.Fatal(fault)
		}
		for _, va := range vas {
			if f.cached(va) && f.Loads.At(va).To.Page(va) == old {
				t.Errorf("%d aliases: a load at %#x finds the old page", aliases, va)
			}
		}
	}
}

// TestDirtyOnlyWhenStored: a page that was only read is not in the store bank,
// so that its first store sets D.
func TestDirtyOnlyWhenStored(t *testing.T) {
	f := newFixture(t)
	at := f.mapPage(0x1000, ramBase+0x10_0000, 0, rwx&^pteD)
	f.fill(0x1000)
	if f.Stores.At(0x1000).Tag == Tag(0x1000, 1, f.Space) {
		t.Fatal("a load made a store entry")
	}
	if _, fault := f.FillStoreEarly(0x1000); fault == NoFault || f.read(at)&pteD != 0 {
		t.Errorf("a store that may not happen shows: fault %d, entry %#x", fault, f.read(at))
	}
	if f.FillStore(0x1000); f.read(at)&pteD == 0 {
		t.Error("the store did not set D")
	}
	f.Flush()
	if p, fault := f.FillStoreEarly(0x1000); fault != NoFault || p == nil || f.Stores.At(0x1000).Tag == 0 {
		t.Errorf("a page that is dirty is not entered for a store: fault %d", fault)
	}
}

// TestNoMemory: the host's lack of memory is not the guest's fault.
func TestNoMemory(t *testing.T) {
	stack := page.NewStack(ramPages)
	defer stack.Release()
	overlay := page.NewOverlay(stack, testArena, 1)
	defer overlay.Close()
	mem, err := memory.NewSpace(memory.Slot{Base: ramBase, Pages: overlay})
	if err != nil {
		t.Fatal(err)
	}
	var m MMU
	m.Attach(mem, hart.New(0, func() uint64 { return 0 }))
	if p, _, _ := m.FillStore(ramBase); p == nil || m.Err != nil {
		t.Fatalf("the first page was refused: %v", m.Err)
	}
	if p, _, fault := m.FillStore(ramBase + page.Size); p != nil || fault == NoFault || m.Err == nil {
		t.Errorf("a page beyond the quota: page %p, fault %d, error %v", p, fault, m.Err)
	}
}

// FuzzTranslate walks page tables of random bytes.
func FuzzTranslate(f *testing.F) {
	f.Add([]byte{0x01, 0x00, 0x00, 0x20, 0, 0, 0, 0, 0xcf, 0x04, 0x00, 0x20}, uint64(0x1000), uint8(2))
	f.Add([]byte{0xff}, ^uint64(0), uint8(1))
	f.Fuzz(func(t *testing.T, table []byte, va uint64, mode uint8) {
		x := newFixture(t)
		for i := uint64(0); i < 16; i++ {
			x.mem.Write(root+i*(page.Size/4), table[:min(len(table), page.Size/4)])
		}
		x.Sync()
		status := uint64(mode) >> 1 & 1 * hart.StatusSUM
		x.mode(hart.Mode(mode&1), status)
		for _, a := range []Access{Fetch, Load, Store, Load, Store} {
			gpa, fault := x.Translate(va, a)
			again, faultAgain := x.Translate(va, a)
			if gpa != again || fault != faultAgain {
				t.Fatalf("translating %#x twice gave %#x (%d), then %#x (%d)", va, gpa, fault, again, faultAgain)
			}
			if gpa>>56 != 0 {
				t.Fatalf("physical address %#x has more than 56 bits", gpa)
			}
		}
		x.FillLoad(va)
		x.FillStore(va)
		x.FlushPage(va)
		x.FlushSpace(uint64(mode))
	})
}
