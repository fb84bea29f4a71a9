package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// refused checks that data is refused as a layer file, for which reason, and
// that the error names the file.
func refused(t *testing.T, what string, data []byte, reason string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bad.layer")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	err := openAndVerify(path)
	if err == nil {
		t.Fatalf("%s: accepted", what)
	}
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), reason) {
		t.Fatalf("%s: error %q should wrap ErrCorrupt, name %s and say %q", what, err, path, reason)
	}
}

// openAndVerify is what is done with a layer file that comes from elsewhere.
func openAndVerify(path string) error {
	l, err := OpenLayer(path)
	if err != nil {
		return err
	}
	defer l.Release()
	return l.Verify(context.Background(), nil)
}

func goldenBytes(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/v1-pages.layer")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A crash while a layer is written leaves some beginning of it, or zeros where
// data should be.
func TestEveryTruncationIsRefused(t *testing.T) {
	good := goldenBytes(t)
	path := filepath.Join(t.TempDir(), "cut.layer")
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	for n := len(good) - 1; n >= 0; n-- {
		if err := os.Truncate(path, int64(n)); err != nil {
			t.Fatal(err)
		}
		if l, err := OpenLayer(path); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
			if err == nil {
				l.Release()
			}
			t.Fatalf("cut to %d bytes: error %v", n, err)
		}
	}
}

