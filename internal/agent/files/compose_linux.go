package files

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// maxSources is how many files Compose makes one of; all are open at once.
const maxSources = 1024

// source is a file that becomes part of another.
type source struct {
	place place
	file  *os.File
	inode uint64
}

// Compose makes one file of several and then removes those. When it fails, everything is as it was; only if a source cannot be
// removed in the end, the new file is there, too. A nil owner is as for Replace.
func (r *Root) Compose(req wire.ComposeRequest, owner *Owner) (wire.FileInfo, error) {
	if n := len(req.Sources); n == 0 || n > maxSources {
		return wire.FileInfo{}, wire.Errorf(wire.CodeBadRequest, "sources", "a file is made of 1 to %d others, not of %d", maxSources, n)
	}
	sources := make([]source, 0, len(req.Sources))
	defer func() {
		for _, s := range sources {
			s.file.Close()
			s.place.close()
		}
	}()
	for _, name := range req.Sources {
		s, err := r.source(string(name))
		if err != nil {
			return wire.FileInfo{}, err
		}
		sources = append(sources, s)
	}
	rep, err := r.Replace(req.WriteRequest, owner)
	if err != nil {
		return wire.FileInfo{}, err
	}
	for i, s := range sources {
		if _, err := io.Copy(rep.file, s.file); err != nil { // in the kernel, as far as the file systems can
			rep.Discard()
			return wire.FileInfo{}, failure("copying from", string(req.Sources[i]), err)
		}
	}
	info, err := rep.Commit()
	if err != nil {
		return info, err
	}
	for i, s := range sources {
		if err := s.remove(); err != nil {
			return info, failure("removing", string(req.Sources[i]), err)
		}
	}
	return info, nil
}

// source opens a regular file and its directory. A symbolic link is refused, because it is not clear what to remove.
func (r *Root) source(name string) (source, error) {
	p, err := r.parent(name, nil)
	if err != nil {
		return source{}, err
	}
	fd, err := unix.Openat(p.dir, p.base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		p.close()
		return source{}, failure("opening", name, err)
	}
	var st unix.Stat_t
	if err = checkRegular(fd, name); err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		unix.Close(fd)
		p.close()
		return source{}, failure("opening", name, err)
	}
	return source{p, os.NewFile(uintptr(fd), name), st.Ino}, nil
}

// remove removes the file, unless its name has come to mean another: the new file, or one that user code put there.
func (s source) remove() error {
	var st unix.Stat_t
	err := unix.Fstatat(s.place.dir, s.place.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT || err == nil && st.Ino != s.inode {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Unlinkat(s.place.dir, s.place.base, 0)
}
