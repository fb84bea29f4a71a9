package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

const sourcePages = 1024 // that have contents

// tallSource is a running machine that is branched again and again.
type tallSource struct {
	b               *bench
	memory, scratch *page.Overlay
	value           uint64
}

func newTallSource(b *bench) *tallSource {
	b.t.Helper()
	memory, scratch := page.NewStack(2*sourcePages), page.NewStack(32)
	s := &tallSource{b, page.NewOverlay(memory, b.arena, 0), page.NewOverlay(scratch, b.arena, 0), 0}
	memory.Release()
	scratch.Release()
	for n := range page.Number(sourcePages) {
		s.set(s.memory, n, 0xeeee)
	}
	return s
}

func (s *tallSource) set(o *page.Overlay, n page.Number, value uint64) {
	p, _, err := o.Write(n)
	if err != nil {
		s.b.t.Fatal(err)
	}
	copy(p[:], stampOf(value))
}

func stampOf(value uint64) []byte { return []byte{byte(value), byte(value >> 8), 0, 0, 0, 0, 0, 0} }

// cut goes on to the next value and seals it. Page 0 holds the value, and page
// value%1000+1 too; the one after that becomes zero.
func (s *tallSource) cut() Contents {
	s.value++
	s.set(s.memory, 0, s.value)
	s.set(s.memory, s.place(), s.value)
	s.set(s.memory, s.place()+1, 0)
	s.set(s.scratch, 0, s.value)
	return Contents{State: stampOf(s.value), Memory: s.memory.Seal(), Scratch: s.scratch.Seal(), Root: s.b.root}
}

func (s *tallSource) place() page.Number { return page.Number(s.value%1000) + 1 }

// grow makes the stacks taller without writing anything.
func (s *tallSource) grow(layers int) {
	for range layers {
		c := s.cut()
		c.Memory.Release()
		c.Scratch.Release()
	}
}

func (s *tallSource) branch(tag string) error {
	c := s.cut()
	defer c.Memory.Release()
	defer c.Scratch.Release()
	return s.b.store.Create(context.Background(), Manifest{Tag: tag, ISA: "riscv64", VCPUs: 1, MemoryMiB: 8}, c)
}

func (s *tallSource) mustBranch(tag string) {
	s.b.t.Helper()
	if err := s.branch(tag); err != nil {
		s.b.t.Fatal(err)
	}
}

func (s *tallSource) close() {
	s.memory.Close()
	s.scratch.Close()
	if n := len(s.b.store.flat.files); n != 0 {
		s.b.t.Errorf("%d flat files are remembered of layers that are freed", n)
	}
}

// holds checks everything that the snapshot of a value holds.
func (s *tallSource) holds(tag string, value uint64) {
	t := s.b.t
	t.Helper()
	snap, err := s.b.store.Open(tag)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Release()
	if got := valueOf(snap); got != value {
		t.Fatalf("%q holds %d, want %d", tag, got, value)
	}
	for n := page.Number(1); n < sourcePages; n++ {
		want := uint64(0xeeee)
		switch {
		case uint64(n) == value+2:
			want = 0
		case uint64(n) >= 2 && uint64(n) <= value+1:
			want = uint64(n) - 1
		}
		if got := snap.Memory.Get(n); string(got[:8]) != string(stampOf(want)) {
			t.Fatalf("page %d of %q is %x, want %x", n, tag, got[:8], want)
		}
	}
}

// largeLayers returns how many layer files hold most of the source.
func (b *bench) largeLayers() (n int) {
	for _, path := range b.files() {
		st, err := os.Stat(filepath.Join(b.home, path))
		if err != nil {
			b.t.Fatal(err)
		}
		if strings.HasSuffix(path, layerSuffix) && st.Size() > sourcePages/2*page.Size {
			n++
		}
	}
	return n
}

