package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/forkd-dev/forkd/internal/snapshot/archive"
	"github.com/forkd-dev/forkd/internal/snapshot/snapshottest"
)

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// indexOf returns an index of one pack.
func indexOf(t *testing.T, name, v, at string, pack []byte) string {
	t.Helper()
	x := index{Format: indexFormat, Snapshots: map[string]entry{name: {v, map[string]version{v: {at, strings.Trim(etag(pack), `"`), int64(len(pack))}}}}}
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPushAndPullByName(t *testing.T) {
	from, to, web := snapshottest.New(t), snapshottest.New(t), newFiles(t)
	from.CreateChain()
	c := newClient(t, Options{HubURL: web.URL + "/hub"})
	if err := pull(t, c, to, "owner/name"); !errors.Is(err, ErrNotFound) {
		t.Errorf("from an empty hub: %v", err)
	}
	for i, tag := range []string{"base", "derived"} {
		if err := push(t, c, from, tag, fmt.Sprintf("owner/name:1.%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := pull(t, c, to, "owner/name:1.0"); err != nil {
		t.Fatal(err)
	}
	if err := pull(t, c, to, "owner/name"); err != nil {
		t.Fatal(err)
	}
	verified(t, to, "base")
	verified(t, to, "derived")
	if err := push(t, c, from, "derived", "owner/name:1.0"); !errors.Is(err, ErrExists) {
		t.Errorf("a version that is taken: %v", err)
	}
	if err := push(t, c, from, "base", "owner/other"); !errors.Is(err, ErrReference) {
		t.Errorf("without a version: %v", err)
	}
	if err := pull(t, newClient(t, Options{}), to, "owner/name"); !errors.Is(err, ErrReference) || !strings.Contains(err.Error(), "FORKD_HUB_URL") {
		t.Errorf("without a hub: %v", err)
	}
}

// Many publish at once, and none takes the entry of another away.
func TestPublishersDoNotOverwriteEachOther(t *testing.T) {
	from, web := snapshottest.New(t), newFiles(t)
	from.CreateChain()
	const n = 6
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c := newClient(t, Options{HubURL: web.URL})
			c.patience.tries = 100
			if err := push(t, c, from, "base", fmt.Sprintf("owner/name%d:1", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	x, err := parseIndex(web.contents["/registry.json"])
	if err != nil || len(x.Snapshots) != n {
		t.Errorf("%d of %d are listed: %v", len(x.Snapshots), n, err)
	}
}

// What the index says is checked against what comes.
func TestIndexThatLies(t *testing.T) {
	from := snapshottest.New(t)
	from.CreateChain()
	pack, other := packOf(t, from, "base"), packOf(t, from, "derived")
	good := indexOf(t, "o/n", "1", "x", pack)
	for name, c := range map[string]struct {
		index string
		want  error
	}{
		"right":          {good, nil},
		"other hash":     {strings.Replace(good, strings.Trim(etag(pack), `"`), strings.Trim(etag(other), `"`), 1), archive.ErrBadPack},
		"other size":     {indexOf(t, "o/n", "1", "x", pack[:99]), ErrUnavailable},
		"other format":   {strings.Replace(good, `"format":1`, `"format":2`, 1), ErrUnavailable},
		"no hash":        {`{"format":1,"snapshots":{"o/n":{"latest":"1","versions":{"1":{"url":"x","size":5}}}}}`, ErrUnavailable},
		"local file":     {indexOf(t, "o/n", "1", "file:///etc/passwd", pack), ErrUnavailable},
		"no version":     {`{"format":1,"snapshots":{"o/n":{"latest":"2"}}}`, ErrNotFound},
		"not JSON":       {`<html>`, ErrUnavailable},
		"nothing there":  {indexOf(t, "o/n", "1", "y", pack), ErrNotFound},
		"too large":      {`{"format":1,"x":"` + strings.Repeat("x", maxIndex) + `"}`, ErrUnavailable},
		"nothing listed": {`{"format":1}`, ErrNotFound},
	} {
		to, web := snapshottest.New(t), newFiles(t)
		before := to.Listing()
		web.contents["/registry.json"], web.contents["/x"] = []byte(c.index), pack
		err := pull(t, newClient(t, Options{HubURL: web.URL}), to, "o/n")
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
		if err != nil && to.Listing() != before {
			t.Errorf("%s: it left something", name)
		}
	}
}

// An index that was replaced between reading and writing is read again.
func TestIndexChangesMeanwhile(t *testing.T) {
	from, web := snapshottest.New(t), newFiles(t)
	from.CreateChain()
	var once atomic.Bool
	web.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, indexName) && !once.Swap(true) {
			web.mu.Lock()
			web.contents[r.URL.Path] = []byte(`{"format":1,"snapshots":{"else/body":{"latest":"1","versions":{"1":{"url":"z"}}}}}`)
			web.mu.Unlock()
		}
		return false
	}
	if err := push(t, newClient(t, Options{HubURL: web.URL}), from, "base", "o/n:1"); err != nil {
		t.Fatal(err)
	}
	x, err := parseIndex(web.contents["/registry.json"])
	if err != nil || len(x.Snapshots) != 2 {
		t.Errorf("listed are %v, error %v", x, err)
	}
}

func TestHubURLs(t *testing.T) {
	for in, want := range map[string]string{
		"https://hub.example":                 "https://hub.example/registry.json",
		"https://hub.example/a/":              "https://hub.example/a/registry.json",
		"http://hub.example/a/registry.json":  "http://hub.example/a/registry.json",
		"http://hub.example/a/index.json?k=v": "http://hub.example/a/index.json?k=v",
		"ftp://hub.example":                   "",
		"hub.example":                         "",
		"/registry.json":                      "",
	} {
		c, err := New(Options{HubURL: in})
		switch {
		case want == "" && !errors.Is(err, ErrReference):
			t.Errorf("%s: error %v", in, err)
		case want != "" && (err != nil || c.hub.String() != want):
			t.Errorf("%s: %v, error %v", in, c, err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"format":1,"snapshots":{"o/n":{"latest":"1","versions":{"1":{"url":"x","sha256":"","size":1}}}}}`))
	f.Add([]byte(`{"format":1,"snapshots":{"o/n":{"latest":"1","versions":{"1":{"url":"//evil/x","sha256":"` + strings.Repeat("0", 64) + `","size":1}}}}}`))
	f.Add([]byte(`{}`))
	base := &url.URL{Scheme: "https", Host: "hub.example", Path: "/registry.json"}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := parseIndex(b)
		if err != nil {
			return
		}
		u, l, err := x.find(base, Name{"o", "n", ""})
		if err == nil && (u.Scheme != "https" || u.Host == "" || l.size <= 0 || len(l.sha256) != 64) {
			t.Errorf("found %v %+v", u, l)
		}
		x.add(Name{"o", "n", "2"}, version{"x", "", 1})
		if got := x.Snapshots["o/n"]; got.Latest != "2" || got.Versions["2"].URL != "x" {
			t.Errorf("added is %+v", got)
		}
	})
}
