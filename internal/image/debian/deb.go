package debian

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/forkd-dev/forkd/internal/image/compress"
	"github.com/forkd-dev/forkd/internal/image/rootfs"
)

// Limits on one package, far above any real one.
const (
	maxEntries  = 1 << 20
	maxUnpacked = 8 << 30
	maxScript   = 1 << 20
)

// Entry is one name in a package: a node, or a hard link to another name.
type Entry struct {
	Path     string
	Node     *rootfs.Node // nil for a hard link
	HardLink string
}

// Contents is an unpacked package.
type Contents struct {
	Entries  []Entry
	postinst string // the script to run after unpacking; only ever read
}

// Walk calls fn for every entry of a package's data archive, in order. A reader
// that fn leaves unread is skipped. Device nodes are not passed on.
func Walk(ctx context.Context, deb io.Reader, fn func(*tar.Header, io.Reader) error) error {
	return members(&ctxReader{ctx, deb}, func(name string, body io.Reader) (bool, error) {
		suffix, ok := strings.CutPrefix(name, "data.tar")
		if !ok {
			return false, nil
		}
		return true, walkTar(body, suffix, fn)
	})
}

func walkTar(body io.Reader, suffix string, fn func(*tar.Header, io.Reader) error) error {
	unpacked, err := compress.Open(body, suffix)
	if err != nil {
		return err
	}
	defer unpacked.Close()
	archive := tar.NewReader(io.LimitReader(unpacked, maxUnpacked))
	for n := 0; ; n++ {
		header, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the package's files: %w", err)
		}
		if n == maxEntries {
			return fmt.Errorf("%w package: more than %d files", ErrFormat, maxEntries)
		}
		if header.Typeflag == tar.TypeChar || header.Typeflag == tar.TypeBlock {
			continue
		}
		if err := fn(header, archive); err != nil {
			return fmt.Errorf("%.200q: %w", header.Name, err)
		}
	}
}

// Unpack reads the files of a package for which keep returns true. Their
// contents go to spool.
func Unpack(ctx context.Context, deb io.Reader, spool *rootfs.Spool, keep func(path string) bool) (*Contents, error) {
	c := &Contents{}
	err := members(&ctxReader{ctx, deb}, func(name string, body io.Reader) (bool, error) {
		if suffix, ok := strings.CutPrefix(name, "control.tar"); ok {
			return false, walkTar(body, suffix, c.addControl)
		}
		if suffix, ok := strings.CutPrefix(name, "data.tar"); ok {
			return true, walkTar(body, suffix, func(header *tar.Header, content io.Reader) error {
				return c.addData(header, content, spool, keep)
			})
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Contents) addControl(header *tar.Header, content io.Reader) error {
	if strings.TrimPrefix(header.Name, "./") != "postinst" {
		return nil
	}
	script, err := io.ReadAll(io.LimitReader(content, maxScript))
	c.postinst = string(script)
	return err
}

func (c *Contents) addData(header *tar.Header, content io.Reader, spool *rootfs.Spool, keep func(string) bool) error {
	entry := Entry{Path: treePath(header.Name)}
	if !keep(entry.Path) {
		return nil
	}
	if header.Typeflag == tar.TypeLink {
		entry.HardLink = treePath(header.Linkname)
	} else {
		node, err := makeNode(header, content, spool)
		if err != nil {
			return err
		}
		entry.Node = node
	}
	c.Entries = append(c.Entries, entry)
	return nil
}

// treePath turns "./usr/bin/x" and "./usr/" into "usr/bin/x" and "usr".
func treePath(name string) string {
	return strings.Trim(strings.TrimPrefix(name, "./"), "/")
}

func makeNode(header *tar.Header, content io.Reader, spool *rootfs.Spool) (node *rootfs.Node, err error) {
	mode := header.FileInfo().Mode()
	switch header.Typeflag {
	case tar.TypeDir:
		node = rootfs.Dir(mode &^ fs.ModeType)
	case tar.TypeSymlink:
		node = rootfs.Link(header.Linkname)
	case tar.TypeReg:
		node, err = spool.File(mode, content, header.Size)
	case tar.TypeFifo:
		node = &rootfs.Node{Mode: mode}
	default:
		err = fmt.Errorf("%w package: entry of type %q", ErrFormat, header.Typeflag)
	}
	if err != nil {
		return nil, err
	}
	node.UID, node.GID = uint32(header.Uid), uint32(header.Gid)
	node.ModTime = header.ModTime
	return node, nil
}

// Merge adds a package's entries to the tree. Where two packages have the same
// file, the one merged later wins.
func (c *Contents) Merge(tree *rootfs.Tree) error {
	for _, entry := range c.Entries {
		node := entry.Node
		if node == nil {
			target, err := tree.Lstat(entry.HardLink)
			if err != nil {
				return fmt.Errorf("hard link %.200q: %w", entry.Path, err)
			}
			if target.Mode.IsDir() {
				return fmt.Errorf("%w package: %.200q is a hard link to a directory", ErrFormat, entry.Path)
			}
			node = target
		}
		if err := tree.Add(entry.Path, node); err != nil {
			return err
		}
	}
	return nil
}

// dropped are the directories whose contents a sandbox does without.
var dropped = []string{
	"usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/doc-base/",
	"usr/share/lintian/", "usr/share/linda/", "usr/share/groff/", "usr/share/bug/",
	"usr/share/gitweb/", "usr/share/bash-completion/completions/",
}

// Keep reports whether a file of a package goes into the image. Left out are
// manuals, translations and documentation, but not copyright files.
func Keep(path string) bool {
	if strings.HasPrefix(path, "usr/share/doc/") {
		// The directories stay: without them the copyright files had no place.
		return strings.HasSuffix(path, "/copyright") || strings.Count(path, "/") == 3
	}
	for _, dir := range dropped {
		if strings.HasPrefix(path, dir) {
			return false
		}
	}
	return true
}
