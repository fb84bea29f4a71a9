package jail

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// entry is a process on its way in.
type entry struct {
	plan    plan
	profile Profile
}

// step builds one wall. Detail tells what exactly stands. An error that is a gap tells of
// a wall that stands, with a gap.
type step struct {
	wall  Wall
	build func(*entry) (detail string, err error)
}

// steps are in the order in which walls are built from inside: later ones take away what
// earlier ones need.
var steps = []step{
	{Descriptors, (*entry).closeOthers},
	{ResourceLimits, (*entry).limitResources},
	{OOMScore, (*entry).raiseOOMScore},
	{EmptyRoot, (*entry).emptyRoot},
	{OwnUser, (*entry).becomeUser},
	{Capabilities, (*entry).dropCapabilities},
	{NoNewPrivileges, (*entry).refusePrivileges},
	{Undumpable, (*entry).hide},
	{Landlock, (*entry).landlock},
	{Seccomp, (*entry).seccomp},
}

// gap is an error of a wall that stands all the same.
type gap struct{ error }

// errNothing is returned by a step for which there is nothing to do.
var errNothing = errors.New("nothing to do")

// Enter has this process, which a Jailer has started, build the walls that are built from
// inside. It works for all threads. After it, nothing can be opened.
//
// The report tells of all walls. After an error, which wraps ErrRequired if a wall is
// missing that has to stand, the process must end; what it can still do is not known.
func Enter(profile Profile) (Report, error) {
	text, ok := os.LookupEnv(planVariable)
	if !ok {
		return nil, errors.New("jail: this process was not started by a jailer")
	}
	e := &entry{profile: profile}
	if err := json.Unmarshal([]byte(text), &e.plan); err != nil {
		return nil, fmt.Errorf("jail: reading %s: %w", planVariable, err)
	}
	if err := os.Unsetenv(planVariable); err != nil {
		return nil, fmt.Errorf("jail: %w", err)
	}
	// Some of it the kernel keeps by thread, and later steps depend on that of earlier ones.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	report := e.plan.Walls
	for _, s := range steps {
		if f, ok := e.take(s); ok {
			report.set(f)
		}
	}
	if err := report.require(e.plan.Require); err != nil {
		return report, fmt.Errorf("jail: %w", err)
	}
	return report, nil
}

// take takes a step; ok is false if there was nothing to do.
func (e *entry) take(s step) (f Finding, ok bool) {
	if slices.Contains(e.plan.Without, s.wall) {
		return Finding{Wall: s.wall, State: Missing, Detail: leftOut}, true
	}
	detail, err := s.build(e)
	switch g := (gap{}); {
	case errors.Is(err, errNothing):
		return f, false
	case errors.As(err, &g):
		return Finding{Wall: s.wall, State: Partial, Detail: g.Error()}, true
	case err != nil:
		return Finding{Wall: s.wall, State: Missing, Detail: err.Error()}, true
	}
	return Finding{Wall: s.wall, State: Stands, Detail: detail}, true
}

// stands tells whether a wall was built from outside.
func (e *entry) stands(w Wall) bool { return e.plan.Walls.Find(w).State == Stands }

// closeOthers closes descriptors that this process has got from whoever started whoever
// started it. Those that it has opened itself, as Go's runtime does, are closed on exec;
// these were not.
func (e *entry) closeOthers() (string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return "", err
	}
	closed := 0
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return "", err
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			continue // that of the directory itself
		}
		if fd < e.plan.Descriptors {
			if err := refuseDirectory(fd); err != nil {
				return "", err
			}
		} else if flags&unix.FD_CLOEXEC == 0 {
			if err := unix.Close(fd); err != nil {
				return "", err
			}
			closed++
		}
	}
	return fmt.Sprintf("%d passed, %d others closed", e.plan.Descriptors, closed), nil
}

// refuseDirectory reports a descriptor that leads to files: paths can begin at it.
func refuseDirectory(fd int) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("descriptor %d is a directory", fd)
	}
	return nil
}

