package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
	"github.com/forkd-dev/forkd/internal/snapshot/snapshottest"
)

// TestMain keeps what the user's container tools have stored out of the tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"DOCKER_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "HOME"} {
		os.Setenv(name, dir)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// files is a web server with files that can be put, and faults.
type files struct {
	*httptest.Server

	mu       sync.Mutex
	contents map[string][]byte
	requests []*http.Request                                   // without bodies, oldest first
	fault    func(w http.ResponseWriter, r *http.Request) bool // answers itself if true
}

func newFiles(t *testing.T) *files {
	f := &files{contents: make(map[string][]byte)}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Server.Close)
	return f
}

func (f *files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r)
	fault := f.fault
	f.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	f.serve(w, r)
}

func (f *files) serve(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		f.mu.Lock()
		b, ok := f.contents[r.URL.Path]
		f.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", etag(b))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	case http.MethodPut:
		if f.taken(r) { // before the body: the client waits for that
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		b, err := io.ReadAll(r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		if err == nil {
			f.contents[r.URL.Path] = b
			w.WriteHeader(http.StatusCreated)
		}
	}
}

// taken evaluates the conditions of a PUT.
func (f *files) taken(r *http.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	have, exists := f.contents[r.URL.Path]
	match := r.Header.Get("If-Match")
	return exists && r.Header.Get("If-None-Match") == "*" || match != "" && (!exists || match != etag(have))
}

func etag(b []byte) string { return fmt.Sprintf(`"%x"`, sha256.Sum256(b)) }

// seen returns the requests of a method.
func (f *files) seen(method string) (list []*http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if r.Method == method {
			list = append(list, r)
		}
	}
	return list
}

// cut answers as if the file were whole, but hangs up after n bytes.
func (f *files) cut(w http.ResponseWriter, r *http.Request, n int) {
	rec := httptest.NewRecorder()
	f.serve(rec, r)
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(rec.Body.Len()))
	w.WriteHeader(rec.Code)
	w.Write(rec.Body.Bytes()[:min(n, rec.Body.Len())])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// newClient returns a client that does not wait long.
func newClient(t *testing.T, opts Options) *Client {
	t.Helper()
	opts.Temp = t.TempDir()
	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.patience = patience{tries: 4, pause: time.Millisecond, most: time.Millisecond, idle: 10 * time.Second}
	return c
}

func parse(t *testing.T, s string) Reference {
	t.Helper()
	ref, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// push sends a snapshot of a home.
func push(t *testing.T, c *Client, h *snapshottest.Home, tag, ref string) error {
	t.Helper()
	x, err := h.Store.Export(tag)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	return c.Push(context.Background(), parse(t, ref), x.Manifest, archive.From(x), nil)
}

// into returns a sink of a home.
func into(ctx context.Context, h *snapshottest.Home) archive.Sink {
	return func(m *snapshot.Manifest) (archive.Import, error) {
		imp, err := h.Store.BeginImport(ctx, *m, false)
		if err != nil {
			return nil, err
		}
		return archive.Into(imp), nil
	}
}

func pull(t *testing.T, c *Client, h *snapshottest.Home, ref string) error {
	t.Helper()
	ctx := context.Background()
	return c.Pull(ctx, parse(t, ref), into(ctx, h), nil)
}

// verified fails the test unless a snapshot is there and whole.
func verified(t *testing.T, h *snapshottest.Home, tag string) {
	t.Helper()
	if err := h.Store.Verify(context.Background(), tag, nil); err != nil {
		t.Error(err)
	}
}

// packOf returns a snapshot as a pack.
func packOf(t *testing.T, h *snapshottest.Home, tag string) []byte {
	t.Helper()
	x, err := h.Store.Export(tag)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	var b bytes.Buffer
	if err := archive.Write(context.Background(), &b, x.Manifest, archive.From(x), nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
