package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
	"github.com/forkd-dev/forkd/internal/snapshot/snapshottest"
)

// yard is a manager whose home can be listed. Nothing runs in it.
type yard struct {
	*snapshottest.Home
	m *Manager
}

// newYard opens a manager. With full it has the snapshots "base" and "derived".
func newYard(t *testing.T, full bool) *yard {
	t.Helper()
	h := snapshottest.New(t)
	if full {
		h.CreateChain()
	}
	h.Store.Close() // the manager's from now on
	m, err := Open(context.Background(), Options{
		Home: h.Dir, Engine: softEngine, Cells: within(1), Version: "test", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &yard{h, m}
}

func (y *yard) pack(t *testing.T, tag string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := y.m.Pack(context.Background(), tag, &b, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// headOf makes the beginning of a pack: base's manifest, changed.
func (y *yard) headOf(t *testing.T, change func(*snapshot.Manifest)) io.Reader {
	t.Helper()
	m := *y.m.store.Inspect("base").Manifest
	change(&m)
	text, err := archive.EncodeManifest(&m)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z, err := archive.NewCompressor(&b)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	err = w.WriteHeader(&tar.Header{Name: "manifest.json", Size: int64(len(text)), Mode: 0o600})
	if _, writeErr := w.Write(text); errors.Join(err, writeErr, w.Flush(), z.Close()) != nil {
		t.Fatal("cannot write the pack")
	}
	return &b
}

func wantCode(t *testing.T, what string, err error, code Code, words string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: error %v, want %s with %q", what, err, code, words)
	}
}

func TestPackAndUnpack(t *testing.T) {
	from, to, ctx := newYard(t, true), newYard(t, false), context.Background()
	var steps []string
	progress := func(p Progress) {
		if len(steps) == 0 || steps[len(steps)-1] != p.Step {
			steps = append(steps, p.Step)
		}
		if p.Message == "" || p.Done > p.Total {
			t.Errorf("progress %+v", p)
		}
	}
	var pack bytes.Buffer
	if err := from.m.Pack(ctx, "derived", &pack, progress); err != nil {
		t.Fatal(err)
	}
	info, err := to.m.Unpack(ctx, bytes.NewReader(pack.Bytes()), "mine", progress)
	if err != nil {
		t.Fatal(err)
	}
	if info.Tag != "mine" || info.Status != "ready" || !info.Bootable {
		t.Errorf("unpacked is %+v", info)
	}
	if got := strings.Join(steps, " "); got != "verify pack unpack" {
		t.Errorf("steps were %q", got)
	}
	if err := to.m.Verify(ctx, "mine", nil); err != nil {
		t.Error(err)
	}
	if info, err = to.m.Unpack(ctx, &pack, "", nil); err != nil || info.Tag != "derived" {
		t.Errorf("under its own tag: %+v, %v", info, err)
	}
	wantCode(t, "packing nothing", from.m.Pack(ctx, "none", io.Discard, nil), NotFound, "none")
	wantCode(t, "packing a path", from.m.Pack(ctx, "../x", io.Discard, nil), InvalidArgument, "tag")
}

// Each is refused for its own reason, and leaves neither files nor the tag taken.
func TestUnpackRefusals(t *testing.T) {
	from, to, ctx := newYard(t, true), newYard(t, false), context.Background()
	good := from.pack(t, "base")
	if _, err := to.m.Unpack(ctx, bytes.NewReader(good), "taken", nil); err != nil {
		t.Fatal(err)
	}
	before := to.Listing()
	for _, c := range []struct {
		name string
		tag  string
		pack io.Reader
		code Code
		want string
	}{
		{"taken tag", "taken", bytes.NewReader(good), AlreadyExists, "taken"},
		{"bad tag", "../x", bytes.NewReader(good), InvalidArgument, "tag"},
		{"other ISA", "", from.headOf(t, func(m *snapshot.Manifest) { m.ISA = "loong64" }), NotBootable, "loong64"},
		{"CPU feature", "", from.headOf(t, func(m *snapshot.Manifest) { m.CPUFeatures = []string{"i", "zvfh"} }), NotBootable, "zvfh"},
		{"nothing but a manifest", "", from.headOf(t, func(*snapshot.Manifest) {}), NotBootable, "ends before state.bin"},
		{"too large for the disk", "", from.headOf(t, func(m *snapshot.Manifest) {
			m.MemoryMiB, m.Memory.Pages = 1<<20, page.MaxLimit
			m.Memory.Layers = []snapshot.LayerRef{{Digest: strings.Repeat("a", 64), Size: 1 << 40}, {Digest: strings.Repeat("b", 64), Size: 1 << 40}}
		}), NoSpace, "MiB are free"},
		{"no pack", "", strings.NewReader("hello"), NotBootable, "bad snapshot pack"},
		{"half a pack", "", bytes.NewReader(good[:len(good)/2]), NotBootable, "cut short"},
		{"broken connection", "", io.MultiReader(bytes.NewReader(good[:len(good)/2]), broken{}), Unavailable, "broke off"},
	} {
		_, err := to.m.Unpack(ctx, c.pack, c.tag, nil)
		wantCode(t, c.name, err, c.code, c.want)
		if to.Listing() != before {
			t.Errorf("%s: it left something", c.name)
		}
	}
	if _, err := to.m.Unpack(ctx, bytes.NewReader(good), "", nil); err != nil {
		t.Errorf("a good pack is refused afterwards: %v", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestUnpackEndsWithItsContext(t *testing.T) {
	from, to := newYard(t, true), newYard(t, false)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := to.Listing()
	_, err := to.m.Unpack(ctx, bytes.NewReader(from.pack(t, "base")), "", nil)
	wantCode(t, "unpacking", err, Unavailable, "")
	if to.Listing() != before {
		t.Error("it left something")
	}
}

// shelf is a web server that keeps what is put, and remembers tokens.
func shelf(t *testing.T) (*httptest.Server, *[]string) {
	files, tokens := make(map[string][]byte), new([]string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*tokens = append(*tokens, r.Header.Get("Authorization"))
		b, ok := files[r.URL.Path]
		switch {
		case r.Method == http.MethodPut:
			files[r.URL.Path], _ = io.ReadAll(r.Body)
		case ok:
			w.Header().Set("ETag", `"x"`)
			w.Write(b)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s, tokens
}

// The daemon's own token is for its own hub. A client that names another hub
// does not get it sent there.
func TestPushAndPull(t *testing.T) {
	from, to, ctx := newYard(t, true), newYard(t, false), context.Background()
	own, ownTokens := shelf(t)
	other, otherTokens := shelf(t)
	t.Setenv("FORKD_HUB_URL", own.URL)
	t.Setenv("FORKD_HUB_TOKEN", "secret")
	for i, opts := range []ShipOptions{{}, {HubURL: own.URL}, {HubURL: other.URL}} {
		ref := "me/thing:" + string(rune('0'+i))
		if err := from.m.Push(ctx, "derived", ref, opts, nil); err != nil {
			t.Fatal(err)
		}
		info, err := to.m.Pull(ctx, ref, "got"+string(rune('0'+i)), opts, nil)
		if err != nil || info.Status != "ready" {
			t.Fatalf("%+v, %v", info, err)
		}
	}
	for _, token := range *ownTokens {
		if token != "Bearer secret" {
			t.Errorf("a request to the own hub bore %q", token)
		}
	}
	for _, token := range *otherTokens {
		if token != "" {
			t.Errorf("a request to another hub bore %q", token)
		}
	}
	if len(*ownTokens) == 0 || len(*otherTokens) == 0 {
		t.Error("one of the hubs was not asked")
	}
	_, err := to.m.Pull(ctx, "me/none", "", ShipOptions{}, nil)
	wantCode(t, "pulling nothing", err, NotFound, "me/none")
	_, err = to.m.Pull(ctx, "me/thing", "got0", ShipOptions{}, nil)
	wantCode(t, "pulling to a taken tag", err, AlreadyExists, "got0")
	_, err = to.m.Pull(ctx, "/etc/passwd", "", ShipOptions{}, nil)
	wantCode(t, "pulling a file", err, InvalidArgument, "/etc/passwd")
	wantCode(t, "pushing to a file", from.m.Push(ctx, "base", "./x", ShipOptions{}, nil), InvalidArgument, "./x")
	wantCode(t, "pushing nowhere", from.m.Push(ctx, "base", "ftp://x/y", ShipOptions{}, nil), InvalidArgument, "ftp")
	_, err = to.m.Pull(ctx, "http://127.0.0.1:1/x", "", ShipOptions{}, nil)
	wantCode(t, "pulling from nobody", err, Unavailable, "127.0.0.1:1")
}
