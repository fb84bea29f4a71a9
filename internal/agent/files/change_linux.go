package files

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Owner is who a new file belongs to.
type Owner struct {
	UID, GID uint32
}

// creation is how missing directories are made.
type creation struct {
	mode  uint32
	owner *Owner
}

var tempCount atomic.Uint64

// Names of temporary files. They tell a Watch whether there was a file before, so that it can tell of a write as of one step.
const (
	tempPrefix = ".forkd-"
	tempNew    = ".new"
	tempOld    = ".old"
)

func tempName(existed bool) string {
	name := tempPrefix + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(tempCount.Add(1), 10)
	if existed {
		return name + tempOld
	}
	return name + tempNew
}

// parseTemp reports whether a name is that of a temporary file, and for one that existed.
func parseTemp(name string) (existed, ok bool) {
	if !strings.HasPrefix(name, tempPrefix) {
		return false, false
	}
	existed = strings.HasSuffix(name, tempOld)
	return existed, existed || strings.HasSuffix(name, tempNew)
}

// Replacement is a file under construction that takes its place when it is complete.
type Replacement struct {
	place place
	file  *os.File
	temp  string
	req   wire.WriteRequest
	owner *Owner
	mode  uint32
}

// Replace begins to replace the file that req names. Exactly one of Commit and Discard must follow. A nil owner means that
// of the file replaced, or root.
func (r *Root) Replace(req wire.WriteRequest, owner *Owner) (*Replacement, error) {
	var parents *creation
	if req.Parents {
		parents = &creation{0o755, owner}
	}
	name := string(req.Path)
	if strings.HasSuffix(name, "/") {
		return nil, wire.Errorf(wire.CodeIsDirectory, "path", "path %q names a directory", name)
	}
	if err := checkAttrs(req.Attrs); err != nil {
		return nil, err
	}
	p, err := r.parent(name, parents)
	if err != nil {
		return nil, err
	}
	rep := &Replacement{place: p, req: req, owner: owner, mode: 0o644}
	if err := rep.prepare(); err != nil {
		p.close()
		return nil, failure("writing", name, err)
	}
	return rep, nil
}

// prepare looks at the file that will be replaced and opens the temporary one.
func (rep *Replacement) prepare() error {
	var st unix.Stat_t
	err := unix.Fstatat(rep.place.dir, rep.place.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
	case err != nil:
		return err
	case rep.req.NoReplace:
		return unix.EEXIST
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	case st.Mode&unix.S_IFMT == unix.S_IFREG:
		rep.mode = st.Mode & 0o7777
		if rep.owner == nil {
			rep.owner = &Owner{st.Uid, st.Gid}
		}
	case st.Mode&unix.S_IFMT != unix.S_IFLNK:
		// Renaming over a device node would destroy it.
		return wire.Errorf(wire.CodeNotRegular, "path", "%q is not a regular file", string(rep.req.Path))
	}
	if rep.req.Mode != nil {
		rep.mode = *rep.req.Mode & 0o7777
	}
	existed := err == nil
	for {
		rep.temp = tempName(existed)
		flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
		fd, err := unix.Openat(rep.place.dir, rep.temp, flags, 0o600)
		if err == unix.EEXIST || err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		rep.file = os.NewFile(uintptr(fd), rep.temp)
		return nil
	}
}

// Write adds data.
func (rep *Replacement) Write(b []byte) (int, error) {
	n, err := rep.file.Write(b)
	if err != nil {
		err = failure("writing", string(rep.req.Path), err)
	}
	return n, err
}

// Commit puts the file in its place and describes it. On failure the old file stays and nothing else is left behind.
func (rep *Replacement) Commit() (wire.FileInfo, error) {
	defer rep.place.close()
	defer rep.file.Close()
	info, err := rep.commit()
	if err != nil {
		_ = unix.Unlinkat(rep.place.dir, rep.temp, 0)
		return info, failure("writing", string(rep.req.Path), err)
	}
	return info, nil
}

func (rep *Replacement) commit() (wire.FileInfo, error) {
	fd := int(rep.file.Fd())
	// The owner comes first, because changing it clears the setuid bit.
	if err := chown(fd, rep.owner); err != nil {
		return wire.FileInfo{}, err
	}
	if err := unix.Fchmod(fd, rep.mode); err != nil {
		return wire.FileInfo{}, err
	}
	if err := writeAttrs(fd, rep.req.Attrs); err != nil {
		return wire.FileInfo{}, err
	}
	info, err := describe(fd, "", rep.place.base, len(rep.req.Attrs) > 0)
	if err != nil {
		return info, err
	}
	return info, rename(rep.place, rep.temp, rep.place, rep.req.NoReplace)
}

