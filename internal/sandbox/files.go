package sandbox

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// file runs an operation on a file of a ready sandbox.
func (m *Manager) file(ctx context.Context, id, name string, do func(*box) error) error {
	if !path.IsAbs(name) {
		return fail(InvalidArgument, "", "path %q is not absolute", name)
	}
	b, err := m.use(ctx, id)
	if err != nil {
		return err
	}
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
		req := wire.WriteRequest{Path: wire.Name(name), Owner: opts.User, Parents: opts.Parents}
		if opts.Mode != 0 {
			mode := unixMode(opts.Mode)
			req.Mode = &mode
		}
		_, err := b.agent.WriteFile(ctx, req, r)
		return err
	})
}

// ListFiles lists a directory in the order of names.
func (m *Manager) ListFiles(ctx context.Context, id, name string) (list []FileInfo, err error) {
	err = m.file(ctx, id, name, func(b *box) error {
		entries, err := b.agent.List(ctx, wire.Name(name))
		for _, e := range entries {
			list = append(list, fileInfo(path.Join(name, string(e.Name)), e))
		}
		slices.SortFunc(list, func(a, b FileInfo) int { return strings.Compare(a.Name, b.Name) })
		return err
	})
	return list, err
}

// StatFile describes a file; of a symbolic link, the link itself.
func (m *Manager) StatFile(ctx context.Context, id, name string) (info *FileInfo, err error) {
	err = m.file(ctx, id, name, func(b *box) error {
		e, err := b.agent.Stat(ctx, wire.StatRequest{Path: wire.Name(name), NoFollow: true})
		if err == nil {
			f := fileInfo(name, e)
			info = &f
		}
		return err
	})
	return info, err
}

// MakeDir makes a directory, with parents also those above it.
func (m *Manager) MakeDir(ctx context.Context, id, name string, parents bool) error {
	return m.file(ctx, id, name, func(b *box) error {
		return b.agent.Mkdir(ctx, wire.MkdirRequest{Path: wire.Name(name), Parents: parents})
	})
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
	return FileInfo{
		Name: path.Base(name), Path: name, Size: e.Size, Mode: fileMode(e),
		ModTime: time.Unix(0, e.MtimeNS), UID: e.UID, GID: e.GID, Target: string(e.Target),
	}
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
