package e2e

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/forkd-dev/forkd/client"
)

// pack writes a snapshot to a file.
func (d *daemon) pack(t *testing.T, tag string) (path string) {
	t.Helper()
	r, err := d.Pack(limited(t, patience), tag)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	path = filepath.Join(t.TempDir(), tag+".forkd-snapshot.tar.zst")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		t.Fatal(err)
	}
	return path
}

func (d *daemon) unpack(t *testing.T, path, tag string) *client.SnapshotInfo {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := d.Unpack(limited(t, patience), f, tag)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// emptyHome returns a directory that goes with the test.
func emptyHome(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp(suite.base, "empty-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	return home
}

// A pack is all that another machine needs: the home that it comes from is gone,
// and the one that it went to can be moved. What a branch was in the middle of
// goes on (field case 107).
func TestPackNeedsNothingOfWhereItWasMade(t *testing.T) {
	from := serve(t, cloneHome(t))
	id := from.fork(t, 1)[0]
	from.eval(t, id, "x = 21")
	from.sh(t, id, "echo kept > /root/note; : > /root/ticks; (while sleep 0.2; do echo >> /root/ticks; done) > /dev/null 2>&1 &")
	if _, err := from.Branch(limited(t, patience), id, client.BranchRequest{Tag: "thought"}); err != nil {
		t.Fatal(err)
	}
	path := from.pack(t, "thought")
	from.stop()
	if err := os.RemoveAll(from.home); err != nil {
		t.Fatal(err)
	}
	if text := unzip(t, path); bytes.Contains(text, []byte(from.home)) {
		t.Error("the pack holds the path of the home that it was made in")
	}
	to := serve(t, emptyHome(t))
	if info := to.unpack(t, path, ""); info.Tag != "thought" || !info.Bootable {
		t.Errorf("unpacked is %+v", info)
	}
	check := func(d *daemon) {
		n := 2
		for _, id := range d.forkWith(t, client.ForkRequest{SnapshotTag: "thought", N: &n}) {
			if v := value[int](t, d, id, "x * 2"); v != 42 {
				t.Errorf("x * 2 is %d", v)
			}
			if note := d.sh(t, id, "cat /root/note"); note != "kept\n" {
				t.Errorf("the note is %q", note)
			}
			before := d.sh(t, id, "wc -l < /root/ticks")
			eventually(t, patience, "the background job goes on", func() bool { return d.sh(t, id, "wc -l < /root/ticks") != before })
		}
	}
	check(to)
	to.stop()
	moved := filepath.Join(emptyHome(t), "elsewhere")
	if err := os.Rename(to.home, moved); err != nil {
		t.Fatal(err)
	}
	check(serve(t, moved))
}

func unzip(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if b, err = z.DecodeAll(b, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

// A daemon that is killed while it pulls or unpacks has nothing of the snapshot
// afterwards, and the next try is as if it were the first (field case 113).
func TestKilledWhilePulling(t *testing.T) {
	path := shared(t).pack(t, tag)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	home := emptyHome(t)
	for _, percent := range []int64{10, 50, 99} {
		reached := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f, err := os.Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			io.CopyN(w, f, st.Size()*percent/100)
			w.(http.Flusher).Flush()
			close(reached)
			<-r.Context().Done()
		}))
		d := serve(t, home)
		done := make(chan error)
		go func() {
			_, err := d.Pull(context.Background(), client.PullRequest{Reference: server.URL + "/x"}, nil)
			done <- err
		}()
		<-reached
		time.Sleep(200 * time.Millisecond) // for the bytes to arrive in files
		if list, err := d.Snapshots(limited(t, patience)); err != nil || len(list) != 0 {
			t.Errorf("at %d %% there is %v, error %v", percent, list, err)
		}
		d.kill()
		if err := <-done; err == nil {
			t.Error("the pull of a killed daemon succeeded")
		}
		server.Close()
		d = serve(t, home)
		if left := d.filesUnder(t, "layers", "snapshots"); len(left) != 0 {
			t.Errorf("killed at %d %%, it left %v", percent, left)
		}
		if names := entries(t, home); strings.Contains(names, ".tmp") {
			t.Errorf("killed at %d %%, it left %v", percent, names)
		}
		d.stop()
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }))
	defer server.Close()
	d := serve(t, home)
	info, err := d.Pull(limited(t, patience), client.PullRequest{Reference: server.URL + "/x"}, nil)
	if err != nil || !info.Bootable {
		t.Fatalf("pulling in the end: %+v, %v", info, err)
	}
	if out := d.sh(t, d.fork(t, 1)[0], "cat /root/owner"); out != "parent\n" {
		t.Errorf("its owner is %q", out)
	}
}

func entries(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