// Discard drops the file under construction.
func (rep *Replacement) Discard() {
	_ = unix.Unlinkat(rep.place.dir, rep.temp, 0)
	rep.file.Close()
	rep.place.close()
}

// chown gives a file to its owner, if that is not already so; an ordinary user cannot even chown to himself in a foreign
// group.
func chown(fd int, owner *Owner) error {
	if owner == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid == owner.UID && st.Gid == owner.GID {
		return nil
	}
	return unix.Fchown(fd, int(owner.UID), int(owner.GID))
}

func rename(from place, base string, to place, noReplace bool) error {
	var flags uint
	if noReplace {
		flags = unix.RENAME_NOREPLACE
	}
	return unix.Renameat2(from.dir, base, to.dir, to.base, flags)
}

// Mkdir makes a directory, with parents also the missing ones above it, and then one that exists is fine.
func (r *Root) Mkdir(req wire.MkdirRequest, owner *Owner) (wire.MkdirReply, error) {
	mode := uint32(0o755)
	if req.Mode != nil {
		mode = *req.Mode & 0o7777
	}
	name := string(req.Path)
	if req.Parents {
		return r.mkdirAll(name, creation{mode, owner})
	}
	p, err := r.parent(name, nil)
	if err != nil {
		return wire.MkdirReply{}, err
	}
	defer p.close()
	reply, err := p.mkdir(creation{mode, owner})
	if err != nil {
		return reply, failure("making directory", name, err)
	}
	return reply, nil
}

// mkdir makes the directory and sets mode and owner through a descriptor, so that a swapped link is not followed.
func (p place) mkdir(c creation) (wire.MkdirReply, error) {
	if err := unix.Mkdirat(p.dir, p.base, 0o700); err != nil {
		return wire.MkdirReply{}, err
	}
	fd, err := unix.Openat(p.dir, p.base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return wire.MkdirReply{}, err
	}
	defer unix.Close(fd)
	if err := chown(fd, c.owner); err != nil {
		return wire.MkdirReply{}, err
	}
	if err := unix.Fchmod(fd, c.mode); err != nil {
		return wire.MkdirReply{}, err
	}
	info, err := describe(fd, "", p.base, false)
	return wire.MkdirReply{Created: true, Info: info}, err
}

// mkdirAll makes a directory and the missing ones above it. The reply is for the last.
func (r *Root) mkdirAll(name string, c creation) (reply wire.MkdirReply, err error) {
	if err := checkPath(name); err != nil {
		return reply, err
	}
	for i := 1; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' || i > 1 && name[i-1] == '/' {
			continue
		}
		if reply, err = r.mkdirOne(name[:i], c); err != nil {
			return reply, failure("making directory", name[:i], err)
		}
	}
	return reply, nil
}

func (r *Root) mkdirOne(name string, c creation) (wire.MkdirReply, error) {
	reply, err := r.existingDir(name)
	if !errors.Is(err, unix.ENOENT) {
		return reply, err
	}
	p, err := r.parent(name, nil)
	if err != nil {
		return reply, err
	}
	defer p.close()
	if reply, err := p.mkdir(c); err != unix.EEXIST {
		return reply, err
	}
	// Either somebody was faster, or it is a link that leads nowhere.
	return r.existingDir(name)
}

// existingDir is the reply for a directory that is there already.
func (r *Root) existingDir(name string) (wire.MkdirReply, error) {
	fd, err := r.openat(name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return wire.MkdirReply{}, err
	}
	defer unix.Close(fd)
	info, err := describe(fd, "", path.Base(name), false)
	return wire.MkdirReply{Info: info}, err
}

// Rename moves a file.
func (r *Root) Rename(req wire.RenameRequest) error {
	from, err := r.parent(string(req.From), nil)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := r.parent(string(req.To), nil)
	if err != nil {
		return err
	}
	defer to.close()
	if err := rename(from, from.base, to, req.NoReplace); err != nil {
		return failure("renaming "+strconv.Quote(string(req.From))+" to", string(req.To), err)
	}
	return nil
}

// Remove removes a file or a directory.
func (r *Root) Remove(req wire.RemoveRequest) error {
	name := string(req.Path)
	p, err := r.parent(name, nil)
	if err != nil {
		return err
	}
	defer p.close()
	err = unix.Unlinkat(p.dir, p.base, 0)
	if err == unix.EISDIR {
		err = unix.Unlinkat(p.dir, p.base, unix.AT_REMOVEDIR)
	}
	if req.Recursive && (err == unix.ENOTEMPTY || err == unix.EEXIST) {
		// The descriptor's path pins the directory that was resolved; RemoveAll follows no links below it.
		err = os.RemoveAll("/proc/self/fd/" + strconv.Itoa(p.dir) + "/" + p.base)
	}
	if err != nil {
		return failure("removing", name, err)
	}
	return nil
}
