package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func (f *fixture) write(t *testing.T, path, data string) {
	t.Helper()
	if _, err := f.WriteFile(t.Context(), wire.WriteRequest{Path: wire.Name(path)}, strings.NewReader(data)); err != nil {
		t.Fatalf("writing %q: %v", path, err)
	}
}

func (f *fixture) slurp(t *testing.T, req wire.ReadRequest) string {
	t.Helper()
	file, err := f.Open(t.Context(), req)
	if err != nil {
		t.Fatalf("opening %q: %v", req.Path, err)
	}
	defer file.Close()
	b, err := io.ReadAll(file)
	if err != nil {
		t.Fatalf("reading %q: %v", req.Path, err)
	}
	return string(b)
}

func TestFileContents(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	everyByte := make([]byte, 256)
	for i := range everyByte {
		everyByte[i] = byte(i)
	}
	large := make([]byte, 9<<20+17)
	rand.Read(large)
	for name, data := range map[string]string{
		"empty": "", "crlf": "\ufeffa\r\nb\r\n", "bytes": strings.Repeat(string(everyByte), 4096), "large": string(large),
	} {
		path := filepath.Join(dir, name)
		f.write(t, path, data)
		if got := f.slurp(t, wire.ReadRequest{Path: wire.Name(path)}); got != data {
			t.Errorf("%s: read %d bytes back, want %d", name, len(got), len(data))
		}
		if b, _ := os.ReadFile(path); string(b) != data {
			t.Errorf("%s: the file has %d bytes, want %d", name, len(b), len(data))
		}
	}
	length := int64(5)
	if got := f.slurp(t, wire.ReadRequest{Path: wire.Name(dir + "/crlf"), Offset: 3, Length: &length}); got != "a\r\nb\r" {
		t.Errorf("part is %q", got)
	}
	if got := f.slurp(t, wire.ReadRequest{Path: wire.Name(dir + "/crlf"), Offset: 1000}); got != "" {
		t.Errorf("beyond the end is %q", got)
	}
	if got := f.slurp(t, wire.ReadRequest{Path: "/proc/self/status"}); !strings.Contains(got, "Pid:") {
		t.Errorf("a file of unknown size is %q", got)
	}
}

// Names are bytes. Each of these is written, listed, described, renamed and removed, and hits nothing else.
func TestFileNames(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	names := []string{"a b", "ü☕", "%2e%2e", "a?b#c&d=e", "..x", "-rf", `"q"'`, "new\nline", "\xff", "e\u0301", "\u00e9", strings.Repeat("x", 255)}
	for _, name := range names {
		f.write(t, dir+"/"+name, name)
	}
	entries, err := f.List(t.Context(), wire.ListRequest{Path: wire.Name(dir)})
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, e := range entries {
		listed = append(listed, string(e.Name))
		if e.Kind != wire.KindFile || e.Size != int64(len(e.Name)) || e.Mode != 0o644 {
			t.Errorf("%q is listed as %+v", e.Name, e)
		}
	}
	slices.Sort(listed)
	slices.Sort(names)
	if !slices.Equal(listed, names) {
		t.Fatalf("listed %q, want %q", listed, names)
	}
	if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	err = f.Rename(t.Context(), wire.RenameRequest{From: wire.Name(dir + "/no"), To: wire.Name(dir + "/to")})
	if want := fmt.Sprintf("renaming %q to %q: no such file", dir+"/no", dir+"/to"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("renaming what is not there: %v, want %s", err, want)
	}
	for _, name := range names {
		from, to := wire.Name(dir+"/"+name), wire.Name(dir+"/sub/"+name)
		if err := f.Rename(t.Context(), wire.RenameRequest{From: from, To: to}); err != nil {
			t.Errorf("renaming %q: %v", name, err)
		}
		if info, err := f.Stat(t.Context(), wire.StatRequest{Path: to}); err != nil || string(info.Name) != name {
			t.Errorf("describing %q: %+v, %v", name, info, err)
		}
		if err := f.Remove(t.Context(), wire.RemoveRequest{Path: to}); err != nil {
			t.Errorf("removing %q: %v", name, err)
		}
	}
	long := wire.WriteRequest{Path: wire.Name(dir + "/" + strings.Repeat("x", 256))}
	_, err = f.WriteFile(t.Context(), long, strings.NewReader(""))
	wantCode(t, err, wire.CodeTooLong)
	if left, _ := os.ReadDir(dir + "/sub"); len(left) != 0 {
		t.Errorf("%d entries are left over", len(left))
	}
}

