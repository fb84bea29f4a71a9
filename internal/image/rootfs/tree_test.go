package rootfs

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

func text(s string) *Node { return Bytes(0o644, []byte(s)) }

func mustAdd(t *testing.T, tree *Tree, name string, node *Node) {
	t.Helper()
	if err := tree.Add(name, node); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, tree *Tree, name string) string {
	t.Helper()
	node, err := tree.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(node.Open())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func paths(tree *Tree) []string {
	var list []string
	for name := range tree.All() {
		list = append(list, name)
	}
	return list
}

func TestAddFollowsLinksInsideTheTree(t *testing.T) {
	tree := New()
	mustAdd(t, tree, "usr/lib", Dir(0o755))
	mustAdd(t, tree, "lib", Link("usr/lib"))
	mustAdd(t, tree, "up", Link("../../../.."))
	mustAdd(t, tree, "abs", Link("/usr/../usr/lib/"))
	mustAdd(t, tree, "lib", Dir(0o700)) // the link stays
	mustAdd(t, tree, "./lib/a", text("1"))
	mustAdd(t, tree, "/up/b", text("2"))
	mustAdd(t, tree, "abs/deep/c", text("3"))
	mustAdd(t, tree, "dangling", Link("not/yet"))
	mustAdd(t, tree, "dangling/d", text("4"))
	want := []string{"abs", "b", "dangling", "lib", "not", "not/yet", "not/yet/d", "up", "usr", "usr/lib", "usr/lib/a", "usr/lib/deep", "usr/lib/deep/c"}
	if got := paths(tree); !slices.Equal(got, want) {
		t.Errorf("tree is %v, want %v", got, want)
	}
	if got := read(t, tree, "lib/deep/c"); got != "3" {
		t.Errorf("read %q through a link", got)
	}
	if n, err := tree.Lstat("lib"); err != nil || n.Mode.Type() != fs.ModeSymlink {
		t.Errorf("lib is %v, %v", n, err)
	}
}

func TestAddReplaces(t *testing.T) {
	tree := New()
	mustAdd(t, tree, "f", text("old"))
	mustAdd(t, tree, "f", text("new"))
	if got := read(t, tree, "f"); got != "new" {
		t.Errorf("file is %q", got)
	}
	mustAdd(t, tree, "d/x", text(""))
	other := Dir(0o700)
	other.UID = 7
	mustAdd(t, tree, "d", other)
	if d, _ := tree.Lookup("d"); d.UID != 7 || d.Mode.Perm() != 0o700 || d.Child("x") == nil {
		t.Errorf("directory is %+v", d)
	}
	if err := tree.Add("d", text("")); !errors.Is(err, ErrPath) {
		t.Errorf("a file replaced a full directory: %v", err)
	}
	mustAdd(t, tree, "empty", Dir(0o755))
	mustAdd(t, tree, "empty", Link("d"))
	shared := text("both")
	mustAdd(t, tree, "one", shared)
	mustAdd(t, tree, "two", shared)
	if got := read(t, tree, "two"); got != "both" {
		t.Errorf("hard link is %q", got)
	}
}

func TestRefusedNames(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, test := range []struct {
		name string
		node *Node
	}{
		{"../escape", text("")},
		{"a/../../escape", text("")},
		{"nul\x00", text("")},
		{long, text("")},
		{"d/" + long + "/f", text("")},
		{strings.Repeat("a/", 2048) + "b", text("")},
		{"file/below", text("")},
		{"loop/below", text("")},
		{"", text("root must be a directory")},
		{"l", Link(strings.Repeat("x", 4096))},
	} {
		tree := New()
		mustAdd(t, tree, "file", text(""))
		mustAdd(t, tree, "loop", Link("loop"))
		if err := tree.Add(test.name, test.node); !errors.Is(err, ErrPath) {
			t.Errorf("adding %.40q: %v", test.name, err)
		}
	}
	tree := New()
	mustAdd(t, tree, long[:255]+"/"+long[:255], text("ok"))
	mustAdd(t, tree, strings.Repeat("a/", 2040)+"b", text("ok"))
	mustAdd(t, tree, "l", Link(strings.Repeat("x", 4095)))
}

func TestLookup(t *testing.T) {
	tree := New()
	mustAdd(t, tree, "d/f", text("x"))
	mustAdd(t, tree, "d/l", Link("f"))
	mustAdd(t, tree, "loop", Link("loop"))
	for name, want := range map[string]error{
		"d/f": nil, "/d/l": nil, "": nil, ".": nil,
		"d/g": fs.ErrNotExist, "x/y": fs.ErrNotExist, "d/f/g": fs.ErrNotExist,
		"loop": ErrPath, "../d": ErrPath,
	} {
		if _, err := tree.Lookup(name); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
	if n, err := tree.Lstat("loop"); err != nil || n.Target != "loop" {
		t.Errorf("lstat of a link: %v, %v", n, err)
	}
}

func TestRemove(t *testing.T) {
	tree := New()
	mustAdd(t, tree, "a/b/c", text(""))
	mustAdd(t, tree, "l", Link("a"))
	for _, name := range []string{"l/b", "missing", "missing/too", "l"} {
		if err := tree.Remove(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := paths(tree); !slices.Equal(got, []string{"a"}) {
		t.Errorf("left %v", got)
	}
	if err := tree.Remove("/"); !errors.Is(err, ErrPath) {
		t.Errorf("removing the root: %v", err)
	}
}

func TestSpool(t *testing.T) {
	spool, err := NewSpool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	a, errA := spool.File(0o755|fs.ModeSetuid, strings.NewReader("first and more"), 5)
	b, errB := spool.File(0o600, strings.NewReader("second"), 6)
	empty, errE := spool.File(0o600, strings.NewReader(""), 0)
	if err := errors.Join(errA, errB, errE); err != nil {
		t.Fatal(err)
	}
	for node, want := range map[*Node]string{a: "first", b: "second", empty: ""} {
		if got, err := io.ReadAll(node.Open()); string(got) != want || err != nil || node.Size() != int64(len(want)) {
			t.Errorf("read %q, %v, want %q", got, err, want)
		}
	}
	if _, err := spool.File(0, strings.NewReader("short"), 6); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short file: %v", err)
	}
	if _, err := spool.File(0, strings.NewReader(""), -1); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("negative size: %v", err)
	}
}

// FuzzTree adds entries with hostile names and link targets; whatever is in the
// tree then must have a proper name and be found under it.
func FuzzTree(f *testing.F) {
	f.Add("lib", "usr/lib", "lib/x", "../../etc")
	f.Add("a", "b", "b", "a")
	f.Add("a", "..", "a/../b", "/")
	f.Add("0", "usr\x02\x00ib", "lib/x", "..")
	f.Fuzz(func(t *testing.T, name1, target1, name2, target2 string) {
		tree := New()
		_ = tree.Add(name1, Link(target1))
		_ = tree.Add(name2, Link(target2))
		_ = tree.Add(name1+"/"+name2, text("x"))
		_ = tree.Remove(name2)
		for name := range tree.All() {
			if _, err := split(name); err != nil || strings.Contains(name, "//") {
				t.Fatalf("tree holds %q: %v", name, err)
			}
			if _, err := tree.Lstat(name); err != nil {
				t.Fatalf("%q is listed but not found: %v", name, err)
			}
		}
	})
}
