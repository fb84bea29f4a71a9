package page

import (
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// stamped returns a page that is recognisable by v; that of 0 is all zeros.
func stamped(v uint64) *Page {
	p := new(Page)
	binary.LittleEndian.PutUint64(p[:], v)
	binary.LittleEndian.PutUint64(p[Size-8:], v)
	return p
}

func mustWrite(tb testing.TB, o *Overlay, n Number) *Page {
	tb.Helper()
	p, _, err := o.Write(n)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// noLeak fails the test if pages are still in use at its end.
func noLeak(t *testing.T, arenas ...*Arena) {
	t.Cleanup(func() {
		for _, a := range arenas {
			if n := a.InUse(); n != 0 {
				t.Errorf("%d pages are still in use at the end", n)
			}
		}
	})
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	f()
}

// writeFile writes a layer file in a directory of the test.
func writeFile(t testing.TB, limit Number, all func(func(Number, *Page) bool)) (path string, d Digest) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "*.layer")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if d, err = WriteLayer(f, limit, all); err != nil {
		t.Fatal(err)
	}
	return f.Name(), d
}

// model is what an address space must look like: stamps by page number.
type model map[Number]uint64

func (m model) check(t *testing.T, what string, limit Number, get func(Number) *Page) {
	t.Helper()
	for n := range limit {
		if *get(n) != *stamped(m[n]) {
			t.Fatalf("%s: page %d is not what was written last (%#x)", what, n, m[n])
		}
	}
}

type modelMachine struct {
	*Overlay
	model
}

type modelStack struct {
	*Stack
	model
}

// world drives machines and snapshots at random beside their models.
type world struct {
	t        *testing.T
	rng      *rand.Rand
	arena    *Arena
	limit    Number
	machines []modelMachine
	stacks   []modelStack
	stamp    uint64
	discards bool // is there discarding? (see accounts)
	writers  int  // goroutines that write to machines meanwhile

	quiet sync.RWMutex // held for reading by writers, for writing where there must be none
	held  bool         // it is held from hold to release
}

// hold keeps writers from reading and writing pages until release.
func (w *world) hold() {
	w.quiet.Lock()
	w.held = true
}

// release undoes hold, if that was called.
func (w *world) release() {
	if w.held {
		w.held = false
		w.quiet.Unlock()
	}
}

// quietly calls fn while no writer reads or writes pages.
func (w *world) quietly(fn func()) {
	if !w.held {
		w.hold()
		defer w.release()
	}
	fn()
}

func (w *world) machine() modelMachine { return w.machines[w.rng.IntN(len(w.machines))] }
func (w *world) stack() modelStack     { return w.stacks[w.rng.IntN(len(w.stacks))] }

func (w *world) write() {
	m, n := w.machine(), Number(w.rng.IntN(int(w.limit)))
	m.mu.Lock()
	private, before := m.holds(n), m.own()
	m.mu.Unlock()
	p, moved, err := m.Write(n)
	if err != nil {
		w.t.Fatal(err)
	}
	if moved == private || !m.Private(n) || m.Pages() != before+map[bool]int{true: 1}[moved] {
		w.t.Fatalf("page %d: private before %v, moved %v, private after %v", n, private, moved, m.Private(n))
	}
	if *p != *stamped(m.model[n]) {
		w.t.Fatalf("page %d has wrong contents when it is first written", n)
	}
	switch w.rng.IntN(4) {
	case 0: // becomes zero
		*p, m.model[n] = Page{}, 0
	case 1: // stays as it is
	default:
		w.stamp++
		*p, m.model[n] = *stamped(w.stamp), w.stamp
	}
}

func (w *world) discard() {
	m, n := w.machine(), Number(w.rng.IntN(int(w.limit)))
	before, charged, own := m.Pages(), m.Charged(), m.Owns(n)
	if err := m.Discard(n); err != nil {
		w.t.Fatal(err)
	}
	m.model[n] = 0
	if gone := before - m.Pages(); m.Owns(n) || gone != map[bool]int{true: 1}[own] || charged-m.Charged() > gone || *m.Read(n) != (Page{}) {
		w.t.Fatalf("page %d, which was the overlay's: %v, is discarded: %d pages fewer, %d charged less", n, own, gone, charged-m.Charged())
	}
}

