package files

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// add has the kernel watch an open directory.
func (w *Watch) add(fd int, mask uint32) (wd int32, err error) {
	e := w.raw.Control(func(inotify uintptr) {
		var n int
		n, err = unix.InotifyAddWatch(int(inotify), procPath(fd), mask)
		wd = int32(n)
	})
	if e != nil {
		return -1, os.ErrClosed
	}
	return wd, err
}

// enter watches the entry name of a directory, if that is a directory. One that is known gets its new place, whatever the
// kernel still has to say about that. Of one that is not, the entries are told of if tell is set.
func (w *Watch) enter(parent *node, name string, tell bool) error {
	if dir, _ := w.path(parent); len(dir) > unix.PathMax {
		return nil // no path leads there
	}
	fd, err := w.open(parent, name)
	if err != nil {
		return err
	}
	if fd < 0 {
		return nil
	}
	wd, err := w.add(fd, watchMask)
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		return watchError(name, err)
	}
	if n := w.nodes[wd]; n != nil {
		unix.Close(fd)
		if n.parent == parent && n.name == name {
			return nil
		}
		w.link(n, parent, name)
		return w.retell(n)
	}
	n := &node{wd: wd, fd: fd}
	w.nodes[wd] = n
	w.link(n, parent, name)
	return w.scan(n, tell)
}

// open opens the directory name for enter; -1 if it is not there, or not one that can be watched.
func (w *Watch) open(parent *node, name string) (int, error) {
	dir := parent.fd
	if dir < 0 {
		var err error
		if dir, err = w.root.openat(string(w.req.Path), unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return -1, nil // the event that says so is on its way
		}
		defer unix.Close(dir)
	}
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
	}
	fd, err := unix.Openat2(dir, name, &how)
	if err == unix.EXDEV {
		how.Resolve &^= unix.RESOLVE_NO_XDEV
		fd, err = unix.Openat2(dir, name, &how)
		if err == nil && isPseudo(fd) {
			unix.Close(fd)
			return -1, nil
		}
	}
	switch {
	case err == nil:
		return fd, nil
	case err == unix.EMFILE, err == unix.ENFILE, err == unix.ENOMEM:
		return -1, failure("watching", name, err)
	}
	return -1, nil // it is gone, or something else by now
}

// isPseudo reports whether a directory shows states of the kernel, which tells of no changes there.
func isPseudo(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC:
		return true
	}
	return false
}

// scan watches the directories in n. With tell, all that is in it is told of.
func (w *Watch) scan(n *node, tell bool) error {
	dir, err := w.openDir(n)
	if err != nil {
		return nil // it is gone, of which there will be an event
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(listBatch)
		for _, e := range entries {
			if err := w.found(n, e, tell); err != nil {
				return err
			}
		}
		if err == io.EOF || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return failure("watching", string(w.req.Path), err)
		}
	}
}

func (w *Watch) openDir(n *node) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK | unix.O_CLOEXEC
	var fd int
	var err error
	if n.fd >= 0 {
		fd, err = unix.Openat(n.fd, ".", flags, 0)
	} else {
		fd, err = w.root.openat(string(w.req.Path), flags)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), procPath(fd)), nil // by this name, entries can be looked at
}

// found handles an entry of a directory that is scanned.
func (w *Watch) found(n *node, e fs.DirEntry, tell bool) error {
	if tell {
		if n.seen == nil {
			n.seen = make(map[string]bool)
			w.scanned = append(w.scanned, n)
		}
		if _, told := n.seen[e.Name()]; !told {
			info, err := e.Info()
			n.seen[e.Name()] = err == nil && info.Mode().IsRegular() && info.Size() > 0
			if err := w.tellSeen(n, e.Name()); err != nil {
				return err
			}
		}
	}
	if !e.IsDir() {
		return nil
	}
	return w.enter(n, e.Name(), tell)
}

// tellSeen tells of an entry that was found and not heard of.
func (w *Watch) tellSeen(n *node, name string) error {
	err := w.change(wire.ChangeCreate, n, name)
	if err == nil && n.seen[name] {
		err = w.change(wire.ChangeWrite, n, name)
	}
	return err
}

// retell tells once more, under their new names, of the entries of a directory that were told of ahead of the kernel: if that
// was ahead of a rename, too, they may never have had the name that they were told under.
func (w *Watch) retell(n *node) error {
	for name := range n.seen {
		if err := w.tellSeen(n, name); err != nil {
			return err
		}
	}
	for _, child := range n.children {
		if err := w.retell(child); err != nil {
			return err
		}
	}
	return nil
}

// link puts a directory into its place.
func (w *Watch) link(n, parent *node, name string) {
	for above := parent; above != nil; above = above.parent {
		if above == n {
			return // things move faster than they are looked at; the events sort it out
		}
	}
	w.unlink(n)
	if other := parent.children[name]; other != nil {
		w.unlink(other)
		w.drop(other)
	}
	if parent.children == nil {
		parent.children = make(map[string]*node)
	}
	parent.children[name] = n
	n.parent, n.name = parent, name
}

// unlink takes a directory out of its place.
func (w *Watch) unlink(n *node) {
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
	n.parent = nil
}

// drop stops watching a directory, which has been unlinked, and all below it.
func (w *Watch) drop(n *node) {
	for _, child := range n.children {
		w.unlink(child)
		w.drop(child)
	}
	if w.nodes[n.wd] != n {
		return
	}
	delete(w.nodes, n.wd)
	_ = w.raw.Control(func(inotify uintptr) {
		_, _ = unix.InotifyRmWatch(int(inotify), uint32(n.wd)) // the kernel may have done it
	})
	unix.Close(n.fd)
}
