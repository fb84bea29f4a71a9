package page

import (
	"errors"
	"os"
	"testing"
)

// damaged is a stack of pages 0 to 9 that lie in a file. lose truncates the file, and find
// undoes that.
type damaged struct {
	*Stack
	t    *testing.T
	path string
	file []byte
}

func newDamaged(t *testing.T) *damaged {
	s, path := copiedStack(t)
	t.Cleanup(s.Release)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return &damaged{s, t, path, file}
}

func (d *damaged) lose() {
	d.t.Helper()
	if err := os.Truncate(d.path, 0); err != nil {
		d.t.Fatal(err)
	}
}

func (d *damaged) find() {
	d.t.Helper()
	if err := os.WriteFile(d.path, d.file, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// TestFaultsLoseNothing: what fails because a page of the stack cannot be read has taken no
// memory and changed nothing.
func TestFaultsLoseNothing(t *testing.T) {
	for name, c := range map[string]struct {
		prepare, do func(t *testing.T, o *Overlay)
	}{
		"write": {do: func(_ *testing.T, o *Overlay) { o.Write(5) }},
		"read of a packed page": {
			prepare: func(t *testing.T, o *Overlay) { mustWrite(t, o, 4)[9] = 1; o.Pack() },
			do:      func(_ *testing.T, o *Overlay) { o.Read(4) },
		},
		"ahead": {do: func(_ *testing.T, o *Overlay) { o.Ahead([]Number{7, 8, 30}) }},
		"pack": {
			prepare: func(t *testing.T, o *Overlay) {
				mustWrite(t, o, 1)[9] = 1
				o.Seal().Release()
				mustWrite(t, o, 1) // becomes as it is below
				mustWrite(t, o, 2)[9] = 1
			},
			do: func(_ *testing.T, o *Overlay) { o.Pack() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewArena()
			noLeak(t, a)
			s := newDamaged(t)
			o, twin := NewOverlay(s.Stack, a, 0), NewOverlay(s.Stack, NewArena(), 0)
			defer o.Close()
			defer twin.Close()
			o.CountKept()
			if c.prepare != nil {
				c.prepare(t, o)
				c.prepare(t, twin)
			}
			charged := o.Charged()
			want := make([]Page, o.Limit())
			for n := range want {
				want[n] = *twin.Read(Number(n))
			}
			s.lose()
			if err := Guard(func() error { c.do(t, o); return nil }); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("with a truncated file: %v", err)
			}
			if kept, _ := o.tally.sums(); a.InUse() != o.pages.used+kept {
				t.Errorf("%d pages are in use, of which %d are the overlay's, and %d sealed", a.InUse(), o.pages.used, kept)
			}
			s.find()
			for n := range want {
				if *o.Read(Number(n)) != want[n] {
					t.Errorf("page %d has changed", n)
				}
			}
			if n := o.Charged() - charged; n != 0 {
				t.Errorf("%d pages more count", n)
			}
		})
	}
}

// TestUnsealOfADamagedLayer: what has been taken back before a page cannot be read that the
// next layer has to be compared with is given back all the same.
func TestUnsealOfADamagedLayer(t *testing.T) {
	a := NewArena()
	noLeak(t, a)
	s := newDamaged(t)
	o := NewOverlay(s.Stack, a, 0)
	defer o.Close()
	for range 2 {
		mustWrite(t, o, 1)[9]++
		o.Seal().Release()
	}
	run := o.base.Layers()[1:]
	r := NewReplacement()
	whole := Merge(run...)
	r.Add(run, whole)
	c := o.Replacing(r)
	if !c.Swap() {
		t.Fatal("layers are not folded")
	}
	c.Release()
	r.Close()
	mustWrite(t, o, 20)[9]++
	o.Seal().Release()
	mustWrite(t, o, 20)[9]++

	s.lose()
	var free func()
	if err := Guard(func() error { free = o.Unseal(); return nil }); err != nil || free == nil {
		t.Fatalf("with a truncated file: %v", err)
	}
	if free(); a.InUse() != 3 {
		t.Errorf("%d pages are in use, want that which was written last, and two in layers", a.InUse())
	}
	if whole.Absorb() {
		t.Error("layers are one without having been compared")
	}
	whole.Release()
}

// TestFlatOverADamagedLayer: a Flat that cannot be made has no part of what it was made of.
func TestFlatOverADamagedLayer(t *testing.T) {
	s := newDamaged(t)
	s.lose()
	err := Guard(func() error { _, err := NewFlat(s.Stack, sharedArena(t)); return err })
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("over a truncated file: %v", err)
	}
	if n := s.refs.Load(); n != 1 {
		t.Errorf("%d references to the stack are left", n)
	}
}

// TestPushOfADamagedLayer: a stack that cannot be made has no part of what it was made of.
func TestPushOfADamagedLayer(t *testing.T) {
	s := newDamaged(t)
	o := NewOverlay(s.Stack, NewArena(), 0)
	defer o.Close()
	mustWrite(t, o, 1)
	sealed := o.Seal()
	defer sealed.Release()
	lower, upper := sealed.Layers()[0], sealed.Layers()[1]
	before := lower.refs.Load()
	s.lose()
	empty := NewStack(s.Limit())
	defer empty.Release()
	if err := Guard(func() error { empty.Push(lower, upper); return nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("over a truncated file: %v", err)
	}
	if l, u := lower.refs.Load(), upper.refs.Load(); l != before || u != 1 {
		t.Errorf("the layers have %d and %d references; want %d and 1", l, u, before)
	}
}
