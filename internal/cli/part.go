package cli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// part is a file that is being written. It gets its name when it is whole, or never.
//
// Until then it has no name at all where the file system can do that, so nothing is left of
// it when this process is killed. Where it has a name of ours, for the whole time or for the
// moment in which it replaces another file, it is locked; the next part in that directory
// removes what nobody has locked. Its errors name the file that it is to be.
type part struct {
	*os.File
	to string // what it is to be
	at string // its name now; empty: none
}

// partPattern is what our names match.
const partPattern = ".forkd-*.part"

func newPart(to string) (*part, error) {
	dir := filepath.Dir(to)
	removeStale(dir)
	if fd, err := openNameless(dir); err == nil {
		return &part{File: os.NewFile(uintptr(fd), to), to: to}, nil
	}
	return newNamedPart(to)
}

// newNamedPart is for file systems that have no files without names.
func newNamedPart(to string) (*part, error) {
	for {
		at := partName(to)
		fd, err := unix.Open(at, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("writing into the directory %s: %w", filepath.Dir(to), err)
		}
		p := &part{os.NewFile(uintptr(fd), to), to, at}
		p.lock()
		is, err := p.Stat()
		if named, err2 := os.Lstat(at); err == nil && err2 == nil && os.SameFile(is, named) {
			return p, nil
		}
		p.Close() // somebody took it for stale before it was locked
	}
}

func partName(to string) string {
	return filepath.Join(filepath.Dir(to), fmt.Sprintf(".forkd-%s.part", rand.Text()))
}

// lock keeps others from removing the part. On a file system without locks nobody can
// tell that it is stale, either.
func (p *part) lock() { _ = unix.Flock(int(p.Fd()), unix.LOCK_EX) }

// removeStale removes what processes that were killed have left in a directory.
func removeStale(dir string) {
	entries, _ := os.ReadDir(dir) // who cannot read it cannot help it
	for _, e := range entries {
		if ours, _ := path.Match(partPattern, e.Name()); !ours || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(dir, e.Name())
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			os.Remove(name)
		}
		unix.Close(fd)
	}
}

// commit gives the part its permissions and its name, and closes it. If it cannot, nothing of
// it is left.
func (p *part) commit(mode fs.FileMode) error {
	err := p.Chmod(mode)
	if err == nil {
		err = p.name()
	}
	if err != nil {
		p.discard()
		return err
	}
	return p.Close()
}

func (p *part) name() error {
	if p.at == "" {
		err := p.link(p.to)
		if !errors.Is(err, fs.ErrExist) {
			return p.failed(err)
		}
		p.lock()
		at := partName(p.to)
		if err := p.link(at); err != nil {
			return p.failed(err)
		}
		p.at = at
	}
	return p.failed(unix.Rename(p.at, p.to))
}

// link gives a name to a part that has none.
func (p *part) link(to string) error {
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", p.Fd()), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
}

func (p *part) failed(err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "create", Path: p.to, Err: err}
}

// discard closes the part and leaves nothing of it.
func (p *part) discard() {
	if p.at != "" {
		os.Remove(p.at)
	}
	p.Close()
}