// limitResources sets limits that the process cannot raise.
func (e *entry) limitResources() (string, error) {
	limits := []struct {
		resource int
		max      uint64
		apply    bool
	}{
		{unix.RLIMIT_CORE, 0, true},    // guests' memory is not for files
		{unix.RLIMIT_MEMLOCK, 0, true}, // nothing is locked into memory
		{unix.RLIMIT_MSGQUEUE, 0, true},
		{unix.RLIMIT_NOFILE, e.plan.Files, true},
		{unix.RLIMIT_FSIZE, e.plan.FileBytes, e.plan.FileBytes > 0},
		{unix.RLIMIT_NPROC, e.plan.Threads, e.plan.Threads > 0},
	}
	for _, l := range limits {
		if !l.apply {
			continue
		}
		var now unix.Rlimit
		if err := unix.Getrlimit(l.resource, &now); err != nil {
			return "", err
		}
		max := min(l.max, now.Max)
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: max, Max: max}); err != nil {
			return "", fmt.Errorf("limiting resource %d: %w", l.resource, err)
		}
	}
	return "", nil
}

// oomScore is how much of all memory the process seems to use more than it does when the
// kernel looks for one to end, in thousandths.
const oomScore = 500

func (e *entry) raiseOOMScore() (string, error) {
	return strconv.Itoa(oomScore), put("/proc/self/oom_score_adj", strconv.Itoa(oomScore))
}

// emptyRoot leaves the process a root directory in which nothing is and nothing can be
// made.
func (e *entry) emptyRoot() (detail string, err error) {
	if e.stands(MountNamespace) {
		detail, err = "a file system with nothing in it", replaceRoot()
	} else {
		detail, err = "a directory that has been removed", changeRoot()
	}
	if err != nil {
		return "", err
	}
	if err := os.Chdir("/"); err != nil {
		return "", err
	}
	if entries, err := os.ReadDir("/"); err == nil && len(entries) > 0 {
		return "", fmt.Errorf("there is /%s", entries[0].Name())
	}
	return detail, nil
}

// replaceRoot puts an empty file system in the place of all that are mounted.
func replaceRoot() error {
	const at = "/proc" // is there on every Linux on which this gets so far
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts to this process: %w", err)
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("jail", at, "tmpfs", flags, "size=4k,nr_inodes=2,mode=555"); err != nil {
		return fmt.Errorf("mounting an empty file system: %w", err)
	}
	if err := os.Chdir(at); err != nil {
		return err
	}
	switch err := unix.PivotRoot(".", "."); {
	case err == unix.EINVAL:
		// The root is the first that the kernel has mounted, which stays below.
		if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("moving the empty file system: %w", err)
		}
		return unix.Chroot(".")
	case err != nil:
		return fmt.Errorf("changing the root: %w", err)
	}
	// The old root lies over the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting the old root: %w", err)
	}
	return nil
}

// changeRoot makes the root a directory that has been removed, so that nobody can make
// anything in it.
func changeRoot() error {
	dir, err := os.MkdirTemp("", "jail-*")
	if err != nil {
		return err
	}
	if err := os.Chdir(dir); err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	if err := os.Remove(filepath.Clean(dir)); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	return nil
}

// becomeUser takes on a user of its own where there is no user namespace to be started
// with it in.
func (e *entry) becomeUser() (string, error) {
	if e.plan.User == 0 {
		return "", errNothing
	}
	// Powers stay until they are dropped, and the lock needs one of them.
	if err := lockPrivileges(); err != nil && !errors.Is(err, errCgo) {
		return "", err
	}
	id := int(e.plan.User)
	if err := unix.Setgroups(nil); err != nil {
		return "", fmt.Errorf("giving up groups: %w", err)
	}
	if err := unix.Setresgid(id, id, id); err != nil {
		return "", fmt.Errorf("becoming group %d: %w", id, err)
	}
	if err := unix.Setresuid(id, id, id); err != nil {
		return "", fmt.Errorf("becoming user %d: %w", id, err)
	}
	return "", nil
}
