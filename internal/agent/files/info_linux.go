package files

import (
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// listBatch is how many entries List hands over at once.
const listBatch = 256

// Stat describes a file. With follow, a symbolic link at the end of the path is followed; with attrs, extended attributes are
// described, too.
func (r *Root) Stat(name string, follow, attrs bool) (wire.FileInfo, error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := r.openat(name, flags)
	if err != nil {
		return wire.FileInfo{}, failure("describing", name, err)
	}
	defer unix.Close(fd)
	info, err := describe(fd, "", path.Base(name), attrs)
	if err != nil {
		return info, failure("describing", name, err)
	}
	return info, nil
}

// Describe describes an open file.
func Describe(f *os.File, name string) (wire.FileInfo, error) {
	info, err := describe(int(f.Fd()), "", path.Base(name), true)
	if err != nil {
		return info, failure("describing", name, err)
	}
	return info, nil
}

// List calls visit with the entries of a directory, and of as many levels below it as the request asks for, a batch at a time.
// A directory comes before what is in it, otherwise there is no order. What goes away meanwhile is left out.
func (r *Root) List(req wire.ListRequest, visit func([]wire.FileInfo) error) error {
	if req.Depth < 0 {
		return wire.Errorf(wire.CodeBadRequest, "depth", "depth %d is negative", req.Depth)
	}
	name := string(req.Path)
	fd, err := r.openat(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return failure("listing", name, err)
	}
	l := lister{name, req.Attrs, visit}
	return l.list(fd, "", max(req.Depth, 1), 1)
}

// lister lists a directory tree.
type lister struct {
	name  string
	attrs bool
	visit func([]wire.FileInfo) error
}

// list lists the open directory fd, which it closes. It is rel below the top, and on this level of depth.
func (l *lister) list(fd int, rel string, depth, level int) error {
	dir := os.NewFile(uintptr(fd), path.Join(l.name, rel))
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(listBatch)
		if err == io.EOF || isGone(err) {
			return nil
		}
		if err != nil {
			return failure("listing", dir.Name(), err)
		}
		batch := make([]wire.FileInfo, 0, len(names))
		for _, entry := range names {
			info, err := describe(fd, entry, entry, l.attrs)
			if err == nil {
				info.Dir = wire.Name(rel)
				batch = append(batch, info)
			} else if !isGone(err) {
				return failure("describing", path.Join(dir.Name(), entry), err)
			}
		}
		if err := l.visit(batch); err != nil {
			return err
		}
		if level == depth {
			continue
		}
		for _, info := range batch {
			if err := l.enter(fd, rel, info, depth, level); err != nil {
				return err
			}
		}
	}
}

// enter lists the entry that info describes of the directory fd, if it is a directory.
func (l *lister) enter(fd int, rel string, info wire.FileInfo, depth, level int) error {
	if info.Kind != wire.KindDir {
		return nil
	}
	name := string(info.Name)
	below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case isGone(err):
		return nil
	case err != nil:
		return failure("listing", path.Join(l.name, rel, name), err)
	case level == wire.MaxDepth:
		unix.Close(below)
		return wire.Errorf(wire.CodeTooLong, "depth", "directory %q is more than %d levels deep", l.name, wire.MaxDepth)
	}
	return l.list(below, path.Join(rel, name), depth, level+1)
}

// isGone reports whether an error means that a file is not there any more, or is something else by now.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// describe describes entry in the directory dir, or the file dir itself when entry is empty. It follows nothing.
func describe(dir int, entry, name string, attrs bool) (wire.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, entry, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH); err != nil {
		return wire.FileInfo{}, err
	}
	info := wire.FileInfo{
		Name: wire.Name(name),
		Kind: wire.KindOther,
		Size: st.Size,
		Mode: st.Mode & 0o7777,
		UID:  st.Uid,
		GID:  st.Gid,
		// Nano is int64 on every architecture, the fields are not.
		MtimeNS: st.Mtim.Nano(),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		info.Kind = wire.KindFile
	case unix.S_IFDIR:
		info.Kind = wire.KindDir
	case unix.S_IFLNK:
		info.Kind = wire.KindSymlink
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, entry, target)
		if err != nil {
			return wire.FileInfo{}, err
		}
		info.Target = wire.Name(target[:n])
	}
	if attrs && (info.Kind == wire.KindFile || info.Kind == wire.KindDir) {
		info.Attrs = readAttrs(dir, entry)
	}
	return info, nil
}