func TestFileMistakes(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(dir+"/file", []byte("old"), 0o600))
	must(os.MkdirAll(dir+"/full/sub", 0o755))
	must(unix.Mkfifo(dir+"/fifo", 0o600))
	must(os.Symlink("loop", dir+"/loop"))
	must(os.Symlink("nowhere", dir+"/dangling"))
	d := wire.Name(dir)
	ctx := t.Context()
	open := func(path wire.Name) error { _, err := f.Open(ctx, wire.ReadRequest{Path: path}); return err }
	write := func(req wire.WriteRequest) error {
		_, err := f.WriteFile(ctx, req, strings.NewReader("new"))
		return err
	}
	mkdir := func(req wire.MkdirRequest) error { _, err := f.Mkdir(ctx, req); return err }
	for name, tc := range map[string]struct {
		err  error
		code wire.Code
	}{
		"relative":                {open("etc/passwd"), wire.CodeBadRequest},
		"NUL":                     {open("/etc\x00/passwd"), wire.CodeBadRequest},
		"missing":                 {open(d + "/none"), wire.CodeNotFound},
		"directory":               {open(d), wire.CodeIsDirectory},
		"through a file":          {open(d + "/file/x"), wire.CodeNotDirectory},
		"pipe":                    {open(d + "/fifo"), wire.CodeNotRegular},
		"device":                  {open("/dev/zero"), wire.CodeNotRegular},
		"circle":                  {open(d + "/loop"), wire.CodeTooManyLinks},
		"negative offset":         {func() error { _, err := f.Open(ctx, wire.ReadRequest{Path: d + "/file", Offset: -1}); return err }(), wire.CodeBadRequest},
		"write over directory":    {write(wire.WriteRequest{Path: d + "/full"}), wire.CodeIsDirectory},
		"write with slash":        {write(wire.WriteRequest{Path: d + "/file/"}), wire.CodeIsDirectory},
		"write over pipe":         {write(wire.WriteRequest{Path: d + "/fifo"}), wire.CodeNotRegular},
		"write in no directory":   {write(wire.WriteRequest{Path: d + "/none/x"}), wire.CodeNotFound},
		"write of nothing":        {write(wire.WriteRequest{Path: "/"}), wire.CodeIsDirectory},
		"write of dots":           {write(wire.WriteRequest{Path: d + "/.."}), wire.CodeBadRequest},
		"write without replacing": {write(wire.WriteRequest{Path: d + "/file", NoReplace: true}), wire.CodeExists},
		"unknown owner":           {write(wire.WriteRequest{Path: d + "/new", Owner: "nobody-such"}), wire.CodeNoSuchUser},
		"parents through a file":  {write(wire.WriteRequest{Path: d + "/file/a/b", Parents: true}), wire.CodeNotDirectory},
		"parents through nowhere": {write(wire.WriteRequest{Path: d + "/dangling/a", Parents: true}), wire.CodeNotFound},
		"make existing":           {mkdir(wire.MkdirRequest{Path: d + "/full"}), wire.CodeExists},
		"make parents over file":  {mkdir(wire.MkdirRequest{Path: d + "/file", Parents: true}), wire.CodeNotDirectory},
		"remove missing":          {f.Remove(ctx, wire.RemoveRequest{Path: d + "/none", Recursive: true}), wire.CodeNotFound},
		"remove full":             {f.Remove(ctx, wire.RemoveRequest{Path: d + "/full"}), wire.CodeNotEmpty},
		"remove root":             {f.Remove(ctx, wire.RemoveRequest{Path: "/", Recursive: true}), wire.CodeBadRequest},
		"remove root by dots":     {f.Remove(ctx, wire.RemoveRequest{Path: d + "/..", Recursive: true}), wire.CodeBadRequest},
		"rename missing":          {f.Rename(ctx, wire.RenameRequest{From: d + "/none", To: d + "/x"}), wire.CodeNotFound},
		"rename over":             {f.Rename(ctx, wire.RenameRequest{From: d + "/file", To: d + "/fifo", NoReplace: true}), wire.CodeExists},
		"list file":               {func() error { _, err := f.List(ctx, wire.ListRequest{Path: d + "/file"}); return err }(), wire.CodeNotDirectory},
	} {
		if e, ok := errors.AsType[*wire.Error](tc.err); !ok || e.Code != tc.code {
			t.Errorf("%s: %v, want %s", name, tc.err, tc.code)
		}
	}
	if b, _ := os.ReadFile(dir + "/file"); string(b) != "old" {
		t.Errorf("the file has become %q", b)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 5 {
		t.Errorf("something was left behind: %v", entries)
	}
}

