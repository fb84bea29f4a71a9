package page

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// all returns references to all stacks that there are.
func (w *world) all() (stacks []*Stack) {
	for _, m := range w.machines {
		stacks = append(stacks, m.Stacks()...)
	}
	for _, s := range w.stacks {
		stacks = append(stacks, s.Retain())
	}
	return stacks
}

func releaseAll(stacks []*Stack) {
	for _, s := range stacks {
		s.Release()
	}
}

// unseal has a machine take back what nobody else has.
func (w *world) unseal() {
	m := w.machine()
	before := m.Charged()
	if free := m.Unseal(); free != nil {
		w.quietly(free)
	}
	if after := m.Charged(); after > before && w.writers == 0 {
		w.t.Fatalf("%d pages count before an Unseal, and %d after it", before, after)
	}
}

// replace has layers replaced in all machines and stacks.
func (w *world) replace(r *Replacement) {
	defer r.Close()
	for _, m := range w.machines {
		c := m.Replacing(r)
		if c == nil {
			continue
		}
		w.quietly(func() {
			if !c.Swap() {
				w.t.Fatal("a replacement that nobody disturbs is not made")
			}
		})
		c.Release()
	}
	for i := range w.stacks {
		if t, _ := r.Of(w.stacks[i].Stack); t != nil {
			t.Retain()
			w.stacks[i].Release()
			w.stacks[i].Stack = t
		}
	}
}

