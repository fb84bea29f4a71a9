// Package host tells what this host has left to give: memory, disk and
// descriptors.
//
// Memory is what can be used without anybody being killed or swapped out: the least
// of what the kernel estimates for the whole machine and what the control groups
// of this process leave, in which a container or a service lives. Both versions of
// control groups are understood. Where one cannot be read it is left out.
package host

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory is what memory there is, in bytes.
type Memory struct {
	Total     int64 // of the machine, or less, if a control group allows no more
	Available int64 // now
}

// Files are the descriptors of this process.
type Files struct {
	Limit, Open int
}

// Host is where a process runs.
type Host struct {
	root fs.FS // what is below "/"
}

// New returns the host of this process.
func New() *Host { return &Host{os.DirFS("/")} }

// ErrUnknown means that this host does not tell.
var ErrUnknown = errors.New("this host does not tell")

// Memory reads how much memory there is. ErrUnknown if the kernel has no
// /proc/meminfo, as all but Linux.
func (h *Host) Memory() (Memory, error) {
	text, err := fs.ReadFile(h.root, "proc/meminfo")
	if err != nil {
		return Memory{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	info := fields(string(text), ":")
	m := Memory{Total: info["MemTotal"] << 10, Available: info["MemAvailable"] << 10}
	if m.Total == 0 || m.Available == 0 {
		return Memory{}, fmt.Errorf("%w: no MemTotal and MemAvailable in /proc/meminfo", ErrUnknown)
	}
	for _, g := range h.groups() {
		m.Total, m.Available = min(m.Total, g.Total), min(m.Available, g.Available)
	}
	return m, nil
}

// fields reads lines of a name, a separator and a number; what is none is left
// out.
func fields(text, separator string) map[string]int64 {
	all := make(map[string]int64)
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, separator)
		if words := strings.Fields(rest); len(words) > 0 {
			if n, err := strconv.ParseInt(words[0], 10, 64); err == nil && n >= 0 && n < math.MaxInt64>>10 {
				all[name] = n
			}
		}
	}
	return all
}

// Files counts the descriptors of this process.
func (h *Host) Files() (Files, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return Files{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	open, err := h.open()
	if err != nil {
		return Files{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return Files{Limit: int(min(limit.Cur, math.MaxInt32)), Open: open}, nil
}

// open counts the open descriptors of this process. Linux tells the number as the size of their directory since
// 6.2; to list them is far slower, as the kernel makes an inode for each.
func (h *Host) open() (int, error) {
	const dir = "proc/self/fd"
	if st, err := fs.Stat(h.root, dir); err == nil && st.Size() > 0 {
		return int(st.Size()), nil
	}
	list, err := fs.ReadDir(h.root, dir)
	return len(list), err
}

// Disk returns how many bytes this process may still write to the file system of
// a path.
func (h *Host) Disk(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("asking for the free space of %s: %w", path, err)
	}
	if size := uint64(st.Bsize); size > 0 && uint64(st.Bavail) < math.MaxInt64/size {
		return int64(uint64(st.Bavail) * size), nil
	}
	return math.MaxInt64, nil
}
