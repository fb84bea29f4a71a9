package snapshot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
)

// What arrives in pieces is there as a whole, or not at all.
func TestImport(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("mine", "", 1)
	before := b.files()
	from := b.other(7)
	if err := transfer(from, b.store, "other", "mine", false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("importing what exists: %v", err)
	}
	if after := b.files(); !slices.Equal(before, after) {
		t.Errorf("the refused import left %v", after)
	}
	old, err := b.store.Open("mine")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Release()
	if err := transfer(from, b.store, "other", "mine", true); err != nil {
		t.Fatal(err)
	}
	b.is("mine", 7)
	if valueOf(old) != 1 {
		t.Error("what was open has changed")
	}
	if len(b.files()) != len(before) {
		t.Errorf("what was replaced left something: %v", b.files())
	}
	x, err := from.Export("other")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	m := *x.Manifest
	m.Tag = "new"
	i, err := b.store.BeginImport(context.Background(), m, false)
	if err != nil {
		t.Fatal(err)
	}
	if !i.HasRoot() || i.Missing() != stateFile {
		t.Errorf("missing is %q although another snapshot has the root", i.Missing())
	}
	for l := range x.Layers {
		if !i.HasLayer(l) {
			t.Error("the store does not know its own layer")
		}
	}
	if b.store.Exists("new") || len(b.store.List()) != 1 {
		t.Error("an import is seen before it is complete")
	}
	if _, err := b.store.BeginImport(context.Background(), m, true); !errors.Is(err, fs.ErrExist) {
		t.Errorf("two imports of a tag: %v", err)
	}
	if _, err := b.begin(b.store, "new", "", 3); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a tag that is being imported is taken: %v", err)
	}
	// Layers that an import counts on outlive the snapshot that they are of.
	if err := b.store.Remove("mine"); err != nil {
		t.Fatal(err)
	}
	if err := i.State(whole(x.State)); err != nil {
		t.Fatal(err)
	}
	if err := i.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(i.Abort(), b.store.Verify(context.Background(), "new", nil)); err != nil {
		t.Error(err)
	}
	b.is("new", 7)
	if err := i.Commit(); err == nil {
		t.Error("an import was committed twice")
	}
}

// A snapshot that has rotted is whole again when it was fetched again, although
// the store has files of the right names and sizes.
func TestImportRepairs(t *testing.T) {
	b := newQuickBench(t)
	from := b.other(7)
	if err := transfer(from, b.store, "other", "mine", false); err != nil {
		t.Fatal(err)
	}
	for _, path := range b.files() {
		if filepath.Base(path) == manifestFile || filepath.Base(path) == stateFile {
			continue
		}
		path = filepath.Join(b.home, path)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)-1] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := b.store.Verify(context.Background(), "mine", nil)
	if !errors.Is(err, ErrNotBootable) || strings.Count(err.Error(), layerSuffix) < 2 || !strings.Contains(err.Error(), rootFile) {
		t.Errorf("verifying does not name all damaged files: %v", err)
	}
	if err := transfer(from, b.store, "other", "mine", true); err != nil {
		t.Fatal(err)
	}
	if err := b.store.Verify(context.Background(), "mine", nil); err != nil {
		t.Errorf("after it was fetched again: %v", err)
	}
	b.is("mine", 7)
}

