package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/image/debian/debiantest"
	"github.com/forkd-dev/forkd/internal/image/rootfs"
)

func keepAll(string) bool { return true }

func newSpool(t testing.TB) *rootfs.Spool {
	t.Helper()
	spool, err := rootfs.NewSpool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { spool.Close() })
	return spool
}

func unpack(t testing.TB, deb []byte) (*Contents, error) {
	t.Helper()
	return Unpack(context.Background(), bytes.NewReader(deb), newSpool(t), keepAll)
}

// tree unpacks and merges packages.
func tree(t *testing.T, packages ...debiantest.Package) (*rootfs.Tree, []Installed) {
	t.Helper()
	result := rootfs.New()
	var installed []Installed
	for _, p := range packages {
		c, err := unpack(t, p.Deb(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Merge(result); err != nil {
			t.Fatal(err)
		}
		stanza := "Package: " + p.Name + "\nVersion: 1\nFilename: x\nMulti-Arch: " + p.Fields["Multi-Arch"] + "\n"
		installed = append(installed, Installed{&Package{Name: p.Name, Version: "1", Arch: "riscv64", stanza: stanza}, c})
	}
	return result, installed
}

func contents(t *testing.T, tree *rootfs.Tree, name string) string {
	t.Helper()
	node, err := tree.Lookup(name)
	if err != nil {
		t.Errorf("%v", err)
		return ""
	}
	data, err := io.ReadAll(node.Open())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestUnpack(t *testing.T) {
	owned := debiantest.File("./usr/bin/su", "su", 0o4755)
	owned.Uid, owned.Gid, owned.ModTime = 3, 42, time.Unix(1e9, 0)
	for _, codec := range []string{"", ".gz", ".xz", ".zst"} {
		t.Run("data.tar"+codec, func(t *testing.T) {
			got, _ := tree(t, debiantest.Package{Codec: codec, Data: []debiantest.Entry{
				debiantest.Dir("./", 0o755),
				debiantest.Dir("./usr/bin/", 0o750),
				owned,
				debiantest.HardLink("./usr/bin/su2", "./usr/bin/su"),
				debiantest.Link("./etc/link", "../usr/bin/su"),
				{Header: tar.Header{Typeflag: tar.TypeChar, Name: "./dev/null", Devmajor: 1, Devminor: 3}},
				{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "./dev/sda", Devmajor: 8}},
				{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "./run/pipe", Mode: 0o600}},
			}})
			su, err := got.Lookup("etc/link")
			if err != nil {
				t.Fatal(err)
			}
			if su.Mode != fs.ModeSetuid|0o755 || su.UID != 3 || su.GID != 42 || su.ModTime.Unix() != 1e9 {
				t.Errorf("su is %+v", su)
			}
			if link, _ := got.Lookup("usr/bin/su2"); link != su {
				t.Error("the hard link is another file")
			}
			if dir, _ := got.Lookup("usr/bin"); dir.Mode != fs.ModeDir|0o750 {
				t.Errorf("usr/bin has mode %v", dir.Mode)
			}
			if _, err := got.Lookup("dev"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("device nodes were unpacked: %v", err)
			}
			if pipe, err := got.Lookup("run/pipe"); err != nil || pipe.Mode != fs.ModeNamedPipe|0o600 {
				t.Errorf("pipe: %+v, %v", pipe, err)
			}
			if text := contents(t, got, "usr/bin/su2"); text != "su" {
				t.Errorf("contents %q", text)
			}
		})
	}
}

func TestUnpackRefuses(t *testing.T) {
	good := debiantest.Package{Codec: ".xz", Data: []debiantest.Entry{debiantest.File("./f", strings.Repeat("x", 1000), 0o644)}}.Deb(t)
	member := func(name string, body string) []byte {
		deb := debiantest.Member([]byte(arMagic), "debian-binary", []byte("2.0\n"))
		return debiantest.Member(deb, name, []byte(body))
	}
	for name, deb := range map[string][]byte{
		"empty":               nil,
		"not ar":              []byte("PK\x03\x04"),
		"cut in the header":   good[:30],
		"cut in the data":     good[:len(good)-40],
		"no data":             member("control.tar", ""),
		"unknown compression": member("data.tar.lz4", ""),
		"damaged xz":          member("data.tar.xz", "text"),
		"damaged gzip":        member("data.tar.gz", "text"),
		"damaged zstd":        member("data.tar.zst", "text"),
		"damaged tar":         member("data.tar", strings.Repeat("x", 600)),
		"format 3":            debiantest.Member([]byte(arMagic), "debian-binary", []byte("3.0\n")),
		"other first member":  debiantest.Member([]byte(arMagic), "data.tar", nil),
		"negative size":       bytes.Replace(good, []byte("4         `"), []byte("-4        `"), 1),
		"strange type":        debiantest.Package{Data: []debiantest.Entry{{Header: tar.Header{Typeflag: 'Z', Name: "x"}}}}.Deb(t),
	} {
		if c, err := unpack(t, deb); err == nil {
			t.Errorf("%s: unpacked %d entries", name, len(c.Entries))
		}
	}
}

func TestMergeRefuses(t *testing.T) {
	for name, entry := range map[string]debiantest.Entry{
		"escape":                      debiantest.File("../../etc/passwd", "", 0o644),
		"escape in the middle":        debiantest.File("./usr/../../x", "", 0o644),
		"hard link to nothing":        debiantest.HardLink("./a", "./nothing"),
		"hard link out of the tree":   debiantest.HardLink("./a", "../../etc/passwd"),
		"hard link to a directory":    debiantest.HardLink("./a", "./"),
		"component of 256 characters": debiantest.File("./"+strings.Repeat("x", 256), "", 0o644),
	} {
		c, err := unpack(t, debiantest.Package{Data: []debiantest.Entry{entry}}.Deb(t))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := c.Merge(rootfs.New()); err == nil {
			t.Errorf("%s was merged", name)
		}
	}
}

func TestUnpackStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	deb := debiantest.Package{}.Deb(t)
	if _, err := Unpack(ctx, bytes.NewReader(deb), newSpool(t), keepAll); err == nil {
		t.Error("a cancelled unpack went through")
	}
}

