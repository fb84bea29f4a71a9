package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

// A mode without any permission is one, too.
func TestFileOfNobodys(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	if err := s.c.WriteFile(t.Context(), id, "/f", strings.NewReader("x"), client.WriteOptions{Mode: new(fs.FileMode(0))}); err != nil {
		t.Fatal(err)
	}
	if info, err := s.c.StatFile(t.Context(), id, "/f"); err != nil || info.Mode != "0000" {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestFiles(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	data := []byte("line\r\n\x00\xff\n")
	for _, path := range []string{"/a b.txt", "/häß/☃ %2F?&=#+.txt", "/d/\xff\xfe raw", "/" + strings.Repeat("n", 255)} {
		t.Run(path[:min(len(path), 20)], func(t *testing.T) {
			if err := s.c.WriteFile(ctx, id, path, bytes.NewReader(data), client.WriteOptions{Mode: new(fs.FileMode(0o600)), Parents: true}); err != nil {
				t.Fatal(err)
			}
			if got := read(t, s.c, id, path); !bytes.Equal(got, data) {
				t.Errorf("read %q", got)
			}
			info, err := s.c.StatFile(ctx, id, path)
			if err != nil {
				t.Fatal(err)
			}
			name := info.Name
			if info.NameB64 != nil {
				name = string(info.NameB64)
			}
			if name != filepath.Base(path) || info.Size != int64(len(data)) || info.Mode != "0600" ||
				info.Type != api.FileInfoTypeFile || time.Since(info.ModifiedAt) > time.Minute {
				t.Errorf("stat %+v", info)
			}
			moved := path + "2"
			if len(path) > 255 {
				moved = "/short"
			}
			if err := s.c.RenameFile(ctx, id, path, moved); err != nil {
				t.Fatal(err)
			}
			list, err := s.c.ListFiles(ctx, id, filepath.Dir(moved))
			if err != nil || len(list) == 0 {
				t.Fatal(list, err)
			}
			if err := s.c.RemoveFile(ctx, id, moved, false); err != nil {
				t.Fatal(err)
			}
			if _, err := s.c.StatFile(ctx, id, moved); !client.IsCode(err, api.ErrorCodeNotFound) {
				t.Errorf("after the removal: %v", err)
			}
		})
	}
}

func read(t *testing.T, c *client.Client, id, path string) []byte {
	t.Helper()
	r, err := c.ReadFile(context.Background(), id, path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestReadFileAt(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	if err := s.c.WriteFile(ctx, id, "/f", strings.NewReader("0123456789"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 3, "012"}, {4, 2, "45"}, {8, 100, "89"}, {10, 5, ""}, {99, 5, ""}, {2, 0, ""}} {
		r, err := s.c.ReadFileAt(ctx, id, "/f", c.offset, c.length)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || string(got) != c.want {
			t.Errorf("%d+%d: %q %v, want %q", c.offset, c.length, got, err, c.want)
		}
	}
}

func TestDirectories(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	if err := s.c.MakeDir(ctx, id, "/a/b/c", client.MakeDirOptions{}); !client.IsCode(err, api.ErrorCodeNotFound) {
		t.Errorf("without parents: %v", err)
	}
	if err := s.c.MakeDir(ctx, id, "/a/b/c", client.MakeDirOptions{Parents: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.c.MakeDir(ctx, id, "/a", client.MakeDirOptions{}); !client.IsCode(err, api.ErrorCodeAlreadyExists) {
		t.Errorf("one that exists: %v", err)
	}
	if err := s.c.MakeDir(ctx, id, "/a/m", client.MakeDirOptions{Mode: new(fs.FileMode(0))}); err != nil {
		t.Fatal(err)
	}
	if info, err := s.c.StatFile(ctx, id, "/a/m"); err != nil || info.Mode != "0000" {
		t.Errorf("with a mode: %+v, %v", info, err)
	}
	if err := s.c.MakeDir(ctx, id, "/x", client.MakeDirOptions{Mode: new(fs.ModeSetuid)}); err == nil {
		t.Error("made with a mode that is no permission")
	}
	resp, body := s.ask(t, "POST", "/v1/sandboxes/"+id+"/files/mkdir?path=/x&mode=9", "")
	wantError(t, resp, body, 400, "invalid_argument", "mode")
	if err := s.c.RemoveFile(ctx, id, "/a/m", false); err != nil {
		t.Fatal(err)
	}
	list, err := s.c.ListFiles(ctx, id, "/a")
	if err != nil || len(list) != 1 || list[0].Type != api.FileInfoTypeDir || list[0].Path != "/a/b" {
		t.Errorf("list %+v, %v", list, err)
	}
	if list, err := s.c.ListFiles(ctx, id, "/a/b/c"); err != nil || list == nil || len(list) != 0 {
		t.Errorf("an empty directory: %v, %v", list, err)
	}
	if err := s.c.RemoveFile(ctx, id, "/a", false); err == nil {
		t.Error("removed a full directory")
	}
	if err := s.c.RemoveFile(ctx, id, "/a", true); err != nil {
		t.Error(err)
	}
}

// TestLargeFile: files go through in pieces, whatever their size.
func TestLargeFile(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	const size = 256 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := s.c.WriteFile(ctx, id, "/big", io.LimitReader(zeros{}, size), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := s.c.ReadFile(ctx, id, "/big")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); n != size || err != nil {
		t.Errorf("read %d bytes of %d: %v", n, size, err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("moving %d MiB allocated %d MiB", 2*size>>20, grown>>20)
	}
}

// TestReadBreaks: a file that cannot be read to its end does not look whole.
func TestReadBreaks(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	for _, content := range []string{strings.Repeat("x", 100), strings.Repeat("x", 100_000)} {
		if err := s.c.WriteFile(ctx, id, "/broken", strings.NewReader(content), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := s.c.ReadFile(ctx, id, "/broken")
		if err == nil {
			_, err = io.ReadAll(r)
			r.Close()
		}
		if err == nil {
			t.Error("a broken read looked complete")
		}
	}
	if err := s.c.WriteFile(ctx, id, "/empty/broken", strings.NewReader(""), client.WriteOptions{Parents: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.ReadFile(ctx, id, "/empty/broken"); !client.IsCode(err, api.ErrorCodeSandboxDead) {
		t.Errorf("an error before the first byte: %v", err)
	}
}

// TestUploadBreaks: an upload that ends early leaves what was there.
func TestUploadBreaks(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	if err := s.c.WriteFile(ctx, id, "/f", strings.NewReader("old"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the source broke")
	err := s.c.WriteFile(ctx, id, "/f", io.MultiReader(strings.NewReader(strings.Repeat("new", 10000)), iotest.ErrReader(broken)), client.WriteOptions{})
	if !errors.Is(err, broken) {
		t.Errorf("a broken source: %v", err)
	}
	req, err := http.NewRequest("PUT", s.tcp+"/v1/sandboxes/"+id+"/files?path=/f", iotest.ErrReader(broken))
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = 1000
	if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
		resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("a body that is too short: %s", resp.Status)
		}
	}
	eventually(t, "an end of both uploads", func() bool { return strings.Count(s.log.String(), "PUT /v1/sandboxes/{id}/files") == 3 })
	if got := read(t, s.c, id, "/f"); string(got) != "old" {
		t.Errorf("the file now has %d bytes beginning %.10q", len(got), got)
	}
	entries, err := os.ReadDir(filepath.Join(s.Dir, id))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

func TestFileModes(t *testing.T) {
	for text, want := range map[string]uint32{"644": 0o644, "0644": 0o644, "4755": 0o4755, "07777": 0o7777, "000": 0} {
		mode, err := parseMode(text)
		if err != nil || unixMode(mode) != want {
			t.Errorf("%s: %o %v", text, unixMode(mode), err)
		}
	}
	for _, text := range []string{"", "7", "77", "888", "77777", "-644", "+644", "0x1ff", " 644", "0o644"} {
		if mode, err := parseMode(text); err == nil {
			t.Errorf("%q became %o", text, mode)
		}
	}
}
