package mmu

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

// newPair returns the fixture of hart 0 and the MMU of hart 1, under the same page
// tables.
func newPair(t *testing.T) (f *fixture, other *MMU) {
	f = newFixture(t)
	f.mem.Share(2, func(fn func()) { fn() })
	f.Attach(f.mem, f.hart)
	h := hart.New(1, func() uint64 { return 0 })
	h.WriteCSR(hart.CSRSatp, f.hart.SATP())
	other = new(MMU)
	other.Attach(f.mem, h)
	return f, other
}

// TestStoreIsBlocked: a page that another hart may read is not moved under it.
func TestStoreIsBlocked(t *testing.T) {
	f, other := newPair(t)
	const gpa = ramBase + 0x10_0000
	f.mapPage(0x1000, gpa, 0, rwx)
	old, _, fault := other.FillLoad(0x1000)
	if fault != NoFault {
		t.Fatalf("load: fault %d", fault)
	}
	if p, _, fault := f.FillStore(0x1000); fault != Blocked || p != nil || !f.IsBlocked {
		t.Fatalf("store: page %p, fault %d", p, fault)
	}
	if e := f.Stores.At(0x1000); e.Tag == Tag(0x1000, 1, f.Space) {
		t.Error("a store that is blocked made an entry")
	}
	if f.Page(gpa) != old {
		t.Error("the page moved though the store is blocked")
	}
	if err := f.Unblock(); err != nil || f.IsBlocked {
		t.Fatalf("still blocked %v, error %v", f.IsBlocked, err)
	}
	f.Sync()
	p, _, fault := f.FillStore(0x1000)
	if fault != NoFault || p == old {
		t.Fatalf("store: page %p (was %p), fault %d", p, old, fault)
	}
	other.Sync()
	if got, _, _ := other.FillLoad(0x1000); got != p {
		t.Error("the other hart still has the old page")
	}
}

// TestUpdateIsBlocked: the same with the page of a table in which a walk sets A.
func TestUpdateIsBlocked(t *testing.T) {
	f, other := newPair(t)
	at := f.mapPage(0x1000, ramBase+0x10_0000, 0, rwx&^pteA)
	f.mapPage(0x2000, ramBase+0x11_0000, 0, rwx)
	f.slotSeal()
	if _, _, fault := other.FillLoad(0x2000); fault != NoFault { // reads the same table
		t.Fatalf("load: fault %d", fault)
	}
	for _, access := range []Access{Load, Fetch, Store} {
		if _, fault := f.Translate(0x1000, access); fault != Blocked {
			t.Fatalf("access %d: fault %d, want Blocked", access, fault)
		}
	}
	if err := f.Unblock(); err != nil {
		t.Fatal(err)
	}
	f.Sync()
	if _, fault := f.Translate(0x1000, Load); fault != NoFault || f.read(at)&pteA == 0 {
		t.Errorf("fault %d, entry %#x", fault, f.read(at))
	}
}

// slotSeal seals memory, so that every page has to move before it is written.
func (f *fixture) slotSeal() {
	f.mem.Slots()[0].Pages.Seal().Release()
	f.mem.Invalidate()
	f.Sync()
}

// TestWalkStartsOver (priv 12.3.2 step 9): an entry that another hart has changed
// since it was read is not written over.
func TestWalkStartsOver(t *testing.T) {
	f, _ := newPair(t)
	const gpa, moved = ramBase + 0x10_0000, ramBase + 0x11_0000
	at := f.mapPage(0x1000, gpa, 0, rwx&^pteA)
	read := f.read(at)
	f.write(at, moved>>2|rwx&^pteA) // as if between the walk's load and its update
	if _, changed, fault := f.leaf(0x1000, Load, at, read, 0, false); !changed || fault != NoFault {
		t.Errorf("changed %v, fault %d", changed, fault)
	}
	if got := f.read(at); got != moved>>2|rwx&^pteA {
		t.Errorf("the entry became %#x", got)
	}
	if got, fault := f.Translate(0x1000, Load); got != moved || fault != NoFault {
		t.Errorf("translates to %#x, fault %d", got, fault)
	}
}

// TestGuardedStores: a hart that is told that a page is guarded asks again before it
// writes there.
func TestGuardedStores(t *testing.T) {
	f, other := newPair(t)
	const gpa = ramBase + 0x10_0000
	f.mapPage(0x1000, gpa, 0, rwx)
	f.mapPage(0x2000, gpa+page.Size, 0, rwx)
	other.View().Enter()
	p, _, _ := other.FillStore(0x1000)
	other.FillStore(0x2000)
	if f.View().Guard(gpa, p) {
		t.Fatal("guarded though the other hart may write")
	}
	other.Sync()
	if e := other.Stores.At(0x1000); e.Tag == Tag(0x1000, 1, other.Space) {
		t.Error("the other hart may still write without asking")
	}
	if e := other.Stores.At(0x2000); e.Tag != Tag(0x2000, 1, other.Space) {
		t.Error("it has forgotten another page")
	}
}
