package page

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
)

// overlayOf returns an overlay over limit stamped pages.
func overlayOf(t testing.TB, a *Arena, limit Number) *Overlay {
	t.Helper()
	empty := NewStack(limit)
	defer empty.Release()
	below := NewOverlay(empty, a, 0)
	for n := range limit {
		p, _, err := below.Write(n)
		if err != nil {
			t.Fatal(err)
		}
		*p = *stamped(uint64(n) + 1)
	}
	base := below.Seal()
	below.Close()
	defer base.Release()
	o := NewOverlay(base, a, 0)
	t.Cleanup(o.Close)
	return o
}

func TestPackKeepsDifferencesOnly(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Page)
		pages  int
		bytes  int
	}{
		{"nothing", func(p *Page) {}, 0, 0},
		{"there and back", func(p *Page) { p[9]++; p[9]-- }, 0, 0},
		{"first byte", func(p *Page) { p[0]++ }, 1, indexBytes + runHeader + 8},
		{"last byte", func(p *Page) { p[Size-1]++ }, 1, indexBytes + runHeader + 8},
		{"near words share a run", func(p *Page) { p[16]++; p[32]++ }, 1, indexBytes + runHeader + 3*8},
		{"far words do not", func(p *Page) { p[16]++; p[48]++ }, 1, indexBytes + 2*runHeader + 2*8},
		{"everything", func(p *Page) {
			for i := range p {
				p[i]++
			}
		}, 1, Size},
		{"all but a quarter", func(p *Page) {
			for i := range p[:Size*3/4] {
				p[i]++
			}
		}, 1, Size},
		{"half", func(p *Page) {
			for i := range p[:Size/2] {
				p[i]++
			}
		}, 1, indexBytes + runHeader + Size/2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := NewArena()
			o := overlayOf(t, a, 4)
			p := mustWrite(t, o, 2)
			tc.change(p)
			want, held := *p, a.InUse()
			o.Pack()
			if o.Pages() != tc.pages || o.Bytes() != tc.bytes || o.Private(2) != (tc.pages > 0) {
				t.Errorf("holds %d pages in %d bytes, private %v; want %d in %d", o.Pages(), o.Bytes(), o.Private(2), tc.pages, tc.bytes)
			}
			if n := held - 1 + tc.bytes/Size; a.InUse() != n || o.Resident() != 0 {
				t.Errorf("the arena has %d pages in use, want %d; %d are worth packing", a.InUse(), n, o.Resident())
			}
			if *o.Read(2) != want {
				t.Error("page changed by packing")
			}
			if *o.Read(1) != *stamped(2) {
				t.Error("another page changed by packing")
			}
		})
	}
}

// A page that was packed, changed again and packed again is the later one.
func TestPackAgain(t *testing.T) {
	o := overlayOf(t, NewArena(), 8)
	for round := range 5 {
		for n := Number(round % 2); n < 8; n += 2 {
			mustWrite(t, o, n)[100*int(n)] += byte(round + 1)
		}
		o.Pack()
	}
	for n := range Number(8) {
		want := *stamped(uint64(n) + 1)
		want[100*int(n)] += []byte{1 + 3 + 5, 2 + 4}[n%2]
		if *o.Read(n) != want {
			t.Errorf("page %d is wrong", n)
		}
	}
}

// A page that was not worth packing is looked at again once it was written to.
func TestPackLooksAgainAtPagesThatAreWritten(t *testing.T) {
	a := NewArena()
	o := overlayOf(t, a, 8)
	for n := range Number(4) {
		p := mustWrite(t, o, n)
		for i := range p {
			p[i]++
		}
	}
	o.Pack()
	held := a.InUse()
	if o.Pages() != 4 || o.Resident() != 0 {
		t.Fatalf("%d pages, %d of them worth packing; want 4, none", o.Pages(), o.Resident())
	}
	*mustWrite(t, o, 1) = *stamped(2) // as it was
	mustWrite(t, o, 2)[0] = 0
	mustWrite(t, o, 5)[0]++
	if o.Resident() != 3 {
		t.Errorf("%d pages are worth packing, want 3", o.Resident())
	}
	o.Pack()
	if o.Pages() != 4 || a.InUse() != held-1 {
		t.Errorf("%d pages, and %d in the arena; want 4, and one less than the %d before", o.Pages(), a.InUse(), held)
	}
	if *o.Read(1) != *stamped(2) || o.Read(2)[0] != 0 || o.Read(3)[0] != stamped(4)[0]+1 {
		t.Error("pages are wrong")
	}
	o.Seal().Release()
	if o.Pages() != 0 || o.Resident() != 0 {
		t.Errorf("a sealed overlay has %d pages, %d worth packing", o.Pages(), o.Resident())
	}
}

