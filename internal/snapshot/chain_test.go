package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

func newQuickBench(t *testing.T) *bench { return newStory(t, page.NewArena(), &trouble{}).b }

// mustWrite is bench.write.
func (b *bench) mustWrite(tag, from string, value uint64) {
	b.t.Helper()
	if err := b.write(b.store, tag, from, value); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) mustBegin(tag, from string, value uint64) *Pending {
	b.t.Helper()
	p, err := b.begin(b.store, tag, from, value)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// is checks what a snapshot holds.
func (b *bench) is(tag string, value uint64) {
	b.t.Helper()
	s, err := b.store.Open(tag)
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Release()
	if got := valueOf(s); got != value {
		b.t.Errorf("%q holds %d, want %d", tag, got, value)
	}
}

func (b *bench) chain(tag string) Chain {
	b.t.Helper()
	c, err := b.store.Chain(tag)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// A snapshot can be opened, and branched again, before it is on the disk, in
// whichever order they get there.
func TestPending(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	one := b.mustBegin("one", "base", 2)
	two := b.mustBegin("two", "one", 3)
	if e := b.store.Inspect("two"); e.Status != Writing || e.Err != nil || e.Manifest.ParentTag != "one" {
		t.Errorf("while it is written it is %+v", e)
	}
	if list := b.store.List(); len(list) != 3 || list[1].Tag != "one" || list[1].Status != Writing {
		t.Errorf("the list is %+v", list)
	}
	if c := b.chain("two"); !slices.Equal(c.Ancestors, []string{"one", "base"}) || c.Depth != 2 {
		t.Errorf("chain of what is being written: %+v", c)
	}
	if c := b.chain("one"); !slices.Equal(c.Dependents, []string{"two"}) {
		t.Errorf("dependents of what is being written: %+v", c)
	}
	b.is("one", 2)
	b.is("two", 3)
	if _, err := b.begin(b.store, "one", "base", 9); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a tag that is being written is taken again: %v", err)
	}
	early, err := b.store.Open("two")
	if err != nil {
		t.Fatal(err)
	}
	defer early.Release()

	var last atomic.Int64
	err = two.Commit(context.Background(), func(done, total int64) {
		if total != 2*6*page.Size || done < 0 || done > total {
			t.Errorf("progress is %d of %d", done, total)
		}
		last.Store(max(last.Load(), done))
	})
	if err != nil {
		t.Fatal(err)
	}
	if last.Load() == 0 {
		t.Error("no progress was told")
	}
	if err := b.store.Wait(context.Background(), "two"); err != nil {
		t.Error(err)
	}
	if err := two.Commit(context.Background(), nil); err == nil {
		t.Error("it was committed twice")
	}
	two.Abort() // too late
	written := len(b.files())
	if err := one.Commit(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if n := len(b.files()); n != written+3 {
		t.Errorf("writing the parent of what is written added %d files, want 3: it has all its layers", n-written)
	}
	if valueOf(early) != 3 {
		t.Error("what was opened early has changed")
	}
	b.reopen()
	for tag, value := range map[string]uint64{"base": 1, "one": 2, "two": 3} {
		b.is(tag, value)
		if err := b.store.Verify(context.Background(), tag, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestAbort(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	before := b.files()
	one := b.mustBegin("one", "base", 2)
	two := b.mustBegin("two", "one", 3)
	one.Abort()
	one.Abort()
	if b.store.Exists("one") {
		t.Error("an aborted snapshot exists")
	}
	if err := one.Commit(context.Background(), nil); !errors.Is(err, ErrRemoved) {
		t.Errorf("committing what was aborted: %v", err)
	}
	b.mustBegin("one", "base", 4).Abort()
	if err := b.store.Remove("two"); err != nil {
		t.Fatal(err)
	}
	if err := two.Commit(context.Background(), nil); !errors.Is(err, ErrRemoved) {
		t.Errorf("committing what was removed: %v", err)
	}
	if after := b.files(); !slices.Equal(before, after) {
		t.Errorf("there is %v, was %v", after, before)
	}
	three := b.mustBegin("three", "base", 4)
	b.store.Close()
	if err := three.Commit(context.Background(), nil); !errors.Is(err, ErrRemoved) {
		t.Errorf("committing to a closed store: %v", err)
	}
	if n := b.arena.InUse(); n != 0 {
		t.Errorf("%d pages are in use", n)
	}
}

func TestChain(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	b.mustWrite("a", "base", 2)
	b.mustWrite("b", "a", 3)
	b.mustWrite("a2", "base", 4)
	if err := b.store.Compact(context.Background(), "b", "flat"); err != nil {
		t.Fatal(err)
	}
	for tag, want := range map[string]Chain{
		"base": {Depth: 0, Dependents: []string{"a", "a2"}},
		"a":    {Depth: 1, Ancestors: []string{"base"}, Dependents: []string{"b"}},
		"b":    {Depth: 2, Ancestors: []string{"a", "base"}},
		"a2":   {Depth: 1, Ancestors: []string{"base"}},
		"flat": {},
	} {
		c := b.chain(tag)
		if c.Depth != want.Depth || !slices.Equal(c.Ancestors, want.Ancestors) || !slices.Equal(c.Dependents, want.Dependents) {
			t.Errorf("%s: %+v, want %+v", tag, c, want)
		}
		if c.LogicalBytes != (64+32)*page.Size {
			t.Errorf("%s: %d bytes of RAM and disk", tag, c.LogicalBytes)
		}
	}
	var physical, exclusive int64
	for _, path := range b.files() {
		st, err := os.Stat(filepath.Join(b.home, path))
		if err != nil {
			t.Fatal(err)
		}
		physical += st.Size()
	}
	for _, e := range b.store.List() {
		exclusive += b.chain(e.Tag).ExclusiveBytes
	}
	if exclusive <= 0 || exclusive >= physical || b.chain("b").PhysicalBytes <= b.chain("a").PhysicalBytes {
		t.Errorf("of %d bytes %d are exclusive; b needs %d, a %d", physical, exclusive, b.chain("b").PhysicalBytes, b.chain("a").PhysicalBytes)
	}
	freed := b.chain("a").ExclusiveBytes
	before := b.used()
	if err := b.store.Remove("a"); err != nil {
		t.Fatal(err)
	}
	// The layer of a is in b, too: only small files went.
	if got := before - b.used(); got != freed {
		t.Errorf("removing a freed %d bytes, its exclusive ones were %d", got, freed)
	}
	b.reopen()
	b.is("b", 3)
	b.is("flat", 3)
	if err := b.store.Verify(context.Background(), "b", nil); err != nil {
		t.Errorf("after its parent was removed: %v", err)
	}
	if c := b.chain("b"); c.Depth != 2 || len(c.Ancestors) != 0 {
		t.Errorf("after its parent was removed: %+v", c)
	}
	b.mustWrite("a", "", 9) // not what b came from
	if c := b.chain("a"); len(c.Dependents) != 0 {
		t.Errorf("an unrelated snapshot of the same tag: %+v", c)
	}
	if c := b.chain("b"); len(c.Ancestors) != 0 {
		t.Errorf("an unrelated snapshot of the parent's tag: %+v", c)
	}
	if _, err := b.store.Chain("nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("chain of nothing: %v", err)
	}
}

// used returns the bytes that the store takes on the disk.
func (b *bench) used() (n int64) {
	for _, path := range b.files() {
		st, err := os.Stat(filepath.Join(b.home, path))
		if err != nil {
			b.t.Fatal(err)
		}
		// The root image is a link to the image.
		if filepath.Base(path) != rootFile {
			n += st.Size()
		}
	}
	return n
}

func TestRemoveSeveral(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	b.mustWrite("a", "base", 2)
	b.mustWrite("b", "a", 3)
	if err := b.store.Remove("a", "nothing", "b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removing one that is not there: %v", err)
	}
	if len(b.store.List()) != 3 {
		t.Error("a refused removal removed something")
	}
	p := b.mustBegin("c", "b", 4)
	if err := b.store.Remove("a", "c", "base"); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(context.Background(), nil); !errors.Is(err, ErrRemoved) {
		t.Errorf("committing what was removed: %v", err)
	}
	b.is("b", 3)
	if err := b.store.Remove("b"); err != nil {
		t.Fatal(err)
	}
	if left := b.files(); len(left) > 0 {
		t.Errorf("removing all left %v", left)
	}
}

// A machine outlives its snapshot; a branch of it is whole all the same.
func TestBranchOfWhatWasRemoved(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	base, err := b.store.Open("base")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Release()
	o := page.NewOverlay(base.Memory, b.arena, 0)
	defer o.Close()
	if err := b.store.Remove("base"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(b.root); err != nil {
		t.Fatal(err)
	}
	sealed := o.Seal()
	defer sealed.Release()
	c := Contents{State: base.State, Memory: sealed, Scratch: base.Scratch, Base: base}
	if err := b.store.Create(context.Background(), Manifest{Tag: "branch", ParentTag: "base"}, c); err != nil {
		t.Fatal(err)
	}
	b.reopen()
	b.is("branch", 1)
	if err := b.store.Verify(context.Background(), "branch", nil); err != nil {
		t.Error(err)
	}
}

// Snapshots that share layers, or the root image, map them once.
func TestOpenedLayersAreShared(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	b.mustWrite("a", "base", 2)
	b.mustWrite("b", "base", 3)
	b.mustWrite("deep", "a", 4)
	b.reopen()
	first := map[string]*page.Layer{}
	for _, tag := range []string{"a", "b", "base", "deep"} {
		s, err := b.store.Open(tag)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Release()
		for _, l := range slices.Concat(s.Memory.Layers(), s.Scratch.Layers(), s.Root.Layers()) {
			digest := l.Digest().String() // zeros for the root
			if other := first[digest]; other != nil && other != l {
				t.Errorf("%s maps a layer that was mapped already", tag)
			}
			first[digest] = l
		}
	}
	for tag, value := range map[string]uint64{"base": 1, "a": 2, "b": 3, "deep": 4} {
		b.is(tag, value)
	}
}

// What a branch stores is what has changed: not pages that were written and are
// as before, and not zeros.
func TestStoredSize(t *testing.T) {
	b := newQuickBench(t)
	const limit, changed = 1 << 15, 3000
	fill := func(o *page.Overlay, from, to page.Number, value byte) {
		for n := from; n < to; n++ {
			p, _, err := o.Write(n)
			if err != nil {
				t.Fatal(err)
			}
			p[0], p[1], p[page.Size-1] = value, byte(n), value
		}
	}
	empty := page.NewStack(limit)
	defer empty.Release()
	o := page.NewOverlay(empty, b.arena, 0)
	fill(o, 0, 8000, 1)
	memory := o.Seal()
	defer memory.Release()
	c := Contents{State: []byte("x"), Memory: memory, Scratch: empty, Root: b.root}
	if err := b.store.Create(context.Background(), Manifest{Tag: "base"}, c); err != nil {
		t.Fatal(err)
	}
	fill(o, 0, changed, 2)
	fill(o, 4000, 5000, 1) // as before
	fill(o, 6000, 7000, 3)
	fill(o, 6000, 7000, 1)   // and back again
	fill(o, 20000, 25000, 9) // not so long ago all zeros,
	for n := page.Number(20000); n < 25000; n++ {
		p, _, err := o.Write(n)
		if err != nil {
			t.Fatal(err)
		}
		*p = page.Page{} // and now again
	}
	c.Memory = o.Seal()
	defer c.Memory.Release()
	o.Close()
	used := b.used()
	if err := b.store.Create(context.Background(), Manifest{Tag: "diff", ParentTag: "base"}, c); err != nil {
		t.Fatal(err)
	}
	used = b.used() - used
	if most := int64(changed * page.Size * 105 / 100); used > most {
		t.Errorf("a branch with %d changed pages takes %d bytes, want at most %d", changed, used, most)
	}
	again := b.used()
	if err := b.store.Create(context.Background(), Manifest{Tag: "same", ParentTag: "diff"}, c); err != nil {
		t.Fatal(err)
	}
	if n := b.used() - again; n > page.Size {
		t.Errorf("a branch that has changed nothing takes %d bytes", n)
	}
}

// A chain that grows for ever is written as one layer before it is too tall.
func TestTallChainIsFlattened(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("t0", "", 1)
	for i := range maxLayers + 2 {
		b.mustWrite(fmt.Sprintf("t%d", i+1), fmt.Sprintf("t%d", i), uint64(i+2))
		if err := b.store.Remove(fmt.Sprintf("t%d", i)); err != nil {
			t.Fatal(err)
		}
		b.reopen()
	}
	last := fmt.Sprintf("t%d", maxLayers+2)
	b.is(last, maxLayers+3)
	if c := b.chain(last); c.Depth >= maxLayers {
		t.Errorf("depth is %d", c.Depth)
	}
	for n := range page.Number(30) {
		s, err := b.store.Open(last)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 && s.Memory.Get(n)[0] == 0 {
			t.Errorf("page %d was lost", n)
		}
		s.Release()
	}
}

func TestVerifyCanBeEnded(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.store.Verify(ctx, "base", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	b.is("base", 1)
	var last, all atomic.Int64
	err := b.store.Verify(context.Background(), "base", func(done, total int64) {
		last.Store(max(last.Load(), done))
		all.Store(total)
	})
	if err != nil || last.Load() != all.Load() || all.Load() == 0 {
		t.Errorf("%d of %d bytes were verified (%v)", last.Load(), all.Load(), err)
	}
	if err := b.store.Verify(context.Background(), "nothing", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("verifying nothing: %v", err)
	}
}

// TestFailureIsToldBeforeTheTagIsFree: there is no moment at which a snapshot
// that could not be written is neither known nor told of.
func TestFailureIsToldBeforeTheTagIsFree(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	p := b.mustBegin("one", "base", 2)
	var told error
	p.Failed = func(err error) {
		told = err
		if !b.store.Exists("one") {
			t.Error("the tag is free before the failure is told")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Commit(ctx, nil); !errors.Is(err, context.Canceled) || told != err || b.store.Exists("one") {
		t.Errorf("the commit failed with %v, told was %v, the tag is taken: %v", err, told, b.store.Exists("one"))
	}
}
