package hub

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
	"github.com/forkd-dev/forkd/internal/snapshot/snapshottest"
)

// blobs is a registry that counts what comes and goes, with faults.
type blobs struct {
	*httptest.Server
	host  string
	inner http.Handler

	mu      sync.Mutex
	sent    int // blobs that were uploaded
	fetched []string
	fault   func(w http.ResponseWriter, r *http.Request) bool
}

func newRegistry(t *testing.T) *blobs {
	b := &blobs{inner: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		fault := b.fault
		switch {
		case r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/uploads/"):
			b.sent++
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			b.fetched = append(b.fetched, r.URL.Path)
		}
		b.mu.Unlock()
		if fault != nil && fault(w, r) {
			return
		}
		b.inner.ServeHTTP(w, r)
	}))
	t.Cleanup(b.Server.Close)
	b.host = strings.TrimPrefix(b.Server.URL, "http://")
	return b
}

// take returns the counts and starts anew.
func (b *blobs) take() (sent, fetched int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sent, fetched = b.sent, len(b.fetched)
	b.sent, b.fetched = 0, nil
	return sent, fetched
}

// Only what the other side lacks is sent, and only what is lacking here is
// fetched. The chain "derived" has two layers more than "base", another state
// and the same root.
func TestBlobsTravelOnce(t *testing.T) {
	from, to, reg, c := snapshottest.New(t), snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	from.CreateChain()
	ref := "oci://" + reg.host + "/team/py"
	check := func(what string, err error, sent, fetched int) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if s, f := reg.take(); s != sent || f != fetched {
			t.Errorf("%s: %d blobs were sent and %d fetched, want %d and %d", what, s, f, sent, fetched)
		}
	}
	check("first push", push(t, c, from, "base", ref+":1"), 5, 0) // config, state, root, RAM, disk
	check("the same push", push(t, c, from, "base", ref+":1"), 0, 0)
	check("first pull", pull(t, c, to, ref+":1"), 0, 5)
	check("longer chain", push(t, c, from, "derived", ref+":2"), 4, 0) // config, state, two layers
	check("second pull", pull(t, c, to, ref+":2"), 0, 4)
	verified(t, to, "base")
	verified(t, to, "derived")
	if names := entries(t, c.opts.Temp); len(names) != 0 {
		t.Errorf("left over: %v", names)
	}
}

func TestPullByDigest(t *testing.T) {
	from, to, reg, c := snapshottest.New(t), snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	from.CreateChain()
	ref := "oci://" + reg.host + "/a"
	if err := push(t, c, from, "base", ref); err != nil {
		t.Fatal(err)
	}
	d, err := remote.Head(parse(t, ref).OCI)
	if err != nil {
		t.Fatal(err)
	}
	if err := pull(t, c, to, ref+"@"+d.Digest.String()); err != nil {
		t.Fatal(err)
	}
	verified(t, to, "base")
	if err := push(t, c, from, "base", ref+"@"+d.Digest.String()); !errors.Is(err, ErrReference) {
		t.Errorf("pushing to a digest: %v", err)
	}
}

func TestRegistryProgress(t *testing.T) {
	from, to, reg, c := snapshottest.New(t), snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	from.CreateChain()
	x, err := from.Store.Export("derived")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	parts, err := archive.Parts(x.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	done := make(map[Step]int64)
	progress := func(s Step, n, total int64) {
		if n < done[s] || total != archive.TotalSize(parts) {
			t.Errorf("%s went from %d to %d of %d", s, done[s], n, total)
		}
		done[s] = n
	}
	ctx, ref := context.Background(), parse(t, "oci://"+reg.host+"/a:b")
	if err := c.Push(ctx, ref, x.Manifest, archive.From(x), progress); err != nil {
		t.Fatal(err)
	}
	if err := c.Pull(ctx, ref, into(ctx, to), progress); err != nil {
		t.Fatal(err)
	}
	if total := archive.TotalSize(parts); done[Sending] != total || done[Fetching] != total {
		t.Errorf("progress came to %v of %d", done, total)
	}
}

// Connections that break are made anew, blob by blob.
func TestRegistryConnectionsBreak(t *testing.T) {
	from, to, reg, c := snapshottest.New(t), snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	from.CreateChain()
	ref := "oci://" + reg.host + "/a:b"
	if err := push(t, c, from, "derived", ref); err != nil {
		t.Fatal(err)
	}
	var always atomic.Bool
	seen := make(map[string]bool)
	reg.fault = skipConfig(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || seen[r.URL.Path] && !always.Load() {
			return false
		}
		seen[r.URL.Path] = true // blobs are fetched one by one
		rec := httptest.NewRecorder()
		reg.inner.ServeHTTP(rec, r)
		w.Header().Set("Content-Length", strconv.Itoa(rec.Body.Len()))
		w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	if err := pull(t, c, to, ref); err != nil {
		t.Fatal(err)
	}
	verified(t, to, "derived")
	to = snapshottest.New(t)
	before := to.Listing()
	always.Store(true)
	if err := pull(t, c, to, ref); !errors.Is(err, ErrUnavailable) || errors.Is(err, archive.ErrBadPack) {
		t.Errorf("a registry that always breaks: %v", err)
	}
	if to.Listing() != before {
		t.Error("it left something")
	}
}

// skipConfig lets the first blob that is asked for through.
func skipConfig(fault func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	var config atomic.Pointer[string]
	return func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			config.CompareAndSwap(nil, &r.URL.Path)
		}
		if p := config.Load(); p != nil && *p == r.URL.Path {
			return false
		}
		return fault(w, r)
	}
}

