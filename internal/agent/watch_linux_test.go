package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func (f *fixture) watch(t *testing.T, req wire.WatchRequest) *agent.Watcher {
	t.Helper()
	w, err := f.Watch(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// changes reads until the change, as "kind name", comes, and returns all.
func changes(t *testing.T, w *agent.Watcher, last string) []string {
	t.Helper()
	watchdog := time.AfterFunc(20*time.Second, func() { w.Close() })
	defer watchdog.Stop()
	var all []string
	for {
		c, err := w.Recv()
		if err != nil {
			t.Fatalf("waiting for %q after %q: %v", last, all, err)
		}
		all = append(all, string(c.Kind)+" "+string(c.Name))
		if all[len(all)-1] == last {
			return all
		}
	}
}

func TestWatch(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir+"/old", 0o755))
	for _, recursive := range []bool{false, true} {
		w := f.watch(t, wire.WatchRequest{Path: wire.Name(dir), Recursive: recursive})
		sub := []string{"create old/x", "write old/x", "remove old/x"}
		if !recursive {
			sub = nil
		}
		for _, tc := range []struct {
			do   func()
			want []string // the last one is waited for
		}{
			{func() { must(os.WriteFile(dir+"/a", []byte("x"), 0o644)) }, []string{"create a", "write a"}},
			{func() { must(os.WriteFile(dir+"/a", []byte("y"), 0o644)) }, []string{"write a"}},
			{func() { must(os.Chmod(dir+"/a", 0o600)) }, []string{"chmod a"}},
			{func() { must(os.Rename(dir+"/a", dir+"/b ü\xff")) }, []string{"rename a", "create b ü\xff"}},
			{func() { must(os.Remove(dir + "/b ü\xff")) }, []string{"remove b ü\xff"}},
			// What the agent writes is one step.
			{func() { f.write(t, dir+"/c", "new") }, []string{"create c", "write c"}},
			{func() { f.write(t, dir+"/c", "newer") }, []string{"write c"}},
			{func() { must(os.Remove(dir + "/c")) }, []string{"remove c"}},
			{func() {
				must(os.WriteFile(dir+"/old/x", []byte("x"), 0o644))
				must(os.Remove(dir + "/old/x"))
				must(os.Mkdir(dir+"/end", 0o755))
				must(os.Remove(dir + "/end"))
			}, append(sub, "create end", "remove end")},
		} {
			tc.do()
			got := slices.Compact(changes(t, w, tc.want[len(tc.want)-1])) // a file may be truncated, then written
			if !slices.Equal(got, tc.want) && !(tc.want[0] == "write a" && len(got) == 1) {
				t.Errorf("recursive %v: %q, want %q", recursive, got, tc.want)
			}
			if tc.want[0] == "write a" {
				must(os.WriteFile(dir+"/mark", nil, 0o644)) // there may be another write
				changes(t, w, "create mark")
				must(os.Remove(dir + "/mark"))
				changes(t, w, "remove mark")
			}
		}
		w.Close()
	}
}

