package boot

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unpacked is an entry of a cpio archive.
type unpacked struct {
	mode         uint64
	major, minor uint64
	data         string
}

// readArchive parses concatenated newc archives, as the kernel does, and returns
// the entries by name, their names in order, and how many archives there were.
func readArchive(t *testing.T, b []byte) (entries map[string]unpacked, order []string, archives int) {
	t.Helper()
	entries = map[string]unpacked{}
	inodes := map[uint64]bool{}
	for off := 0; off < len(b); {
		if b[off] == 0 {
			off++ // padding between archives
			continue
		}
		if off%4 != 0 || string(b[off:off+6]) != "070701" {
			t.Fatalf("no header at %d: %q", off, b[off:min(off+6, len(b))])
		}
		var f [13]uint64
		for i := range f {
			v, err := strconv.ParseUint(string(b[off+6+8*i:][:8]), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			f[i] = v
		}
		name := string(b[off+110:][:f[11]-1])
		if b[off+110+int(f[11])-1] != 0 {
			t.Fatalf("name %q has no end", name)
		}
		data := (off + 110 + int(f[11]) + 3) &^ 3
		off = (data + int(f[6]) + 3) &^ 3
		if name == trailer {
			archives++
			clear(inodes)
			continue
		}
		if inodes[f[0]] {
			t.Errorf("%s shares an inode number, so it would be a hard link", name)
		}
		inodes[f[0]] = true
		if f[2] != 0 || f[3] != 0 || f[5] != 0 {
			t.Errorf("%s has owner %d:%d and time %d", name, f[2], f[3], f[5])
		}
		entries[name] = unpacked{f[1], f[9], f[10], string(b[data : data+int(f[6])])}
		order = append(order, name)
	}
	return entries, order, archives
}

func initramfs(t *testing.T, init []byte, modules ...Module) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := WriteModules(&buf, modules); err != nil {
		t.Fatal(err)
	}
	if err := WriteInit(&buf, init); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestInitramfs(t *testing.T) {
	// Odd lengths, so that padding is exercised.
	modules := []Module{{"virtio", []byte("one")}, {"virtio_blk", []byte("three")}, {"a", nil}}
	b := initramfs(t, []byte("\x7fELF agent"), modules...)
	got, order, archives := readArchive(t, b)
	if archives != 2 {
		t.Errorf("%d archives", archives)
	}
	want := map[string]unpacked{
		"lib": {mode: modeDir}, "lib/modules": {mode: modeDir}, "etc": {mode: modeDir},
		"lib/modules/virtio.ko":     {mode: modeFile, data: "one"},
		"lib/modules/virtio_blk.ko": {mode: modeFile, data: "three"},
		"lib/modules/a.ko":          {mode: modeFile},
		"etc/modules.load":          {mode: modeFile, data: "virtio.ko\nvirtio_blk.ko\na.ko\n"},
		"dev":                       {mode: modeDir}, "proc": {mode: modeDir}, "sys": {mode: modeDir},
		"run": {mode: modeDir}, "newroot": {mode: modeDir},
		"dev/console": {mode: modeChar, major: 5, minor: 1},
		"dev/null":    {mode: modeChar, major: 1, minor: 3},
		"init":        {mode: modeExec, data: "\x7fELF agent"},
	}
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s is %+v, want %+v", name, got[name], w)
		}
	}
	if len(order) != len(want) {
		t.Errorf("entries %v", order)
	}
	for i, name := range order {
		if at := strings.LastIndexByte(name, '/'); at > 0 && !slices.Contains(order[:i], name[:at]) {
			t.Errorf("%s comes before its directory", name)
		}
	}
	if len(b)%4 != 0 {
		t.Errorf("length %d is no multiple of 4", len(b))
	}
	if !bytes.Equal(b, initramfs(t, []byte("\x7fELF agent"), modules...)) {
		t.Error("writing the same twice gives different bytes")
	}
}

func TestWriteModulesRefusesNames(t *testing.T) {
	for _, name := range []string{"", "a/b", "a\nb", "a\x00"} {
		if err := WriteModules(&bytes.Buffer{}, []Module{{Name: name}}); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
}

type fullDisk struct{ room int }

var errFull = errors.New("full")

func (d *fullDisk) Write(p []byte) (int, error) {
	if d.room -= len(p); d.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestInitramfsReportsWriteErrors(t *testing.T) {
	big := make([]byte, 1<<17)
	for _, room := range []int{0, 100, 1 << 16} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			if err := WriteInit(&fullDisk{room}, big); !errors.Is(err, errFull) {
				t.Errorf("init: %v", err)
			}
			if err := WriteModules(&fullDisk{room}, []Module{{"m", big}}); !errors.Is(err, errFull) {
				t.Errorf("modules: %v", err)
			}
		})
	}
}