func TestHostileImportsLeaveNothing(t *testing.T) {
	b := newQuickBench(t)
	x, err := b.other(7).Export("other")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ram, disk := x.Manifest.Memory.Layers[0], x.Manifest.Scratch.Layers[0]
	layer := func(l LayerRef) []byte {
		data, err := io.ReadAll(whole(x.Layers[l]))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	flipped := func(at int) []byte {
		data := layer(ram)
		data[(at+len(data))%len(data)] ^= 1
		return data
	}
	for name, c := range map[string]struct {
		change func(*Manifest)
		do     func(*Import) error
		want   error
	}{
		"flipped page":    {nil, func(i *Import) error { return i.Layer(ram, bytes.NewReader(flipped(-1))) }, page.ErrCorrupt},
		"flipped index":   {nil, func(i *Import) error { return i.Layer(ram, bytes.NewReader(flipped(70))) }, page.ErrCorrupt},
		"short":           {nil, func(i *Import) error { return i.Layer(ram, bytes.NewReader(layer(ram)[:page.Size])) }, ErrMismatch},
		"long":            {nil, func(i *Import) error { return i.Layer(ram, bytes.NewReader(append(layer(ram), 0))) }, ErrMismatch},
		"endless":         {nil, func(i *Import) error { return i.Layer(ram, zeros{}) }, ErrMismatch},
		"nothing":         {nil, func(i *Import) error { return i.Layer(ram, strings.NewReader("")) }, ErrMismatch},
		"another layer":   {nil, func(i *Import) error { return i.Layer(LayerRef{ram.Digest, disk.Size}, whole(x.Layers[disk])) }, ErrMismatch},
		"unknown layer":   {nil, func(i *Import) error { return i.Layer(LayerRef{strings.Repeat("0", 64), 1}, zeros{}) }, ErrMismatch},
		"wrong state":     {nil, func(i *Import) error { return i.State(strings.NewReader(strings.Repeat("x", len("xxxxxxxxstate")))) }, ErrMismatch},
		"short state":     {nil, func(i *Import) error { return i.State(strings.NewReader("x")) }, ErrMismatch},
		"missing pieces":  {nil, func(i *Import) error { return i.Commit() }, ErrMismatch},
		"broken off":      {nil, func(i *Import) error { return i.Root(io.MultiReader(strings.NewReader("root"), broken{})) }, io.ErrUnexpectedEOF},
		"absurd size":     {func(m *Manifest) { m.Memory.Layers[0].Size = 1 << 62 }, func(i *Import) error { return i.Layer(LayerRef{ram.Digest, 1 << 62}, whole(x.Layers[ram])) }, ErrMismatch},
		"a layer's size":  {func(m *Manifest) { m.Memory.Layers[0].Size-- }, func(i *Import) error { return i.Layer(LayerRef{ram.Digest, ram.Size - 1}, whole(x.Layers[ram])) }, ErrMismatch},
		"other RAM size":  {func(m *Manifest) { m.Memory.Pages *= 2 }, func(i *Import) error { return i.Layer(ram, whole(x.Layers[ram])) }, ErrMismatch},
		"tag":             {func(m *Manifest) { m.Tag = "../x" }, nil, ErrNotBootable},
		"parent's tag":    {func(m *Manifest) { m.ParentTag = "/etc" }, nil, ErrNotBootable},
		"digest":          {func(m *Manifest) { m.Memory.Layers[0].Digest = "../../x" }, nil, ErrNotBootable},
		"negative size":   {func(m *Manifest) { m.Scratch.Layers[0].Size = -1 }, nil, ErrNotBootable},
		"negative state":  {func(m *Manifest) { m.State.Size = -1 }, nil, ErrNotBootable},
		"hash":            {func(m *Manifest) { m.Root.SHA256 = "" }, nil, ErrNotBootable},
		"next format":     {func(m *Manifest) { m.Format++ }, nil, ErrNotBootable},
		"format 0":        {func(m *Manifest) { m.Format = 0 }, nil, ErrNotBootable},
		"too many layers": {func(m *Manifest) { m.Memory.Layers = slices.Repeat(m.Memory.Layers, maxLayers+1) }, nil, ErrNotBootable},
	} {
		t.Run(name, func(t *testing.T) {
			m := *x.Manifest
			m.Tag = "new"
			m.Memory.Layers, m.Scratch.Layers = slices.Clone(m.Memory.Layers), slices.Clone(m.Scratch.Layers)
			if c.change != nil {
				c.change(&m)
			}
			i, err := b.store.BeginImport(context.Background(), m, false)
			if err == nil {
				if c.do == nil {
					t.Error("accepted")
				} else {
					err = c.do(i)
				}
				if err := i.Abort(); err != nil {
					t.Error(err)
				}
			}
			if !errors.Is(err, c.want) {
				t.Errorf("error is %v, want one that says %v", err, c.want)
			}
			if left := b.files(); len(left) > 0 {
				t.Errorf("it left %v", left)
			}
			if entries, err := os.ReadDir(b.store.snapshots); err != nil || len(entries) > 0 {
				t.Errorf("it left %v (%v)", entries, err)
			}
			b.mustBegin("new", "", 1).Abort() // the tag is free
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// What is exported is read from files that stay when the snapshot goes.
func TestExport(t *testing.T) {
	b := newQuickBench(t)
	b.mustWrite("base", "", 1)
	b.mustWrite("a", "base", 2)
	x, err := b.store.Export("a")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := b.store.Remove("a", "base"); err != nil {
		t.Fatal(err)
	}
	if len(x.Layers) != 4 {
		t.Errorf("there are %d layers, want 4", len(x.Layers))
	}
	for l, f := range x.Layers {
		if n, err := io.Copy(io.Discard, whole(f)); n != l.Size || err != nil {
			t.Errorf("layer has %d bytes, want %d (%v)", n, l.Size, err)
		}
	}
	p := b.mustBegin("p", "", 3)
	for _, tag := range []string{"a", "p", "../x", ""} {
		if _, err := b.store.Export(tag); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("exporting %q: %v", tag, err)
		}
	}
	if err := p.Commit(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(b.store.Dir("p"), rootFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Export("p"); !errors.Is(err, ErrNotBootable) {
		t.Errorf("exporting what lacks its root: %v", err)
	}
}

// Stores that were written by any version are read for ever, and the present
// version is written as it is described.
func TestGoldenStores(t *testing.T) {
	for _, version := range []string{"v1", "v2"} {
		t.Run(version, func(t *testing.T) {
			b := newQuickBench(t)
			golden := filepath.Join("testdata", version)
			if *update && version == "v2" {
				b.golden()
				os.RemoveAll(golden)
				if err := os.CopyFS(golden, os.DirFS(b.home)); err != nil {
					t.Fatal(err)
				}
				b = newQuickBench(t)
			}
			if err := os.CopyFS(b.home, os.DirFS(golden)); err != nil {
				t.Fatal(err)
			}
			b.reopen()
			list := b.store.List()
			if len(list) == 0 {
				t.Fatal("there are no snapshots")
			}
			for _, e := range list {
				if err := b.store.Verify(context.Background(), e.Tag, nil); err != nil {
					t.Error(err)
				}
				if err := b.store.Compact(context.Background(), e.Tag, e.Tag+"-2"); err != nil {
					t.Error(err)
				}
				now, err := b.store.Open(e.Tag + "-2")
				if err != nil {
					t.Fatal(err)
				}
				defer now.Release()
				then, err := b.store.Open(e.Tag)
				if err != nil {
					t.Fatal(err)
				}
				defer then.Release()
				for n := range then.Memory.Limit() {
					if *now.Memory.Get(n) != *then.Memory.Get(n) {
						t.Errorf("%s: page %d differs in a copy of the present version", e.Tag, n)
					}
				}
				if now.Manifest.Format != FormatVersion || string(now.State) != string(then.State) {
					t.Errorf("%s: the copy has format %d", e.Tag, now.Manifest.Format)
				}
			}
		})
	}
	b := newQuickBench(t)
	b.golden()
	golden := filepath.Join("testdata", "v2")
	for _, path := range b.files() {
		got, err := os.ReadFile(filepath.Join(b.home, path))
		if err != nil {
			t.Fatal(err)
		}
		if want, err := os.ReadFile(filepath.Join(golden, path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is written in another way than it was (%v)", path, err)
		}
	}
}

// golden writes a parent and a branch.
func (b *bench) golden() {
	b.t.Helper()
	parent, err := b.begin(b.store, "parent", "", 5)
	if err != nil {
		b.t.Fatal(err)
	}
	fill := func(p *Pending, more Manifest) {
		m := p.snap.Manifest
		m.CreatedAt, m.Version, m.Engine, m.ISA = time.Unix(1e9, 0).UTC(), "1.0", "soft", "riscv64"
		m.CPUFeatures, m.Runtime, m.RuntimePort, m.Modules = []string{"i", "m"}, "python", 1025, []string{"numpy"}
		m.ImageKey, m.Held = "key", more.Held
		m.BranchedFrom, m.Mode, m.PauseMS = more.BranchedFrom, more.Mode, more.PauseMS
	}
	fill(parent, Manifest{})
	child := b.mustBegin("child", "parent", 6)
	fill(child, Manifest{Held: 1, BranchedFrom: "sb-1", Mode: "live", PauseMS: 1.5})
	for _, p := range []*Pending{parent, child} {
		if err := p.Commit(context.Background(), nil); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestManifestIsDescribed(t *testing.T) {
	doc, err := os.ReadFile("../../docs/format/snapshot.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Manifest]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/format/snapshot.md does not describe %s", name)
		}
	}
}