// What is no registry answers with pages; an error is one short line all the same.
func TestRegistryErrorsAreOneLine(t *testing.T) {
	reg, c := newRegistry(t), newClient(t, Options{})
	for _, page := range []string{
		"<!DOCTYPE html>\n<html><body>" + strings.Repeat("not here ", 1000) + "</body></html>",
		"line\n" + strings.Repeat("line\n", 1000), strings.Repeat("é", 1000),
	} {
		reg.fault = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, page)
			return true
		}
		err := pull(t, c, snapshottest.New(t), "oci://"+reg.host+"/a:b")
		if !errors.Is(err, ErrNotFound) || strings.ContainsAny(err.Error(), "<\n") || len(err.Error()) > 400 ||
			!strings.Contains(err.Error(), "404") || !utf8.ValidString(err.Error()) {
			t.Errorf("error %v", err)
		}
	}
}

// Registries are asked with what `docker login` has stored.
func TestRegistryAccess(t *testing.T) {
	from, to, reg, c := snapshottest.New(t), snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	from.CreateChain()
	reg.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if name, password, _ := r.BasicAuth(); name == "user" && password == "hunter2" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	login := func(password string) {
		dir := t.TempDir()
		t.Setenv("DOCKER_CONFIG", dir)
		auth := base64.StdEncoding.EncodeToString([]byte("user:" + password))
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{"`+reg.host+`":{"auth":"`+auth+`"}}}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ref := "oci://" + reg.host + "/a:b"
	if err := pull(t, c, to, ref); !errors.Is(err, ErrDenied) {
		t.Errorf("without a login: %v", err)
	}
	login("wrong")
	if err := push(t, c, from, "base", ref); !errors.Is(err, ErrDenied) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("with another password: %v", err)
	}
	login("hunter2")
	if err := push(t, c, from, "base", ref); err != nil {
		t.Fatal(err)
	}
	if err := pull(t, c, to, ref); err != nil {
		t.Error(err)
	}
	if err := pull(t, c, to, "oci://"+reg.host+"/none:b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("what is not there: %v", err)
	}
	if err := pull(t, c, to, "oci://127.0.0.1:1/a:b"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("nobody there: %v", err)
	}
}

// artifact is what a registry has, to be changed.
type artifact struct {
	t        *testing.T
	repo     name.Repository
	manifest v1.Manifest
}

func (a *artifact) upload(kind types.MediaType, b []byte) v1.Descriptor {
	a.t.Helper()
	l := static.NewLayer(b, kind)
	if err := remote.WriteLayer(a.repo, l); err != nil {
		a.t.Fatal(err)
	}
	digest, err := l.Digest()
	if err != nil {
		a.t.Fatal(err)
	}
	return v1.Descriptor{MediaType: kind, Size: int64(len(b)), Digest: digest}
}

func zip(t *testing.T, b []byte, window int) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithWindowSize(window))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	z.Close()
	return out.Bytes()
}

