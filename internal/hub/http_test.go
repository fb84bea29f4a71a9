package hub

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot/archive"
	"github.com/forkd-dev/forkd/internal/snapshot/snapshottest"
)

func TestPushAndPullByURL(t *testing.T) {
	from, to, web, c := snapshottest.New(t), snapshottest.New(t), newFiles(t), newClient(t, Options{})
	from.CreateChain()
	ref := web.URL + "/dir/pack" + archive.Suffix
	steps := make(map[Step]int64)
	progress := func(s Step, done, total int64) {
		if done < steps[s] || done > total {
			t.Errorf("%s went from %d to %d of %d", s, steps[s], done, total)
		}
		steps[s] = done
	}
	x, err := from.Store.Export("derived")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ctx := context.Background()
	if err := c.Push(ctx, parse(t, ref), x.Manifest, archive.From(x), progress); err != nil {
		t.Fatal(err)
	}
	if err := c.Pull(ctx, parse(t, ref), into(ctx, to), progress); err != nil {
		t.Fatal(err)
	}
	verified(t, to, "derived")
	if steps[Packing] == 0 || steps[Sending] == 0 || steps[Fetching] != steps[Packing] {
		t.Errorf("progress came to %v", steps)
	}
	if got := web.contents["/dir/pack"+archive.Suffix]; !bytes.Equal(got, packOf(t, from, "derived")) {
		t.Error("what was put is not the pack")
	}
}

// A connection that breaks again and again is taken up where it broke, and no
// byte is asked for twice.
func TestFetchResumes(t *testing.T) {
	from, to, web, c := snapshottest.New(t), snapshottest.New(t), newFiles(t), newClient(t, Options{})
	from.CreateChain()
	pack := packOf(t, from, "base")
	web.contents["/x"] = pack
	piece := len(pack)/7 + 1
	web.fault = func(w http.ResponseWriter, r *http.Request) bool { web.cut(w, r, piece); return true }
	if err := pull(t, c, to, web.URL+"/x"); err != nil {
		t.Fatal(err)
	}
	verified(t, to, "base")
	gets := web.seen(http.MethodGet)
	if len(gets) != 7 {
		t.Errorf("there were %d requests for 7 pieces", len(gets))
	}
	for _, r := range gets[1:] {
		if r.Header.Get("Range") == "" || r.Header.Get("If-Range") != etag(pack) {
			t.Errorf("asked again with %v", r.Header)
		}
	}
}

// Faults that a fetch overcomes, and such that end it.
func TestFetchFaults(t *testing.T) {
	from := snapshottest.New(t)
	from.CreateChain()
	pack := packOf(t, from, "base")
	other := packOf(t, from, "derived")
	half := len(pack) / 2
	for _, c := range []struct {
		name  string
		want  error // nil: it comes
		fault func(f *files, n int, w http.ResponseWriter, r *http.Request) bool
	}{
		{"no ranges", nil, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			r.Header.Del("Range")
			if n == 1 {
				f.cut(w, r, half)
			}
			return false
		}},
		{"busy twice", nil, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			if n <= 2 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return n <= 2
		}},
		{"busy for ever", ErrUnavailable, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}},
		{"no progress", ErrUnavailable, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			f.cut(w, r, 0)
			return true
		}},
		{"changed meanwhile", ErrUnavailable, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			if n == 1 {
				f.cut(w, r, half)
			}
			f.mu.Lock()
			f.contents["/x"] = other
			f.mu.Unlock()
			return false
		}},
		{"another range", ErrUnavailable, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			if n == 1 {
				f.cut(w, r, half)
			}
			r.Header.Set("Range", "bytes=0-")
			return false
		}},
		{"closed early without a length", archive.ErrBadPack, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			conn, buf, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return true
			}
			defer conn.Close()
			buf.WriteString("HTTP/1.0 200 OK\r\n\r\n")
			buf.Write(pack[:half])
			buf.Flush()
			return true
		}},
		{"denied", ErrDenied, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			return true
		}},
		{"gone", ErrNotFound, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			http.NotFound(w, r)
			return true
		}},
		{"redirected in circles", ErrUnavailable, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "/x", http.StatusFound)
			return true
		}},
		{"a page instead", archive.ErrBadPack, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			io.WriteString(w, "<html>please log in</html>")
			return true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			to, web, client := snapshottest.New(t), newFiles(t), newClient(t, Options{})
			before := to.Listing()
			web.contents["/x"] = pack
			var n atomic.Int32
			web.fault = func(w http.ResponseWriter, r *http.Request) bool { return c.fault(web, int(n.Add(1)), w, r) }
			err := pull(t, client, to, web.URL+"/x")
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if err == nil {
				verified(t, to, "base")
			} else if to.Listing() != before {
				t.Error("it left something")
			}
		})
	}
}

