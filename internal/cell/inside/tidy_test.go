package inside

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/page"
)

// TestNobodyKeepsWhatNobodyHas: a layer that was to take the place of others, and whose
// last user is gone before that was so, does not keep these from the machine.
func TestNobodyKeepsWhatNobodyHas(t *testing.T) {
	empty := page.NewStack(16)
	defer empty.Release()
	disk := page.NewOverlay(empty, page.NewArena(), 0)
	defer disk.Close()
	for n := range page.Number(2) {
		p, _, err := disk.Write(n)
		if err != nil {
			t.Fatal(err)
		}
		p[0] = 1
		disk.Seal().Release()
	}
	stacks := disk.Stacks()
	s := &Server{whole: []*page.Layer{page.Merge(stacks[1].Layers()...)}}
	for _, stack := range stacks {
		stack.Release()
	}
	if disk.Unseal() != nil {
		t.Fatal("taken back although somebody has it")
	}
	if s.absorb(); len(s.whole) != 0 {
		t.Error("it is kept")
	}
	if disk.Unseal() == nil {
		t.Error("it is kept from the machine")
	}
}

// TestPageThatCannotBeRead: a file that is truncated under some layers keeps no others from
// being given back, nor is anything given back twice.
func TestPageThatCannotBeRead(t *testing.T) {
	arena := page.NewArena()
	s := &Server{sources: make(map[uint64]*source), memory: arena, scratch: page.NewArena()}
	const damaged = 4
	var truncate func()
	for i := range uint64(2 * damaged) {
		base := page.NewStack(16)
		if i == damaged {
			base, truncate = overFile(t)
		}
		if err := s.keep(&source{id: i, stacks: stacks{memory: twoSeals(t, base, arena)}}); err != nil {
			t.Fatal(err)
		}
		base.Release()
	}
	truncate()
	for range 2 {
		if s.tidy(); len(s.whole) != 1 {
			t.Errorf("%d layers are left, not only the damaged one", len(s.whole))
		}
	}
	for i := range s.sources {
		if _, err := s.dropSource(nil, wire.Ref{ID: i}); err != nil {
			t.Error(err)
		}
	}
	if s.tidy(); len(s.whole) != 0 || arena.InUse() != 0 {
		t.Errorf("%d layers and %d pages are left", len(s.whole), arena.InUse())
	}
}

// TestCutThatIsNotKept: what was sealed for a cut that could not be kept is the machine's again.
func TestCutThatIsNotKept(t *testing.T) {
	s := newServer(t)
	v := addMachine(t, s, 1)
	if err := s.keep(&source{id: 7}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.cut(nil, wire.Cut{VM: 1, Source: 7, Live: true}); err == nil {
		t.Fatal("there are two sources of one number")
	}
	sealed := func() int {
		below, _ := v.machine.Stacks()
		defer releaseAll([]*page.Stack{below.MemoryBase, below.Memory, below.ScratchBase, below.Scratch})
		return len(below.Memory.Layers())
	}
	for end := time.Now().Add(30 * time.Second); sealed() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is kept from the machine")
		}
	}
}

// TestFileOfLayersThatCannotBeRead: a file that was to take the place of layers is not kept when
// it turns out that these cannot be read.
func TestFileOfLayersThatCannotBeRead(t *testing.T) {
	s := newServer(t)
	base, truncate := overFile(t)
	defer base.Release()
	empty := page.NewStack(16)
	defer empty.Release()
	o := &source{id: 1, vcpus: 1, stacks: stacks{memory: twoSeals(t, base, s.memory), scratch: empty.Retain(), root: empty.Retain()}}
	if err := s.keep(o); err != nil {
		t.Fatal(err)
	}
	run := wire.FileRun{Layers: s.describe(o).Memory.Layers[1:]}
	same := twoSeals(t, empty, s.memory)
	defer same.Release()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := same.Layers()[0].WriteTo(f); err != nil {
		t.Fatal(err)
	}
	truncate()
	_, err = s.files(&wire.Message{Files: []*os.File{f}}, wire.Files{Runs: []wire.FileRun{run}})
	if !errors.Is(err, page.ErrCorrupt) {
		t.Errorf("replaced by a file: %v", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(maps), f.Name()) {
		t.Error("the file is kept")
	}
}

// overFile returns a stack over a file, and what truncates that.
func overFile(t *testing.T) (_ *page.Stack, truncate func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(path, make([]byte, 16*page.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := page.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Release()
	empty := page.NewStack(16)
	defer empty.Release()
	return empty.Push(raw), func() {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSourcesGoWhileLayersAreFolded: what is to be folded may lose its last user at any moment.
func TestSourcesGoWhileLayersAreFolded(t *testing.T) {
	arena := page.NewArena()
	s := &Server{sources: make(map[uint64]*source), memory: arena, scratch: page.NewArena()}
	empty := page.NewStack(16)
	defer empty.Release()
	var wg sync.WaitGroup
	for i := range uint64(2) {
		wg.Go(func() {
			for range 10_000 {
				if err := s.keep(&source{id: i, stacks: stacks{memory: twoSeals(t, empty, arena)}}); err != nil {
					t.Error(err)
				}
				if _, err := s.dropSource(nil, wire.Ref{ID: i}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	gone := make(chan struct{})
	go func() {
		wg.Wait()
		close(gone)
	}()
	for done := false; !done; {
		select {
		case <-gone:
			done = true
		default:
		}
		s.tidy()
	}
	if len(s.whole) != 0 || arena.InUse() != 0 {
		t.Errorf("%d layers and %d pages are left", len(s.whole), arena.InUse())
	}
}

// twoSeals returns a stack of two layers over another one, which an overlay has sealed that
// is gone.
func twoSeals(t *testing.T, base *page.Stack, arena *page.Arena) *page.Stack {
	o := page.NewOverlay(base, arena, 0)
	defer o.Close()
	for n := range page.Number(2) {
		if _, _, err := o.Write(n); err != nil {
			t.Error(err)
		}
		o.Seal().Release()
	}
	stacks := o.Stacks()
	stacks[0].Release()
	return stacks[1]
}

// TestSourceIsThereWhileItIsUsed: a daemon that comes later may drop a source that its
// predecessor still forks from.
func TestSourceIsThereWhileItIsUsed(t *testing.T) {
	arena := page.NewArena()
	s := &Server{sources: make(map[uint64]*source), memory: arena, scratch: page.NewArena()}
	empty := page.NewStack(16)
	defer empty.Release()
	if err := s.keep(&source{id: 1, stacks: stacks{memory: twoSeals(t, empty, arena)}}); err != nil {
		t.Fatal(err)
	}
	o, done, err := s.use(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.dropSource(nil, wire.Ref{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.use(1); err == nil {
		t.Error("a source that was dropped can be used")
	}
	o.memory.Retain().Release()
	if done(); arena.InUse() != 0 {
		t.Errorf("%d pages are left", arena.InUse())
	}
}
