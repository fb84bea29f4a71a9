package page

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func sharedArena(t *testing.T) *Arena {
	t.Helper()
	a, err := NewSharedArena()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newFlat(t *testing.T, s *Stack, a *Arena) *Flat {
	t.Helper()
	f, err := NewFlat(s, a)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// flatStack is a stack of a layer in a file, with a stretch of 40 pages, a lone page
// and a page that the layer above hides, and one that was sealed.
func flatStack(t *testing.T, a *Arena) *Stack {
	t.Helper()
	empty := NewStack(1000)
	o := NewOverlay(empty, a, 0)
	empty.Release()
	for n := range Number(40) {
		fillPage(t, o, 100+n, byte(n+1))
	}
	fillPage(t, o, 700, 0x70)
	sealed := o.Seal()
	path := filepath.Join(t.TempDir(), "layer")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sealed.Layers()[0].WriteTo(file); err != nil {
		t.Fatal(err)
	}
	file.Close()
	sealed.Release()
	o.Close()
	l, err := OpenLayer(path)
	if err != nil {
		t.Fatal(err)
	}
	empty = NewStack(1000)
	base := empty.Push(l)
	l.Release()
	empty.Release()
	o = NewOverlay(base, a, 0)
	base.Release()
	fillPage(t, o, 110, 0xaa)
	fillPage(t, o, 900, 0x90)
	p, _, err := o.Write(120) // a hole
	if err != nil {
		t.Fatal(err)
	}
	*p = Page{}
	s := o.Seal()
	o.Close()
	return s
}

func fillPage(t *testing.T, o *Overlay, n Number, b byte) {
	t.Helper()
	p, _, err := o.Write(n)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p {
		p[i] = b
	}
}

// TestFlatShowsItsStack: in either arena, each page has what the stack has, and
// nothing counts as written.
func TestFlatShowsItsStack(t *testing.T) {
	for name, a := range map[string]*Arena{"shared": sharedArena(t), "not shared": NewArena()} {
		t.Run(name, func(t *testing.T) {
			s := flatStack(t, a)
			defer s.Release()
			f := newFlat(t, s, a)
			defer f.Close()
			for n := range Number(1000) {
				if *f.Read(n) != *s.Get(n) {
					t.Fatalf("page %d differs", n)
				}
			}
			// What was read where nothing is may count, and is not part of a layer.
			sealed := f.Seal()
			defer sealed.Release()
			if top := sealed.Layers()[len(sealed.Layers())-1]; top.Len() != 0 {
				t.Errorf("a layer of an untouched machine has %d pages", top.Len())
			}
		})
	}
}

// TestFlatIsPrivate: what is written to a Flat is seen in what is sealed off later,
// and nowhere else.
func TestFlatIsPrivate(t *testing.T) {
	a := sharedArena(t)
	s := flatStack(t, a)
	defer s.Release()
	f, g := newFlat(t, s, a), newFlat(t, s, a)
	defer f.Close()
	defer g.Close()
	if n := f.Pages(); n != 0 {
		t.Errorf("%d pages of a new Flat were written", n)
	}
	touched := []Number{0, 105, 110, 700, 900, 999}
	for _, n := range touched {
		f.Read(n)[7] = 0x77
	}
	if n := f.Pages(); n != len(touched) {
		t.Errorf("%d pages were written, want %d", n, len(touched))
	}
	first := f.Seal()
	defer first.Release()
	f.Read(105)[8] = 0x88
	second := f.Seal()
	defer second.Release()

	layer := func(s *Stack) (numbers []Number) {
		for n := range s.Layers()[len(s.Layers())-1].All {
			numbers = append(numbers, n)
		}
		return numbers
	}
	if got := layer(first); !slices.Equal(got, touched) {
		t.Errorf("the first layer has pages %v, want %v", got, touched)
	}
	if got := layer(second); !slices.Equal(got, []Number{105}) {
		t.Errorf("the second layer has pages %v, want 105", got)
	}
	if first.Get(105)[8] == 0x88 {
		t.Error("a sealed page has changed")
	}
	for _, n := range touched {
		if g.Read(n)[7] == 0x77 || s.Get(n)[7] == 0x77 {
			t.Errorf("page %d is seen by others", n)
		}
	}
	h := newFlat(t, second, a)
	defer h.Close()
	for n := range Number(1000) {
		if *h.Read(n) != *f.Read(n) {
			t.Fatalf("page %d of a fork differs", n)
		}
	}
	if n := h.Pages(); n > 1000-len(touched) {
		t.Errorf("%d pages of a fork count as written", n)
	}
}