// Artifacts that lie are refused and leave nothing.
func TestHostileArtifacts(t *testing.T) {
	from, reg, c := snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	from.CreateChain()
	good := "oci://" + reg.host + "/a:good"
	if err := push(t, c, from, "base", good); err != nil {
		t.Fatal(err)
	}
	ref := parse(t, good).OCI
	got, err := remote.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	x, err := from.Store.Export("base")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	zeros := make([]byte, 32<<20)
	for what, change := range map[string]func(a *artifact){
		"blob missing":    func(a *artifact) { a.manifest.Layers = a.manifest.Layers[:2] },
		"blob too many":   func(a *artifact) { a.manifest.Layers = append(a.manifest.Layers, a.manifest.Layers[0]) },
		"other order":     func(a *artifact) { l := a.manifest.Layers; l[0], l[1] = l[1], l[0] },
		"path as title":   func(a *artifact) { a.manifest.Layers[0].Annotations[titleKey] = "../../state.bin" },
		"no title":        func(a *artifact) { a.manifest.Layers[0].Annotations = nil },
		"other blob type": func(a *artifact) { a.manifest.Layers[0].MediaType = types.OCILayer },
		"other config":    func(a *artifact) { a.manifest.Config.MediaType = types.OCIConfigJSON },
		"config of text":  func(a *artifact) { a.manifest.Config = a.upload(configType, []byte("hello")) },
		"large config":    func(a *artifact) { a.manifest.Config = a.upload(configType, zeros) },
		"bad tag": func(a *artifact) {
			b, err := archive.EncodeManifest(x.Manifest)
			if err != nil {
				t.Fatal(err)
			}
			a.manifest.Config = a.upload(configType, bytes.Replace(b, []byte(`"base"`), []byte(`"../x"`), 1))
		},
		"bomb":             func(a *artifact) { a.replace(0, zip(t, zeros, 8<<20)) },
		"huge window":      func(a *artifact) { a.replace(1, zip(t, zeros, 32<<20)) },
		"shorter blob":     func(a *artifact) { a.replace(0, zip(t, []byte("state"), 8<<20)) },
		"other state":      func(a *artifact) { a.replace(0, zip(t, []byte("state of cafe"), 8<<20)) },
		"other layer":      func(a *artifact) { a.manifest.Layers[2].Digest = a.manifest.Layers[3].Digest },
		"not compressed":   func(a *artifact) { a.replace(0, []byte("state of base")) },
		"truncated stream": func(a *artifact) { a.replace(0, zip(t, []byte("state of base"), 8<<20)[:20]) },
		"second frame": func(a *artifact) {
			a.replace(0, append(zip(t, []byte("state of base"), 8<<20), zip(t, []byte("more"), 8<<20)...))
		},
	} {
		t.Run(what, func(t *testing.T) {
			a := &artifact{t: t, repo: ref.Context()}
			if err := json.Unmarshal(got.Manifest, &a.manifest); err != nil {
				t.Fatal(err)
			}
			change(a)
			text, err := json.Marshal(a.manifest)
			if err != nil {
				t.Fatal(err)
			}
			if err := remote.Put(ref.Context().Tag("bad"), rawManifest(text)); err != nil {
				t.Fatal(err)
			}
			to := snapshottest.New(t)
			before := to.Listing()
			if err := pull(t, c, to, "oci://"+reg.host+"/a:bad"); !errors.Is(err, archive.ErrBadPack) {
				t.Errorf("error %v", err)
			}
			if to.Listing() != before {
				t.Error("it left something")
			}
			if err := pull(t, c, to, good); err != nil {
				t.Errorf("afterwards a good one is refused: %v", err)
			}
		})
	}
}

// replace puts another blob in the place of part i.
func (a *artifact) replace(i int, b []byte) {
	title := a.manifest.Layers[i].Annotations
	a.manifest.Layers[i] = a.upload(partType, b)
	a.manifest.Layers[i].Annotations = title
}

func TestContainerImageIsNoSnapshot(t *testing.T) {
	to, reg, c := snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	img, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	index, err := random.Index(1000, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	repo := parse(t, "oci://"+reg.host+"/image").OCI.Context()
	if err := errors.Join(remote.Write(repo.Tag("image"), img), remote.WriteIndex(repo.Tag("index"), index)); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"image", "index"} {
		if err := pull(t, c, to, "oci://"+reg.host+"/image:"+tag); !errors.Is(err, archive.ErrBadPack) || !strings.Contains(err.Error(), "no snapshot") {
			t.Errorf("an %s: %v", tag, err)
		}
	}
}

// A blob whose bytes are not those of its digest is found by the digest.
func TestRegistryThatAltersBlobs(t *testing.T) {
	from, to, reg, c := snapshottest.New(t), snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	from.CreateChain()
	ref := "oci://" + reg.host + "/a:b"
	if err := push(t, c, from, "base", ref); err != nil {
		t.Fatal(err)
	}
	before := to.Listing()
	reg.fault = skipConfig(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		w.Write(zip(t, []byte("state of base"), 8<<20)) // right, but not the blob
		return true
	})
	if err := pull(t, c, to, ref); err == nil {
		t.Error("it was taken")
	}
	if to.Listing() != before {
		t.Error("it left something")
	}
}

// A snapshot that cannot run here is refused before its parts are fetched.
func TestRefusalComesBeforeTheBlobs(t *testing.T) {
	from, reg, c := snapshottest.New(t), newRegistry(t), newClient(t, Options{})
	from.CreateChain()
	ref := "oci://" + reg.host + "/a:b"
	if err := push(t, c, from, "base", ref); err != nil {
		t.Fatal(err)
	}
	reg.take()
	refused := errors.New("not here")
	err := c.Pull(context.Background(), parse(t, ref), func(*snapshot.Manifest) (archive.Import, error) { return nil, refused }, nil)
	if _, fetched := reg.take(); !errors.Is(err, refused) || fetched != 1 {
		t.Errorf("error %v after %d blobs", err, fetched)
	}
}