func (w *world) seal() {
	i := w.rng.IntN(len(w.machines))
	m := w.machines[i]
	w.quietly(func() {
		s := m.Seal()
		if m.Pages() != 0 {
			w.t.Fatal("sealed overlay is not empty")
		}
		w.stacks = append(w.stacks, modelStack{s, maps.Clone(m.model)})
	})
}

func (w *world) pack() {
	m := w.machine()
	w.quietly(func() {
		m.Pack()
		if m.Resident() != 0 {
			w.t.Fatal("packed overlay has resident pages")
		}
	})
}

func (w *world) fork() {
	s := w.stack()
	w.machines = append(w.machines, modelMachine{NewOverlay(s.Stack, w.arena, 0), maps.Clone(s.model)})
}

func (w *world) kill() {
	if len(w.machines) > 1 {
		i := w.rng.IntN(len(w.machines))
		w.machines[i].Close()
		w.machines = slices.Delete(w.machines, i, i+1)
	}
}

func (w *world) drop() {
	if len(w.stacks) > 1 {
		i := w.rng.IntN(len(w.stacks))
		w.stacks[i].Release()
		w.stacks = slices.Delete(w.stacks, i, i+1)
	}
}

// rebuild replaces a stack by one made of the same layers, some of them read
// back from files.
func (w *world) rebuild() {
	i := w.rng.IntN(len(w.stacks))
	s := NewStack(w.limit)
	for _, l := range w.stacks[i].Layers() {
		if l.Retain(); w.rng.IntN(4) == 0 {
			path, _ := writeFile(w.t, w.limit, l.All)
			l.Release()
			var err error
			if l, err = OpenLayer(path); err != nil {
				w.t.Fatal(err)
			}
			os.Remove(path)
		}
		next := s.Push(l)
		l.Release()
		s.Release()
		s = next
	}
	w.stacks[i].Release()
	w.stacks[i].Stack = s
}