func TestKeep(t *testing.T) {
	for path, want := range map[string]bool{
		"usr/bin/ls": true, "usr/share/doc": true, "usr/share/doc/ls": true, "usr/share/doc/ls/copyright": true,
		"usr/share/doc/ls/changelog.gz": false, "usr/share/doc/ls/examples/a": false,
		"usr/share/man": true, "usr/share/man/man1/ls.1.gz": false, "usr/share/manual": true,
		"usr/share/locale/de/LC_MESSAGES/x.mo": false, "usr/lib/locale/C.utf8/LC_CTYPE": true,
	} {
		if Keep(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	entries := []debiantest.Entry{debiantest.Dir("./a/", 0o755), debiantest.File("./a/f", "text", 0o644), debiantest.HardLink("./g", "./a/f"), debiantest.Link("./l", "/")}
	f.Add(debiantest.Package{Data: entries, Scripts: map[string]string{"postinst": "update-alternatives --install /a b /c 1"}}.Deb(f))
	f.Add(debiantest.Package{Codec: ".xz", Data: entries}.Deb(f))
	f.Add([]byte(arMagic))
	f.Fuzz(func(t *testing.T, deb []byte) {
		c, err := unpack(t, deb)
		if err != nil {
			return
		}
		result := rootfs.New()
		if c.Merge(result) == nil {
			_ = Fixup(result, []Installed{{&Package{Name: "p"}, c}}, time.Unix(0, 0))
		}
		for name := range result.All() {
			if strings.HasPrefix(name, "..") || strings.Contains(name, "/../") {
				t.Fatalf("%q is in the tree", name)
			}
		}
	})
}
