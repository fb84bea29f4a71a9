package agent_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func TestFileTree(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	for _, name := range []string{"a/b/c/d", "a/e", "x\xffy/z"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("..", dir+"/a/up"); err != nil { // which is not followed
		t.Fatal(err)
	}
	levels := [][]string{{"a", "x\xffy"}, {"a/b", "a/e", "a/up", "x\xffy/z"}, {"a/b/c"}, {"a/b/c/d"}}
	for depth := range 7 {
		entries, err := f.List(t.Context(), wire.ListRequest{Path: wire.Name(dir), Depth: depth})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			name := filepath.Join(string(e.Dir), string(e.Name))
			if e.Dir != "" && !slices.Contains(got, string(e.Dir)) {
				t.Errorf("%s comes before its directory", name)
			}
			got = append(got, name)
		}
		want := slices.Concat(levels[:min(max(depth, 1), len(levels))]...)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("depth %d: %q, want %q", depth, got, want)
		}
	}
	_, err := f.List(t.Context(), wire.ListRequest{Path: wire.Name(dir), Depth: -1})
	wantCode(t, err, wire.CodeBadRequest)
	deep := dir
	for range wire.MaxDepth + 1 {
		deep += "/d"
	}
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if entries, err := f.List(t.Context(), wire.ListRequest{Path: wire.Name(dir), Depth: wire.MaxDepth}); err != nil || len(entries) != wire.MaxDepth+8 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	_, err = f.List(t.Context(), wire.ListRequest{Path: wire.Name(dir), Depth: 1 << 30})
	wantCode(t, err, wire.CodeTooLong)
}

func TestFileOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	f := newGuest(t)
	dir := t.TempDir()
	req := wire.WriteRequest{Path: wire.Name(dir + "/new/deep/file"), Parents: true, Owner: "daemon"}
	info, err := f.WriteFile(t.Context(), req, strings.NewReader("x"))
	if err != nil || info.Owner != "daemon" || info.Group != "daemon" || info.UID != 1 {
		t.Errorf("%+v, %v", info, err)
	}
	reply, err := f.Mkdir(t.Context(), wire.MkdirRequest{Path: wire.Name(dir + "/other/sub"), Parents: true, Owner: "daemon"})
	if err != nil || !reply.Created || reply.Info.Name != "sub" || reply.Info.Owner != "daemon" || reply.Info.Kind != wire.KindDir {
		t.Errorf("%+v, %v", reply, err)
	}
	for _, name := range []string{"/new", "/new/deep", "/new/deep/file", "/other", "/other/sub"} {
		if info, err := f.Stat(t.Context(), wire.StatRequest{Path: wire.Name(dir + name)}); err != nil || info.Owner != "daemon" || info.Group != "daemon" {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	// Who was there already keeps what is his.
	reply, err = f.Mkdir(t.Context(), wire.MkdirRequest{Path: wire.Name(dir), Parents: true, Owner: "daemon"})
	if err != nil || reply.Created || reply.Info.Owner != "root" {
		t.Errorf("%+v, %v", reply, err)
	}
	if err := os.Chown(dir+"/new", 54321, 54322); err != nil {
		t.Fatal(err)
	}
	entries, err := f.List(t.Context(), wire.ListRequest{Path: wire.Name(dir)})
	if err != nil || len(entries) != 2 {
		t.Fatalf("%+v, %v", entries, err)
	}
	for _, e := range entries {
		if e.Name == "new" && (e.Owner != "54321" || e.Group != "54322") || e.Name == "other" && e.Owner != "daemon" {
			t.Errorf("%+v", e)
		}
	}
}

func TestFileNamesOfNewUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	root := t.TempDir()
	f := newGuestIn(t, root, "")
	file := root + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 77, 78); err != nil {
		t.Fatal(err)
	}
	owner := func() string {
		info, err := f.Stat(t.Context(), wire.StatRequest{Path: "/file"})
		if err != nil {
			t.Fatal(err)
		}
		return info.Owner + ":" + info.Group
	}
	if got := owner(); got != "77:78" {
		t.Errorf("without account files: %s", got)
	}
	if err := os.Mkdir(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ann", "berta"} {
		if err := os.WriteFile(root+"/etc/passwd", []byte(name+":x:77:78::/:/bin/sh\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+"/etc/group", []byte("g"+name+":x:78:\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, want := owner(), name+":g"+name; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestFileAttributes(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	if err := unix.Setxattr(dir, "user.probe", []byte("x"), 0); err != nil {
		t.Skipf("the file system of %s keeps no attributes: %v", dir, err)
	}
	path := wire.Name(dir + "/file")
	attrs := map[string]wire.Name{"e2b.key": "value", "binary": "\x00\xff", "empty": "", "long": wire.Name(strings.Repeat("v", 1000))}
	info, err := f.WriteFile(t.Context(), wire.WriteRequest{Path: path, Attrs: attrs}, strings.NewReader("x"))
	if err != nil || !maps.Equal(info.Attrs, attrs) {
		t.Fatalf("%+v, %v", info, err)
	}
	if err := os.Symlink("file", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []wire.Name{path, wire.Name(dir + "/link")} {
		if info, err := f.Stat(t.Context(), wire.StatRequest{Path: p, Attrs: true}); err != nil || !maps.Equal(info.Attrs, attrs) {
			t.Errorf("%+v, %v", info, err)
		}
	}
	if info, err := f.Stat(t.Context(), wire.StatRequest{Path: path}); err != nil || info.Attrs != nil {
		t.Errorf("%+v, %v", info, err)
	}
	entries, err := f.List(t.Context(), wire.ListRequest{Path: wire.Name(dir), Attrs: true})
	if err != nil || len(entries) != 2 {
		t.Fatal(err)
	}
	for _, e := range entries {
		if want := e.Name == "file"; maps.Equal(e.Attrs, attrs) != want {
			t.Errorf("%+v", e)
		}
	}
	f.write(t, string(path), "again")
	if info, err := f.Stat(t.Context(), wire.StatRequest{Path: path, Attrs: true}); err != nil || info.Attrs != nil {
		t.Errorf("attributes of the file replaced are still there: %+v, %v", info, err)
	}
	for name, attrs := range map[wire.Code]map[string]wire.Name{
		wire.CodeBadRequest: {"": "x"}, wire.CodeTooLong: {strings.Repeat("k", 300): "x"},
	} {
		_, err := f.WriteFile(t.Context(), wire.WriteRequest{Path: path, Attrs: attrs}, strings.NewReader("bad"))
		wantCode(t, err, name)
	}
	if got := f.slurp(t, wire.ReadRequest{Path: path}); got != "again" {
		t.Errorf("a write that failed left %q", got)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("something was left behind: %v", left)
	}
}

func TestFileCompose(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	path := func(name string) wire.Name { return wire.Name(filepath.Join(dir, name)) }
	contents := map[string]string{"1": "one", "2": "", "3": strings.Repeat("three", 1<<18)}
	for name, data := range contents {
		f.write(t, string(path(name)), data)
	}
	mode := uint32(0o600)
	req := wire.ComposeRequest{
		WriteRequest: wire.WriteRequest{Path: path("new/whole"), Parents: true, Mode: &mode},
		Sources:      []wire.Name{path("1"), path("2"), path("3"), path("1")},
	}
	want := contents["1"] + contents["3"] + contents["1"]
	info, err := f.Compose(t.Context(), req)
	if err != nil || info.Size != int64(len(want)) || info.Mode != 0o600 || info.Name != "whole" {
		t.Fatalf("%+v, %v", info, err)
	}
	if got := f.slurp(t, wire.ReadRequest{Path: path("new/whole")}); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("sources are left: %v", left)
	}
	// The target may be a source; it is not removed.
	f.write(t, string(path("4")), "more")
	req = wire.ComposeRequest{WriteRequest: wire.WriteRequest{Path: path("4")}, Sources: []wire.Name{path("4"), path("4")}}
	if _, err := f.Compose(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if got := f.slurp(t, wire.ReadRequest{Path: path("4")}); got != "moremore" {
		t.Errorf("%q", got)
	}
	// What fails changes nothing.
	if err := os.Symlink("4", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		sources []wire.Name
		code    wire.Code
	}{
		"none":      {nil, wire.CodeBadRequest},
		"too many":  {slices.Repeat([]wire.Name{path("4")}, 1025), wire.CodeBadRequest},
		"missing":   {[]wire.Name{path("4"), path("5")}, wire.CodeNotFound},
		"directory": {[]wire.Name{path("4"), path("new")}, wire.CodeIsDirectory},
		"link":      {[]wire.Name{path("4"), path("link")}, wire.CodeTooManyLinks},
		"device":    {[]wire.Name{path("4"), "/dev/zero"}, wire.CodeNotRegular},
	} {
		_, err := f.Compose(t.Context(), wire.ComposeRequest{WriteRequest: wire.WriteRequest{Path: path("bad")}, Sources: tc.sources})
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != tc.code {
			t.Errorf("%s: %v, want %s", name, err, tc.code)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 3 {
		t.Errorf("something was lost or left behind: %v", left)
	}
}
