package page_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

// memfile returns an empty file.
func memfile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "pages"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// reopen returns another descriptor for a file.
func reopen(t testing.TB, f *os.File) *os.File {
	t.Helper()
	g, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestCarryPages has a sealed layer seen through a file by somebody else.
func TestCarryPages(t *testing.T) {
	const limit = 1000
	arena := page.NewArena()
	empty := page.NewStack(limit)
	defer empty.Release()
	low := page.NewOverlay(empty, arena, 0)
	defer low.Close()
	put := func(o *page.Overlay, n page.Number, b byte) {
		p, _, err := o.Write(n)
		if err != nil {
			t.Fatal(err)
		}
		*p = page.Page{b}
	}
	for n := range page.Number(600) { // more than one block
		put(low, n, byte(n%251)+1)
	}
	base := low.Seal()
	defer base.Release()
	put(low, 3, 99)  // changes
	put(low, 4, 0)   // becomes a hole
	put(low, 5, 6)   // is as it was
	put(low, 999, 7) // is new
	top := low.Seal()
	defer top.Release()

	var layers []*page.Layer
	for _, l := range top.Layers() {
		if l.Kind() != page.Sealed || l.File() != nil {
			t.Fatalf("kind %v", l.Kind())
		}
		f := memfile(t)
		if err := l.WritePages(f); err != nil {
			t.Fatal(err)
		}
		stored, holes := l.Numbers()
		got, err := page.OpenPages(reopen(t, f), limit, stored, holes)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Release()
		if got.Kind() != page.Pages || got.File() == nil || got.Digest() != (page.Digest{}) {
			t.Errorf("kind %v, digest %v", got.Kind(), got.Digest())
		}
		layers = append(layers, got)
	}
	if stored, holes := layers[1].Numbers(); !slices.Equal(stored, []page.Number{3, 999}) || !slices.Equal(holes, []page.Number{4}) {
		t.Errorf("the upper layer has %v and the holes %v", stored, holes)
	}
	copied := empty.Push(layers...)
	defer copied.Release()
	for n := range page.Number(limit) {
		if *copied.Get(n) != *top.Get(n) {
			t.Errorf("page %d differs", n)
		}
	}
}

func TestOpenPagesRefuses(t *testing.T) {
	f := memfile(t)
	if err := f.Truncate(2 * page.Size); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		limit         page.Number
		stored, holes []page.Number
	}{
		"too few":          {10, []page.Number{1}, nil},
		"too many":         {10, []page.Number{1, 2, 3}, nil},
		"beyond the limit": {10, []page.Number{1, 10}, nil},
		"a hole beyond":    {10, []page.Number{1, 2}, []page.Number{10}},
		"out of order":     {10, []page.Number{2, 1}, nil},
		"twice":            {10, []page.Number{1, 1}, nil},
		"in both":          {10, []page.Number{1, 2}, []page.Number{2}},
		"a vast space":     {page.MaxLimit + 1, []page.Number{1, 2}, nil},
	} {
		if l, err := page.OpenPages(reopen(t, f), c.limit, c.stored, c.holes); !errors.Is(err, page.ErrCorrupt) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
	l, err := page.OpenPages(reopen(t, f), 10, []page.Number{4, 6}, []page.Number{1, 5, 9})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if l.Len() != 5 || l.Stored() != 2 {
		t.Errorf("%d pages, %d stored", l.Len(), l.Stored())
	}
}
