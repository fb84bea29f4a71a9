package page

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
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

// sealed returns the numbers of the pages that a Seal has put into its layer, among
// them those that are as they were.
func sealedNumbers(s *Stack) []Number {
	numbers := s.layers[len(s.layers)-1].seal().pages.numbers()
	slices.Sort(numbers)
	return numbers
}

// TestFlatPreparesAhead: what is copied ahead and written afterwards is in the layer as
// it was when it was sealed, and what is not written again is not in the next layer.
func TestFlatPreparesAhead(t *testing.T) {
	a := sharedArena(t)
	s := flatStack(t, a)
	defer s.Release()
	f := newFlat(t, s, a)
	defer f.Close()
	write := func(b byte, numbers ...Number) {
		for _, n := range numbers {
			f.Read(n)[9] = b
		}
	}
	write(1, 3, 4, 105, 700)
	if err := f.Prepare(); err != nil {
		t.Fatal(err)
	}
	watched := f.writes.watched
	t.Logf("the host watches writes: %v", watched)
	write(2, 4, 999)
	first := f.Seal()
	defer first.Release()
	if got, want := sealedNumbers(first), []Number{3, 4, 105, 700, 999}; !slices.Equal(got, want) {
		t.Errorf("the first layer has pages %v, want %v", got, want)
	}
	for n, want := range map[Number]byte{3: 1, 4: 2, 105: 1, 700: 1, 999: 2} {
		if got := first.Get(n)[9]; got != want {
			t.Errorf("page %d has %d, want %d", n, got, want)
		}
	}
	if _ = f.Read(500)[0]; f.Pages() != 5 {
		t.Errorf("%d pages were written, want 5", f.Pages())
	}
	write(3, 105)
	second := f.Seal()
	defer second.Release()
	if got, want := sealedNumbers(second), []Number{105}; watched && !slices.Equal(got, want) {
		t.Errorf("the second layer has pages %v, want %v", got, want)
	}
	if first.Get(105)[9] != 1 || second.Get(105)[9] != 3 || second.Get(4)[9] != 2 {
		t.Error("layers have each other's pages")
	}
	third := f.Seal()
	defer third.Release()
	if got := sealedNumbers(third); watched && len(got) > 0 {
		t.Errorf("a layer of a machine that has written nothing has pages %v", got)
	}
}

// TestFlatIsSealedAtOneInstant has somebody write to page after page, and seals what
// is there whenever he stands still: each stack has what was written until then.
func TestFlatIsSealedAtOneInstant(t *testing.T) {
	const pages = 300
	a := sharedArena(t)
	empty := NewStack(pages)
	defer empty.Release()
	f := newFlat(t, empty, a)
	defer f.Close()
	var turn sync.Mutex
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for round := byte(1); ; round = round%250 + 1 {
			for n := range Number(pages) {
				select {
				case <-stop:
					return
				default:
				}
				turn.Lock()
				f.Read(n)[0] = round
				turn.Unlock()
			}
		}
	})
	between := 0 // seals in the middle of a round
	for tries := 0; between < 20; tries++ {
		if tries == 100_000 {
			t.Fatal("nobody writes meanwhile")
		}
		// Whoever copies reads what the other writes, so that is a race; what he has read
		// then counts for nothing.
		if !raceEnabled {
			if err := f.Prepare(); err != nil {
				t.Fatal(err)
			}
		}
		turn.Lock()
		s := f.Seal()
		turn.Unlock()
		steps := 0
		for n := range Number(pages - 1) {
			if here, next := s.Get(n)[0], s.Get(n + 1)[0]; here != next {
				if steps++; here != next%250+1 {
					t.Errorf("page %d has %d, and the next %d", n, here, next)
				}
			}
		}
		if steps > 1 {
			t.Errorf("%d pages differ from the next", steps)
		}
		between += steps
		if s.Release(); tries%2 == 0 {
			f.Unseal() // what was sealed is part of what will be
		}
	}
	close(stop)
	wg.Wait()
}

// TestFlatWithoutMemory: when there is no memory for the copies, nothing is lost.
func TestFlatWithoutMemory(t *testing.T) {
	a := sharedArena(t)
	s := flatStack(t, a)
	defer s.Release()
	f := newFlat(t, s, a)
	defer f.Close()
	for n := range Number(600) {
		f.Read(n)[9] = 1
	}
	f.Prepare()
	f.Read(7)[9] = 2
	f.mu.Lock()
	f.startOver() // as when an allocation has failed
	f.mu.Unlock()
	sealed := f.Seal()
	defer sealed.Release()
	for n := range Number(600) {
		want := byte(1)
		if n == 7 {
			want = 2
		}
		if got := sealed.Get(n)[9]; got != want {
			t.Fatalf("page %d has %d, want %d", n, got, want)
		}
	}
}

// TestWrittenPages: both ways to ask the host agree, but for pages of zeros.
func TestWrittenPages(t *testing.T) {
	h, err := openHost()
	if err != nil {
		t.Fatal(err)
	}
	if !h.scans {
		t.Skip("this kernel has one way to ask which pages were written")
	}
	a := sharedArena(t)
	s := flatStack(t, a)
	defer s.Release()
	f := newFlat(t, s, a)
	defer f.Close()
	for _, n := range []Number{0, 1, 2, 100, 139, 140, 700, 999} {
		f.Read(n)[0]++
	}
	scanned, err := h.scan(f.mem, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := h.pagemapRuns(f.mem)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(scanned, listed) {
		t.Errorf("one way finds %v, the other %v", scanned, listed)
	}
	_ = f.Read(500)[0]
	if again, err := h.scan(f.mem, 0, 0); err != nil || !slices.Equal(again, scanned) {
		t.Errorf("with a page that was only read: %v, %v", again, err)
	}
}

// TestFlatStoresShortGaps: the lowest layer has zeros where a few pages are missing, so
// that what was made of a file of it has few stretches; layers above do not.
func TestFlatStoresShortGaps(t *testing.T) {
	a := sharedArena(t)
	empty := NewStack(100)
	defer empty.Release()
	f := newFlat(t, empty, a)
	defer f.Close()
	for _, n := range []Number{10, 12, 29, 47, 48} {
		f.Read(n)[0] = 1
	}
	lowest := f.Seal()
	defer lowest.Release()
	f.Read(60)[0], f.Read(62)[0] = 1, 1
	above := f.Seal()
	defer above.Release()

	path := filepath.Join(t.TempDir(), "layer")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := lowest.Layers()[0].WriteTo(file); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLayer(path)
	if err != nil {
		t.Fatal(err)
	}
	stack := empty.Push(l)
	l.Release()
	defer stack.Release()
	var got []stretch
	for _, r := range stack.stretches() {
		got = append(got, stretch{first: r.first, pages: r.pages})
	}
	if want := []stretch{{first: 10, pages: 20}, {first: 47, pages: 2}}; !slices.Equal(got, want) {
		t.Errorf("the stretches are %v, want %v", got, want)
	}
	for n := range Number(60) {
		if *stack.Get(n) != *f.Read(n) {
			t.Errorf("page %d differs", n)
		}
	}
	if n := above.Layers()[1].Len(); n != 2 {
		t.Errorf("the layer above has %d pages, want 2", n)
	}
}
