package files

import (
	"encoding/binary"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Watch tells of changes in a directory, and if asked to, in all below it. Its methods but Close belong to one goroutine.
//
// The kernel watches single directories. So for each new one there is a moment between its being made and its being watched.
// What is in it by then is told of as if it had been made just now; if the kernel tells of it as well, that is left out.
//
// A directory is known by its watch descriptor, which stays the same when it is renamed, and is held open (but for the one at
// the top, so that the kernel tells of its end). So it does not matter what has become of a name by the time that its event is
// looked at.
type Watch struct {
	root  *Root
	req   wire.WatchRequest
	tell  func([]wire.Change) error
	file  *os.File // inotify
	raw   syscall.RawConn
	nodes map[int32]*node
	top   *node

	pending []wire.Change
	moving  map[uint32]move // by cookie: what has left a name and may turn up under another; until the queue is empty
	scanned []*node         // whose seen is not empty
}

// node is a directory that is watched.
type node struct {
	wd       int32
	fd       int   // O_PATH; -1: the top
	parent   *node // nil: the top, or it is somewhere else
	name     string
	children map[string]*node
	seen     map[string]bool // entries that have been told of, perhaps ahead of the kernel; true: as written to as well
}

// move is the first half of a rename.
type move struct {
	node *node  // nil: no directory that is watched
	name string // it had
}

const (
	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	topMask = watchMask | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

	watchBuffer = 16 << 10 // bytes of events that are read at once
	watchBatch  = 256      // changes that are told of at once
)

// Watch begins to watch a directory. Run must follow.
func (r *Root) Watch(req wire.WatchRequest) (*Watch, error) {
	if err := checkPath(string(req.Path)); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, watchError(string(req.Path), err)
	}
	w := &Watch{root: r, req: req, file: os.NewFile(uintptr(fd), "inotify"), nodes: make(map[int32]*node), moving: make(map[uint32]move)}
	w.raw, err = w.file.SyscallConn()
	if err == nil {
		err = w.begin()
	}
	if err != nil {
		w.Close()
		w.release()
		return nil, err
	}
	return w, nil
}

// begin watches the directory and what is below it, of which nothing is told.
func (w *Watch) begin() error {
	name := string(w.req.Path)
	fd, err := w.root.openat(name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return failure("watching", name, err)
	}
	w.top = &node{fd: -1}
	w.top.wd, err = w.add(fd, topMask)
	unix.Close(fd)
	if err != nil {
		return watchError(name, err)
	}
	w.nodes[w.top.wd] = w.top
	if !w.req.Recursive {
		return nil
	}
	return w.scan(w.top, false)
}

// Close ends Run. Others may call it.
func (w *Watch) Close() { w.file.Close() }

// release gives back what Close does not.
func (w *Watch) release() {
	for _, n := range w.nodes {
		if n.fd >= 0 {
			unix.Close(n.fd)
		}
	}
}

// Run tells of changes until Close, or until there is an error: that of tell, or CodeOverflow when the kernel had to drop
// events, or CodeNotFound when the directory is gone from where it was.
func (w *Watch) Run(tell func([]wire.Change) error) error {
	defer w.release()
	w.tell = tell
	buf := make([]byte, watchBuffer)
	for {
		n, err := w.read(buf)
		if err == nil {
			err = w.handleAll(buf[:n])
		}
		flushed := w.flush()
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		case flushed != nil:
			return flushed
		}
	}
}

// read reads events. When there are none, what was remembered for the sake of them is forgotten, and it waits.
func (w *Watch) read(buf []byte) (n int, err error) {
	var failed error
	err = w.raw.Read(func(fd uintptr) bool {
		n, failed = unix.Read(int(fd), buf)
		if failed == unix.EAGAIN {
			w.settle()
			return false
		}
		return failed != unix.EINTR
	})
	if err != nil {
		return 0, os.ErrClosed
	}
	if failed != nil {
		return 0, wire.Errorf(wire.CodeInternal, "", "reading events: %v", failed)
	}
	return n, nil
}

// settle is for when the kernel has nothing more to say: what has moved has moved out, and what was seen early was told.
func (w *Watch) settle() {
	for _, m := range w.moving {
		if m.node != nil && m.node.parent == nil {
			w.drop(m.node)
		}
	}
	clear(w.moving)
	for _, n := range w.scanned {
		n.seen = nil
	}
	w.scanned = w.scanned[:0]
}

// event is one of the kernel's.
type event struct {
	wd           int32
	mask, cookie uint32
	name         string
}

func (e event) is(mask uint32) bool { return e.mask&mask != 0 }

// nextEvent takes the first event off buf; ok is false if there is none, or only part of one.
func nextEvent(buf []byte) (e event, rest []byte, ok bool) {
	if len(buf) < unix.SizeofInotifyEvent {
		return event{}, nil, false
	}
	order := binary.NativeEndian
	size := uint64(order.Uint32(buf[12:]))
	if size > uint64(len(buf)-unix.SizeofInotifyEvent) {
		return event{}, nil, false
	}
	name, _, _ := strings.Cut(string(buf[unix.SizeofInotifyEvent:][:size]), "\x00")
	e = event{int32(order.Uint32(buf)), order.Uint32(buf[4:]), order.Uint32(buf[8:]), name}
	return e, buf[unix.SizeofInotifyEvent+size:], true
}

func (w *Watch) handleAll(buf []byte) error {
	for {
		e, rest, ok := nextEvent(buf)
		if !ok {
			return nil
		}
		if err := w.handle(e); err != nil {
			return err
		}
		buf = rest
	}
}