func TestEveryFlippedByteIsRefused(t *testing.T) {
	good := goldenBytes(t)
	path := filepath.Join(t.TempDir(), "flipped.layer")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(good); err != nil {
		t.Fatal(err)
	}
	put := func(i int, b byte) {
		if _, err := f.WriteAt([]byte{b}, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range good {
		put(i, b^1<<(i%8))
		if err := openAndVerify(path); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d flipped: error %v", i, err)
		}
		if l, err := OpenLayer(path); err == nil {
			if l.Release(); i < Size {
				t.Fatalf("byte %d of the metadata flipped: opened", i)
			}
		}
		put(i, b)
	}
	if err := openAndVerify(path); err != nil {
		t.Fatalf("restored file: %v", err)
	}
}

// Verify reads the file as it is now, tells how far it is, and can be ended.
func TestVerifyOpenLayer(t *testing.T) {
	const limit = 3 * blockPages
	stamps := map[Number]uint64{}
	for n := range Number(2*blockPages + 5) {
		stamps[n] = uint64(n) + 1
	}
	path, _ := writeFile(t, limit, entries(limit, stamps))
	l, err := OpenLayer(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	var sum atomic.Int64
	if err := l.Verify(context.Background(), func(n int64) { sum.Add(n) }); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Load() != st.Size() {
		t.Errorf("it tells of %d bytes, the file has %d", sum.Load(), st.Size())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Verify(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error of a verification that was ended: %v", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xaa}, st.Size()-1); err != nil {
		t.Fatal(err)
	}
	if err := l.Verify(context.Background(), nil); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
		t.Errorf("error of a file that has changed since: %v", err)
	}
	other, _ := writeFile(t, limit, entries(limit, nil))
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if err := l.Verify(context.Background(), nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the mapped file is verified, not the one that has its name now: %v", err)
	}
}

func TestLinkTo(t *testing.T) {
	path, digest := writeFile(t, 10, entries(10, map[Number]uint64{3: 1}))
	l, err := OpenLayer(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	link := path + ".link"
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := l.LinkTo(link); err != nil {
		t.Fatal(err)
	}
	again, err := OpenLayer(link)
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
	other, _ := writeFile(t, 10, entries(10, map[Number]uint64{3: 1}))
	if !l.Maps(link) || l.Maps(other) || l.Maps(path) {
		t.Error("the layer does not know its file")
	}
	if again.Digest() != digest {
		t.Error("the link is another file")
	}
	if err := l.LinkTo(link); !errors.Is(err, os.ErrExist) {
		t.Errorf("linking over a file: %v", err)
	}
	if err := errors.Join(os.Remove(link), os.Remove(path+".moved")); err != nil {
		t.Fatal(err)
	}
	if err := l.LinkTo(link); err == nil {
		t.Error("a file without a name was linked")
	}
	a := NewArena()
	noLeak(t, a)
	o := NewOverlay(NewStack(10), a, 0)
	defer o.Close()
	sealed := o.Seal()
	defer sealed.Release()
	if err := sealed.Layers()[0].LinkTo(link); err == nil {
		t.Error("a layer in memory was linked")
	}
}

func TestDamagedFilesAreRefused(t *testing.T) {
	good := goldenBytes(t)
	hole := func(from, to int) []byte {
		b := slices.Clone(good)
		clear(b[from:to])
		return b
	}
	refused(t, "zero length", nil, "ends before")
	refused(t, "one page short", good[:len(good)-Size], "bytes long, should be")
	refused(t, "one page more", append(slices.Clone(good), make([]byte, Size)...), "bytes long, should be")
	refused(t, "twice", append(slices.Clone(good), good...), "bytes long, should be")
	refused(t, "hole in the pages", hole(2*Size, 3*Size), "block 0")
	refused(t, "hole at the beginning", hole(0, Size), "not a layer file")
	refused(t, "hole in the index", hole(headerSize, Size), "index does not match")
	refused(t, "all zero", make([]byte, len(good)), "not a layer file")
	refused(t, "text", []byte(strings.Repeat("hello, world\n", 1000)), "not a layer file")
	garbage := make([]byte, len(good))
	rng := rand.NewChaCha8([32]byte{})
	rng.Read(garbage)
	refused(t, "garbage", garbage, "not a layer file")
	rng.Read(garbage[:])
	copy(garbage, good[:headerSize])
	refused(t, "garbage after the header", garbage, "index does not match")
}

// forge builds a layer file whose hashes are right but whose contents need not
// make sense.
func forge(l layout, stored, holes []Number) []byte {
	b := l.header()
	for _, n := range slices.Concat(stored, holes) {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	pages := make([]byte, len(stored)*Size)
	for block := range slices.Chunk(pages, blockSize) {
		sum := sha256.Sum256(block)
		b = append(b, sum[:]...)
	}
	end := len(b)
	b = append(b, make([]byte, -len(b)&(Size-1))...)
	return redigest(append(b, pages...), end)
}

// redigest makes the digest of metadata that ends at end right.
func redigest(b []byte, end int) []byte {
	if len(b) >= headerSize && end >= headerSize && end <= len(b) {
		d := metaDigest(b[:end])
		copy(b[digestAt:], d[:])
	}
	return b
}

func TestForgedFilesAreRefused(t *testing.T) {
	ok := forge(layout{10, 2, 2}, []Number{1, 4}, []Number{0, 9})
	path := filepath.Join(t.TempDir(), "ok.layer")
	if err := os.WriteFile(path, ok, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLayer(path)
	if err != nil {
		t.Fatalf("a well-made forgery: %v", err)
	}
	l.Release()

	for name, lists := range map[string][2][]Number{
		"number in both lists":         {{1, 4}, {4, 9}},
		"first number in both":         {{1, 4}, {1, 9}},
		"last number in both":          {{1, 9}, {2, 9}},
		"stored numbers double":        {{4, 4}, {0, 9}},
		"stored numbers descend":       {{4, 1}, {0, 9}},
		"holes double":                 {{1, 4}, {9, 9}},
		"holes descend":                {{1, 4}, {9, 0}},
		"stored number at limit":       {{1, 10}, {0, 9}},
		"hole at limit":                {{1, 4}, {0, 10}},
		"largest number":               {{1, 4}, {0, 1<<32 - 1}},
		"stored beyond, then below":    {{1 << 31, 4}, {0, 9}},
		"descends across a later hole": {{7, 3}, {8, 9}},
	} {
		refused(t, name, forge(layout{10, 2, 2}, lists[0], lists[1]), "out of order")
	}
	meta := int(layout{10, 2, 2}.meta())
	poke := func(at int, v uint32) []byte {
		b := slices.Clone(ok)
		binary.LittleEndian.PutUint32(b[at:], v)
		return redigest(b, meta)
	}
	refused(t, "version 0", poke(8, 0), "version 0")
	refused(t, "version 2", poke(8, 2), "version 2, this forkd reads version 1")
	refused(t, "large pages", poke(12, 16384), "impossible")
	refused(t, "limit too large", poke(16, MaxLimit+1), "impossible")
	refused(t, "more pages than the limit", poke(16, 3), "impossible")
	refused(t, "reserved word", poke(28, 1), "impossible")
	refused(t, "sums that wrap", poke(20, 1<<32-2), "impossible")
	refused(t, "padding", poke(Size-4, 1), "padding")
}

// What a header claims must not decide how much is allocated.
func TestHugeClaimsAreCheap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "claim.layer")
	b := redigest(append(layout{MaxLimit, MaxLimit, 0}.header()[:headerSize:headerSize], make([]byte, Size-headerSize)...), Size)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	refusedCheaply(t, path, OpenLayer)
	// Files of that length are there at once, without anything in them.
	const most = 16
	sparse := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(sparse, b[:headerSize], 0o600); err != nil {
		t.Fatal(err)
	}
	for l, open := range map[layout]func(*os.File, Number) (*Layer, error){
		{MaxLimit, 0, MaxLimit}: OpenLayerFile,
		{MaxLimit, MaxLimit, 0}: OpenRawFile,
	} {
		size := l.size()
		if l.stored > 0 {
			size = l.stored * Size // without a header
		}
		if err := errors.Join(os.WriteFile(sparse, l.header(), 0o600), os.Truncate(sparse, size)); err != nil {
			t.Fatal(err)
		}
		refusedCheaply(t, sparse, func(path string) (*Layer, error) {
			f, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			return open(f, most)
		})
	}
}

// refusedCheaply checks that a file is refused before anything is allocated for it.
func refusedCheaply(t *testing.T, path string, open func(string) (*Layer, error)) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := open(path)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("refusing it took %d bytes of memory", n)
	}
}

func TestOpenRaw(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := write("disk", slices.Concat(stamped(1)[:], make([]byte, Size), stamped(3)[:]))
	l, err := OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	if l.Limit() != 3 || l.Len() != 3 || l.Stored() != 3 || l.Digest() != (Digest{}) {
		t.Errorf("limit %d, Len %d, Stored %d, digest %v", l.Limit(), l.Len(), l.Stored(), l.Digest())
	}
	s := NewStack(3)
	disk := s.Push(l)
	s.Release()
	l.Release()
	for n, v := range []uint64{1, 0, 3} {
		if *disk.Get(Number(n)) != *stamped(v) {
			t.Errorf("page %d has wrong contents", n)
		}
	}
	if err := disk.Intact(); err != nil {
		t.Error(err)
	}
	disk.Release()

	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	huge := write("huge", nil)
	if err := os.Truncate(huge, (MaxLimit+1)*Size); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{dir, fifo, huge, write("empty", nil), write("odd", make([]byte, Size+1)), write("short", make([]byte, 100))} {
		for name, open := range map[string]func(string) (*Layer, error){"OpenRaw": OpenRaw, "OpenLayer": OpenLayer} {
			if _, err := open(bad); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), bad) {
				t.Errorf("%s(%s): %v", name, bad, err)
			}
		}
	}
	if _, err := OpenRaw(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}

