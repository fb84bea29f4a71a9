package debian

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/image/debian/debiantest"
)

// world is a client of a test archive, with what it reported.
type world struct {
	*Client
	archive *debiantest.Archive
	mu      sync.Mutex
	reports []Progress
}

func newWorld(t *testing.T, o debiantest.Options, packages ...debiantest.Package) *world {
	t.Helper()
	w := &world{archive: debiantest.New(t, o, packages...)}
	w.Client = &Client{Mirror: w.archive.URL, Dir: t.TempDir(), Keys: w.archive.Keys}
	w.Report = func(p Progress) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.reports = append(w.reports, p)
	}
	return w
}

// again returns a client over the same cache as a new process would have.
func (w *world) again() *world {
	next := &world{archive: w.archive}
	next.Client = &Client{Mirror: w.Mirror, Dir: w.Dir, Keys: w.Keys}
	next.Report = func(p Progress) { next.reports = append(next.reports, p) }
	return next
}

func (w *world) notices() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, p := range w.reports {
		if p.Notice {
			all = append(all, p.Detail)
		}
	}
	return strings.Join(all, "\n")
}

func (w *world) index(t *testing.T) *Index {
	t.Helper()
	x, err := w.Index(context.Background(), "trixie", "riscv64")
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// leftovers lists the files of downloads that did not finish.
func (w *world) leftovers(t *testing.T) []string {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(w.Dir, "*"+partSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

func TestFetch(t *testing.T) {
	ctx := context.Background()
	a, b := debiantest.Package{Name: "a"}, debiantest.Package{Name: "b", Codec: ".xz"}
	w := newWorld(t, debiantest.Options{ByHash: true}, a, b)
	x := w.index(t)
	if x.Suite != "trixie" || x.Version != "13.0" || x.Offline || len(x.Digest) != 64 {
		t.Errorf("index %+v", x)
	}
	if n := w.archive.Requests("dists/trixie/main/binary-riscv64/Packages.xz"); n != 0 {
		t.Errorf("the list was fetched by name, though it is there by hash")
	}
	packages, err := x.Resolve([]string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Fetch(ctx, packages); err != nil {
		t.Fatal(err)
	}
	last := w.reports[len(w.reports)-1]
	if last.Step != "download" || last.Done != last.Total || last.Total != packages[0].Size+packages[1].Size {
		t.Errorf("last report %+v", last)
	}
	f, err := w.Open(ctx, packages[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, w.archive.Get("pool/a.deb")) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	next := w.again()
	if err := next.Fetch(ctx, packages); err != nil {
		t.Fatal(err)
	}
	if n := w.archive.Requests("pool/a.deb"); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	if left := w.leftovers(t); left != nil {
		t.Errorf("left %v", left)
	}
}

func TestDamagedCacheIsFetchedAgain(t *testing.T) {
	w := newWorld(t, debiantest.Options{}, debiantest.Package{Name: "a"})
	x := w.index(t)
	a := x.best("a", nil)
	for _, damage := range []func(string) error{
		func(name string) error { return os.Truncate(name, 10) },
		func(name string) error {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text[len(text)-1] ^= 1
			return os.WriteFile(name, text, 0o644)
		},
	} {
		now := w.again()
		if err := now.Fetch(context.Background(), []*Package{a}); err != nil {
			t.Fatal(err)
		}
		if err := damage(filepath.Join(w.Dir, a.SHA256)); err != nil {
			t.Fatal(err)
		}
		next := w.again()
		f, err := next.Open(context.Background(), a)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(f)
		f.Close()
		if !bytes.Equal(got, w.archive.Get("pool/a.deb")) || !strings.Contains(next.notices(), "damaged") {
			t.Errorf("read %d bytes, noticed %q", len(got), next.notices())
		}
	}
}

func TestFetchErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func(w *world)
		want   error
	}{
		{"package changed", func(w *world) {
			deb := bytes.Clone(w.archive.Get("pool/a.deb"))
			deb[20] ^= 1
			w.archive.Set("pool/a.deb", deb)
		}, ErrHash},
		{"package longer", func(w *world) { w.archive.Set("pool/a.deb", append(w.archive.Get("pool/a.deb"), 0)) }, ErrHash},
		{"package shorter", func(w *world) { w.archive.Set("pool/a.deb", w.archive.Get("pool/a.deb")[1:]) }, ErrHash},
		{"package gone", func(w *world) { w.archive.Set("pool/a.deb", nil) }, ErrNotFound},
		{"list changed", func(w *world) { w.archive.Set("dists/trixie/main/binary-riscv64/Packages.xz", []byte("x")) }, ErrHash},
		{"list gone", func(w *world) { w.archive.Set("dists/trixie/main/binary-riscv64/Packages.xz", nil) }, ErrNotFound},
		{"index gone", func(w *world) { w.archive.Set("dists/trixie/InRelease", nil) }, ErrNotFound},
		{"index unsigned", func(w *world) { w.archive.Set("dists/trixie/InRelease", []byte("<html>")) }, ErrSignature},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, debiantest.Options{}, debiantest.Package{Name: "a"})
			test.damage(w)
			x, err := w.Index(context.Background(), "trixie", "riscv64")
			if err == nil {
				err = w.Fetch(context.Background(), []*Package{x.best("a", nil)})
			}
			checkHint(t, err, test.want)
			if left := w.leftovers(t); left != nil {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestOtherArchitecture(t *testing.T) {
	w := newWorld(t, debiantest.Options{}, debiantest.Package{Name: "a"})
	if _, err := w.Index(context.Background(), "trixie", "m68k"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// refused is a URL where nothing listens.
func refused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String() + "/debian"
}

func TestOffline(t *testing.T) {
	w := newWorld(t, debiantest.Options{ValidUntil: time.Now().Add(time.Hour)}, debiantest.Package{Name: "a"})
	x := w.index(t)
	if err := w.Fetch(context.Background(), x.packages); err != nil {
		t.Fatal(err)
	}

	// The stored index belongs to its mirror, so another one is just unreachable.
	other := w.again()
	other.Mirror = refused(t)
	_, err := other.Index(context.Background(), "trixie", "riscv64")
	checkHint(t, err, ErrUnreachable)

	// The same mirror, with nothing listening behind it any more.
	offline := w.again()
	offline.HTTP = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, strings.TrimSuffix(strings.TrimPrefix(other.Mirror, "http://"), "/debian"))
	}}}
	y, err := offline.Index(context.Background(), "trixie", "riscv64")
	if err != nil || !y.Offline || y.Digest != x.Digest || !strings.Contains(offline.notices(), "stored before") {
		t.Fatalf("index %+v, %v, noticed %q", y, err, offline.notices())
	}
	if err := offline.Fetch(context.Background(), y.packages); err != nil {
		t.Errorf("a cached package needs the network: %v", err)
	}

	late := w.again()
	late.HTTP, late.Now = offline.HTTP, func() time.Time { return time.Now().Add(2 * time.Hour) }
	if _, err := late.Index(context.Background(), "trixie", "riscv64"); !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrExpired) {
		t.Errorf("an expired stored index: %v", err)
	}
}

// TestFlakyMirror fails every first request for a file in some way.
func TestFlakyMirror(t *testing.T) {
	for name, fail := range map[string]func(http.ResponseWriter){
		"server error": func(w http.ResponseWriter) { http.Error(w, "later", http.StatusServiceUnavailable) },
		"cut in the middle": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			w.Write([]byte("x"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, debiantest.Options{}, debiantest.Package{Name: "a"})
			var mu sync.Mutex
			seen := map[string]bool{}
			front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				mu.Lock()
				first := !seen[r.URL.Path]
				seen[r.URL.Path] = true
				mu.Unlock()
				if first {
					fail(rw)
					return
				}
				rw.Write(w.archive.Get(strings.TrimPrefix(r.URL.Path, "/")))
			}))
			defer front.Close()
			w.Mirror = front.URL
			x := w.index(t)
			if err := w.Fetch(context.Background(), x.packages); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestFetchStops(t *testing.T) {
	w := newWorld(t, debiantest.Options{}, debiantest.Package{Name: "a"})
	x := w.index(t)
	asked := make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Write(make([]byte, 10))
		rw.(http.Flusher).Flush()
		close(asked)
		<-r.Context().Done()
	}))
	defer front.Close()
	w.Mirror = front.URL
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	if err := w.Fetch(ctx, x.packages); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left := w.leftovers(t); left != nil {
		t.Errorf("left %v", left)
	}
}

func TestSweep(t *testing.T) {
	w := newWorld(t, debiantest.Options{}, debiantest.Package{Name: "a"})
	w.index(t)
	part := filepath.Join(w.Dir, "123"+partSuffix)
	if err := os.WriteFile(part, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadDir(w.Dir)
	if err := w.Sweep(); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadDir(w.Dir); len(after) != len(before)-1 || w.leftovers(t) != nil {
		t.Errorf("%d files became %d", len(before), len(after))
	}
}