func (w *Watch) handle(e event) error {
	if e.is(unix.IN_Q_OVERFLOW) {
		return wire.Errorf(wire.CodeOverflow, "", "more has changed in %q than was taken note of in time: changes were missed", string(w.req.Path))
	}
	n := w.nodes[e.wd]
	switch {
	case n == nil:
		return nil // of a directory that was dropped
	case n == w.top && e.is(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED):
		return w.lose(e)
	case e.is(unix.IN_IGNORED): // its file system is gone
		w.unlink(n)
		w.drop(n)
		return nil
	case e.name == "":
		return nil // the parent's event has the name
	}
	switch {
	case e.is(unix.IN_CREATE | unix.IN_MOVED_TO):
		return w.appeared(n, e)
	case e.is(unix.IN_DELETE | unix.IN_MOVED_FROM):
		return w.vanished(n, e)
	case e.is(unix.IN_MODIFY):
		return w.change(wire.ChangeWrite, n, e.name)
	case e.is(unix.IN_ATTRIB):
		return w.change(wire.ChangeChmod, n, e.name)
	}
	return nil
}

// lose ends a watch whose directory is not there any more.
func (w *Watch) lose(e event) error {
	kind, how := wire.ChangeRemove, "is gone"
	if e.is(unix.IN_MOVE_SELF) {
		kind, how = wire.ChangeRename, "has moved"
	}
	w.pending = append(w.pending, wire.Change{Kind: kind})
	return wire.Errorf(wire.CodeNotFound, "path", "the watched directory %q %s", string(w.req.Path), how)
}

// appeared handles a new name in a directory.
func (w *Watch) appeared(n *node, e event) error {
	if e.is(unix.IN_ISDIR) {
		return w.dirAppeared(n, e)
	}
	from, moved := w.moving[e.cookie]
	if moved = moved && e.is(unix.IN_MOVED_TO); moved {
		delete(w.moving, e.cookie)
	}
	existed, replaced := parseTemp(from.name)
	replaced = replaced && moved // the agent wrote it: to user code, this is one step
	if !replaced || !existed {
		if err := w.created(n, e.name); err != nil {
			return err
		}
	}
	if replaced {
		return w.change(wire.ChangeWrite, n, e.name)
	}
	return nil
}

// created tells of a new entry, unless that was done already.
func (w *Watch) created(n *node, name string) error {
	if _, told := n.seen[name]; told {
		delete(n.seen, name)
		return nil
	}
	return w.change(wire.ChangeCreate, n, name)
}

func (w *Watch) dirAppeared(n *node, e event) error {
	if err := w.created(n, e.name); err != nil || !w.req.Recursive {
		return err
	}
	if err := w.enter(n, e.name, true); err != nil {
		return err
	}
	if m, ok := w.moving[e.cookie]; ok && (m.node == nil || m.node.parent != nil) {
		delete(w.moving, e.cookie)
	}
	return nil
}

// vanished handles a name that is not in a directory any more.
func (w *Watch) vanished(n *node, e event) error {
	delete(n.seen, e.name)
	kind := wire.ChangeRemove
	child := n.children[e.name]
	if e.is(unix.IN_MOVED_FROM) {
		kind = wire.ChangeRename
		w.moving[e.cookie] = move{child, e.name}
	}
	if child != nil {
		w.unlink(child)
		if kind == wire.ChangeRemove {
			w.drop(child)
		}
	}
	return w.change(kind, n, e.name)
}

// change tells of a change, unless the directory is not below the watched one any more, or the file is one that the agent is
// writing.
func (w *Watch) change(kind wire.ChangeKind, n *node, name string) error {
	dir, ok := w.path(n)
	if _, temp := parseTemp(name); temp || !ok {
		return nil
	}
	c := wire.Change{Kind: kind, Name: wire.Name(path.Join(dir, name))}
	if w.req.Entries && kind != wire.ChangeRemove && kind != wire.ChangeRename {
		if info, err := w.describe(n, name); err == nil {
			c.Entry = &info
		}
	}
	w.pending = append(w.pending, c)
	if len(w.pending) < watchBatch {
		return nil
	}
	return w.flush()
}

// flush tells of what is pending.
func (w *Watch) flush() error {
	if len(w.pending) == 0 || w.tell == nil {
		return nil
	}
	err := w.tell(w.pending)
	w.pending = w.pending[:0]
	return err
}

func (w *Watch) describe(n *node, name string) (wire.FileInfo, error) {
	if n.fd >= 0 {
		return describe(n.fd, name, name, true)
	}
	return w.root.Stat(path.Join(string(w.req.Path), name), false, true)
}

// path returns where a directory is, relative to the top.
func (w *Watch) path(n *node) (string, bool) {
	if n == w.top {
		return "", true
	}
	if n.parent == nil {
		return "", false
	}
	dir, ok := w.path(n.parent)
	return path.Join(dir, n.name), ok
}

// watchError explains an error of inotify.
func watchError(name string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return wire.Errorf(wire.CodeExhausted, "path", "watching %q takes more directories than the kernel watches (fs.inotify.max_user_watches)", name)
	case errors.Is(err, unix.EMFILE):
		return wire.Errorf(wire.CodeExhausted, "path", "watching %q: the kernel has no more watches (fs.inotify.max_user_instances)", name)
	}
	return failure("watching", name, err)
}

// procPath names an open file.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
