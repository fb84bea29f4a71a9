package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

var errInjected = fmt.Errorf("injected: %w", syscall.ENOSPC)

// trouble makes one step on the disk fail, or that and all later ones, as for a
// process that was killed. It keeps account of what a power failure would take.
type trouble struct {
	at    int  // the step that fails, counted from 1; 0: none
	crash bool // and all later ones

	mu    sync.Mutex
	steps []string
	dirty map[uint64]bool // inodes with data that nobody has synced
	names []naming        // renames whose directory nobody has synced
}

type naming struct{ step, from, to string }

func (f *trouble) before(step string, paths ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, step+" "+filepath.Base(paths[len(paths)-1]))
	if n := len(f.steps); f.at != 0 && (n == f.at || n > f.at && f.crash) {
		return errInjected
	}
	path := paths[0]
	switch step {
	case "write":
		f.dirty[inode(path)] = true
	case "sync":
		delete(f.dirty, inode(path))
	case "rename", "exchange":
		f.names = append(f.names, naming{step, paths[0], paths[1]})
	case "syncdir":
		f.names = slices.DeleteFunc(f.names, func(n naming) bool { return filepath.Dir(n.to) == path })
	}
	return nil
}

func inode(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// powerFailure takes what had not been synced: the later half of files, and,
// as it pleases, names.
func (f *trouble) powerFailure(t *testing.T, home string, names bool) {
	t.Helper()
	if names {
		for _, n := range slices.Backward(f.names) {
			if n.step == "exchange" {
				exchange(n.from, n.to)
			} else {
				os.Rename(n.to, n.from)
			}
		}
	}
	filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !f.dirty[inode(path)] {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		return os.Truncate(path, st.Size()/2)
	})
}

func exchange(a, b string) {
	tmp := a + ".x"
	os.Rename(a, tmp)
	os.Rename(b, a)
	os.Rename(tmp, b)
}

// story is what a store goes through, with an account of what it acknowledged.
type story struct {
	t        *testing.T
	b        *bench
	have     map[string]uint64 // acknowledged, by tag: what page 0 says
	doing    string            // the tag that is being made or removed
	making   uint64            // and what it will hold; 0: it is being removed
	replaced uint64            // what it held before
	again    func(*Store) error
	err      error
}

// do runs one step of the story, unless an earlier one failed.
func (s *story) do(tag string, value uint64, what func(*Store) error) {
	if s.err != nil {
		return
	}
	s.doing, s.making, s.replaced, s.again = tag, value, s.have[tag], what
	if s.err = what(s.b.store); s.err != nil {
		return
	}
	if s.doing = ""; value == 0 {
		delete(s.have, tag)
	} else {
		s.have[tag] = value
	}
}

// tell runs everything that writes: a parent, a branch of it, a branch of the
// branch, compaction, import of new and of known pieces, replacement, removal.
func (s *story) tell() {
	ctx := context.Background()
	s.do("base", 1, func(st *Store) error { return s.b.write(st, "base", "", 1) })
	s.do("diff", 2, func(st *Store) error { return s.b.write(st, "diff", "base", 2) })
	s.do("deep", 3, func(st *Store) error { return s.b.write(st, "deep", "diff", 3) })
	s.do("flat", 3, func(st *Store) error { return st.Compact(ctx, "deep", "flat") })
	s.do("copy", 3, func(st *Store) error { return transfer(st, st, "deep", "copy", false) })
	s.do("alien", 77, func(st *Store) error { return transfer(s.b.other(77), st, "other", "alien", false) })
	s.do("copy", 78, func(st *Store) error { return transfer(s.b.other(78), st, "other", "copy", true) })
	s.do("base", 0, func(st *Store) error { return st.Remove("base") })
	s.do("flat", 0, func(st *Store) error { return st.Remove("flat") })
	s.do("diff", 0, func(st *Store) error { return st.Remove("diff") })
}

