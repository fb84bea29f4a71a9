// Package celltest does to the processes of cells what hosts do to processes.
package celltest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Stop stops a process, and returns when all its threads stand still: a signal takes a moment,
// in which one of them may still answer. Continue has it go on.
func Stop(t testing.TB, pid int) {
	t.Helper()
	signal(t, pid, syscall.SIGSTOP)
	for !still(t, pid) {
		time.Sleep(time.Millisecond)
	}
}

// Continue has a process go on that was stopped.
func Continue(t testing.TB, pid int) {
	t.Helper()
	signal(t, pid, syscall.SIGCONT)
}

func signal(t testing.TB, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("sending %v to process %d: %v", s, pid, err)
	}
}

// still reports whether all threads of a process are stopped.
func still(t testing.TB, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d is gone", pid)
	}
	return !slices.ContainsFunc(threads, func(name string) bool {
		stat, err := os.ReadFile(name)
		return err == nil && !bytes.Contains(stat, []byte(") T "))
	})
}
