package page

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// scribble writes to and discards the pages of a machine that leave a remainder when they
// are divided by w.writers, until stop is closed. model is held to use the machine's model.
func (w *world) scribble(m modelMachine, remainder int, model *sync.Mutex, stop chan struct{}) {
	rng := rand.New(rand.NewPCG(uint64(remainder), 8))
	step := func(value uint64) (ok bool) {
		w.quiet.RLock()
		defer w.quiet.RUnlock()
		n := Number(rng.IntN(int(w.limit)/w.writers)*w.writers + remainder)
		model.Lock()
		before := m.model[n]
		model.Unlock()
		p, _, err := m.Write(n)
		if err != nil || *p != *stamped(before) {
			w.t.Errorf("page %d is not what was written last (%v)", n, err)
			return false
		}
		if *p = *stamped(value); rng.IntN(4) == 0 {
			value = 0
			if err := m.Discard(n); err != nil {
				w.t.Error(err)
				return false
			}
		}
		if *m.Read(n) != *stamped(value) {
			w.t.Errorf("page %d is not what was written", n)
			return false
		}
		model.Lock()
		m.model[n] = value
		model.Unlock()
		return true
	}
	for value := uint64(1); step(value<<8 | uint64(remainder)); value++ {
		select {
		case <-stop:
			return
		default:
		}
	}
}

// TestUndoWhileOthersUseIt has a machine's layers taken back, folded and replaced by files
// while others write to it. Nothing is lost, and what is counted is what there is.
func TestUndoWhileOthersUseIt(t *testing.T) {
	arena := NewArena()
	noLeak(t, arena)
	w := &world{t: t, rng: rand.New(rand.NewPCG(5, 6)), arena: arena, limit: 2000, discards: true, writers: 2}
	w.stacks = []modelStack{{NewStack(w.limit), model{}}}
	w.fork()
	m := w.machines[0]
	m.CountKept()
	var model sync.Mutex
	stop := make(chan struct{})
	var users sync.WaitGroup
	for i := range w.writers {
		users.Go(func() { w.scribble(m, i, &model, stop) })
	}
	finish := sync.OnceFunc(func() {
		w.release()
		close(stop)
		users.Wait()
	})
	defer finish()
	for range 150 {
		switch r := w.rng.IntN(100); {
		case r < 35:
			w.seal()
		case r < 50:
			w.drop()
		case r < 55:
			w.rebase()
		case r < 65:
			w.fold()
		case r < 85: // of layers that nobody has written over yet
			w.hold()
			w.seal()
			for len(w.stacks) > 1 {
				w.drop()
			}
			w.fold()
			w.release()
		case r < 95:
			w.unseal()
		default:
			w.pack()
		}
		w.quietly(func() { w.accounts(m) })
		if w.rng.IntN(8) == 0 {
			w.quietly(func() { m.check(t, "overlay", w.limit, m.Read) })
			s := w.stack()
			s.check(t, "stack", w.limit, s.Get)
		}
	}
	finish()
	w.writers = 0
	w.alone()
}

// TestCountsOfWhatIsJoined: who has found out which layer keeps a page counts for what the
// layer has become part of.
func TestCountsOfWhatIsJoined(t *testing.T) {
	o := overlayOf(t, NewArena(), 8)
	for v := range uint64(2) {
		for n := range Number(4) {
			*mustWrite(t, o, n) = *stamped(v + 1)
		}
		o.Seal().Release()
	}
	layers := o.base.Layers()[1:]
	r := NewReplacement()
	whole := Merge(layers...)
	defer whole.Release()
	r.Add(layers, whole)
	c := o.Replacing(r)
	if !c.Swap() {
		t.Fatal("layers are not folded")
	}
	c.Release()
	r.Close()
	part := o.keeper(1)
	if !whole.Absorb() {
		t.Fatal("layers are not absorbed")
	}
	if kept, over := o.tally.sums(); kept != 4 || over != 0 {
		t.Errorf("%d pages are in memory, of which %d are over; want 4 and 0", kept, over)
	}
	o.tally.change(part, 1)
	if _, over := o.tally.sums(); over != 1 || whole.seal().over != 1 {
		t.Errorf("%d pages are over, %d of them of the layer; want 1", over, whole.seal().over)
	}
	o.tally.leave(part)
	if _, over := o.tally.sums(); over != 4 {
		t.Errorf("%d pages are over when nothing is needed; want 4", over)
	}
}
