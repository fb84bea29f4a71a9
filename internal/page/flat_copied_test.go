package page

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// copiedStack is a stack of one layer of pages 0 to 9, whose file a Flat cannot map, so that
// it copies them.
func copiedStack(t *testing.T) (s *Stack, path string) {
	t.Helper()
	path, _ = writeFile(t, 64, func(yield func(Number, *Page) bool) {
		for n := range Number(10) {
			if !yield(n, stamped(uint64(n)+1)) {
				return
			}
		}
	})
	l, err := OpenLayer(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	l.Detach()
	empty := NewStack(64)
	defer empty.Release()
	return empty.Push(l), path
}

// TestFlatIsWhatWasWrittenLast: whatever was copied ahead, sealed and taken back before, a
// stack has what memory had when it was sealed. Contents come again, those that a page had at
// first among them.
func TestFlatIsWhatWasWrittenLast(t *testing.T) {
	copied, _ := copiedStack(t)
	a := sharedArena(t)
	mapped := flatStack(t, a)
	for name, c := range map[string]struct {
		stack *Stack
		first Number // of ten pages that differ
	}{"copied": {copied, 0}, "mapped": {mapped, 104}} {
		t.Run(name, func(t *testing.T) {
			defer c.stack.Release()
			others := a.InUse()
			f := newFlat(t, c.stack, a)
			rng := rand.New(rand.NewPCG(3, 4))
			var stacks []*Stack
			for range 3000 {
				switch rng.IntN(12) {
				case 0:
					if err := f.Prepare(); err != nil {
						t.Fatal(err)
					}
				case 1:
					stacks = append(stacks, f.Seal())
					s := stacks[len(stacks)-1]
					for n := range f.Limit() {
						if *s.Get(n) != *f.Read(n) {
							t.Fatalf("page %d of a stack is not what memory has", n)
						}
					}
				case 2:
					releaseAll(stacks)
					stacks = nil
				case 3:
					if free := f.Unseal(); free != nil {
						free()
					}
				case 4:
					releaseAll(stacks)
					stacks = nil
					foldFlat(t, f)
				default:
					n := c.first + Number(rng.IntN(10))
					*f.Read(n) = *c.stack.Get(c.first + Number(rng.IntN(10)))
					if rng.IntN(2) == 0 {
						*f.Read(n) = *c.stack.Get(n)
					}
				}
			}
			releaseAll(stacks)
			if kept, _ := f.tally.sums(); a.InUse() != others+kept+f.ahead.used {
				t.Errorf("%d pages are in use, of which %d are sealed, %d copied ahead and %d of others", a.InUse(), kept, f.ahead.used, others)
			}
			if f.Close(); a.InUse() != others {
				t.Errorf("%d pages are in use at the end that were not before", a.InUse()-others)
			}
		})
	}
}

// foldFlat makes one of the layers that a Flat has sealed and nobody needs apart.
func foldFlat(t *testing.T, f *Flat) {
	t.Helper()
	stacks := f.Stacks()
	runs := Foldable(stacks)
	releaseAll(stacks)
	for _, run := range runs {
		for _, l := range run {
			l.index() // which gives up what it is compared with
		}
		whole := Merge(run...)
		r := NewReplacement()
		r.Add(run, whole)
		c := f.Replacing(r)
		if !c.Swap() {
			t.Fatal("layers are not folded")
		}
		c.Release()
		if r.Close(); !whole.Absorb() {
			t.Fatal("layers are not absorbed")
		}
		whole.Release()
	}
}

// TestFlatCountsWhatItCopied: what had to be copied is in memory for this machine alone, and
// it takes no look at the file to know that.
func TestFlatCountsWhatItCopied(t *testing.T) {
	s := newDamaged(t)
	f := newFlat(t, s.Stack, sharedArena(t))
	defer f.Close()
	f.Read(3)[0]++
	f.Read(30)[0]++
	s.lose()
	if n := f.Pages(); n != 11 || f.Bytes() != 11*Size {
		t.Errorf("ten pages that were copied and one that was written count as %d", n)
	}
}

// TestFlatOfADamagedLayer: when a page of the stack cannot be read, and can be later, no page
// that was written before is missing in what is sealed then.
func TestFlatOfADamagedLayer(t *testing.T) {
	s := newDamaged(t)
	a := sharedArena(t)
	noLeak(t, a)
	f := newFlat(t, s.Stack, a)
	defer f.Close()
	for n := range Number(20) {
		*f.Read(n) = *stamped(uint64(n) + 100)
	}
	s.lose()
	if err := Guard(f.Prepare); f.writes.watched && !errors.Is(err, ErrCorrupt) {
		t.Errorf("copying over a truncated file: %v", err)
	}
	s.find()
	sealed := f.Seal()
	defer sealed.Release()
	for n := range Number(20) {
		if *sealed.Get(n) != *stamped(uint64(n) + 100) {
			t.Errorf("page %d was lost", n)
		}
	}
}