// check compares a store, after what happened, with what it acknowledged.
func (s *story) check(when string) {
	s.t.Helper()
	st, err := OpenStore(s.b.home)
	if err != nil {
		s.t.Fatalf("%s: opening the store: %v", when, err)
	}
	defer st.Close()
	for _, e := range st.List() {
		ok := false
		if value := s.have[e.Tag]; value != 0 && e.Tag != s.doing {
			ok = s.holds(st, e.Tag, value)
		} else if e.Tag == s.doing {
			ok = s.making != 0 && s.holds(st, e.Tag, s.making) || s.replaced != 0 && s.holds(st, e.Tag, s.replaced)
		}
		if !ok {
			s.t.Fatalf("%s: snapshot %q (%v) is not what was acknowledged", when, e.Tag, e.Err)
		}
	}
	for tag := range s.have {
		if tag != s.doing && !st.Exists(tag) {
			s.t.Fatalf("%s: snapshot %q was acknowledged and is gone", when, tag)
		}
	}
	if s.doing != "" && s.replaced != 0 && s.making != 0 && !st.Exists(s.doing) {
		s.t.Fatalf("%s: snapshot %q is gone, which was to be replaced", when, s.doing)
	}
	b := *s.b
	b.store = st
	if have, want := fmt.Sprint(b.files()), fmt.Sprint(b.needed()); have != want {
		s.t.Fatalf("%s: there is %s, needed is %s", when, have, want)
	}
}

// holds reports whether a snapshot verifies and is the one with that value.
func (s *story) holds(st *Store, tag string, value uint64) bool {
	if err := st.Verify(context.Background(), tag, nil); err != nil {
		s.t.Logf("verifying %q: %v", tag, err)
		return false
	}
	snap, err := st.Open(tag)
	if err != nil {
		s.t.Logf("opening %q: %v", tag, err)
		return false
	}
	defer snap.Release()
	return value == valueOf(snap)
}

// Values are kept in page 0 of RAM and of the scratch disk, and in the state.
func valueOf(s *Snapshot) uint64 {
	m, d := s.Memory.Get(0), s.Scratch.Get(0)
	if !bytes.Equal(m[:8], d[:8]) || !bytes.Equal(m[:8], s.State[:8]) || s.Root.Get(0)[0] != 'r' {
		return 0
	}
	return uint64(m[0]) | uint64(m[1])<<8
}

// write makes a snapshot with a value, upon another one unless from is empty.
func (b *bench) write(s *Store, tag, from string, value uint64) error {
	p, err := b.begin(s, tag, from, value)
	if err != nil {
		return err
	}
	return p.Commit(context.Background(), nil)
}

func (b *bench) begin(s *Store, tag, from string, value uint64) (*Pending, error) {
	m := Manifest{Tag: tag, ParentTag: from, ISA: "riscv64", VCPUs: 1, MemoryMiB: 1}
	c := Contents{Root: b.root}
	memory, scratch := page.NewStack(64), page.NewStack(32)
	if from != "" {
		base, err := s.Open(from)
		if err != nil {
			return nil, err
		}
		defer base.Release()
		memory.Release()
		scratch.Release()
		c.Base, memory, scratch = base, base.Memory.Retain(), base.Scratch.Retain()
	}
	stamp := []byte{byte(value), byte(value >> 8), 0, 0, 0, 0, 0, 0}
	c.State = append(stamp, "state"...)
	for _, part := range []struct {
		stack **page.Stack
		to    **page.Stack
	}{{&memory, &c.Memory}, {&scratch, &c.Scratch}} {
		o := page.NewOverlay(*part.stack, b.arena, 0)
		for _, n := range []page.Number{0, page.Number(value % 30), 31} {
			p, _, err := o.Write(n)
			if err != nil {
				return nil, err
			}
			copy(p[:], stamp)
		}
		*part.to = o.Seal()
		o.Close()
		(*part.stack).Release()
	}
	defer c.Memory.Release()
	defer c.Scratch.Release()
	return s.Begin(m, c)
}