// Pages come back while others are read and written.
func TestPrepare(t *testing.T) {
	const limit = 1000
	a := NewArena()
	o := overlayOf(t, a, limit)
	for n := Number(0); n < limit; n += 2 {
		mustWrite(t, o, n)[100] = 7
	}
	o.Pack()
	before := a.InUse()
	var others sync.WaitGroup
	others.Go(func() {
		for n := Number(0); n < limit; n += 2 {
			if o.Read(limit - 2 - n)[100] != 7 {
				t.Error("page is wrong while it is unpacked")
			}
			mustWrite(t, o, n+1)[100] = 8
		}
	})
	if err := o.Prepare(); err != nil {
		t.Fatal(err)
	}
	others.Wait()
	if o.packed != nil || o.hidden != 0 || o.Pages() != limit || a.InUse() != before+limit {
		t.Errorf("%d pages, %d hidden, %d came from the arena; want %d, 0, %d", o.Pages(), o.hidden, a.InUse()-before, limit, limit)
	}
	for n := range Number(limit) {
		if o.Read(n)[100] != byte(7+n%2) {
			t.Errorf("page %d is wrong", n)
		}
	}
	if err := o.Prepare(); err != nil {
		t.Error(err)
	}
}

func TestPackedPagesCountForTheQuota(t *testing.T) {
	o := overlayOf(t, NewArena(), 8)
	o.quota = 2
	mustWrite(t, o, 0)[0]++
	mustWrite(t, o, 1)[0]++
	o.Pack()
	if _, _, err := o.Write(2); err != ErrQuota {
		t.Errorf("third page: %v, want ErrQuota", err)
	}
	mustWrite(t, o, 1)
}

func TestClosedOverlayHoldsNothing(t *testing.T) {
	empty := NewStack(8)
	defer empty.Release()
	o := NewOverlay(empty, NewArena(), 0)
	mustWrite(t, o, 1)[0]++
	o.Pack()
	mustWrite(t, o, 2)[0]++
	o.Close()
	if o.Pages() != 0 || o.Bytes() != 0 {
		t.Errorf("a closed overlay holds %d pages in %d bytes", o.Pages(), o.Bytes())
	}
}

// BenchmarkPack is a child after its first eval: 500 pages, few words changed.
// TestDifference packs pages that differ from those below in words of all kinds of
// places, to and from all kinds of values.
func TestDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var below Page
		for i := range below {
			below[i] = byte(r.IntN(3))
		}
		want := below
		for range r.IntN(12) {
			at, n := r.IntN(Size), 1+r.IntN(40)
			for i := at; i < min(at+n, Size); i++ {
				want[i] = byte(r.IntN(3))
			}
		}
		p := new(packed)
		if !p.add(7, &want, &below) {
			t.Fatal("a page that differs in a few words is not worth packing")
		}
		got := below
		if _, ok := p.find(7); ok {
			p.apply(0, &got)
		}
		if got != want {
			t.Fatal("unpacking does not undo packing")
		}
	}
}

func BenchmarkPack(b *testing.B) {
	const pages = 500
	rng := rand.New(rand.NewPCG(1, 2))
	o := overlayOf(b, NewArena(), pages)
	places := make([]int, 8)
	for i := range places {
		places[i] = rng.IntN(Size)
	}
	for b.Loop() {
		b.StopTimer()
		for n := range Number(pages) {
			p, _, err := o.Write(n)
			if err != nil {
				b.Fatal(err)
			}
			p[places[rng.IntN(len(places))]]++
		}
		b.StartTimer()
		o.Pack()
	}
	b.ReportMetric(float64(o.Bytes())/pages, "B/page")
}

func BenchmarkPackAndPreparePage(b *testing.B) {
	o := overlayOf(b, NewArena(), 2)
	mustWriteB(b, o)
	for b.Loop() {
		o.Pack()
		mustWriteB(b, o)
	}
}

func mustWriteB(b *testing.B, o *Overlay) {
	p, _, err := o.Write(1)
	if err != nil {
		b.Fatal(err)
	}
	p[7] = 1
}

// TestPrepareOfADamagedLayer: a page that cannot be read is an error, and the overlay
// can be used and closed after it.
func TestPrepareOfADamagedLayer(t *testing.T) {
	a := NewArena()
	s := flatStack(t, a)
	defer s.Release()
	o := NewOverlay(s, a, 0)
	defer o.Close()
	p, _, err := o.Write(139) // of the layer that lies in a file
	if err != nil {
		t.Fatal(err)
	}
	p[0]++
	o.Pack()
	if err := os.Truncate(s.Layers()[0].file.path, 0); err != nil {
		t.Fatal(err)
	}
	if err := Guard(o.Prepare); !errors.Is(err, ErrCorrupt) {
		t.Errorf("unpacking over a truncated file: %v", err)
	}
	if n := o.Pages(); n != 1 {
		t.Errorf("the overlay has %d pages, want 1", n)
	}
}