func TestWatchDescribes(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	w := f.watch(t, wire.WatchRequest{Path: wire.Name(dir), Recursive: true, Entries: true})
	if err := os.MkdirAll(dir+"/sub", 0o750); err != nil {
		t.Fatal(err)
	}
	c, err := w.Recv()
	if err != nil || c.Entry == nil || c.Entry.Kind != wire.KindDir || c.Entry.Mode != 0o750 || c.Entry.Name != "sub" {
		t.Errorf("%+v, %v", c, err)
	}
	f.write(t, dir+"/sub/file", "12345")
	for c.Kind != wire.ChangeWrite {
		if c, err = w.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if c.Name != "sub/file" || c.Entry == nil || c.Entry.Size != 5 || c.Entry.Name != "file" || c.Entry.Owner == "" {
		t.Errorf("%+v, %+v", c, c.Entry)
	}
	if err := os.Remove(dir + "/sub/file"); err != nil {
		t.Fatal(err)
	}
	if c, err = w.Recv(); err != nil || c.Kind != wire.ChangeRemove || c.Entry != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

// Directories, files in them, and renames come faster than the kernel can be asked to watch: every file is told of, under
// the name that it has, and none twice.
func TestWatchMissesNothing(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	w := f.watch(t, wire.WatchRequest{Path: wire.Name(dir), Recursive: true})
	const rounds = 200
	script := fmt.Sprintf(`cd %s; i=0; while [ $i -lt %d ]; do i=$((i+1))
mkdir -p $i/a/b/c && echo x > $i/a/b/c/f && mv $i/a $i/z && echo y > $i/z/b/g && mkdir $i/z/n && echo z > $i/z/n/h; done; touch end`, dir, rounds)
	go func() { _, _ = f.run(t.Context(), sh(script)) }()
	count := map[string]int{}
	for _, c := range changes(t, w, "create end") {
		count[c]++
	}
	for i := 1; i <= rounds; i++ {
		// The first file is told of before the rename, after it, or both, as it was found.
		before, after := count[fmt.Sprintf("create %d/a/b/c/f", i)], count[fmt.Sprintf("create %d/z/b/c/f", i)]
		if before > 1 || after > 1 || before+after == 0 {
			t.Errorf("round %d: the first file was told of %d times before the rename, %d after", i, before, after)
		}
		for _, name := range []string{"%d", "%d/z", "%d/z/b/g", "%d/z/n", "%d/z/n/h"} {
			if n := count["create "+fmt.Sprintf(name, i)]; n != 1 {
				t.Errorf("round %d: %s was told of %d times", i, fmt.Sprintf(name, i), n)
			}
		}
		if w := count[fmt.Sprintf("write %d/z/n/h", i)]; w == 0 {
			t.Errorf("round %d: the last write was not told of", i)
		}
	}
}

func TestWatchFollowsRenames(t *testing.T) {
	f := newGuest(t)
	dir, outside := t.TempDir(), t.TempDir()
	for _, d := range []string{dir + "/a/b", dir + "/c", outside + "/new/deep"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w := f.watch(t, wire.WatchRequest{Path: wire.Name(dir), Recursive: true})
	f.mustRun(t, sh(fmt.Sprintf(`cd %s; mv a c/a; touch c/a/b/1
mv c/a/b b; mv c/a b/a; touch b/a/2
mv b %s/gone; touch %s/gone/3; mkdir %s/gone/dir; touch 4
touch %s/new/deep/5; mv %s/new new; touch new/deep/6; rm -r new; mkdir new; touch new/7`, dir, outside, outside, outside, outside, outside)))
	got := changes(t, w, "create new/7")
	got = slices.DeleteFunc(got, func(c string) bool { return strings.HasPrefix(c, "chmod") })
	want := []string{"rename a", "create c/a", "create c/a/b/1", "rename c/a/b", "create b", "rename c/a", "create b/a", "create b/a/2", "rename b", "create 4",
		"create new", "create new/deep", "create new/deep/5", "create new/deep/6", "remove new/deep/5", "remove new/deep/6", "remove new/deep", "remove new", "create new", "create new/7"}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("told\n%q, want\n%q", got, want)
	}
}

func TestWatchEnds(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	for name, end := range map[string]func(string) error{
		"remove": os.Remove, "rename": func(d string) error { return os.Rename(d, d+".moved") },
	} {
		watched := filepath.Join(dir, name)
		if err := os.Mkdir(watched, 0o755); err != nil {
			t.Fatal(err)
		}
		w := f.watch(t, wire.WatchRequest{Path: wire.Name(watched), Recursive: true})
		if err := end(watched); err != nil {
			t.Fatal(err)
		}
		c, err := w.Recv()
		if err != nil || string(c.Kind) != name || c.Name != "" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		_, err = w.Recv()
		wantCode(t, err, wire.CodeNotFound)
	}
	_, err := f.Watch(t.Context(), wire.WatchRequest{Path: wire.Name(dir + "/none")})
	wantCode(t, err, wire.CodeNotFound)
	f.write(t, dir+"/file", "")
	_, err = f.Watch(t.Context(), wire.WatchRequest{Path: wire.Name(dir + "/file")})
	wantCode(t, err, wire.CodeNotDirectory)
}

// Whoever does not listen is told that changes were missed, and never that all is well.
func TestWatchOverflow(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	w := f.watch(t, wire.WatchRequest{Path: wire.Name(dir)})
	long := strings.Repeat("x", 200)
	for i := range 10000 {
		name := fmt.Sprintf("%s/%s%d", dir, long, i)
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		unix.Unlink(name)
	}
	for n := 0; ; n++ {
		_, err := w.Recv()
		if err == nil {
			continue
		}
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != wire.CodeOverflow {
			t.Fatalf("after %d changes: %v", n, err)
		}
		return
	}
}
