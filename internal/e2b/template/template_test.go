package template

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, map[string]string{"": "pyagent", "base": "pyagent"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	settings := Settings{Env: map[string]string{"A": "1"}, User: "root", Workdir: "/srv"}
	for _, err := range []error{
		s.Publish("app", Build{ID: "b1", Snapshot: "app-1", CreatedAt: time.Now()}, settings, DefaultTag, "v1"),
		s.Publish("app", Build{ID: "b2", Snapshot: "app-2", CreatedAt: time.Now()}, Settings{}, DefaultTag),
		s.Keep("br-1", settings),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Assign("app:v1", []string{"stable"}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, open(t, dir)} {
		for ref, want := range map[string]Resolved{
			"":               {"", DefaultTag, "pyagent", BuildID("pyagent"), true, Settings{}},
			"base":           {"base", DefaultTag, "pyagent", BuildID("pyagent"), true, Settings{}},
			"pyagent":        {"pyagent", DefaultTag, "pyagent", BuildID("pyagent"), false, Settings{}},
			"pyagent:latest": {"pyagent", "latest", "pyagent", BuildID("pyagent"), false, Settings{}},
			"app":            {"app", DefaultTag, "app-2", "b2", false, Settings{}},
			"app:v1":         {"app", "v1", "app-1", "b1", false, settings},
			"me/app:stable":  {"app", "stable", "app-1", "b1", false, settings},
			"br-1":           {"br-1", DefaultTag, "br-1", BuildID("br-1"), false, settings},
		} {
			if got, err := s.Resolve(ref); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%q leads to %+v %v, want %+v", ref, got, err, want)
			}
		}
		for ref, code := range map[string]sandbox.Code{"app:v9": sandbox.NotFound, "none:v1": sandbox.NotFound, "a b": sandbox.InvalidArgument, "a:b:c": sandbox.InvalidArgument} {
			if _, err := s.Resolve(ref); err.(*sandbox.Error).Code != code {
				t.Errorf("%q: %v", ref, err)
			}
		}
	}
	if err := s.Untag("app", []string{"v1", "none"}); err == nil {
		t.Error("a tag that is not there was taken away")
	}
	if _, err := s.Resolve("app:v1"); err != nil {
		t.Errorf("half of a change was made: %v", err)
	}
	if err := s.Discard("app", "app-1", "app-2"); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if got, err := s.Resolve("app"); err != nil || got.Snapshot != "app" {
		t.Errorf("after its removal: %+v %v", got, err)
	}
	if _, err := s.Resolve("app-1"); err == nil || !slices.Equal(s.Doomed(), []string{"app-1", "app-2"}) {
		t.Errorf("%v are doomed, and one is found", s.Doomed())
	}
	if err := s.Gone("app-1", "app-2"); err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, dir).Resolve("app-1"); err != nil || len(got.Env) > 0 {
		t.Errorf("after its end: %+v %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(dir, storeFile)); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the file: %v %v", info.Mode(), err)
	}
}

// TestNotWritten: what cannot be kept is not known either.
func TestNotWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "home")
	s := open(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Publish("app", Build{ID: "b1", Snapshot: "app-1"}, Settings{}, DefaultTag); err == nil {
		t.Error("published to nowhere")
	}
	if _, ok := s.Template("app"); ok {
		t.Error("what was not kept is known")
	}
}

func TestDamagedStore(t *testing.T) {
	for name, text := range map[string]string{
		"cut": `{"version":1,`, "later": `{"version":2}`, "name": `{"version":1,"templates":[{"name":"../x"}]}`,
		"snapshot": `{"version":1,"templates":[{"name":"x","builds":[{"id":"1","snapshot":"../y"}]}]}`, "empty": ``,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, storeFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, nil); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "a", "a:b", "t/a:b", "/", ":", "a:b:c", "..", "a/../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		name, tag, err := Parse(ref)
		if err == nil && (name != "" && !namePattern.MatchString(name) || !tagPattern.MatchString(tag)) {
			t.Errorf("%q: name %q, tag %q", ref, name, tag)
		}
	})
}

