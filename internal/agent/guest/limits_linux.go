package guest

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Quotas are the files of the kernel through which a guest is limited. An empty name stands for a limit that cannot be set.
type Quotas struct {
	Processes string // pids.max of a cgroup that holds all user code and not the agent
	// KeptBack has how many blocks the scratch disk's file system keeps back from everybody, root too. It is in memory only,
	// costs nothing to change, and df counts what is kept back as not available.
	KeptBack string
}

// limiter holds user code to the limits of a sandbox. They are part of the machine, so a restored one has those of its
// source until its refresh, which sets its own or none. It is used under Server.state.
type limiter struct {
	files   Quotas
	root    string // on the scratch disk's file system
	inForce wire.Limits
	usual   uint64 // blocks kept back without a limit; known once there was one
}

// apply puts limits into force. It does nothing, and makes no system call, where nothing changes: in every child without a
// limit, and in a machine that comes back.
func (l *limiter) apply(limits wire.Limits) error {
	if limits == l.inForce {
		return nil
	}
	if limits.Processes != l.inForce.Processes {
		if err := l.limitProcesses(limits.Processes); err != nil {
			return err
		}
	}
	if limits.DiskBytes != l.inForce.DiskBytes || limits.DiskBytes != 0 && limits.Owner != l.inForce.Owner {
		if err := l.limitDisk(limits.DiskBytes); err != nil {
			return err
		}
	}
	l.inForce = limits
	return nil
}

func (l *limiter) limitProcesses(n uint32) error {
	most := "max"
	if n > 0 {
		most = strconv.FormatUint(uint64(n), 10)
	}
	return set(l.files.Processes, most, "the number of processes")
}

// limitDisk keeps back all that is free now but for so many bytes.
func (l *limiter) limitDisk(bytes uint64) error {
	if l.usual == 0 && l.files.KeptBack != "" {
		text, err := os.ReadFile(l.files.KeptBack)
		if err != nil {
			return err
		}
		if l.usual, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63); err != nil {
			return fmt.Errorf("reading %s: %w", l.files.KeptBack, err)
		}
	}
	back := l.usual
	if bytes > 0 {
		var fs unix.Statfs_t
		if err := unix.Statfs(l.root, &fs); err != nil {
			return os.NewSyscallError("statfs", err)
		}
		if left := bytes / uint64(fs.Bsize); fs.Bfree > left {
			back = max(back, fs.Bfree-left)
		}
	}
	return set(l.files.KeptBack, strconv.FormatUint(back, 10), "the disk")
}

func set(file, value, what string) error {
	if file == "" {
		return fmt.Errorf("this guest has no means to limit %s", what)
	}
	return os.WriteFile(file, []byte(value), 0)
}
