package sched

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// longSlice is several times what threads have that have not asked for anything, and
// short enough that this process does not wait for long when others have had theirs: who
// runs for a hundred milliseconds at a time waits for as long where processors are scarce.
const longSlice = 10 * time.Millisecond

// GiveWay asks the host's kernel to let threads of other processes that wake up go
// before those of this process, at once and not at the kernel's next tick. It takes no
// share of the processors away from it. A process that runs guests calls it when it
// begins: its threads are busy for long, and those that talk to it from elsewhere are
// not.
//
// It does so by asking for long slices: since Linux 6.12 who asks for shorter ones, or
// for none, goes first. Older kernels go by other rules and take no notice. Processes
// that this one starts inherit it.
func GiveWay() error {
	done := make(map[int]bool)
	for {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("listing this process's threads: %w", err)
		}
		// New threads take after those that make them, so it takes until there is
		// none that is not known.
		fresh := false
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil || done[id] {
				continue
			}
			if err := giveWay(id); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("asking the kernel for long slices: %w", err)
			}
			done[id], fresh = true, true
		}
		if !fresh {
			return nil
		}
	}
}

// giveWay asks for a thread, if it is an ordinary one.
func giveWay(thread int) error {
	attr, err := unix.SchedGetAttr(thread, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL && attr.Policy != unix.SCHED_BATCH {
		return err
	}
	attr.Runtime = uint64(longSlice)
	return unix.SchedSetAttr(thread, attr, 0)
}