// other returns another store with a snapshot "other" of that value.
func (b *bench) other(value uint64) *Store {
	s, err := OpenStore(quickDir(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(s.Close)
	if err := b.write(s, "other", "", value); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// transfer copies a snapshot from store to store as a pack would.
func transfer(from, to *Store, tag, as string, replace bool) (err error) {
	x, err := from.Export(tag)
	if err != nil {
		return err
	}
	defer x.Close()
	m := *x.Manifest
	m.Tag = as
	i, err := to.BeginImport(context.Background(), m, replace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.Abort()) }()
	if !i.HasRoot() {
		if err := i.Root(whole(x.Root)); err != nil {
			return err
		}
	}
	if err := i.State(whole(x.State)); err != nil {
		return err
	}
	for l, f := range x.Layers {
		if i.HasLayer(l) {
			continue
		}
		if err := i.Layer(l, whole(f)); err != nil {
			return err
		}
	}
	return i.Commit()
}

func whole(f *os.File) io.Reader { return io.NewSectionReader(f, 0, 1<<40) }

// quickDir returns a directory in memory where there is such a thing: thousands
// of syncs take their time elsewhere.
func quickDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "forkd-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newStory prepares a story in which something goes wrong.
func newStory(t *testing.T, arena *page.Arena, f *trouble) *story {
	f.dirty = make(map[uint64]bool)
	b := &bench{t: t, home: quickDir(t), arena: arena}
	b.root = filepath.Join(b.home, "..", filepath.Base(b.home)+".erofs")
	t.Cleanup(func() { os.Remove(b.root) })
	if err := os.WriteFile(b.root, bytes.Repeat([]byte("root"), page.Size/4), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.store, err = openStore(b.home, disk{f.before}); err != nil {
		t.Fatal(err)
	}
	return &story{t: t, b: b, have: map[string]uint64{}}
}

// eachStep runs the story once for each of its steps.
func eachStep(t *testing.T, crash bool, after func(f *trouble, s *story, when string)) {
	arena := page.NewArena() // one for all, since arenas stay mapped
	calm := &trouble{}
	s := newStory(t, arena, calm)
	s.tell()
	if s.err != nil {
		t.Fatal(s.err)
	}
	s.b.store.Close()
	s.check("without trouble")
	if n := arena.InUse(); n != 0 {
		t.Errorf("%d pages are in use at the end", n)
	}
	for k := 1; k <= len(calm.steps); k++ {
		f := &trouble{at: k, crash: crash}
		s := newStory(t, arena, f)
		s.tell()
		when := fmt.Sprintf("step %d (%s)", k, f.steps[k-1])
		if s.err != nil && !errors.Is(s.err, errInjected) {
			t.Fatalf("%s: error %v", when, s.err)
		}
		after(f, s, when)
		s.b.store.Close()
	}
	if n := arena.InUse(); n != 0 {
		t.Errorf("%d pages are in use after all that trouble", n)
	}
	t.Logf("%d steps", len(calm.steps))
}

// A process that is killed before any step on the disk: what was acknowledged
// is there, everything else is gone, with its space.
func TestKilledAtEveryStep(t *testing.T) {
	eachStep(t, true, func(f *trouble, s *story, when string) { s.check(when) })
}

// A host that loses power before any step. Names that were not synced are lost
// or not.
func TestPowerFailureAtEveryStep(t *testing.T) {
	for _, names := range []bool{false, true} {
		eachStep(t, true, func(f *trouble, s *story, when string) {
			f.powerFailure(t, s.b.home, names)
			s.check(when)
		})
	}
}

// A step that fails, as on a full disk: the tag is free again at once, the space
// too, and the same call succeeds when there is room.
func TestFailureAtEveryStep(t *testing.T) {
	eachStep(t, false, func(f *trouble, s *story, when string) {
		removing := strings.HasPrefix(f.steps[f.at-1], "remove ")
		if s.err == nil || s.making == 0 || removing {
			s.check(when) // as after a restart
			return
		}
		if s.replaced == 0 && s.b.store.Exists(s.doing) {
			t.Fatalf("%s: %q failed and is there", when, s.doing)
		}
		want := fmt.Sprint(s.b.needed())
		if have := fmt.Sprint(s.b.files()); have != want {
			t.Fatalf("%s: there is %s, wanted is %s", when, have, want)
		}
		tag, value, again := s.doing, s.making, s.again
		s.err = nil
		if s.do(tag, value, again); s.err != nil {
			t.Fatalf("%s: the next try fails: %v", when, s.err)
		}
		s.check(when)
	})
}

// needed lists the files that the snapshots of a store need.
func (b *bench) needed() (paths []string) {
	for _, e := range b.store.List() {
		for _, l := range e.Manifest.layers() {
			paths = append(paths, "layers/"+l.Digest+layerSuffix)
		}
		for _, name := range []string{manifestFile, rootFile, stateFile} {
			paths = append(paths, "snapshots/"+e.Tag+"/"+name)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