// A file that is changed under a running machine is found before the next
// fork touches it.
func TestIntact(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 0) },
		"one page":  func(path string) error { return os.Truncate(path, Size) },
		"extended":  func(path string) error { return os.Truncate(path, 1<<20) },
		"rewritten": func(path string) error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			path, _ := writeFile(t, 1024, entries(1024, goldens[1].stamps))
			l, err := OpenLayer(path)
			if err != nil {
				t.Fatal(err)
			}
			s := NewStack(1024)
			top := s.Push(l)
			defer top.Release()
			s.Release()
			l.Release()
			if err := top.Intact(); err != nil {
				t.Fatalf("before: %v", err)
			}
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			if err := top.Intact(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
				t.Errorf("after: %v", err)
			}
		})
	}
}

// Released layers must not keep their file open.
func TestReleaseClosesTheFile(t *testing.T) {
	count := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("cannot count open files: no /proc here")
		}
		return len(open)
	}
	path, _ := writeFile(t, 10, entries(10, map[Number]uint64{1: 1}))
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, goldenBytes(t)[:Size], 0o600); err != nil {
		t.Fatal(err)
	}
	before := count()
	for range 10 {
		for _, open := range []func(string) (*Layer, error){OpenLayer, OpenRaw} {
			l, err := open(path)
			if err != nil {
				t.Fatal(err)
			}
			l.Release()
		}
		if _, err := OpenLayer(bad); err == nil {
			t.Fatal("bad file accepted")
		}
	}
	if after := count(); after > before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

