package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
)

// Cgroup is a cgroup v2 directory. The zero of its directory handle stands for a machine without cgroups, on which every
// method does nothing; callers then fall back to process groups.
type Cgroup struct {
	path string
	dir  *os.File
	// The freezer stays open because thawing happens in every restored child and must not pay for a path walk.
	file   *os.File
	freeze *quiet.File
	frozen bool // since Stop; thawing what is not frozen would cost every child its share of a refresh
}

// NewCgroup makes the cgroup name below parent, or takes it over when it exists. A nil parent yields a Cgroup that does
// nothing.
func NewCgroup(parent *Cgroup, name string) (*Cgroup, error) {
	if parent == nil || parent.dir == nil {
		return &Cgroup{}, nil
	}
	return OpenCgroup(filepath.Join(parent.path, name))
}

// OpenCgroup makes or takes over the cgroup at path, a directory in a mounted cgroup v2 hierarchy.
func OpenCgroup(path string) (*Cgroup, error) {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making cgroup: %w", err)
	}
	dir, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening cgroup: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(path, "cgroup.freeze"), os.O_WRONLY, 0)
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("opening freezer, is this cgroup v2: %w", err)
	}
	return &Cgroup{path: path, dir: dir, file: file, freeze: quiet.FileOf(file)}, nil
}

// Real reports whether there is a cgroup behind c.
func (c *Cgroup) Real() bool { return c != nil && c.dir != nil }

// Kill kills every process in the cgroup and below, at once and whatever they fork meanwhile.
func (c *Cgroup) Kill() error {
	if !c.Real() {
		return nil
	}
	return os.WriteFile(filepath.Join(c.path, "cgroup.kill"), []byte("1"), 0)
}

// PIDs lists the processes in the cgroup and below.
func (c *Cgroup) PIDs() ([]int, error) { return c.members("cgroup.procs") }

// Threads lists their threads.
func (c *Cgroup) Threads() ([]int, error) { return c.members("cgroup.threads") }

func (c *Cgroup) members(list string) ([]int, error) {
	if !c.Real() {
		return nil, nil
	}
	var pids []int
	err := filepath.WalkDir(c.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return ignoreGone(err)
		}
		b, err := os.ReadFile(filepath.Join(path, list))
		if err != nil {
			return ignoreGone(err)
		}
		for field := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return fmt.Errorf("reading %s: %w", path, err)
			}
			pids = append(pids, pid)
		}
		return nil
	})
	slices.Sort(pids)
	return pids, err
}

// ignoreGone drops the errors of a cgroup that went away while it was read.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Stop keeps every process in the cgroup and below from executing any further instruction of its own, at once. What it
// has asked of the kernel may still be under way, as that may take any time.
func (c *Cgroup) Stop() error {
	if !c.Real() {
		return nil
	}
	c.frozen = true
	if err := c.freeze.WriteAt([]byte("1"), 0); err != nil {
		return fmt.Errorf("freezing %s: %w", c.path, err)
	}
	return nil
}

// Freeze stops every process in the cgroup and below, and returns when all of them have stopped. It may be called again, but
// neither it nor Stop nor Thaw by two at a time.
func (c *Cgroup) Freeze(patience time.Duration) error {
	if !c.Real() {
		return nil
	}
	if err := c.Stop(); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(c.path, "cgroup.events"))
		if err != nil {
			return fmt.Errorf("freezing %s: %w", c.path, err)
		}
		if strings.Contains(string(b), "frozen 1") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("freezing %s: some process did not stop within %v", c.path, patience)
		}
	}
}

// Thaw lets the processes go on.
func (c *Cgroup) Thaw() error {
	if !c.Real() || !c.frozen {
		return nil
	}
	if err := c.freeze.WriteAt([]byte("0"), 0); err != nil {
		return fmt.Errorf("thawing %s: %w", c.path, err)
	}
	c.frozen = false
	return nil
}

// Populated reports whether a process is in the cgroup or below.
func (c *Cgroup) Populated() bool {
	if !c.Real() {
		return false
	}
	b, err := os.ReadFile(filepath.Join(c.path, "cgroup.events"))
	return err == nil && strings.Contains(string(b), "populated 1")
}

// Close removes the cgroup if it is empty, and reports whether it is gone. A cgroup that still has processes stays open
// and can be closed again later.
func (c *Cgroup) Close() bool {
	if !c.Real() {
		return true
	}
	// Processes may have made cgroups of their own in here; leaves first.
	var dirs []string
	_ = filepath.WalkDir(c.path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
			return false
		}
	}
	c.dir.Close()
	c.file.Close()
	c.dir, c.file, c.freeze = nil, nil, nil
	return true
}

// Enter moves a process into the cgroup.
func (c *Cgroup) Enter(pid int) error {
	if !c.Real() {
		return nil
	}
	if err := os.WriteFile(filepath.Join(c.path, "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
		return fmt.Errorf("moving process %d to %s: %w", pid, c.path, err)
	}
	return nil
}