// A source that has been branched very often is written as a whole only once: what is
// written as one when its stack is tall is what it has changed.
func TestManyBranchesOfOneSource(t *testing.T) {
	const branches = 300
	b := newQuickBench(t)
	var n int64
	large := 0 // layers that hold everything
	var err error
	b.store, err = openStore(b.home, disk{func(step string, paths ...string) error {
		if step != "rename" || filepath.Dir(paths[1]) != filepath.Join(b.home, "layers") {
			return nil
		}
		st, err := os.Stat(paths[0])
		if err != nil {
			return err
		}
		if n += st.Size(); st.Size() > sourcePages/2*page.Size {
			large++
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := newTallSource(b)
	for i := range branches {
		s.mustBranch(fmt.Sprintf("b%d", i+1))
	}
	if most := int64(sourcePages+10*branches) * page.Size; n > most || large != 1 {
		t.Errorf("%d branches wrote %d bytes, of %d at most, and %d times everything", branches, n, most, large)
	}
	t.Logf("%d branches wrote %d bytes", branches, n)
	s.close()
	for i := range branches {
		if i%16 == 0 {
			b.reopen()
		}
		tag := fmt.Sprintf("b%d", i+1)
		s.holds(tag, uint64(i+1))
	}
	for _, tag := range []string{"b64", "b65", "b97", "b129", "b300"} {
		if err := b.store.Verify(context.Background(), tag, nil); err != nil {
			t.Error(err)
		}
	}
}

// A flat file that is gone, or known to be damaged, is written again.
func TestFlatFileIsWrittenAgain(t *testing.T) {
	b := newQuickBench(t)
	s := newTallSource(b)
	defer s.close()
	s.grow(maxLayers)
	s.mustBranch("first")
	flat := func(tag string) string {
		return b.store.layerPath(b.store.Inspect(tag).Manifest.Memory.Layers[1].Digest)
	}
	last := "first"
	path := flat(last)
	for i, lose := range []func() error{
		func() error { return b.store.Remove("first") },
		func() error { return os.Remove(path) },
		func() error { return os.Truncate(path, 5000) },
		func() error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte{0x55}, flatStep*page.Size)
			if err = errors.Join(err, f.Close()); err == nil && b.store.Verify(context.Background(), last, nil) == nil {
				err = errors.New("damage was not found")
			}
			return err
		},
	} {
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		last = fmt.Sprintf("again%d", i)
		s.mustBranch(last)
		if now := flat(last); now != path {
			t.Errorf("after loss %d the same layers make another file", i)
		}
		s.holds(last, s.value)
		if err := b.store.Verify(context.Background(), last, nil); err != nil {
			t.Errorf("after loss %d: %v", i, err)
		}
	}
}

// Whichever step fails while a tall stack is written, what comes after it is
// whole.
func TestFailureWhileATallStackIsWritten(t *testing.T) {
	arena := page.NewArena() // one for all, since arenas stay mapped
	for step := 1; ; step++ {
		f := &trouble{}
		b := newStory(t, arena, f).b
		s := newTallSource(b)
		s.grow(tall - 1)
		s.mustBranch("first") // what goes together lies in files already
		first := len(f.steps)
		f.at = first + step
		err := s.branch("failed")
		f.at = 0
		if len(f.steps) < first+step {
			s.close()
			t.Logf("%d steps", step-1)
			return
		}
		// There are two ways to get a root image.
		if linked := strings.HasPrefix(f.steps[first+step-1], "link "); linked != (err == nil) || !linked && !errors.Is(err, errInjected) {
			t.Fatalf("step %d (%s): %v", step, f.steps[first+step-1], err)
		}
		for _, tag := range []string{"next", "last"} {
			s.mustBranch(tag)
			s.holds(tag, s.value)
			if err := b.store.Verify(context.Background(), tag, nil); err != nil {
				t.Fatalf("after a failure of step %d: %v", step, err)
			}
		}
		if have, want := fmt.Sprint(b.files()), fmt.Sprint(b.needed()); have != want {
			t.Fatalf("after a failure of step %d there is %s, needed is %s", step, have, want)
		}
		s.close()
		b.store.Close()
	}
}

// Branches that are written at the same time, while others are removed, share
// one file.
func TestTallBranchesAtOnce(t *testing.T) {
	b := newQuickBench(t)
	s := newTallSource(b)
	defer s.close()
	s.grow(maxLayers)
	var all sync.WaitGroup
	for i := range 16 {
		tag := fmt.Sprintf("b%d", i)
		c := s.cut()
		p, err := b.store.Begin(Manifest{Tag: tag, ISA: "riscv64", VCPUs: 1, MemoryMiB: 8}, c)
		c.Memory.Release()
		c.Scratch.Release()
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			err := p.Commit(context.Background(), nil)
			if err == nil && i%2 == 0 {
				err = b.store.Remove(tag)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if large := b.largeLayers(); large != 1 {
		t.Errorf("there are %d files that hold everything", large)
	}
	b.reopen()
	for i := 1; i < 16; i += 2 {
		s.holds(fmt.Sprintf("b%d", i), uint64(maxLayers+i+1))
	}
}

// The same layer may lie on different ones.
func TestFlatFilesAreOfAllTheirLayers(t *testing.T) {
	b := newQuickBench(t)
	x, y := b.stack(64, []page.Number{1}, []page.Number{2}), b.stack(64, []page.Number{3})
	defer x.Release()
	top := x.Layers()[1]
	z := y.Push(top)
	y.Release()
	f := &b.store.flat
	f.remember(x.Layers(), LayerRef{"x", 1})
	if _, ok := f.find(z.Layers()); ok {
		t.Error("the file of other layers was found")
	}
	f.remember(z.Layers(), LayerRef{"z", 1})
	if ref, ok := f.find(z.Layers()); !ok || ref.Digest != "z" {
		t.Errorf("found %v", ref)
	}
	z.Release()
	if _, ok := f.find(x.Layers()); ok {
		t.Error("the file of other layers was found")
	}
}

// Which layers of a tall stack go together: those that make the smallest file, above the base
// if there are enough, and the same ones as long as possible.
func TestRuns(t *testing.T) {
	b := newQuickBench(t)
	large, small := b.stack(64, []page.Number{1, 2, 3, 4, 5}), b.stack(64, []page.Number{1})
	defer large.Release()
	defer small.Release()
	layers := func(n int, big ...int) []*page.Layer {
		all := slices.Repeat(small.Layers(), n)
		for _, i := range big {
			all[i] = large.Layers()[0]
		}
		return all
	}
	for _, tc := range []struct {
		layers   []*page.Layer
		base     int
		from, to int // what goes together
	}{
		{layers(tall), 0, 0, 0},
		{layers(tall+1, 0), 1, 1, 1 + flatStep},
		{layers(tall+1, 0), 0, 1, 1 + flatStep},
		{layers(tall+flatStep-1, 0, 1), 0, 2, 2 + flatStep},
		{layers(tall+flatStep, 0), 1, 1, 1 + 2*flatStep},
		{layers(tall+1, 0, 5, 6), 20, 20, 20 + flatStep},
		{layers(tall+1, 0, 40), 20, 20, 20 + flatStep},
		{layers(tall+1, 0, 20), 20, 21, 21 + flatStep},
		{layers(tall+1, 0, 5), 60, 6, 6 + flatStep}, // too few lie above the base
	} {
		all := runs(tc.layers, tc.base)
		var flat []*page.Layer
		at := 0
		for _, run := range all {
			if len(run) > 1 && (at != tc.from || at+len(run) != tc.to) {
				t.Errorf("of %d layers over %d those from %d to %d go together, want %d to %d", len(tc.layers), tc.base, at, at+len(run), tc.from, tc.to)
			}
			at += len(run)
			flat = append(flat, run...)
		}
		if !slices.Equal(flat, tc.layers) || tc.to > 0 && len(all) != len(tc.layers)-(tc.to-tc.from)+1 || len(all) > tall {
			t.Errorf("%d layers become %d files", len(tc.layers), len(all))
		}
	}
}
