package proc

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Yield keeps a thread, by its id, from interrupting whoever makes it runnable: it waits until that thread is done or its
// time is up, a few milliseconds. The kernel's worker that passes packets on has then passed on all of them, and the machine
// switches once instead of to and fro. Threads and programs that the thread starts are scheduled as usual.
//
// It is not worth failing for.
func Yield(tid int) {
	_ = unix.SchedSetAttr(tid, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
}

// YieldAll is Yield for all present threads of this process.
func YieldAll() {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			Yield(tid)
		}
	}
}