// rebase writes some layers that lie on one another to a file, which takes their place.
func (w *world) rebase() {
	m := w.machine()
	stacks := m.Stacks()
	defer releaseAll(stacks)
	layers := stacks[1].Layers()
	if len(layers) == 0 {
		return
	}
	from := w.rng.IntN(len(layers))
	run := layers[from : from+1+w.rng.IntN(min(3, len(layers)-from))]
	whole := Merge(run...)
	defer whole.Release()
	path, _ := writeFile(w.t, w.limit, whole.All)
	file, err := OpenLayer(path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Release()
	os.Remove(path)
	if !Equal(whole, file) {
		w.t.Fatal("a file does not hold what layers hold together")
	}
	if w.rng.IntN(2) == 0 {
		file.Detach()
	}
	r := NewReplacement()
	r.Add(run, file)
	w.replace(r)
}

// fold makes one of layers that nobody needs apart.
func (w *world) fold() {
	stacks := w.all()
	runs := Foldable(stacks)
	releaseAll(stacks)
	if len(runs) == 0 {
		return
	}
	r := NewReplacement()
	var whole []*Layer
	for _, run := range runs {
		l := Merge(run...)
		if r.Add(run, l); w.rng.IntN(2) == 0 {
			l.Absorb() // too early: the parts are in use
		}
		whole = append(whole, l)
	}
	w.replace(r)
	w.release()
	for _, l := range whole {
		if !l.Absorb() {
			w.compare() // something is yet to be compared with what they were part of
		}
		if !l.Absorb() {
			w.t.Fatal("layers that nobody has are not absorbed")
		}
		l.Release()
	}
}

// compare has all layers find out what they hold.
func (w *world) compare() {
	stacks := w.all()
	defer releaseAll(stacks)
	for _, s := range stacks {
		for _, l := range s.layers {
			l.index()
		}
	}
}

// seals returns what is in memory of layers, each once.
func seals(layers []*Layer, found map[*sealed]bool) {
	for _, l := range layers {
		if l.file != nil {
			continue
		}
		m := l.memory.Load()
		if m.seal != nil {
			found[m.seal] = true
		}
		seals(m.parts, found)
	}
}

// accounts compares what a machine counts with what there is.
func (w *world) accounts(m modelMachine) {
	stacks := w.all()
	defer releaseAll(stacks)
	everywhere, below := make(map[*sealed]bool), make(map[*sealed]bool)
	for _, s := range stacks {
		seals(s.layers, everywhere)
	}
	seals(m.base.layers, below)
	kept, over, charged := 0, 0, 0
	for s := range everywhere {
		if s.tally != &m.tally {
			continue
		}
		for _, slot := range s.pages.slots {
			if slot.page == nil || slot.page == zero {
				continue
			}
			kept++
			if needed := below[s] && m.base.lookup(slot.number) == slot.page && !m.holds(slot.number) && m.pages.get(slot.number) != zero; !needed {
				over++
			}
		}
	}
	again := 0
	for n := range w.limit {
		sealed := m.sealedBefore(n)
		if sealed || m.holds(n) {
			charged++
		}
		if sealed && m.holds(n) {
			again++
		}
	}
	if k, o := m.tally.sums(); k != kept || o != over {
		w.t.Fatalf("%d sealed pages are in memory, of which %d are over; counted are %d and %d", kept, over, k, o)
	}
	// What was discarded in a layer and written again counts twice.
	if got := m.Charged(); got < charged || !w.discards && got != charged || m.again != again {
		w.t.Fatalf("%d pages are charged, %d again; should be %d, %d", got, m.again, charged, again)
	}
}

func (w *world) undoStep() {
	switch r := w.rng.IntN(1000); {
	case r < 700:
		w.write()
	case r < 760:
		if w.discards {
			w.discard()
		}
	case r < 780:
		w.fork()
	case r < 810:
		w.kill()
	case r < 845:
		w.seal()
	case r < 855:
		w.pack()
	case r < 900:
		w.drop()
	case r < 915:
		w.rebase()
	case r < 940:
		w.fold()
	case r < 970:
		w.unseal()
	default:
		m := w.machine()
		m.check(w.t, "overlay", w.limit, m.Read)
		s := w.stack()
		s.check(w.t, "stack", w.limit, s.Get)
	}
	w.accounts(w.machine())
}

// alone drops all stacks and all machines but one, which has no more in memory than what
// it needs then.
func (w *world) alone() {
	for len(w.machines) > 1 {
		w.kill()
	}
	for _, s := range w.stacks {
		s.check(w.t, "stack", w.limit, s.Get)
		s.Release()
	}
	w.stacks = nil
	m := w.machines[0]
	w.fold()
	for range 2 { // what lies below a file is as it was
		if free := m.Unseal(); free != nil {
			free()
		}
		m.check(w.t, "overlay", w.limit, m.Read)
		w.accounts(m)
	}
	m.Close()
}

func undoWorld(t *testing.T, seed uint64, steps int, discards bool) {
	arena := NewArena()
	noLeak(t, arena)
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), arena: arena, limit: leafPages + 33, discards: discards}
	w.stacks = []modelStack{{NewStack(w.limit), model{}}}
	w.fork()
	for range steps {
		w.undoStep()
	}
	w.alone()
}

// TestUndoAgainstModel has layers taken back, folded and replaced by files between all that
// is done to machines and stacks otherwise.
func TestUndoAgainstModel(t *testing.T) {
	for seed := range uint64(12) {
		undoWorld(t, seed, 1500, seed%2 == 0)
	}
}

func FuzzUndo(f *testing.F) {
	f.Add(uint64(1), uint16(500), true)
	f.Add(uint64(2), uint16(500), false)
	f.Add(uint64(184), uint16(544), true)
	f.Fuzz(func(t *testing.T, seed uint64, steps uint16, discards bool) {
		undoWorld(t, seed, int(steps%2000), discards)
	})
}

