package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// edit changes the manifest of a pack and gives it the right hash.
func edit(t *testing.T, list []member, change func(*snapshot.Manifest)) []member {
	t.Helper()
	m, err := DecodeManifest(list[0].data)
	if err != nil {
		t.Fatal(err)
	}
	change(m)
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	list[0].data, err = json.Marshal(envelope{FormatVersion, fileRef(text).SHA256, text})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func regular(name string, data []byte) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Format: tar.FormatGNU}, data}
}

func link(kind byte, name, target string) member {
	return member{tar.Header{Typeflag: kind, Name: name, Linkname: target, Format: tar.FormatGNU}, nil}
}

func insert(list []member, at int, m member) []member {
	return append(append(append([]member(nil), list[:at]...), m), list[at:]...)
}

// Each of these is refused with a reason, and leaves the store as it was.
func TestHostilePacks(t *testing.T) {
	from := newHome(t)
	from.CreateChain()
	good := from.pack("derived")
	zeros := make([]byte, 64<<20)
	for _, c := range []struct {
		name string
		want string // in the error
		make func(list []member) []byte
	}{
		{"parent directory", "belongs", func(l []member) []byte { l[1].header.Name = "../state.bin"; return assemble(t, l) }},
		{"absolute name", "belongs", func(l []member) []byte { l[1].header.Name = "/etc/passwd"; return assemble(t, l) }},
		{"inner parent", "belongs", func(l []member) []byte {
			l[3].header.Name = "layers/../" + l[3].header.Name
			return assemble(t, l)
		}},
		{"dot", "belongs", func(l []member) []byte { l[1].header.Name = "./state.bin"; return assemble(t, l) }},
		{"symbolic link", "not a regular file", func(l []member) []byte {
			return assemble(t, insert(l, 1, link(tar.TypeSymlink, "state.bin", "/etc")))
		}},
		{"hard link", "not a regular file", func(l []member) []byte {
			return assemble(t, insert(l, 1, link(tar.TypeLink, "state.bin", "/etc/shadow")))
		}},
		{"device", "not a regular file", func(l []member) []byte { return assemble(t, insert(l, 1, link(tar.TypeChar, "state.bin", ""))) }},
		{"pipe", "not a regular file", func(l []member) []byte { return assemble(t, insert(l, 1, link(tar.TypeFifo, "state.bin", ""))) }},
		{"directory", "belongs", func(l []member) []byte { return assemble(t, insert(l, 1, link(tar.TypeDir, "layers/", ""))) }},
		{"duplicate member", "belongs", func(l []member) []byte { return assemble(t, insert(l, 2, l[1])) }},
		{"second manifest", "belongs", func(l []member) []byte { return assemble(t, insert(l, 1, l[0])) }},
		{"extra member", "does not list", func(l []member) []byte { return assemble(t, append(l, regular("extra", nil))) }},
		{"missing member", "belongs", func(l []member) []byte { return assemble(t, append(l[:2:2], l[3:]...)) }},
		{"missing at the end", "ends before", func(l []member) []byte { return assemble(t, l[:len(l)-1]) }},
		{"other order", "belongs", func(l []member) []byte { l[1], l[2] = l[2], l[1]; return assemble(t, l) }},
		{"no manifest", "belongs", func(l []member) []byte { return assemble(t, l[1:]) }},
		{"no members", "ends before", func([]member) []byte { return assemble(t, nil) }},
		{"nothing", "", func([]member) []byte { return nil }},
		{"no archive", "", func([]member) []byte { return []byte("#!/bin/sh\necho hello, world\n") }},
		{"longer part", "manifest says", func(l []member) []byte { l[1].data = append(l[1].data, 0); return assemble(t, l) }},
		{"bomb behind a small declaration", "manifest says", func(l []member) []byte { l[1].data = zeros; return assemble(t, l) }},
		{"large manifest", "manifest has", func(l []member) []byte { l[0].data = zeros; return assemble(t, l) }},
		{"header without end", "more than it declares", func(l []member) []byte {
			h := &l[1].header
			h.Format, h.PAXRecords = tar.FormatPAX, map[string]string{"comment": strings.Repeat("x", 900<<10)}
			return assemble(t, l)
		}},
		{"other member between", "belongs", func(l []member) []byte {
			h := tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "x"}}
			return assemble(t, insert(l, 1, member{h, nil}))
		}},
		{"data behind the end", "goes on", func(l []member) []byte {
			return append(assemble(t, l), compress(t, []byte("more"))...)
		}},
		{"zeros behind the end", "more than it declares", func(l []member) []byte {
			return append(assemble(t, l), compress(t, zeros)...)
		}},
		{"compressed garbage behind the end", "", func(l []member) []byte { return append(assemble(t, l), "garbage"...) }},
		{"huge window", "", func(l []member) []byte {
			l[len(l)-1].data = append(l[len(l)-1].data, zeros...)
			var b bytes.Buffer
			z, err := zstd.NewWriter(&b, zstd.WithWindowSize(64<<20))
			if err != nil {
				t.Fatal(err)
			}
			z.Write(decompress(t, assemble(t, l)))
			z.Close()
			return b.Bytes()
		}},
		{"flipped bit in the state", "state.bin", func(l []member) []byte { l[1].data[3] ^= 1; return assemble(t, l) }},
		{"flipped bit in the root", "rootfs.erofs", func(l []member) []byte { l[2].data[99] ^= 1; return assemble(t, l) }},
		{"flipped bit in a page", "layers/", func(l []member) []byte {
			d := l[3].data
			d[len(d)-1] ^= 1
			return assemble(t, l)
		}},
		{"flipped bit in an index", "layers/", func(l []member) []byte { l[3].data[64] ^= 1; return assemble(t, l) }},
		{"layer with an absurd header", "layers/", func(l []member) []byte {
			binary.LittleEndian.PutUint32(l[3].data[20:], 1<<27)
			return assemble(t, l)
		}},
		{"layers exchanged", "layers/", func(l []member) []byte {
			l[3].data, l[5].data = l[5].data, l[3].data
			return assemble(t, edit(t, l, func(m *snapshot.Manifest) {
				a, b := &m.Memory.Layers[0], &m.Scratch.Layers[0]
				a.Size, b.Size = b.Size, a.Size
			}))
		}},
		{"edited without a new hash", "its hash", func(l []member) []byte {
			l[0].data = bytes.Replace(l[0].data, []byte(`"vcpus":1`), []byte(`"vcpus":2`), 1)
			return assemble(t, l)
		}},
		{"trailing text in the manifest", "", func(l []member) []byte { l[0].data = append(l[0].data, "{}"...); return assemble(t, l) }},
		{"pack format", "pack format version 2", func(l []member) []byte {
			l[0].data = bytes.Replace(l[0].data, []byte(`{"format":1`), []byte(`{"format":2`), 1)
			return assemble(t, l)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			to := newHome(t)
			before := to.Listing()
			err := to.unpack(bytes.NewReader(c.make(members(t, good))))
			if !errors.Is(err, ErrBadPack) {
				t.Fatalf("unpacking says %v", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %q, want one with %q", err, c.want)
			}
			if after := to.Listing(); after != before {
				t.Errorf("it left %s", after)
			}
			if err := to.unpack(bytes.NewReader(good)); err != nil {
				t.Errorf("a good pack is refused afterwards: %v", err)
			}
		})
	}
}

