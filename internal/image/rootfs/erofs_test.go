package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
)

var built = time.Unix(1700000000, 0)

// sample has one of each kind of node, and the sizes at which layouts change.
func sample(t *testing.T) *Tree {
	t.Helper()
	tree := New()
	for _, size := range []int{0, 1, 4000, 4095, 4096, 4097, 100_000} {
		node := Bytes(0o644, bytes.Repeat([]byte{byte(size), 7}, size/2+1)[:size])
		node.UID, node.GID, node.ModTime = 1000, 70000, time.Unix(int64(1e9+size), 0)
		mustAdd(t, tree, fmt.Sprintf("data/%d", size), node)
	}
	mustAdd(t, tree, "bin/su", Bytes(0o755|fs.ModeSetuid, []byte("su")))
	mustAdd(t, tree, "var/mail", Dir(0o775|fs.ModeSetgid))
	mustAdd(t, tree, "tmp", Dir(0o777|fs.ModeSticky))
	mustAdd(t, tree, "link", Link("data/1"))
	mustAdd(t, tree, "long", Link(strings.Repeat("t/", 2000)+"x"))
	mustAdd(t, tree, "null", &Node{Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: 1, Minor: 3})
	mustAdd(t, tree, "big", &Node{Mode: fs.ModeDevice | 0o600, Major: 259, Minor: 0x12345})
	mustAdd(t, tree, "pipe", &Node{Mode: fs.ModeNamedPipe | 0o600})
	mustAdd(t, tree, strings.Repeat("n", 255)+"/"+strings.Repeat("m", 255), text("deep"))
	mustAdd(t, tree, "ünïcödé ☃", text("snowman"))
	return tree
}

func write(t *testing.T, tree *Tree) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := tree.WriteEROFS(context.Background(), f, built); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func TestWriteEROFS(t *testing.T) {
	tree := sample(t)
	path := write(t, tree)
	compare(t, tree, path)
	first, _ := os.ReadFile(path)
	if second, _ := os.ReadFile(write(t, sample(t))); !bytes.Equal(first, second) {
		t.Error("writing the same tree twice gives different bytes")
	}
	if len(first)%blockSize != 0 {
		t.Errorf("image of %d bytes is no whole number of blocks", len(first))
	}
}

// compare checks every node of the tree against the image, and that the image
// has no more.
func compare(t *testing.T, tree *Tree, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	err = fs.WalkDir(img, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		seen++
		want, err := tree.Lstat(name)
		if err != nil {
			return err
		}
		got, err := entry.Info()
		if err != nil {
			return err
		}
		st := got.Sys().(*erofs.Stat)
		// The reader reports permissions as they are on disk, not as Go has them.
		if got.Mode()&0o7777 != onDisk(want.Mode) || got.Mode().Type() != want.Mode.Type() || st.UID != want.UID || st.GID != want.GID {
			t.Errorf("%s: mode %v owner %d:%d, want %v %d:%d", name, got.Mode(), st.UID, st.GID, want.Mode, want.UID, want.GID)
		}
		if !want.ModTime.IsZero() && !got.ModTime().Equal(want.ModTime) {
			t.Errorf("%s: time %v, want %v", name, got.ModTime(), want.ModTime)
		}
		if want.Mode&fs.ModeDevice != 0 && st.Rdev != encodeDevice(want.Major, want.Minor) {
			t.Errorf("%s: device %#x", name, st.Rdev)
		}
		if want.Mode.Type() == fs.ModeSymlink {
			target, err := fs.ReadLink(img, name)
			if err != nil || target != want.Target {
				t.Errorf("%s: target %.40q, %v", name, target, err)
			}
		}
		if want.Mode.IsRegular() {
			data, err := fs.ReadFile(img, name)
			wantData, _ := io.ReadAll(want.Open())
			if err != nil || !bytes.Equal(data, wantData) {
				t.Errorf("%s: %d bytes, %v, want %d", name, len(data), err, len(wantData))
			}
		}
		return nil
	})
	if all := len(paths(tree)); err != nil || seen != all {
		t.Errorf("saw %d of %d entries, %v", seen, all, err)
	}
}

func onDisk(mode fs.FileMode) fs.FileMode {
	bits := mode.Perm()
	for set, bit := range map[fs.FileMode]fs.FileMode{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&set != 0 {
			bits |= bit
		}
	}
	return bits
}

// TestManyFiles has more and longer names than one block of a directory holds.
func TestManyFiles(t *testing.T) {
	tree := New()
	for i := range 20000 {
		mustAdd(t, tree, fmt.Sprintf("small/%d", i), text("0123456789"))
	}
	for i := range 2000 {
		mustAdd(t, tree, fmt.Sprintf("long/%0200d", i), Dir(0o755))
	}
	path := write(t, tree)
	compare(t, tree, path)
	fsck(t, path)
}

func fsck(t *testing.T, path string) {
	t.Helper()
	tool, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("fsck.erofs is not installed (package erofs-utils)")
	}
	// --extract reads all data, too.
	if out, err := exec.Command(tool, "--extract", path).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestFsck(t *testing.T) { fsck(t, write(t, sample(t))) }

func TestWriteEROFSStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := sample(t).WriteEROFS(ctx, f, built); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled write returned %v", err)
	}
}

// TestEncodeDevice compares with Linux's new_encode_dev for known numbers.
func TestEncodeDevice(t *testing.T) {
	for _, test := range []struct{ major, minor, want uint32 }{
		{1, 3, 0x103}, {5, 1, 0x501}, {259, 0, 0x10300}, {8, 0x12345, 0x12300845}, {0xfff, 0xfffff, 0xffffffff},
	} {
		if got := encodeDevice(test.major, test.minor); got != test.want {
			t.Errorf("%d:%#x is %#x, want %#x", test.major, test.minor, got, test.want)
		}
	}
}
