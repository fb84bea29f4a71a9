package ext4

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sizes cover one group, several, ends in the middle of a group, a last group
// too small to use, several blocks of descriptors.
var sizes = []int64{
	MinSize, MinSize + 1, 5 << 20, 127 << 20, 128 << 20, 129 << 20, 133 << 20, 1 << 30, 4 << 30, 4<<30 + 4097, 100 << 30,
}

// disk is a sparse disk in memory that insists on whole blocks.
type disk map[int64][]byte

func (d disk) WriteAt(p []byte, off int64) (int, error) {
	if off%BlockSize != 0 || len(p)%BlockSize != 0 {
		return 0, fmt.Errorf("write of %d bytes at %d is not aligned", len(p), off)
	}
	for i := 0; i < len(p); i += BlockSize {
		if _, ok := d[off+int64(i)]; ok {
			return 0, fmt.Errorf("block at %d is written twice", off+int64(i))
		}
		d[off+int64(i)] = bytes.Clone(p[i : i+BlockSize])
	}
	return len(p), nil
}

func options(size int64) Options {
	return Options{Size: size, UUID: [16]byte{0xf0, 1, 2, 3, 15: 0xff}, Time: time.Unix(1700000000, 0)}
}

func TestFormat(t *testing.T) {
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			d := disk{}
			info, err := Format(d, options(size))
			if err != nil {
				t.Fatal(err)
			}
			if info.Written != len(d) {
				t.Errorf("says %d pages were written, %d were", info.Written, len(d))
			}
			if most := 8 + int(size>>34); len(d) > most {
				t.Errorf("%d pages written, at most %d are needed", len(d), most)
			}
			for off := range d {
				if off+BlockSize > size {
					t.Errorf("wrote at %d, beyond the end", off)
				}
			}
			// An inode for every 8 KiB: many small files run out of space first.
			if info.FreeInodes < size/bytesPerInode*9/10 || info.Inodes-info.FreeInodes != firstInode {
				t.Errorf("%d of %d inodes free", info.FreeInodes, info.Inodes)
			}
			if info.Size > size || info.Free > info.Size || info.Free < size*9/10 {
				t.Errorf("%d bytes of %d free", info.Free, info.Size)
			}
			if over := Overhead(size); over < info.Size-info.Free-2*BlockSize || over > info.Size-info.Free {
				t.Errorf("says that tables take %d bytes, of %d there are %d left", over, info.Size, info.Free)
			}
			again := disk{}
			if _, err := Format(again, options(size)); err != nil || !equal(d, again) {
				t.Errorf("formatting twice gives different bytes (%v)", err)
			}
		})
	}
}

func equal(a, b disk) bool {
	for off, block := range a {
		if !bytes.Equal(block, b[off]) {
			return false
		}
	}
	return len(a) == len(b)
}

func TestFormatRefusesSizes(t *testing.T) {
	for _, size := range []int64{-1, 0, MinSize - 1, MaxSize + 1, 1 << 62} {
		if _, err := Format(disk{}, options(size)); !errors.Is(err, ErrSize) {
			t.Errorf("size %d: %v", size, err)
		}
	}
}

type fullDisk struct{ left int }

var errFull = errors.New("full")

func (d *fullDisk) WriteAt(p []byte, _ int64) (int, error) {
	if d.left--; d.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestFormatReportsWriteErrors(t *testing.T) {
	for n := range 8 {
		if _, err := Format(&fullDisk{n}, options(4<<30)); !errors.Is(err, errFull) {
			t.Errorf("after %d writes: %v", n, err)
		}
	}
}

// tool returns the path of a program of e2fsprogs.
func tool(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	t.Skipf("%s is not installed (package e2fsprogs)", name)
	return ""
}

func onFile(t *testing.T, size int64) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if _, err := Format(f, options(size)); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// TestE2fsck has the reference implementation check every structure.
func TestE2fsck(t *testing.T) {
	e2fsck := tool(t, "e2fsck")
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			out, err := exec.Command(e2fsck, "-fn", onFile(t, size)).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// TestDebugfs has the reference implementation fill the file system, beyond the
// first group, and checks it again.
func TestDebugfs(t *testing.T) {
	debugfs, e2fsck := tool(t, "debugfs"), tool(t, "e2fsck")
	path := onFile(t, 300<<20)
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, bytes.Repeat([]byte{1}, 150<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for i := range 50 {
		fmt.Fprintf(&script, "mkdir d%d\nsymlink d%d/l target\n", i, i)
	}
	fmt.Fprintf(&script, "write %s big\n", big)
	run := exec.Command(debugfs, "-w", "-f", "-", path)
	run.Stdin = strings.NewReader(script.String())
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(e2fsck, "-fn", path).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(debugfs, "-R", "ls -l /", path).CombinedOutput()
	if err != nil || strings.Count(string(out), " d") < 50 || !strings.Contains(string(out), "big") || !strings.Contains(string(out), "lost+found") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func BenchmarkFormat(b *testing.B) {
	for b.Loop() {
		if _, err := Format(disk{}, options(4<<30)); err != nil {
			b.Fatal(err)
		}
	}
}
