package mmu

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

// TestResolve: what hardware could not have found by itself is left out.
func TestResolve(t *testing.T) {
	const target = ramBase + 0x10_0000
	S, U := hart.Supervisor, hart.User
	for _, test := range []struct {
		name   string
		bits   uint64
		mode   hart.Mode
		access Access
		found  bool
	}{
		{"load", rwx &^ pteD, S, Load, true},
		{"load without A", rwx &^ (pteA | pteD), S, Load, false},
		{"store", rwx, S, Store, true},
		{"store without D", rwx &^ pteD, S, Store, false},
		{"store to read-only", rwx &^ pteW, S, Store, false},
		{"fetch", rwx, S, Fetch, true},
		{"user", user, U, Load, true},
		{"kernel page of user", user, S, Load, false},
		{"not valid", 0, S, Load, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			at := f.mapPage(0x1000, target, 0, test.bits)
			f.mode(test.mode, 0)
			touches := make([]Touch, 0, 1)
			f.Record(&touches)
			f.Note(0x1234, test.access)
			f.Note(0x2000, test.access) // there is no room for it
			if len(touches) != 1 || touches[0].VA != 0x1000 {
				t.Fatalf("recorded %+v", touches)
			}
			groups := Resolve(f.mem, touches)
			if pte := f.read(at); pte != target>>2|test.bits {
				t.Errorf("looking has made the entry %#x", pte)
			}
			switch found := len(groups) == 1 && len(groups[0].Mappings) == 1; {
			case found != test.found:
				t.Fatalf("found %v, want %v", found, test.found)
			case !found:
				return
			}
			m := groups[0].Mappings[0]
			if m.GPA != target || m.Page != f.mem.ReadPage(target) || m.Tag != Tag(0x1000, 1, f.Space) {
				t.Errorf("found %+v", m)
			}
		})
	}
}

// TestHolds: a mapping holds until its entry, or one on the way to it, changes, but for
// bits that change as a matter of course.
func TestHolds(t *testing.T) {
	f := newFixture(t)
	at := f.mapPage(0x1000, ramBase+0x10_0000, 0, rwx&^pteD)
	f.mode(hart.Supervisor, 0)
	touches := make([]Touch, 0, 1)
	f.Record(&touches)
	f.Note(0x1000, Load)
	groups := Resolve(f.mem, touches)
	if len(groups) != 1 {
		t.Fatal("nothing was found")
	}
	g := groups[0]
	m := &g.Mappings[0]
	holds := func() bool { return f.Leads(g) && f.Holds(m) }
	pte := f.read(at)
	for _, now := range []struct {
		pte  uint64
		want bool
	}{{pte, true}, {pte | pteD, true}, {pte &^ pteA, false}, {pte &^ pteV, false}, {pte + 1<<ptePPNShift, false}, {pte, true}} {
		f.write(at, now.pte)
		if holds() != now.want {
			t.Errorf("with the entry %#x it holds: %v", now.pte, !now.want)
		}
	}
	upper := f.entry(0x1000, 1)
	f.write(upper, f.read(upper)+1<<ptePPNShift)
	if holds() {
		t.Error("it holds in another table")
	}
}

// TestEnter: what was entered is as good as what was missed, and is forgotten when the
// page moves.
func TestEnter(t *testing.T) {
	const target = ramBase + 0x10_0000
	f := newFixture(t)
	f.mapPage(0x1000, target, 0, rwx)
	f.mode(hart.Supervisor, 0)
	touches := make([]Touch, 0, 1)
	f.Record(&touches)
	f.Note(0x1000, Load)
	f.Flush()
	m := &Resolve(f.mem, touches)[0].Mappings[0]
	f.Enter(m, m.Page)
	if !f.cached(0x1000) || f.Loads.At(0x1000).To.Page(0x1000) != f.mem.ReadPage(target) {
		t.Fatal("it was not entered")
	}
	if _, _, fault := f.FillStore(0x1000); fault != NoFault {
		t.Fatal(fault)
	}
	if f.cached(0x1000) && f.Loads.At(0x1000).To.Page(0x1000) != f.mem.ReadPage(target) {
		t.Error("loads go to where the page was")
	}
}
