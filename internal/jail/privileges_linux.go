package jail

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// errCgo is why something that the kernel keeps by thread was not done.
var errCgo = errors.New("this program was built with cgo, whose threads Go does not know: build it with CGO_ENABLED=0")

// everyThread makes a system call on each of the process's threads, for what the kernel
// keeps by thread.
func everyThread(call, a, b, c uintptr) error {
	_, _, e := syscall.AllThreadsSyscall(call, a, b, c)
	if e == unix.ENOTSUP {
		return errCgo
	}
	if e != 0 {
		return e
	}
	return nil
}

// locked are the process's security bits: being root means nothing, neither on execution
// of a program nor on a change of user; nothing outlives execution; and all of this stays
// (capabilities(7)).
const locked = 1<<0 | 1<<1 | // SECBIT_NOROOT and its lock
	1<<2 | 1<<3 | // SECBIT_NO_SETUID_FIXUP and its lock
	1<<5 | // the lock of SECBIT_KEEP_CAPS
	1<<6 | 1<<7 // SECBIT_NO_CAP_AMBIENT_RAISE and its lock

func lockPrivileges() error {
	if err := everyThread(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, locked, 0); err != nil {
		return fmt.Errorf("locking capabilities: %w", err)
	}
	return nil
}

// dropCapabilities takes all powers from the process, and the ways to get some by executing
// a program.
func (*entry) dropCapabilities() (string, error) {
	have, err := capabilities()
	if err != nil || have == (capSet{}) {
		// Nor does the kernel give any to a program that it executes: see NoNewPrivileges.
		return "had none", err
	}
	if have[0].Permitted|have[1].Permitted != 0 {
		if err := lockPrivileges(); err != nil {
			return "", err
		}
	}
	if err := setCapabilities(capSet{}); err != nil {
		return "", fmt.Errorf("clearing capabilities: %w", err)
	}
	return "locked", nil
}

// refusePrivileges has the kernel give the process no privileges by executing programs. In
// a program built with cgo it is the filter of system calls that takes it to the other
// threads.
func (*entry) refusePrivileges() (string, error) {
	_, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if e == unix.ENOTSUP {
		return "", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if e != 0 {
		return "", e
	}
	return "", nil
}

// hide keeps processes of the same user from tracing this one, and the kernel from writing
// its memory to a file.
func (*entry) hide() (string, error) {
	return "", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