func TestAgainstModel(t *testing.T) {
	fileArena, err := NewFileArena(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, arena := range map[string]*Arena{"memory": NewArena(), "file": fileArena} {
		t.Run(name, func(t *testing.T) {
			noLeak(t, arena)
			w := &world{t: t, rng: rand.New(rand.NewPCG(1, 2)), arena: arena, limit: 2*leafPages + 77}
			w.stacks = []modelStack{{NewStack(w.limit), model{}}}
			w.fork()
			for range 6000 {
				switch r := w.rng.IntN(1000); {
				case r < 800:
					w.write()
				case r < 880:
					w.discard()
				case r < 910:
					w.fork()
				case r < 950:
					w.kill()
				case r < 965:
					w.seal()
				case r < 967:
					w.pack()
				case r < 985:
					w.drop()
				case r < 987:
					w.rebuild()
				case r < 988:
					arena.Trim(0)
				default:
					m := w.machine()
					m.check(t, "overlay", w.limit, m.Read)
					s := w.stack()
					s.check(t, "stack", w.limit, s.Get)
				}
			}
			for _, m := range w.machines {
				m.check(t, "overlay", w.limit, m.Read)
				m.Close()
			}
			for _, s := range w.stacks {
				s.check(t, "stack", w.limit, s.Get)
				s.Release()
			}
		})
	}
}

func TestQuota(t *testing.T) {
	a := NewArena()
	noLeak(t, a)
	s := NewStack(100)
	defer s.Release()
	o := NewOverlay(s, a, 2)
	defer o.Close()
	mustWrite(t, o, 1)
	mustWrite(t, o, 2)
	mustWrite(t, o, 1) // has its page already
	if _, moved, err := o.Write(3); err != ErrQuota || moved {
		t.Errorf("third page: moved %v, error %v; want ErrQuota", moved, err)
	}
	o.Seal().Release()
	mustWrite(t, o, 1) // counts once
	if _, _, err := o.Write(3); err != ErrQuota {
		t.Errorf("third page after a seal: %v, want ErrQuota", err)
	}
}

// What a seal keeps: changes, not pages that were merely written.
func TestSealKeepsChangesOnly(t *testing.T) {
	a := NewArena()
	noLeak(t, a)
	zeroed := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(zeroed, make([]byte, 10*Size), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := OpenRaw(zeroed)
	if err != nil {
		t.Fatal(err)
	}
	empty := NewStack(10)
	bottom := empty.Push(raw)
	empty.Release()
	raw.Release()
	o := NewOverlay(bottom, a, 0)
	bottom.Release()
	*mustWrite(t, o, 7) = *stamped(7)
	*mustWrite(t, o, 8) = *stamped(8)
	*mustWrite(t, o, 9) = *stamped(9)
	first := o.Seal()

	*mustWrite(t, o, 7) = *stamped(70) // changed
	*mustWrite(t, o, 8) = Page{}       // cleared
	mustWrite(t, o, 9)                 // unchanged
	mustWrite(t, o, 2)                 // zero over stored zeros
	second := o.Seal()
	o.Close()
	first.Release()
	defer second.Release()

	top := second.Layers()[2]
	type entry struct {
		n    Number
		hole bool
	}
	var got []entry
	for n, p := range top.All {
		got = append(got, entry{n, p == nil})
	}
	if want := []entry{{7, false}, {8, true}}; !slices.Equal(got, want) {
		t.Errorf("top layer holds %v, want %v", got, want)
	}
	if top.Len() != 2 || top.Stored() != 1 || top.Limit() != 10 {
		t.Errorf("top layer has Len %d, Stored %d, Limit %d", top.Len(), top.Stored(), top.Limit())
	}
	if p, ok := top.Get(8); p != nil || !ok {
		t.Errorf("Get of a hole: %v, %v", p != nil, ok)
	}
	if _, ok := top.Get(9); ok {
		t.Error("Get finds a page that the layer does not hold")
	}
	if n := a.InUse(); n != 3+4 {
		t.Errorf("%d pages in use, want the three of the first seal and the four of the second", n)
	}
	var all []Number
	for n, p := range second.All {
		if *p != *second.Get(n) {
			t.Errorf("page %d is listed with other contents than it has", n)
		}
		if !IsZero(p) {
			all = append(all, n)
		}
	}
	if want := []Number{7, 9}; !slices.Equal(all, want) {
		t.Errorf("stack lists contents of %v, want %v", all, want)
	}
}

// What is cached about the pages of the stack that a machine started from must
// not be taken for what the machine has written since, sealed or not.
func TestPrivateIsWithRespectToTheOrigin(t *testing.T) {
	a := NewArena()
	noLeak(t, a)
	empty := NewStack(10)
	parent := NewOverlay(empty, a, 0)
	empty.Release()
	for n := range Number(5) {
		*mustWrite(t, parent, n) = *stamped(uint64(n + 1))
	}
	origin := parent.Seal()
	defer origin.Release()
	if !parent.Private(1) || parent.Private(7) {
		t.Error("the parent has written page 1, and not page 7")
	}
	parent.Close()

	o := NewOverlay(origin, a, 0)
	defer o.Close()
	private := func(when string, want ...Number) {
		t.Helper()
		var got []Number
		for n := range o.Limit() {
			if o.Private(n) {
				got = append(got, n)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: private pages are %v, want %v", when, got, want)
		}
	}
	private("at first")
	*mustWrite(t, o, 1) = *stamped(100)
	*mustWrite(t, o, 2) = Page{}
	private("written", 1, 2)
	first := o.Seal()
	defer first.Release()
	private("sealed", 1, 2)
	*mustWrite(t, o, 7) = *stamped(7)
	private("written again", 1, 2, 7)
	o.Pack()
	private("packed", 1, 2, 7)
	o.Seal().Release()
	private("sealed again", 1, 2, 7)
	*mustWrite(t, o, 1) = *stamped(2) // as it was in the origin, but elsewhere
	o.Seal().Release()
	private("as it was", 1, 2, 7)

	child := NewOverlay(first, a, 0)
	defer child.Close()
	if child.Private(1) || child.Private(2) {
		t.Error("a child of the branch takes the branch's pages for its own")
	}
}

func TestIteratorsStopEarly(t *testing.T) {
	a := NewArena()
	noLeak(t, a)
	s := NewStack(2000)
	o := NewOverlay(s, a, 0)
	s.Release()
	for n := Number(0); n < 2000; n += 100 {
		mustWrite(t, o, n)[0] = 1
	}
	s = o.Seal()
	o.Close()
	defer s.Release()
	for name, all := range map[string]func(func(Number, *Page) bool){"stack": s.All, "layer": s.Layers()[0].All} {
		n := 0
		for range all {
			if n++; n == 3 {
				break
			}
		}
		if n != 3 {
			t.Errorf("%s: loop ran %d times", name, n)
		}
	}
}

func TestMisuseIsLoud(t *testing.T) {
	a := NewArena()
	noLeak(t, a)
	s := NewStack(100)
	o := NewOverlay(s, a, 0)
	mustWrite(t, o, 99)[0] = 1
	sealed := o.Seal()
	o.Close()
	l := sealed.Layers()[0]
	small := NewStack(99)
	mustPanic(t, "pushing a layer on a smaller stack", func() { small.Push(l) })
	sealed.Release()
	mustPanic(t, "second Release of a stack", sealed.Release)
	mustPanic(t, "Retain of a released stack", func() { sealed.Retain() })
	mustPanic(t, "second Release of a layer", l.Release)
	mustPanic(t, "Retain of a released layer", l.Retain)
	mustPanic(t, "second Close of an overlay", o.Close)
	mustPanic(t, "Read of a closed overlay", func() { o.Read(1) })
}

func TestZeroPage(t *testing.T) {
	if !IsZero(Zero()) || IsZero(stamped(1)) {
		t.Error("IsZero is wrong")
	}
	last := new(Page)
	last[Size-1] = 1
	if IsZero(last) {
		t.Error("IsZero does not look at the last byte")
	}
}

// The table must find everything however the numbers lie, also where many
// share their low or high bits.
func TestTable(t *testing.T) {
	for _, stride := range []Number{1, 512, 1 << 16, 1 << 20} {
		var table table
		pages := make([]Page, 4000)
		for i := range pages {
			table.put(Number(i)*stride, &pages[i])
		}
		for i := range pages {
			if table.get(Number(i)*stride) != &pages[i] {
				t.Fatalf("stride %d: page %d not found", stride, i)
			}
		}
		if table.get(5000*stride+1) != nil {
			t.Errorf("stride %d: found a page that was never put", stride)
		}
		if table.used != len(pages) || len(table.numbers()) != len(pages) {
			t.Errorf("stride %d: table counts %d pages, want %d", stride, table.used, len(pages))
		}
		if len(table.slots) > 4*len(pages) {
			t.Errorf("stride %d: %d slots for %d pages", stride, len(table.slots), len(pages))
		}
	}
}

// A quota is for the pages of the stack that were ever written, so sealing does
// not give a machine new ones, and writing a page anew costs it none.
func TestQuotaOutlivesSeals(t *testing.T) {
	arena, base := NewArena(), NewStack(64)
	defer base.Release()
	o := NewOverlay(base, arena, 8)
	defer o.Close()
	write := func(n Number, v byte) error {
		p, _, err := o.Write(n)
		if err == nil {
			p[0] = v
		}
		return err
	}
	for round := range byte(5) {
		for n := range Number(6) {
			if err := write(n, round+1); err != nil {
				t.Fatalf("round %d: page %d: %v", round, n, err)
			}
		}
		if round == 3 {
			o.Pack()
			if err := write(2, 99); err != nil {
				t.Fatal(err)
			}
		}
		o.Seal().Release()
	}
	for _, n := range []Number{40, 41} {
		if err := write(n, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(42, 1); !errors.Is(err, ErrQuota) {
		t.Errorf("the ninth page: %v", err)
	}
	if err := write(3, 7); err != nil {
		t.Errorf("a page that was sealed before: %v", err)
	}
}
