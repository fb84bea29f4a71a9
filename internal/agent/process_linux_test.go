package agent_test

import (
	"testing"

	"golang.org/x/sys/unix"
)

// becomeSubreaper makes orphans of this process's descendants come to it, as they come to process 1.
func becomeSubreaper(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
}

func kill(pid int) error { return unix.Kill(pid, unix.SIGKILL) }