// Redirects that are not followed are not asked for again.
func TestRedirectsThatAreFinal(t *testing.T) {
	for to, want := range map[string]struct {
		requests int
		message  string
	}{
		"/x":              {10, "too many redirects"},
		"ftp://127.0.0.1": {1, "redirected from http to ftp"},
		"file:///etc":     {1, "redirected from http to file"},
	} {
		web, client := newFiles(t), newClient(t, Options{})
		web.fault = func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return true
		}
		home := snapshottest.New(t)
		home.CreateChain()
		for method, do := range map[string]func() error{
			http.MethodGet: func() error { return pull(t, client, snapshottest.New(t), web.URL+"/x") },
			http.MethodPut: func() error { return push(t, client, home, "base", web.URL+"/x") },
		} {
			err := do()
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), want.message) {
				t.Errorf("%s led to %s: %v", method, to, err)
			}
			if n := len(web.seen(method)); n != want.requests {
				t.Errorf("%s led to %s: %d requests, want %d", method, to, n, want.requests)
			}
		}
	}
}

// A connection on which nothing comes any more is given up and taken up anew.
func TestFetchLeavesAConnectionThatStands(t *testing.T) {
	from, to, web, c := snapshottest.New(t), snapshottest.New(t), newFiles(t), newClient(t, Options{})
	from.CreateChain()
	web.contents["/x"] = packOf(t, from, "base")
	c.patience.idle = 200 * time.Millisecond
	var n atomic.Int32
	web.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if n.Add(1) > 1 {
			return false
		}
		w.Header().Set("ETag", etag(web.contents["/x"]))
		w.Write(web.contents["/x"][:100])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	if err := pull(t, c, to, web.URL+"/x"); err != nil {
		t.Fatal(err)
	}
	verified(t, to, "base")
}

func TestCancelledPullLeavesNothing(t *testing.T) {
	from, to, web, c := snapshottest.New(t), snapshottest.New(t), newFiles(t), newClient(t, Options{})
	from.CreateChain()
	web.contents["/x"] = packOf(t, from, "base")
	before := to.Listing()
	ctx, cancel := context.WithCancel(context.Background())
	web.fault = func(w http.ResponseWriter, r *http.Request) bool {
		w.Write(web.contents["/x"][:len(web.contents["/x"])/2])
		w.(http.Flusher).Flush()
		cancel()
		<-r.Context().Done()
		return true
	}
	if err := c.Pull(ctx, parse(t, web.URL+"/x"), into(ctx, to), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if to.Listing() != before {
		t.Error("it left something")
	}
}

// Pulls of the same snapshot at once: one gets the tag, none gets half.
func TestParallelPulls(t *testing.T) {
	from, to, web, c := snapshottest.New(t), snapshottest.New(t), newFiles(t), newClient(t, Options{})
	from.CreateChain()
	web.contents["/base"], web.contents["/derived"] = packOf(t, from, "base"), packOf(t, from, "derived")
	var good atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if pull(t, c, to, web.URL+[]string{"/base", "/derived"}[i%2]) == nil {
				good.Add(1)
			}
		})
	}
	wg.Wait()
	if good.Load() != 2 {
		t.Errorf("%d of the pulls of two tags succeeded", good.Load())
	}
	verified(t, to, "base")
	verified(t, to, "derived")
}

// Nobody's file is replaced unless that was asked for; sending the same again is
// no conflict.
func TestPutReplacesNothing(t *testing.T) {
	from, web, c := snapshottest.New(t), newFiles(t), newClient(t, Options{})
	from.CreateChain()
	ref := web.URL + "/x"
	for range 2 {
		if err := push(t, c, from, "base", ref); err != nil {
			t.Fatal(err)
		}
	}
	if err := push(t, c, from, "derived", ref); !errors.Is(err, ErrExists) {
		t.Errorf("putting something else there: %v", err)
	}
	if !bytes.Equal(web.contents["/x"], packOf(t, from, "base")) {
		t.Error("it was replaced")
	}
}

