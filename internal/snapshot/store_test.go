package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// bench is a store and what to put into it.
type bench struct {
	t     *testing.T
	home  string
	store *Store
	arena *page.Arena
	root  string
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, home: t.TempDir(), arena: page.NewArena()}
	b.root = filepath.Join(t.TempDir(), "image.erofs")
	if err := os.WriteFile(b.root, bytes.Repeat([]byte("root"), 3*page.Size/4), 0o600); err != nil {
		t.Fatal(err)
	}
	b.reopen()
	return b
}

// reopen is what a daemon does that starts again.
func (b *bench) reopen() {
	b.t.Helper()
	if b.store != nil {
		b.store.Close()
	}
	var err error
	if b.store, err = OpenStore(b.home); err != nil {
		b.t.Fatal(err)
	}
}

// stack returns a stack of one layer for each list of page numbers.
func (b *bench) stack(limit page.Number, layers ...[]page.Number) *page.Stack {
	b.t.Helper()
	stack := page.NewStack(limit)
	for i, numbers := range layers {
		o := page.NewOverlay(stack, b.arena, 0)
		for _, n := range numbers {
			p, _, err := o.Write(n)
			if err != nil {
				b.t.Fatal(err)
			}
			p[0], p[1] = byte(n+1), byte(i+1)
		}
		taller := o.Seal()
		o.Close()
		stack.Release()
		stack = taller
	}
	return stack
}

func (b *bench) contents(fill page.Number) Contents {
	memory, scratch := b.stack(64, []page.Number{1, 2, fill}), b.stack(32, []page.Number{0})
	b.t.Cleanup(memory.Release)
	b.t.Cleanup(scratch.Release)
	return Contents{State: []byte("state"), Memory: memory, Scratch: scratch, Root: b.root}
}

func (b *bench) create(tag string, fill page.Number) {
	b.t.Helper()
	m := Manifest{Tag: tag, CreatedAt: time.Unix(1e9, 0).UTC(), Engine: "soft", ISA: "riscv64", VCPUs: 1, MemoryMiB: 1}
	if err := b.store.Create(context.Background(), m, b.contents(fill)); err != nil {
		b.t.Fatal(err)
	}
}

// files lists everything under the store, by path.
func (b *bench) files() (paths []string) {
	filepath.WalkDir(b.home, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(b.home, path)
			paths = append(paths, rel)
		}
		return nil
	})
	return paths
}

func TestWhatIsCreatedCanBeOpened(t *testing.T) {
	b := newBench(t)
	b.create("one", 9)
	for _, when := range []string{"at once", "after a restart"} {
		s, err := b.store.Open("one")
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if string(s.State) != "state" || s.Memory.Get(9)[0] != 10 || s.Scratch.Get(0)[0] != 1 || s.Root.Get(0)[0] != 'r' {
			t.Errorf("%s: contents are wrong", when)
		}
		if s.Manifest.Tag != "one" || s.Manifest.Format != FormatVersion || s.Manifest.Memory.Pages != 64 {
			t.Errorf("%s: manifest is %+v", when, s.Manifest)
		}
		if err := s.Intact(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		s.Release()
		b.reopen()
	}
}

func TestFilesArePrivate(t *testing.T) {
	b := newBench(t)
	b.create("one", 9)
	for _, path := range b.files() {
		st, err := os.Stat(filepath.Join(b.home, path))
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, st.Mode())
		}
	}
}

func TestTagIsTakenOnce(t *testing.T) {
	b := newBench(t)
	b.create("one", 9)
	before := b.files()
	err := b.store.Create(context.Background(), Manifest{Tag: "one"}, b.contents(10))
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("second snapshot of a tag: %v", err)
	}
	if after := b.files(); len(after) != len(before) {
		t.Errorf("the refused snapshot left %v", after)
	}
}

