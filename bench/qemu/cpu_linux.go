package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns how much CPU time a process has used, 0 if that is unknown.
func cpuTime(pid int) time.Duration {
	// A process's CPU clock has the complement of its id in the upper bits
	// (CPUCLOCK_SCHED, clock_getcpuclockid(3)).
	const cpuClockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClockSched), &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
