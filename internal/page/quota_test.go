package page

import (
	"errors"
	"testing"
)

// What is discarded is zeros, in the overlay and in what is made of it, and takes nothing.
func TestDiscard(t *testing.T) {
	arena := NewArena()
	noLeak(t, arena)
	empty := NewStack(8)
	defer empty.Release()
	below := NewOverlay(empty, arena, 0)
	*mustWrite(t, below, 1) = *stamped(1)
	*mustWrite(t, below, 2) = *stamped(2)
	base := below.Seal()
	below.Close()
	defer base.Release()
	o := NewOverlay(base, arena, 0)
	defer o.Close()
	*mustWrite(t, o, 2) = *stamped(20)
	*mustWrite(t, o, 3) = *stamped(30)
	for n := range Number(8) {
		if err := o.Discard(n); err != nil {
			t.Fatal(err)
		}
	}
	if o.Pages() != 0 || o.Bytes() != 0 || o.Charged() != 0 || len(o.Numbers()) != 0 || o.Resident() != 0 {
		t.Errorf("what was discarded takes %d pages, %d bytes", o.Pages(), o.Bytes())
	}
	o.Pack()
	first := o.Seal()
	defer first.Release()
	top := first.Layers()[len(first.Layers())-1]
	if top.Len() != 2 || top.Stored() != 0 {
		t.Errorf("the layer has %d pages, %d with contents; want two holes", top.Len(), top.Stored())
	}
	for n := range Number(8) {
		if o.Read(n) != zero || *first.Get(n) != (Page{}) || *base.Get(1) != *stamped(1) {
			t.Errorf("page %d is not zeros, or the layer below has changed", n)
		}
	}
	if p := mustWrite(t, o, 1); *p != (Page{}) || !o.Private(1) {
		t.Error("a page that is written after a discard does not begin with zeros")
	}
}

// What counts for a quota: what was written since the overlay was made, once, but for
// what was discarded and is in no layer.
func TestCharged(t *testing.T) {
	o := overlayOf(t, NewArena(), 64)
	o.SetQuota(3)
	write := func(n Number) error {
		p, _, err := o.Write(n)
		if err == nil {
			p[0]++
		}
		return err
	}
	seal := func(Number) error { o.Seal().Release(); return nil }
	steps := []struct {
		name    string
		do      func(Number) error
		n       Number
		charged int
		err     error
	}{
		{"write", write, 1, 1, nil},
		{"write", write, 2, 2, nil},
		{"discard", o.Discard, 2, 1, nil},
		{"discard", o.Discard, 2, 1, nil},
		{"write", write, 2, 2, nil},
		{"seal", seal, 0, 2, nil},
		{"write", write, 1, 2, nil}, // counts already
		{"discard", o.Discard, 1, 2, nil},
		{"write", write, 1, 2, nil},
		{"write", write, 3, 3, nil},
		{"write", write, 4, 3, ErrQuota},
		{"discard", o.Discard, 1, 3, nil},
		{"write", write, 4, 3, ErrQuota},
		{"discard", o.Discard, 3, 2, nil}, // was in no layer
		{"write", write, 4, 3, nil},
		{"seal", seal, 0, 3, nil},
		{"write", write, 1, 3, ErrQuota}, // there is one in a layer, and none above it
		{"write", write, 2, 3, nil},
	}
	for i, s := range steps {
		if err := s.do(s.n); !errors.Is(err, s.err) {
			t.Errorf("step %d, %s %d: %v, want %v", i, s.name, s.n, err, s.err)
		}
		if got := o.Charged(); got != s.charged {
			t.Fatalf("after step %d, %s %d: %d charged, want %d", i, s.name, s.n, got, s.charged)
		}
	}
	o.SetQuota(0)
	for n := range Number(64) {
		if err := write(n); err != nil {
			t.Fatalf("without a quota: %v", err)
		}
	}
}