func TestPutTriesAgain(t *testing.T) {
	from := snapshottest.New(t)
	from.CreateChain()
	for _, c := range []struct {
		name  string
		want  error
		fault func(f *files, n int, w http.ResponseWriter, r *http.Request) bool
	}{
		{"broken in the middle", nil, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut && n < 3 {
				io.CopyN(io.Discard, r.Body, 1000)
				panic(http.ErrAbortHandler)
			}
			return false
		}},
		{"answer lost", nil, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			if n == 1 {
				f.serve(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			return false
		}},
		{"refused", ErrDenied, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}},
		{"no puts here", ErrReadOnly, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return true
		}},
		{"answered before the body", ErrUnavailable, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusCreated)
			return true
		}},
		{"led to a page", ErrUnavailable, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut {
				io.Copy(io.Discard, r.Body)
				http.Redirect(w, r, "/login", http.StatusFound)
			}
			return true
		}},
		{"led elsewhere", nil, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			if n == 1 {
				http.Redirect(w, r, "/x", http.StatusTemporaryRedirect)
			}
			return n == 1
		}},
		{"a server of files", ErrReadOnly, func(f *files, n int, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusNotImplemented)
			return n == 1 // asked again, it would take it
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			web, client := newFiles(t), newClient(t, Options{})
			var n atomic.Int32
			web.fault = func(w http.ResponseWriter, r *http.Request) bool { return c.fault(web, int(n.Add(1)), w, r) }
			if err := push(t, client, from, "base", web.URL+"/x"); !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if c.want == nil && !bytes.Equal(web.contents["/x"], packOf(t, from, "base")) {
				t.Error("something else is there")
			}
		})
	}
}

// A token is for one origin. It goes along with requests there, and is not
// carried elsewhere by a redirect or by what the index says.
func TestTokensStayAtHome(t *testing.T) {
	from, hub, elsewhere := snapshottest.New(t), newFiles(t), newFiles(t)
	from.CreateChain()
	pack := packOf(t, from, "base")
	elsewhere.contents["/x"] = pack
	hub.fault = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
			return true
		case r.URL.Path == "/away":
			http.Redirect(w, r, elsewhere.URL+"/x", http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	c := newClient(t, Options{HubURL: hub.URL + "/registry.json", HubToken: "secret"})
	hub.contents["/x"] = pack
	hub.contents["/registry.json"] = []byte(indexOf(t, "o/n", "1", elsewhere.URL+"/x", pack))
	for _, ref := range []string{hub.URL + "/x", hub.URL + "/away", "o/n", elsewhere.URL + "/x"} {
		if err := pull(t, c, snapshottest.New(t), ref); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if err := pull(t, newClient(t, Options{HubURL: hub.URL, HubToken: "wrong"}), snapshottest.New(t), hub.URL+"/x"); !errors.Is(err, ErrDenied) {
		t.Errorf("with another token: %v", err)
	}
	if err := pull(t, newClient(t, Options{}), snapshottest.New(t), hub.URL+"/x"); !errors.Is(err, ErrDenied) || strings.Contains(err.Error(), "secret") {
		t.Errorf("without a token: %v", err)
	}
	for _, r := range elsewhere.requests {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the token went to %s", r.Host)
		}
	}
	if len(elsewhere.requests) != 3 {
		t.Errorf("there were %d requests elsewhere, want 3", len(elsewhere.requests))
	}
}

// Errors are for logs: nothing that opens a door is in them.
func TestErrorsHideSecrets(t *testing.T) {
	web := newFiles(t)
	c := newClient(t, Options{HubURL: web.URL, HubToken: "hunter2"})
	host := strings.TrimPrefix(web.URL, "http://")
	for _, ref := range []string{
		"http://user:hunter2@" + host + "/none?signature=hunter2",
		"http://user:hunter2@127.0.0.1:1/none?signature=hunter2",
	} {
		err := pull(t, c, snapshottest.New(t), ref)
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "/none") {
			t.Errorf("error %v", err)
		}
	}
}

func TestSpoolsLeaveNoFiles(t *testing.T) {
	dir := t.TempDir()
	random := make([]byte, 100_000)
	rand.NewChaCha8([32]byte{}).Read(random)
	s, err := newSpool(dir, func(w io.Writer) error { _, err := w.Write(random); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for range 2 {
		if got, err := io.ReadAll(s.reader()); err != nil || !bytes.Equal(got, random) {
			t.Errorf("read %d bytes, error %v", len(got), err)
		}
	}
	if names := entries(t, dir); len(names) != 0 {
		t.Errorf("there is %v", names)
	}
	broken := errors.New("broken")
	if _, err := newSpool(dir, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