func TestBadTags(t *testing.T) {
	b := newBench(t)
	for _, tag := range []string{"", ".", "..", "a/b", "../x", "a b", "ü", strings.Repeat("x", 65)} {
		if err := b.store.Create(context.Background(), Manifest{Tag: tag}, b.contents(9)); err == nil {
			t.Errorf("tag %q was created", tag)
		}
		if _, err := b.store.Open(tag); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("opening tag %q: %v", tag, err)
		}
		if err := b.store.Remove(tag); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removing tag %q: %v", tag, err)
		}
	}
}

// Layers are shared by snapshots that have the same pages, and go with the
// last of them.
func TestLayersAreShared(t *testing.T) {
	b := newBench(t)
	b.create("one", 9)
	alone := len(b.files())
	b.create("two", 9)
	if n := len(b.files()); n != alone+3 {
		t.Errorf("a second snapshot of the same pages has %d more files, want 3", n-alone)
	}
	s, err := b.store.Open("two")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	for _, tag := range []string{"one", "two"} {
		if err := b.store.Remove(tag); err != nil {
			t.Fatal(err)
		}
	}
	if left := b.files(); len(left) != 0 {
		t.Errorf("removing all snapshots left %v", left)
	}
	if s.Memory.Get(9)[0] != 10 {
		t.Error("a snapshot in use lost its pages when it was removed")
	}
}

