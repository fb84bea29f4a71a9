package page

import (
	"slices"
	"testing"
)

// TestAhead: pages that are copied ahead are as if they had been written without being
// changed, and are given back when the overlay is packed.
func TestAhead(t *testing.T) {
	a := NewArena()
	o := overlayOf(t, a, 64)
	written, _, err := o.Write(7)
	if err != nil {
		t.Fatal(err)
	}
	below := a.InUse() - 1
	numbers := []Number{3, 7, 9}
	pages := o.Ahead(numbers)
	for i, n := range numbers {
		switch {
		case pages[i] == nil || !o.Owns(n):
			t.Fatalf("page %d was not copied", n)
		case *pages[i] != *o.Origin().Get(n) || o.Read(n) != pages[i]:
			t.Errorf("page %d is not what it was", n)
		}
		if p, moved, err := o.Write(n); p != pages[i] || moved || err != nil {
			t.Errorf("writing page %d moves it: %v, %v", n, moved, err)
		}
	}
	if pages[1] != written || !slices.Equal(o.Since(), []Number{7}) {
		t.Errorf("a page that was written before counts as copied ahead: %v", o.Since())
	}
	if _, _, err := o.Write(20); err != nil {
		t.Fatal(err)
	}
	since := o.Since()
	if slices.Sort(since); !slices.Equal(since, []Number{7, 20}) || !slices.Equal(o.Numbers(), []Number{3, 7, 9, 20}) {
		t.Errorf("written since then: %v, all pages: %v", since, o.Numbers())
	}
	pages[0][5]++
	o.Pack()
	if got := o.Numbers(); !slices.Equal(got, []Number{3}) || a.InUse() != below {
		t.Errorf("after packing there are %v, and %d pages in use, want 3 only, and %d", got, a.InUse(), below)
	}
}

// TestAheadLeavesTheQuota: what may not be written after all must not take the room of
// what is.
func TestAheadLeavesTheQuota(t *testing.T) {
	a := NewArena()
	o := NewOverlay(overlayOf(t, a, 64).Origin(), a, 10)
	t.Cleanup(o.Close)
	if pages := o.Ahead([]Number{1, 2, 3}); !slices.Equal(pages, make([]*Page, 3)) || o.Pages() != 0 {
		t.Errorf("3 pages of a quota of 10 were taken ahead")
	}
	if pages := o.Ahead([]Number{1, 2}); slices.Contains(pages, nil) {
		t.Error("2 pages of a quota of 10 were not copied")
	}
	for n := range Number(10) {
		if _, _, err := o.Write(n); err != nil {
			t.Fatal(err)
		}
	}
}