func TestFileReplacing(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	ctx := t.Context()
	path := dir + "/a/b/file"
	mode := uint32(0o4750)
	info, err := f.WriteFile(ctx, wire.WriteRequest{Path: wire.Name(path), Parents: true, Mode: &mode}, strings.NewReader("one"))
	if err != nil || info.Mode != mode || info.Size != 3 || info.Name != "file" {
		t.Fatalf("%+v, %v", info, err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 1, 2); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	before, _ := f.Stat(ctx, wire.StatRequest{Path: wire.Name(path)})
	after, err := f.WriteFile(ctx, wire.WriteRequest{Path: wire.Name(path)}, strings.NewReader("two"))
	if err != nil || after.Mode != before.Mode || after.UID != before.UID || after.GID != before.GID {
		t.Errorf("replacing changed %+v to %+v, %v", before, after, err)
	}
	// A link is replaced, so that nobody can make a write land elsewhere.
	if err := os.Symlink(path, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	f.write(t, dir+"/link", "three")
	if b, _ := os.ReadFile(path); string(b) != "two" {
		t.Errorf("the link was followed: %q", b)
	}
	if info, err := f.Stat(ctx, wire.StatRequest{Path: wire.Name(dir + "/link"), NoFollow: true}); err != nil || info.Kind != wire.KindFile {
		t.Errorf("%+v, %v", info, err)
	}
	// Data that ends without its end mark changes nothing and leaves nothing.
	boom := errors.New("boom")
	_, err = f.WriteFile(ctx, wire.WriteRequest{Path: wire.Name(path)}, io.MultiReader(strings.NewReader("half"), failingReader{boom}))
	if !errors.Is(err, boom) {
		t.Errorf("error is %v", err)
	}
	eventually(t, "the temporary file is gone", func() bool { entries, _ := os.ReadDir(dir + "/a/b"); return len(entries) == 1 })
	if b, _ := os.ReadFile(path); string(b) != "two" {
		t.Errorf("half a write made %q", b)
	}
	// A refusal in the middle of a transfer that never ends arrives.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err = f.WriteFile(ctx, wire.WriteRequest{Path: "/dev/shm/forkd-no-such-dir/x"}, endless{})
	wantCode(t, err, wire.CodeNotFound)
	if err := f.Remove(t.Context(), wire.RemoveRequest{Path: wire.Name(dir + "/a"), Recursive: true}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/a"); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestFileBigDirectory(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	for i := range 1000 {
		if err := os.Symlink(strings.Repeat("t", i%50+1), filepath.Join(dir, "link"+strings.Repeat("x", i%100)+string(rune('a'+i/100)))); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := f.List(t.Context(), wire.ListRequest{Path: wire.Name(dir)})
	if err != nil || len(entries) != 1000 || entries[0].Kind != wire.KindSymlink || entries[0].Target == "" {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if entries, err := f.List(t.Context(), wire.ListRequest{Path: wire.Name(t.TempDir())}); err != nil || entries == nil || len(entries) != 0 {
		t.Errorf("empty directory: %v, %v", entries, err)
	}
}

func TestFileTransferIsCancelled(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancelling := readerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
	if _, err := f.WriteFile(ctx, wire.WriteRequest{Path: wire.Name(dir + "/x")}, cancelling); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	eventually(t, "nothing is left", func() bool { entries, _ := os.ReadDir(dir); return len(entries) == 0 })
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// The root of the file operations cannot be left, neither by dots nor by links.
func TestFilesStayInRoot(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.WriteFile(outside+"/secret", []byte("secret"), 0o600),
		os.Symlink(outside, root+"/abs"), os.Symlink("../../../../../../.."+outside, root+"/rel"), os.Mkdir(root+"/etc", 0o755),
		os.WriteFile(root+"/etc/passwd", []byte("me:x:7:8::/home:/bin/sh\n"), 0o644), os.Symlink("/etc", root+"/link"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f := newGuestIn(t, root, "")
	for _, path := range []wire.Name{"/abs/secret", "/rel/secret", wire.Name("/.." + outside + "/secret"), wire.Name(outside + "/secret")} {
		if _, err := f.Open(t.Context(), wire.ReadRequest{Path: path}); err == nil {
			t.Errorf("%q leads out of the root", path)
		}
		if _, err := f.WriteFile(t.Context(), wire.WriteRequest{Path: path}, bytes.NewReader(nil)); err == nil {
			t.Errorf("%q can be written", path)
		}
	}
	if got := f.slurp(t, wire.ReadRequest{Path: "/link/passwd"}); !strings.HasPrefix(got, "me:") {
		t.Errorf("an absolute link inside the root reads %q", got)
	}
	if b, _ := os.ReadFile(outside + "/secret"); string(b) != "secret" {
		t.Errorf("the file outside has become %q", b)
	}
}
