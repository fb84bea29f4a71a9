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

// Stat describes a file. With follow, a symbolic link at the end of the path is followed.
func (r *Root) Stat(name string, follow bool) (wire.FileInfo, error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := r.openat(name, flags)
	if err != nil {
		return wire.FileInfo{}, failure("describing", name, err)
	}
	defer unix.Close(fd)
	info, err := describe(fd, "", path.Base(name))
	if err != nil {
		return info, failure("describing", name, err)
	}
	return info, nil
}

// Describe describes an open file.
func Describe(f *os.File, name string) (wire.FileInfo, error) {
	info, err := describe(int(f.Fd()), "", path.Base(name))
	if err != nil {
		return info, failure("describing", name, err)
	}
	return info, nil
}

// List calls visit with the entries of a directory, a batch at a time, in no order. An entry that goes away meanwhile is
// left out.
func (r *Root) List(name string, visit func([]wire.FileInfo) error) error {
	fd, err := r.openat(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return failure("listing", name, err)
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(listBatch)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return failure("listing", name, err)
		}
		batch := make([]wire.FileInfo, 0, len(names))
		for _, entry := range names {
			info, err := describe(fd, entry, entry)
			if err == nil {
				batch = append(batch, info)
			} else if !errors.Is(err, unix.ENOENT) {
				return failure("describing", path.Join(name, entry), err)
			}
		}
		if err := visit(batch); err != nil {
			return err
		}
	}
}

// describe describes entry in the directory dir, or the file dir itself when entry is empty. It follows nothing.
func describe(dir int, entry, name string) (wire.FileInfo, error) {
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
	return info, nil
}
