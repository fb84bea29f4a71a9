package sandbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// file runs an operation on a file of a ready sandbox.
func (m *Manager) file(ctx context.Context, id, name string, do func(*box) error) error {
	if !path.IsAbs(name) {
		return fail(InvalidArgument, "", "path %q is not absolute", name)
	}
	b, done, err := m.use(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	if err := do(b); err != nil {
		if _, ours := errors.AsType[*Error](err); ours {
			return err
		}
		return b.guestError(err, "accessing %q", name)
	}
	return nil
}

// ReadFile streams length bytes of a regular file, from offset on, to w; a
// negative length means all.
func (m *Manager) ReadFile(ctx context.Context, id, name string, offset, length int64, w io.Writer) error {
	if offset < 0 {
		return fail(InvalidArgument, "", "offset must not be negative")
	}
	return m.file(ctx, id, name, func(b *box) error {
		req := wire.ReadRequest{Path: wire.Name(name), Offset: offset}
		if length >= 0 {
			req.Length = &length
		}
		f, err := b.agent.Open(ctx, req)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
}

// WriteFile replaces a file by what r has, in one step.
func (m *Manager) WriteFile(ctx context.Context, id, name string, r io.Reader, opts WriteOptions) error {
	return m.file(ctx, id, name, func(b *box) error {
		_, err := b.agent.WriteFile(ctx, opts.request(name), r)
		return err
	})
}

func (o *WriteOptions) request(name string) wire.WriteRequest {
	req := wire.WriteRequest{Path: wire.Name(name), Owner: o.User, Parents: o.Parents}
	if o.Mode != nil {
		req.Mode = new(unixMode(*o.Mode))
	}
	if len(o.Attrs) > 0 {
		req.Attrs = make(map[string]wire.Name, len(o.Attrs))
		for name, value := range o.Attrs {
			req.Attrs[name] = wire.Name(value)
		}
	}
	return req
}

// ComposeFile makes a file of the contents of regular files, in their order, and
// removes those. The target appears in one step; it may be one of the sources. When
// it fails everything is as it was.
func (m *Manager) ComposeFile(ctx context.Context, id, target string, sources []string, opts WriteOptions) (info *FileInfo, err error) {
	if len(sources) == 0 {
		return nil, fail(InvalidArgument, "", "a file is composed of one at least")
	}
	req := wire.ComposeRequest{WriteRequest: opts.request(target)}
	for _, s := range sources {
		if !path.IsAbs(s) {
			return nil, fail(InvalidArgument, "", "path %q is not absolute", s)
		}
		req.Sources = append(req.Sources, wire.Name(s))
	}
	err = m.file(ctx, id, target, func(b *box) error {
		e, err := b.agent.Compose(ctx, req)
		if err == nil {
			f := fileInfo(target, e)
			info = &f
		}
		return err
	})
	return info, err
}

// ListFiles lists a directory in the order of names.
func (m *Manager) ListFiles(ctx context.Context, id, name string) (list []FileInfo, err error) {
	return m.ListTree(ctx, id, name, 1)
}

// ListTree lists a directory and, up to a depth, those below it: the entries of one
// come after itself, in the order of names. A depth of 1 is the directory alone.
func (m *Manager) ListTree(ctx context.Context, id, name string, depth int) (list []FileInfo, err error) {
	if depth < 1 || depth > wire.MaxDepth {
		return nil, fail(InvalidArgument, "", "depth must be 1 to %d, not %d", wire.MaxDepth, depth)
	}
	err = m.file(ctx, id, name, func(b *box) error {
		entries, err := b.agent.List(ctx, wire.ListRequest{Path: wire.Name(name), Depth: depth, Attrs: true})
		list = make([]FileInfo, len(entries))
		for i, e := range entries {
			list[i] = fileInfo(path.Join(name, string(e.Dir), string(e.Name)), e)
		}
		slices.SortFunc(list, func(a, b FileInfo) int { return comparePaths(a.Path, b.Path) })
		return err
	})
	return list, err
}

// comparePaths puts a directory before what is in it, and that before what comes
// after the directory.
func comparePaths(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	rank := func(s string) int { // of the byte in which they differ: the end, a slash, any other
		switch {
		case n == len(s):
			return -2
		case s[n] == '/':
			return -1
		}
		return int(s[n])
	}
	return cmp.Compare(rank(a), rank(b))
}

// StatFile describes a file; of a symbolic link, the link itself.
func (m *Manager) StatFile(ctx context.Context, id, name string) (info *FileInfo, err error) {
	err = m.file(ctx, id, name, func(b *box) error {
		e, err := b.agent.Stat(ctx, wire.StatRequest{Path: wire.Name(name), NoFollow: true, Attrs: true})
		if err == nil {
			f := fileInfo(name, e)
			info = &f
		}
		return err
	})
	return info, err
}

// MakeDir makes a directory and tells whether it was not there before.
func (m *Manager) MakeDir(ctx context.Context, id, name string, opts MakeDirOptions) (info *FileInfo, created bool, err error) {
	req := wire.MkdirRequest{Path: wire.Name(name), Parents: opts.Parents, Owner: opts.User}
	if opts.Mode != nil {
		req.Mode = new(unixMode(*opts.Mode))
	}
	err = m.file(ctx, id, name, func(b *box) error {
		r, err := b.agent.Mkdir(ctx, req)
		if err == nil {
			f := fileInfo(name, r.Info)
			info, created = &f, r.Created
		}
		return err
	})
	return info, created, err
}

// RenameFile moves a file within one file system.
func (m *Manager) RenameFile(ctx context.Context, id, from, to string) error {
	if !path.IsAbs(to) {
		return fail(InvalidArgument, "", "path %q is not absolute", to)
	}
	return m.file(ctx, id, from, func(b *box) error {
		return b.agent.Rename(ctx, wire.RenameRequest{From: wire.Name(from), To: wire.Name(to)})
	})
}

// RemoveFile removes a file, an empty directory, or with recursive a tree.
func (m *Manager) RemoveFile(ctx context.Context, id, name string, recursive bool) error {
	return m.file(ctx, id, name, func(b *box) error {
		return b.agent.Remove(ctx, wire.RemoveRequest{Path: wire.Name(name), Recursive: recursive})
	})
}

func fileInfo(name string, e wire.FileInfo) FileInfo {
	f := FileInfo{
		Name: path.Base(name), Path: name, Size: e.Size, Mode: fileMode(e),
		ModTime: time.Unix(0, e.MtimeNS), UID: e.UID, GID: e.GID, Target: string(e.Target), Owner: e.Owner, Group: e.Group,
	}
	if len(e.Attrs) > 0 {
		f.Attrs = make(map[string]string, len(e.Attrs))
		for name, value := range e.Attrs {
			f.Attrs[name] = string(value)
		}
	}
	return f
}

// The mode bits beyond permissions, as Unix and as io/fs number them.
var specialModes = []struct {
	unix uint32
	fs   fs.FileMode
}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}}

func fileMode(e wire.FileInfo) fs.FileMode {
	mode := fs.FileMode(e.Mode & 0o777)
	for _, s := range specialModes {
		if e.Mode&s.unix != 0 {
			mode |= s.fs
		}
	}
	switch e.Kind {
	case wire.KindDir:
		mode |= fs.ModeDir
	case wire.KindSymlink:
		mode |= fs.ModeSymlink
	case wire.KindOther:
		mode |= fs.ModeIrregular
	}
	return mode
}

func unixMode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	for _, s := range specialModes {
		if m&s.fs != 0 {
			mode |= s.unix
		}
	}
	return mode
}
