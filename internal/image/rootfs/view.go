package rootfs

import (
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/erofs/go-erofs"
)

// view shows a tree as an fs.FS, which is what the EROFS writer copies from. It
// never follows links: the image must hold them as they are.
type view struct {
	tree *Tree
}

var (
	_ fs.ReadDirFS = view{}
	_ fs.StatFS    = view{}
)

func (v view) find(op, name string) (*Node, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	n, err := v.tree.Lstat(name)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return n, nil
}

// Stat implements fs.StatFS.
func (v view) Stat(name string) (fs.FileInfo, error) {
	n, err := v.find("stat", name)
	if err != nil {
		return nil, err
	}
	return info{path.Base(name), n}, nil
}

// ReadDir implements fs.ReadDirFS.
func (v view) ReadDir(name string) ([]fs.DirEntry, error) {
	n, err := v.find("readdir", name)
	if err != nil {
		return nil, err
	}
	list := make([]fs.DirEntry, 0, len(n.children))
	for _, name := range n.Names() {
		list = append(list, fs.FileInfoToDirEntry(info{name, n.children[name]}))
	}
	return list, nil
}

// ReadLink returns the target of a symbolic link.
func (v view) ReadLink(name string) (string, error) {
	n, err := v.find("readlink", name)
	if err != nil {
		return "", err
	}
	return n.Target, nil
}

// Open implements fs.FS.
func (v view) Open(name string) (fs.File, error) {
	n, err := v.find("open", name)
	if err != nil {
		return nil, err
	}
	return &file{n.Open(), info{path.Base(name), n}}, nil
}

type file struct {
	io.Reader
	info info
}

func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *file) Close() error               { return nil }

// info is the fs.FileInfo of a node. Sys is an *erofs.Stat, through which the
// writer learns owner, link count, time and device number.
type info struct {
	name string
	node *Node
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.node.size }
func (i info) Mode() fs.FileMode  { return i.node.Mode }
func (i info) ModTime() time.Time { return i.node.ModTime }
func (i info) IsDir() bool        { return i.node.Mode.IsDir() }

func (i info) Sys() any {
	n := i.node
	st := &erofs.Stat{Mode: n.Mode, Size: n.size, UID: n.UID, GID: n.GID, Nlink: 1}
	if !n.ModTime.IsZero() {
		st.Mtime = uint64(max(0, n.ModTime.Unix()))
	}
	if n.Mode.IsDir() {
		st.Nlink = 2
		for _, child := range n.children {
			if child.Mode.IsDir() {
				st.Nlink++
			}
		}
	}
	if n.Mode&fs.ModeDevice != 0 {
		st.Rdev = encodeDevice(n.Major, n.Minor)
	}
	return st
}

// encodeDevice packs a device number as EROFS stores it: the kernel's
// new_encode_dev, 12 bits of major and 20 of minor.
func encodeDevice(major, minor uint32) uint32 {
	return minor&0xff | major&0xfff<<8 | minor&^0xff<<12
}
