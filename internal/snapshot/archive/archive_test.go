package archive

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

// Everything that a snapshot needs is in its pack: the chain, the state, the
// root. It opens in a store that has never heard of any of it, after the store
// that it comes from is gone.
func TestPackTravels(t *testing.T) {
	from, to := newHome(t), newHome(t)
	from.CreateChain()
	pack := from.pack("derived")
	want, err := from.Store.Open("derived")
	if err != nil {
		t.Fatal(err)
	}
	defer want.Release()
	if err := os.RemoveAll(from.Dir); err != nil {
		t.Fatal(err)
	}
	if err := to.unpack(bytes.NewReader(pack)); err != nil {
		t.Fatal(err)
	}
	if err := to.Store.Verify(context.Background(), "derived", nil); err != nil {
		t.Error(err)
	}
	got, err := to.Store.Open("derived")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if !bytes.Equal(got.State, want.State) {
		t.Error("the state is another")
	}
	for _, s := range []struct{ got, want *page.Stack }{{got.Memory, want.Memory}, {got.Scratch, want.Scratch}, {got.Root, want.Root}} {
		for n := range s.want.Limit() {
			if *s.got.Get(n) != *s.want.Get(n) {
				t.Fatalf("page %d is another", n)
			}
		}
	}
}

func TestUnpackedFilesArePrivate(t *testing.T) {
	from, to := newHome(t), newHome(t)
	from.CreateChain()
	list := members(t, from.pack("base"))
	for i := range list {
		list[i].header.Mode, list[i].header.Uid, list[i].header.Uname = 0o4777, 1, "nobody"
	}
	if err := to.unpack(bytes.NewReader(assemble(t, list))); err != nil {
		t.Fatal(err)
	}
	filepath.WalkDir(to.Dir, func(path string, d fs.DirEntry, err error) error {
		if st, _ := d.Info(); path != to.Dir && (err != nil || st.Mode()&(0o077|os.ModeSetuid) != 0) {
			t.Errorf("%s has mode %v, error %v", path, st.Mode(), err)
		}
		return nil
	})
}

// A pack says nothing about who made it where, and is the same each time.
func TestPackDependsOnTheSnapshotOnly(t *testing.T) {
	h := newHome(t)
	h.CreateChain()
	pack := h.pack("derived")
	if !bytes.Equal(pack, h.pack("derived")) {
		t.Error("packing again gives another pack")
	}
	if text := decompress(t, pack); bytes.Contains(text, []byte(h.Dir)) || bytes.Contains(text, []byte(os.TempDir()+"/")) {
		t.Error("the pack holds paths of the host")
	}
	if first := members(t, pack)[0].header; first.Name != manifestName || !first.ModTime.IsZero() && first.ModTime.Unix() != 0 || first.Uname != "" {
		t.Errorf("the first member is %+v", first)
	}
}

// What is there already is not written again, and not taken for what comes.
func TestPartsThatAreThereStay(t *testing.T) {
	from, to := newHome(t), newHome(t)
	from.CreateChain()
	if err := to.unpack(bytes.NewReader(from.pack("base"))); err != nil {
		t.Fatal(err)
	}
	before := to.Listing()
	if err := to.unpack(bytes.NewReader(from.pack("derived"))); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(to.Listing(), ".layer ") - strings.Count(before, ".layer "); n != 2 {
		t.Errorf("the longer chain brought %d layers, want 2", n)
	}
	if err := to.Store.Verify(context.Background(), "derived", nil); err != nil {
		t.Error(err)
	}
}

func TestProgressComesToItsEnd(t *testing.T) {
	p := sample()
	var last, total int64
	watch := func(done, all int64) {
		if done < last || all == 0 {
			t.Errorf("progress went from %d to %d of %d", last, done, all)
		}
		last, total = done, all
	}
	var b bytes.Buffer
	if err := Write(context.Background(), &b, p.manifest, p, watch); err != nil || last != total {
		t.Errorf("packing stopped at %d of %d: %v", last, total, err)
	}
	last, total = 0, 0
	if err := Read(context.Background(), &b, new(parcel).sink, watch); err != nil || last != total {
		t.Errorf("unpacking stopped at %d of %d: %v", last, total, err)
	}
}

var update = flag.Bool("update", false, "write the golden files")

// A pack of each format version can be read for ever.
func TestGolden(t *testing.T) {
	path := filepath.Join("testdata", "v1"+Suffix)
	want := sample()
	var now bytes.Buffer
	if err := Write(context.Background(), &now, want.manifest, want, nil); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, now.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Compressors may get better, and manifests may tell more; the rest is fixed.
	was, is := members(t, golden), members(t, now.Bytes())
	for i := range max(len(was), len(is)) {
		if len(was) != len(is) || !reflect.DeepEqual(was[i].header, is[i].header) && i > 0 || i > 0 && !bytes.Equal(was[i].data, is[i].data) {
			t.Fatalf("member %d is written differently: that needs a new format version, and a golden file", i)
		}
	}
	var got parcel
	if err := Read(context.Background(), bytes.NewReader(golden), got.sink, nil); err != nil {
		t.Fatal(err)
	}
	if !got.done || !maps.EqualFunc(got.parts, want.parts, slices.Equal) || got.manifest.Tag != want.manifest.Tag {
		t.Error("the golden pack holds something else")
	}
}

// A source that has less than it says, or fails, is noticed while packing.
func TestPackingDamagedSource(t *testing.T) {
	for name, damage := range map[string]func(*parcel){
		"missing": func(p *parcel) { delete(p.parts, "rootfs.erofs") },
		"short":   func(p *parcel) { p.parts["rootfs.erofs"] = p.parts["rootfs.erofs"][:9] },
		"bad tag": func(p *parcel) { p.manifest.Tag = "../x" },
	} {
		p := sample()
		damage(p)
		if err := Write(context.Background(), io.Discard, p.manifest, p, nil); err == nil {
			t.Errorf("%s: it was packed", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := sample()
	if err := Write(ctx, io.Discard, p.manifest, p, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("packing after the context ended: %v", err)
	}
}

// What was never a pack is said to be none, in words.
func TestNoPackAtAll(t *testing.T) {
	var z bytes.Buffer
	w, err := NewCompressor(&z)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(bytes.Repeat([]byte("no tar file "), 1000))
	w.Close()
	for name, data := range map[string][]byte{"text": bytes.Repeat([]byte("junk "), 1000), "compressed text": z.Bytes()} {
		err := newHome(t).unpack(bytes.NewReader(data))
		if !errors.Is(err, ErrBadPack) || !strings.Contains(err.Error(), "it is no forkd pack") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