// FuzzOpenLayer looks for input that panics, and for files that are accepted
// although WriteLayer would not have written them. With fix, the digest is made
// right, so that what follows it is reached.
func FuzzOpenLayer(f *testing.F) {
	for _, g := range goldens {
		b, err := os.ReadFile("testdata/" + g.name + ".layer")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, false)
		f.Add(b, true)
		f.Add(b[:len(b)/2], false)
	}
	f.Add(forge(layout{10, 2, 2}, []Number{1, 4}, []Number{4, 9}), true)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= headerSize {
			b = slices.Clone(b)
			u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(b[at:])) }
			if end := (layout{u32(16), u32(20), u32(24)}).meta(); end <= int64(len(b)) {
				redigest(b, int(end))
			}
		}
		file, err := os.CreateTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file.Name())
		defer file.Close()
		if _, err := file.Write(b); err != nil {
			t.Fatal(err)
		}
		l, err := OpenLayer(file.Name())
		if err == nil {
			defer l.Release()
			err = l.Verify(context.Background(), nil)
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), file.Name()) {
				t.Fatalf("error %v", err)
			}
			return
		}
		path, digest := writeFile(t, l.Limit(), l.All)
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, b) || digest != l.Digest() {
			t.Fatalf("accepted a file that is not in the form that WriteLayer gives it (%v)", err)
		}
	})
}

// Somebody truncates the file of a layer that is in use: whoever reads it gets an
// error, and what it was doing is undone.
func TestGuardAgainstTruncation(t *testing.T) {
	a := NewArena()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 64*Size), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	empty := NewStack(64)
	s := empty.Push(raw)
	empty.Release()
	raw.Release()
	o := NewOverlay(s, a, 0)
	defer o.Close()
	defer s.Release()
	for n := range Number(4) {
		*mustWrite(t, o, n) = *stamped(uint64(n) + 1)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := Guard(func() error { o.Pack(); return nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("packing over a truncated file: %v", err)
	}
	for n := range Number(4) {
		if *o.Read(n) != *stamped(uint64(n) + 1) {
			t.Errorf("page %d was lost", n)
		}
	}
	top := o.Seal()
	defer top.Release()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	layers := top.Layers()
	if err := Guard(func() error { _, err := layers[len(layers)-1].WriteTo(f); return err }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("writing a layer over a truncated file: %v", err)
	}
	if _, err := WriteLayer(f, top.Limit(), top.All); !errors.Is(err, ErrCorrupt) {
		t.Errorf("writing pages of a truncated file: %v", err)
	}
	if want := "mine"; Guard(func() error { return errors.New(want) }).Error() != want {
		t.Error("an error of its own is lost")
	}
	defer func() {
		if recover() == nil {
			t.Error("a bug is hidden")
		}
	}()
	Guard(func() error { panic("BUG: some") })
}