// FuzzStore: a damaged file is refused or read, and what is read can be kept.
func FuzzStore(f *testing.F) {
	f.Add([]byte(`{"version":1,"templates":[{"name":"a","builds":[{"id":"1","snapshot":"s"}],"tags":{"default":"1"}}],"settings":{"s":{"user":"root"}}}`))
	f.Add([]byte(`{"version":1,"templates":[{"name":"a","tags":null}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		known, err := parse(b)
		if err != nil {
			return
		}
		s := &Store{path: filepath.Join(t.TempDir(), storeFile), known: known}
		for _, tmpl := range s.All() {
			tmpl.Latest()
		}
		if err := s.Publish("x", Build{ID: "i", Snapshot: "y"}, Settings{}, DefaultTag); err != nil {
			t.Error(err)
		}
	})
}

func TestLines(t *testing.T) {
	var l buildLog
	w := &lines{log: &l, level: "info"}
	for _, s := range []string{"one\ntw", "o\r\n\n", strings.Repeat("x", maxLine+3), "\nlast \xff"} {
		w.Write([]byte(s))
	}
	w.flush()
	var got []string
	for _, e := range l.all() {
		got = append(got, e.Message)
	}
	want := []string{"one", "two", "", strings.Repeat("x", maxLine), "xxx", "last \uFFFD"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for range maxEntries + 10 {
		l.add(Entry{Level: "info", Message: "x"})
	}
	l.add(Entry{Level: "error", Message: "why"})
	all := l.all()
	if n := len(all); n != maxEntries+2 || all[n-1].Message != "why" || !strings.Contains(all[n-2].Message, "left out") {
		t.Errorf("%d entries, the last %+v", n, all[n-2:])
	}
}

func TestFiles(t *testing.T) {
	f, err := openFiles(filepath.Join(t.TempDir(), "files"))
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("0a", 32)
	if f.has(hash) || f.has("../x") {
		t.Error("nothing was put")
	}
	if err := f.put("../"+hash, strings.NewReader("x")); err == nil {
		t.Error("put outside")
	}
	if err := f.put(hash, strings.NewReader("content")); err != nil || !f.has(hash) {
		t.Fatal(err)
	}
	os.WriteFile(f.path(".upload-1"), nil, 0o600)
	if err := f.sweep(time.Now()); err != nil || !f.has(hash) {
		t.Error("swept away", err)
	}
	if entries, _ := os.ReadDir(f.dir); len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
	if err := f.sweep(time.Now().Add(2 * fileTime)); err != nil || f.has(hash) {
		t.Error("kept for ever", err)
	}
}

// TestPlace runs the script of COPY with the shell of this machine.
func TestPlace(t *testing.T) {
	for _, tool := range []string{"sh", "tar"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("this machine has no ", tool)
		}
	}
	archive := map[string]string{"src/a.txt": "a", "src/sub/b.txt": "b", "one.txt": "1", "two.txt": "2", "odd [x] name": "odd"}
	for name, c := range map[string]struct {
		what, dest, mode string
		want             []string // files below the root, with what is in them
	}{
		"directory":          {"src", "out", "", []string{"out/a.txt=a", "out/sub/b.txt=b"}},
		"directory, slash":   {"src/", "out/", "", []string{"out/a.txt=a", "out/sub/b.txt=b"}},
		"everything":         {".", "out", "", []string{"out/odd [x] name=odd", "out/one.txt=1", "out/src/a.txt=a", "out/src/sub/b.txt=b", "out/two.txt=2"}},
		"file as":            {"one.txt", "deep/er/name", "", []string{"deep/er/name=1"}},
		"file into":          {"one.txt", "deep/er/", "", []string{"deep/er/one.txt=1"}},
		"file into existing": {"one.txt", "there", "", []string{"there/one.txt=1"}},
		"pattern":            {"*.txt", "out", "", []string{"out/one.txt=1", "out/two.txt=2"}},
		"name like pattern":  {"odd [x] name", "out", "", []string{"out=odd"}},
		"with a mode":        {"one.txt", "out", "0600", []string{"out=1"}},
		"not there":          {"none", "out", "", nil},
		"no pattern matches": {"*.none", "out", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "there"), 0o755); err != nil {
				t.Fatal(err)
			}
			packed := filepath.Join(t.TempDir(), "archive")
			if err := os.WriteFile(packed, tarOf(t, archive), 0o600); err != nil {
				t.Fatal(err)
			}
			dest := root + "/" + c.dest
			cmd := exec.Command("sh", "-c", place, "copy", packed, c.what, dest, strconv.Itoa(os.Getuid())+":"+strconv.Itoa(os.Getgid()), c.mode)
			out, err := cmd.CombinedOutput()
			if (err == nil) != (c.want != nil) {
				t.Fatalf("%v: %s", err, out)
			}
			if _, err := os.Stat(packed); err == nil {
				t.Error("the archive is still there")
			}
			if got := filesBelow(t, root); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			if c.mode == "" {
				return
			}
			if info, err := os.Stat(dest); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v %v", info.Mode(), err)
			}
		})
	}
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(files[name]))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func filesBelow(t *testing.T, root string) (list []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		list = append(list, name+"="+string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