// A manifest that makes no sense is refused by the field, whatever its hash.
func TestHostileManifests(t *testing.T) {
	from := newHome(t)
	from.CreateChain()
	list := members(t, from.pack("derived"))
	digest := strings.Repeat("a", 64)
	many := make([]snapshot.LayerRef, maxLayers)
	for name, c := range map[string]struct {
		want   string
		change func(*snapshot.Manifest)
	}{
		"path as tag":          {"tag", func(m *snapshot.Manifest) { m.Tag = "/tmp/x" }},
		"parent as tag":        {"tag", func(m *snapshot.Manifest) { m.Tag = "../../x" }},
		"no tag":               {"tag", func(m *snapshot.Manifest) { m.Tag = "" }},
		"dot":                  {"tag", func(m *snapshot.Manifest) { m.Tag = "." }},
		"slash in tag":         {"tag", func(m *snapshot.Manifest) { m.Tag = "a/b" }},
		"zero in tag":          {"tag", func(m *snapshot.Manifest) { m.Tag = "a\x00b" }},
		"newline in tag":       {"tag", func(m *snapshot.Manifest) { m.Tag = "a\n" }},
		"long tag":             {"tag", func(m *snapshot.Manifest) { m.Tag = strings.Repeat("x", 65) }},
		"newer format":         {"format version", func(m *snapshot.Manifest) { m.Format = snapshot.FormatVersion + 1 }},
		"format zero":          {"format version", func(m *snapshot.Manifest) { m.Format = 0 }},
		"other memory size":    {"memory", func(m *snapshot.Manifest) { m.MemoryMiB = 2 }},
		"absurd memory":        {"memory", func(m *snapshot.Manifest) { m.MemoryMiB, m.Memory.Pages = 1<<24, 1<<31 }},
		"no scratch":           {"scratch", func(m *snapshot.Manifest) { m.Scratch.Pages = 0 }},
		"absurd vCPUs":         {"vCPUs", func(m *snapshot.Manifest) { m.VCPUs = 1 << 30 }},
		"no vCPU":              {"vCPUs", func(m *snapshot.Manifest) { m.VCPUs = 0 }},
		"path as digest":       {"digest", func(m *snapshot.Manifest) { m.Memory.Layers[0].Digest = "../../etc/passwd" }},
		"upper-case digest":    {"digest", func(m *snapshot.Manifest) { m.Root.SHA256 = strings.ToUpper(digest) }},
		"negative size":        {"size", func(m *snapshot.Manifest) { m.Root.Size = -page.Size }},
		"absurd state":         {"size", func(m *snapshot.Manifest) { m.State.Size = 1 << 40 }},
		"absurd root":          {"size", func(m *snapshot.Manifest) { m.Root.Size = 1 << 50 }},
		"root of half pages":   {"size", func(m *snapshot.Manifest) { m.Root.Size++ }},
		"layer beyond its RAM": {"size", func(m *snapshot.Manifest) { m.Memory.Layers[0].Size = 1 << 30 }},
		"too many layers":      {"layers", func(m *snapshot.Manifest) { m.Memory.Layers = many }},
		"one layer, two sizes": {"twice", func(m *snapshot.Manifest) {
			l := m.Memory.Layers[0]
			l.Size += page.Size
			m.Memory.Layers = append(m.Memory.Layers, l)
		}},
		"layer of RAM and disk": {"twice", func(m *snapshot.Manifest) { m.Scratch.Layers = m.Memory.Layers }},
		"terminal codes":        {"text", func(m *snapshot.Manifest) { m.Modules = []string{"\x1b[2J"} }},
		"long text":             {"text", func(m *snapshot.Manifest) { m.Engine = strings.Repeat("x", 1000) }},
		"path as parent":        {"parent", func(m *snapshot.Manifest) { m.ParentTag = "../x" }},
		"negative held":         {"held", func(m *snapshot.Manifest) { m.Held = -1 }},
		"no engine":             {"engine", func(m *snapshot.Manifest) { m.Engine = "" }},
		"negative starts":       {"starts", func(m *snapshot.Manifest) { m.RuntimeStarts = -1 }},
		"absurd pause":          {"pause", func(m *snapshot.Manifest) { m.PauseMS = 1e10 }},
		"negative pause":        {"pause", func(m *snapshot.Manifest) { m.PauseMS = -1 }},
		"port of no runtime":    {"runtime", func(m *snapshot.Manifest) { m.Runtime, m.RuntimePort = "", 1025 }},
	} {
		to := newHome(t)
		before := to.Listing()
		err := to.unpack(bytes.NewReader(assemble(t, edit(t, append([]member(nil), list...), c.change))))
		if !errors.Is(err, ErrBadPack) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: unpacking says %v", name, err)
		}
		if to.Listing() != before {
			t.Errorf("%s: it left something", name)
		}
	}
}

