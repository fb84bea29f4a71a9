package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/snapshottest"
)

// home is a store that packs and unpacks.
type home struct {
	*snapshottest.Home
	t *testing.T
}

func newHome(t *testing.T) *home { return &home{snapshottest.New(t), t} }

// pack returns a snapshot as a pack.
func (h *home) pack(tag string) []byte {
	h.t.Helper()
	x, err := h.Store.Export(tag)
	if err != nil {
		h.t.Fatal(err)
	}
	defer x.Close()
	var b bytes.Buffer
	if err := Write(context.Background(), &b, x.Manifest, From(x), nil); err != nil {
		h.t.Fatal(err)
	}
	return b.Bytes()
}

// sink takes a snapshot in under its own tag.
func (h *home) sink(ctx context.Context) Sink {
	return func(m *snapshot.Manifest) (Import, error) {
		imp, err := h.Store.BeginImport(ctx, *m, false)
		if err != nil {
			return nil, err
		}
		return Into(imp), nil
	}
}

// unpack takes a pack in.
func (h *home) unpack(r io.Reader) error {
	ctx := context.Background()
	return Read(ctx, r, h.sink(ctx), nil)
}

// parcel is a snapshot in memory, both source and sink.
type parcel struct {
	manifest *snapshot.Manifest
	parts    map[string][]byte // by name
	done     bool
}

func fileRef(b []byte) snapshot.FileRef {
	sum := sha256.Sum256(b)
	return snapshot.FileRef{Size: int64(len(b)), SHA256: hex.EncodeToString(sum[:])}
}

// sample returns a parcel whose layers nobody will open.
func sample() *parcel {
	state, root := []byte("machine state"), bytes.Repeat([]byte{7}, page.Size)
	m := &snapshot.Manifest{
		Format: 1, Tag: "sample", CreatedAt: time.Unix(1e9, 0).UTC(), Version: "1.0",
		Engine: "soft", ISA: "riscv64", VCPUs: 1, MemoryMiB: 1, ImageKey: "key",
		Root: fileRef(root), State: fileRef(state),
		Memory:  snapshot.StackRef{Pages: 256},
		Scratch: snapshot.StackRef{Pages: 64},
	}
	p := &parcel{m, map[string][]byte{"state.bin": state, "rootfs.erofs": root}, false}
	for i, stack := range []*snapshot.StackRef{&m.Memory, &m.Memory, &m.Scratch} {
		b := bytes.Repeat([]byte{byte(i)}, (i+1)*page.Size)
		ref := snapshot.LayerRef{Digest: fileRef(b).SHA256, Size: int64(len(b))}
		stack.Layers = append(stack.Layers, ref)
		p.parts["layers/"+ref.Digest+".layer"] = b
	}
	return p
}

func (p *parcel) Open(part Part) (io.ReadCloser, error) {
	b, ok := p.parts[part.Name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

func (p *parcel) sink(m *snapshot.Manifest) (Import, error) {
	p.manifest, p.parts = m, make(map[string][]byte)
	return p, nil
}

func (p *parcel) Has(Part) bool { return false }
func (p *parcel) Commit() error { p.done = true; return nil }
func (p *parcel) Abort() error  { *p = parcel{}; return nil }

func (p *parcel) Add(part Part, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err == nil && fileRef(b) != (snapshot.FileRef{Size: part.Size, SHA256: part.Digest}) {
		err = bad("%s is another", part.Name)
	}
	p.parts[part.Name] = b
	return err
}

// member is one entry of a tar file, good or bad.
type member struct {
	header tar.Header
	data   []byte
}

// members takes a pack apart.
func members(t *testing.T, pack []byte) (list []member) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(decompress(t, pack)))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, member{*h, b})
	}
}

// assemble makes a pack of any members; a header's size is that of the data
// unless it is negative, which means one that is wrong.
func assemble(t *testing.T, list []member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range list {
		if m.header.Typeflag == tar.TypeReg {
			m.header.Size = int64(len(m.data))
		}
		if err := w.WriteHeader(&m.header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return compress(t, b.Bytes())
}

func compress(t *testing.T, b []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil, append([]zstd.EOption{zstd.WithWindowSize(window)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

func decompress(t *testing.T, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	out, err := z.DecodeAll(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