func TestCancelledCreateLeavesNothing(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.store.Create(ctx, Manifest{Tag: "one"}, b.contents(9)); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if left := b.files(); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

// What a crash leaves at any step is gone after the next start.
func TestLeftoversAreSwept(t *testing.T) {
	b := newBench(t)
	b.create("one", 9)
	before := b.files()
	for _, path := range []string{"snapshots/.tmp-123/manifest.json", "layers/.tmp-456", "layers/" + strings.Repeat("0", 64) + ".layer"} {
		path = filepath.Join(b.home, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("half"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	b.reopen()
	if after := b.files(); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("after a restart there is %v", after)
	}
}

// While a manifest cannot be read, any layer might be its.
func TestNothingIsSweptBesideADamagedManifest(t *testing.T) {
	b := newBench(t)
	b.create("one", 9)
	n := len(b.files())
	manifest := filepath.Join(b.store.Dir("one"), manifestFile)
	if err := os.WriteFile(manifest, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.reopen()
	if len(b.files()) != n {
		t.Errorf("there is only %v", b.files())
	}
	if err := b.store.Remove("one"); err != nil {
		t.Fatal(err)
	}
	if left := b.files(); len(left) != 0 {
		t.Errorf("removing it left %v", left)
	}
}

// Each file is damaged in each way: the opening or, where only a page differs,
// verifying says so and names the file; then it cannot be opened, but removed.
func TestDamageIsNoticed(t *testing.T) {
	damages := map[string]func(path string) error{
		"missing": os.Remove,
		"empty":   func(p string) error { return os.Truncate(p, 0) },
		"shorter": func(p string) error {
			st, err := os.Stat(p)
			if err != nil {
				return err
			}
			return os.Truncate(p, st.Size()-2)
		},
		"flipped": func(p string) error {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 0x10
			return os.WriteFile(p, b, 0o600)
		},
	}
	b := newBench(t)
	b.create("one", 9)
	names := b.files()
	for _, name := range names {
		for how, damage := range damages {
			t.Run(how+" "+filepath.Base(name), func(t *testing.T) {
				b := newBench(t)
				b.create("one", 9)
				path := filepath.Join(b.home, name)
				// Hard links would damage the image as well.
				if data, err := os.ReadFile(path); err != nil || os.Remove(path) != nil || os.WriteFile(path, data, 0o600) != nil {
					t.Fatal("cannot prepare the file")
				}
				if err := damage(path); err != nil {
					t.Fatal(err)
				}
				b.reopen()
				named := func(what string, err error) {
					t.Helper()
					if !errors.Is(err, ErrNotBootable) || !strings.Contains(err.Error(), filepath.Base(name)) {
						t.Errorf("%s does not say that %s is damaged: %v", what, filepath.Base(name), err)
					}
				}
				if s, err := b.store.Open("one"); err != nil {
					named("opening", err)
				} else {
					s.Release()
					if how != "flipped" || filepath.Ext(name) == ".bin" || filepath.Ext(name) == ".json" {
						t.Errorf("%s %s was opened", how, name)
					}
				}
				named("verifying", b.store.Verify(context.Background(), "one", nil))
				_, err := b.store.Open("one")
				named("opening what was verified", err)
				if e := b.store.Inspect("one"); e.Status != Failed {
					t.Errorf("its status is %s", e.Status)
				}
				if err := b.store.Remove("one"); err != nil {
					t.Errorf("removing: %v", err)
				}
			})
		}
	}
}

func TestManifestOfAnotherFormatIsRefused(t *testing.T) {
	for _, change := range []struct {
		name string
		do   func(*Manifest)
	}{
		{"format", func(m *Manifest) { m.Format++ }},
		{"tag", func(m *Manifest) { m.Tag = "two" }},
		{"no address space", func(m *Manifest) { m.Memory.Pages = 0 }},
		{"huge address space", func(m *Manifest) { m.Memory.Pages = page.MaxLimit + 1 }},
		{"digest that is a path", func(m *Manifest) { m.Memory.Layers[0].Digest = "../../etc/passwd" }},
	} {
		b := newBench(t)
		b.create("one", 9)
		path := filepath.Join(b.store.Dir("one"), manifestFile)
		m, err := readManifest(b.store.Dir("one"))
		if err != nil {
			t.Fatal(err)
		}
		change.do(m)
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if e := b.store.Inspect("one"); !errors.Is(e.Err, ErrNotBootable) {
			t.Errorf("%s: inspecting says %v", change.name, e.Err)
		}
		if _, err := b.store.Open("one"); !errors.Is(err, ErrNotBootable) {
			t.Errorf("%s: opening says %v", change.name, err)
		}
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"format":1,"tag":"x","memory":{"pages":1,"layers":[{"digest":"00","size":1}]},"scratch":{"pages":1}}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"format":1,"tag":"x","memory":{"pages":4294967295}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, manifestFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := readManifest(dir)
		if err == nil && (!ValidTag(m.Tag) || m.Memory.Pages == 0 || m.Scratch.Pages == 0) {
			t.Errorf("accepted %+v", m)
		}
		if err != nil && !errors.Is(err, ErrNotBootable) {
			t.Errorf("untyped error %v", err)
		}
	})
}

// Whoever is told that an opened snapshot is not needed any more may take time, and does not hold up
// the store meanwhile.
func TestSnapshotsAreReleasedWithoutLocks(t *testing.T) {
	for what, drop := range map[string]func(b *bench){
		"remove": func(b *bench) {
			if err := b.store.Remove("a"); err != nil {
				t.Error(err)
			}
		},
		"close": func(b *bench) { b.store.Close() },
	} {
		b := newBench(t)
		b.create("a", 1)
		snap, err := b.store.Open("a")
		if err != nil {
			t.Fatal(err)
		}
		released := false
		snap.OnRelease(func() {
			released = true
			for _, mu := range []*sync.Mutex{&b.store.files, &b.store.mu} {
				if !mu.TryLock() {
					t.Errorf("%s: the store is held", what)
					return
				}
				mu.Unlock()
			}
		})
		snap.Release()
		if drop(b); !released {
			t.Errorf("%s: it is still there", what)
		}
	}
}

// What cannot be removed for good is gone all the same, and in nobody's way.
func TestRemovalThatIsCutShort(t *testing.T) {
	b := newBench(t)
	stuck := true
	b.store.disk.before = func(step string, paths ...string) error {
		if stuck && step == "remove" && strings.Contains(paths[0], "removed-") {
			return errors.New("no")
		}
		return nil
	}
	for range 2 {
		b.create("a", 1)
		if err := b.store.Remove("a"); err == nil || b.store.Exists("a") {
			t.Errorf("removing it: %v", err)
		}
	}
	stuck = false
	b.create("a", 1)
	if err := b.store.Remove("a"); err != nil {
		t.Error(err)
	}
	b.reopen()
	if left := b.files(); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}