// TestUnsealFreesWhatWasWrittenSince: a machine that is branched again and again while
// nothing of it is kept has no more in memory than one that is not.
func TestUnsealFreesWhatWasWrittenSince(t *testing.T) {
	a := NewArena()
	o := overlayOf(t, a, 64)
	o.CountKept()
	before := a.InUse()
	for round := range 100 {
		for n := range Number(10) {
			*mustWrite(t, o, n) = *stamped(uint64(round+1)<<8 | uint64(n))
		}
		s := o.Seal()
		for n := range Number(5) {
			mustWrite(t, o, n)[8]++
		}
		if got := o.Charged(); got != 15 || o.Bytes() != 15*Size {
			t.Fatalf("as long as somebody has a branch %d pages count, and %d bytes are in memory; want 15", got, o.Bytes())
		}
		if o.Unseal() != nil {
			t.Fatal("what somebody has was taken back")
		}
		s.Release()
		free := o.Unseal()
		if free == nil {
			t.Fatal("nothing was taken back")
		}
		free()
		if got := o.Charged(); got != 10 || a.InUse() != before+10 || o.Bytes() != 10*Size {
			t.Fatalf("round %d: %d pages count, %d are in use; want 10", round, got, a.InUse()-before)
		}
	}
}

// TestQuotaOfKeptPages: what is written before and after a Seal counts twice, and the
// next page is refused as any other.
func TestQuotaOfKeptPages(t *testing.T) {
	o := overlayOf(t, NewArena(), 64)
	o.SetQuota(12)
	o.CountKept()
	for n := range Number(8) {
		mustWrite(t, o, n)
	}
	s := o.Seal()
	for n := range Number(4) {
		mustWrite(t, o, n)[0]++
	}
	if _, _, err := o.Write(4); err != ErrQuota {
		t.Fatalf("the thirteenth page: %v", err)
	}
	s.Release()
	o.Unseal()()
	for n := range Number(12) {
		mustWrite(t, o, n)
	}
	if _, _, err := o.Write(12); err != ErrQuota {
		t.Fatalf("the thirteenth page: %v", err)
	}
}

// TestDiscardedZerosCountOnce: when a discard of zeros goes out of memory with its layer,
// which had nothing to change, what is written to its place counts once.
func TestDiscardedZerosCountOnce(t *testing.T) {
	empty := NewStack(8)
	defer empty.Release()
	o := NewOverlay(empty, NewArena(), 0)
	defer o.Close()
	mustWrite(t, o, 1)
	o.Seal().Release()
	if err := o.Discard(1); err != nil {
		t.Fatal(err)
	}
	o.Seal().Release()
	mustWrite(t, o, 1)[0] = 1
	r := NewReplacement()
	defer r.Close()
	r.Add(o.base.Layers()[1:], nil)
	c := o.Replacing(r)
	defer c.Release()
	if !c.Swap() || o.Charged() != 1 {
		t.Errorf("%d pages count, want 1", o.Charged())
	}
	if err := o.Discard(1); err != nil || o.Charged() != 1 {
		t.Errorf("%d pages count when it is discarded, want 1 (%v)", o.Charged(), err)
	}
}

// TestFoldable: layers go together if nobody needs them apart.
func TestFoldable(t *testing.T) {
	a := NewArena()
	noLeak(t, a)
	empty := NewStack(16)
	defer empty.Release()
	o := NewOverlay(empty, a, 0)
	defer o.Close()
	var stacks []*Stack
	for n := range Number(4) {
		mustWrite(t, o, n)[0] = 1
		stacks = append(stacks, o.Seal())
	}
	defer releaseAll(stacks)
	layers := stacks[3].Layers()
	runs := Foldable(stacks[3:])
	if len(runs) != 1 || !slices.Equal(runs[0], layers) {
		t.Errorf("of one stack %d runs fold", len(runs))
	}
	if runs := Foldable(stacks); len(runs) != 0 {
		t.Errorf("%d runs fold of layers that all are the uppermost of a stack", len(runs))
	}
	if runs := Foldable([]*Stack{stacks[1], stacks[3]}); len(runs) != 2 {
		t.Errorf("%d runs fold, want the lower two and the upper two", len(runs))
	}
	child := NewOverlay(stacks[3], a, 0)
	defer child.Close()
	mustWrite(t, child, 1)[0] = 2
	s := child.Seal()
	defer s.Release()
	if runs := Foldable([]*Stack{s}); len(runs) != 1 || len(runs[0]) != 4 {
		t.Error("layers that two machines have sealed fold")
	}
}