func TestManifestOfNoNumber(t *testing.T) {
	for _, pause := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		m := sample().manifest
		m.PauseMS = pause
		if _, err := Parts(m); err == nil || !strings.Contains(err.Error(), "pause") {
			t.Errorf("a pause of %v: %v", pause, err)
		}
	}
}

// What one reader takes for one thing and the next for another is refused.
func TestManifestWithFieldsTwice(t *testing.T) {
	good, err := EncodeManifest(sample().manifest)
	if err != nil {
		t.Fatal(err)
	}
	var e envelope
	if err := json.Unmarshal(good, &e); err != nil {
		t.Fatal(err)
	}
	text := string(e.Snapshot)
	pack := func(text string) string {
		return fmt.Sprintf(`{"format":1,"sha256":%q,"snapshot":%s}`, fileRef([]byte(text)).SHA256, text)
	}
	if _, err := DecodeManifest([]byte(pack(text))); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]string{
		"tag":            pack(`{"tag":"other",` + text[1:]),
		"case":           pack(`{"TAG":"other",` + text[1:]),
		"folded letter":  pack(`{"\u017ftate":null,` + text[1:]),
		"in an object":   pack(strings.Replace(text, `"state":{`, `"state":{"size":1,`, 1)),
		"in an array":    pack(`{"more":[{"a":1,"a":2}],` + text[1:]),
		"of the wrapper": `{"format":2,` + pack(text)[1:],
	} {
		if _, err := DecodeManifest([]byte(in)); !errors.Is(err, ErrBadPack) || !strings.Contains(err.Error(), "twice") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every truncation and every flipped bit is found.
func TestDamagedPacks(t *testing.T) {
	from, to := newHome(t), newHome(t)
	from.CreateChain()
	good, before := from.pack("base"), to.Listing()
	try := func(what string, at int, b []byte) {
		t.Helper()
		if err := to.unpack(bytes.NewReader(b)); !errors.Is(err, ErrBadPack) {
			t.Fatalf("%s at byte %d: %v", what, at, err)
		}
		if to.Listing() != before {
			t.Fatalf("%s at byte %d left something", what, at)
		}
	}
	for at := 0; at < len(good); at += 1 + len(good)/97 {
		try("truncated", at, good[:at])
		b := bytes.Clone(good)
		b[at] ^= 1 << (at % 8)
		try("flipped", at, b)
	}
	try("truncated", len(good)-1, good[:len(good)-1])
}

var errRefused = errors.New("not here")

// Whether a snapshot can run here is asked when only its manifest was read.
func TestRefusalComesBeforeTheBulk(t *testing.T) {
	p := sample()
	random := make([]byte, 256*page.Size) // does not compress
	rand.NewChaCha8([32]byte{}).Read(random)
	p.parts["rootfs.erofs"], p.manifest.Root = bytes.Repeat(random, 64), snapshot.FileRef{}
	p.manifest.Root = fileRef(p.parts["rootfs.erofs"])
	var pack bytes.Buffer
	if err := Write(context.Background(), &pack, p.manifest, p, nil); err != nil {
		t.Fatal(err)
	}
	whole := pack.Len()
	err := Read(context.Background(), &pack, func(m *snapshot.Manifest) (Import, error) { return nil, errRefused }, nil)
	if !errors.Is(err, errRefused) || errors.Is(err, ErrBadPack) {
		t.Errorf("the error is %v", err)
	}
	if pack.Len() < whole/2 {
		t.Errorf("%d of %d bytes were read before it was refused", whole-pack.Len(), whole)
	}
}

// failing is a connection that breaks after some bytes.
type failing struct {
	r    io.Reader
	fail func() error
}

func (f failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if errors.Is(err, io.EOF) {
		err = f.fail()
	}
	return n, err
}

// What breaks a stream is told from a pack that is bad.
func TestBrokenStreams(t *testing.T) {
	from, to := newHome(t), newHome(t)
	from.CreateChain()
	good, before := from.pack("base"), to.Listing()
	broken := errors.New("connection lost")
	for _, at := range []int{0, 100, len(good) / 2, len(good)} {
		err := to.unpack(failing{bytes.NewReader(good[:at]), func() error { return broken }})
		if !errors.Is(err, broken) || errors.Is(err, ErrBadPack) {
			t.Errorf("broken after %d bytes: %v", at, err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		r := failing{bytes.NewReader(good[:at]), func() error { cancel(); return context.Canceled }}
		if err := Read(ctx, r, to.sink(ctx), nil); !errors.Is(err, context.Canceled) || errors.Is(err, ErrBadPack) {
			t.Errorf("cancelled after %d bytes: %v", at, err)
		}
		if to.Listing() != before {
			t.Errorf("ending after %d bytes left something", at)
		}
	}
}

func FuzzRead(f *testing.F) {
	p := sample()
	var b bytes.Buffer
	if err := Write(context.Background(), &b, p.manifest, p, nil); err != nil {
		f.Fatal(err)
	}
	z, err := NewDecompressor(bytes.NewReader(b.Bytes()))
	if err != nil {
		f.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes(), false)
	f.Add(text, true)
	f.Add(text[:len(text)/2], true)
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, in []byte, plain bool) {
		var got parcel
		var err error
		if ctx := context.Background(); plain { // so that the fuzzer gets past the compression
			err = newReader(bytes.NewReader(in)).run(ctx, got.sink, nil)
		} else {
			err = Read(ctx, bytes.NewReader(in), got.sink, nil)
		}
		if err != nil && (!errors.Is(err, ErrBadPack) || got.done) {
			t.Errorf("error %v, done %v", err, got.done)
		}
		if err != nil {
			return
		}
		parts, err := Parts(got.manifest)
		if err != nil || !got.done || len(parts) != len(got.parts) {
			t.Errorf("it took %d of %d parts, done %v: %v", len(got.parts), len(parts), got.done, err)
		}
	})
}

func FuzzManifest(f *testing.F) {
	good, err := EncodeManifest(sample().manifest)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"format":1,"sha256":"","snapshot":{}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		// The hash is put right, or nothing would get past it.
		var e envelope
		if json.Unmarshal(in, &e) == nil && e.Snapshot != nil {
			e.SHA256 = fileRef(e.Snapshot).SHA256
			if b, err := json.Marshal(e); err == nil {
				in = b
			}
		}
		m, err := DecodeManifest(in)
		if err != nil {
			if !errors.Is(err, ErrBadPack) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		parts, err := Parts(m)
		if err != nil || !snapshot.ValidTag(m.Tag) || TotalSize(parts) < 0 {
			t.Errorf("accepted %+v: %v", m, err)
		}
	})
}
