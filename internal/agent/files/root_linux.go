package files

import (
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Root is a directory that is / to everything below.
type Root struct {
	dir *os.File
}

// OpenRoot opens the root at dir.
func OpenRoot(dir string) (*Root, error) {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Root{dir: f}, nil
}

// Close releases the root.
func (r *Root) Close() error { return r.dir.Close() }

// Space is that of a file system, in bytes.
type Space struct {
	Total, Used int64
}

// Usage returns the space of the file system that the root lies on; of an overlay, that which changes go to.
func (r *Root) Usage() (Space, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(r.dir.Fd()), &st); err != nil {
		return Space{}, failure("measuring", "/", err)
	}
	return Space{Total: int64(st.Blocks) * st.Bsize, Used: int64(st.Blocks-st.Bfree) * st.Bsize}, nil
}

// Open opens a regular file for reading. A pipe or device is refused rather than waited for.
func (r *Root) Open(name string) (*os.File, error) {
	// Without O_NONBLOCK, opening a pipe would block until somebody writes to it.
	fd, err := r.openat(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, failure("opening", name, err)
	}
	if err := checkRegular(fd, name); err != nil {
		unix.Close(fd)
		return nil, err
	}
	_ = unix.SetNonblock(fd, false) // a regular file never blocks; this only keeps it out of the poller
	return os.NewFile(uintptr(fd), name), nil
}

// OpenAccounts opens a file as proc.Accounts wants it.
func (r *Root) OpenAccounts(name string) (io.ReadCloser, error) { return r.Open(name) }

func checkRegular(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return failure("reading", name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return failure("reading", name, unix.EISDIR)
	}
	return wire.Errorf(wire.CodeNotRegular, "path", "%q is not a regular file", name)
}

// openat opens name inside the root.
func (r *Root) openat(name string, flags int) (int, error) {
	if err := checkPath(name); err != nil {
		return -1, err
	}
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(int(r.dir.Fd()), name, &how)
		// The kernel gives up with EAGAIN when a rename elsewhere makes it unsure about "..".
		if err == unix.EINTR || err == unix.EAGAIN && try < 64 {
			continue
		}
		return fd, err
	}
}

// place is the last component of a path in its opened directory.
type place struct {
	dir  int
	base string
}

func (p place) close() { unix.Close(p.dir) }

// parent opens the directory of name, and with parents set makes what is missing above it.
func (r *Root) parent(name string, parents *creation) (place, error) {
	if err := checkPath(name); err != nil {
		return place{}, err
	}
	dir, base := path.Split(strings.TrimRight(name, "/"))
	if base == "" || base == "." || base == ".." {
		return place{}, wire.Errorf(wire.CodeBadRequest, "path", "path %q does not end in a name", name)
	}
	if parents != nil {
		if _, err := r.mkdirAll(dir, *parents); err != nil {
			return place{}, err
		}
	}
	fd, err := r.openat(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return place{}, failure("opening directory", dir, err)
	}
	return place{fd, base}, nil
}

func checkPath(name string) error {
	switch {
	case !strings.HasPrefix(name, "/"):
		return wire.Errorf(wire.CodeBadRequest, "path", "path %q is not absolute", name)
	case strings.IndexByte(name, 0) >= 0:
		return wire.Errorf(wire.CodeBadRequest, "path", "path %q contains a NUL byte", name)
	}
	return nil
}

// failure turns a system call's error into a *wire.Error.
func failure(doing, name string, err error) error {
	var typed *wire.Error
	if errors.As(err, &typed) {
		return typed
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return wire.Errorf(wire.CodeInternal, "path", "%s %q: %v", doing, name, err)
	}
	code, known := codes[errno]
	if !known {
		code = wire.CodeInternal
	}
	return wire.Errorf(code, "path", "%s %q: %v", doing, name, errno)
}

var codes = map[unix.Errno]wire.Code{
	unix.ENOENT:       wire.CodeNotFound,
	unix.EACCES:       wire.CodePermission,
	unix.EPERM:        wire.CodePermission,
	unix.EBUSY:        wire.CodePermission,
	unix.EEXIST:       wire.CodeExists,
	unix.ENOTEMPTY:    wire.CodeNotEmpty,
	unix.EISDIR:       wire.CodeIsDirectory,
	unix.ENOTDIR:      wire.CodeNotDirectory,
	unix.ENXIO:        wire.CodeNotRegular,
	unix.ENODEV:       wire.CodeNotRegular,
	unix.ENAMETOOLONG: wire.CodeTooLong,
	unix.ENOSPC:       wire.CodeNoSpace,
	unix.EDQUOT:       wire.CodeNoSpace,
	unix.EFBIG:        wire.CodeNoSpace,
	unix.EROFS:        wire.CodeReadOnly,
	unix.EXDEV:        wire.CodeCrossDevice,
	unix.ELOOP:        wire.CodeTooManyLinks,
	unix.EINVAL:       wire.CodeBadRequest,
	unix.EMFILE:       wire.CodeExhausted,
	unix.ENFILE:       wire.CodeExhausted,
	unix.ENOMEM:       wire.CodeExhausted,
}
