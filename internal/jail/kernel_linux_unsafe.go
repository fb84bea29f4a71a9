//go:build linux

package jail

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// capSet is what a thread has, and could hand on: two words of each.
type capSet [2]unix.CapUserData

// capabilities returns those of the calling thread.
func capabilities() (have capSet, err error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // 0 is the calling thread
	if err := unix.Capget(&head, &have[0]); err != nil {
		return have, fmt.Errorf("asking for capabilities: %w", err)
	}
	return have, nil
}

// setCapabilities has all threads have those.
func setCapabilities(set capSet) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	err := everyThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&set)), 0)
	runtime.KeepAlive(&head)
	runtime.KeepAlive(&set)
	return err
}

// landlockQuery asks for a number about the kernel's landlock.
func landlockQuery(what uintptr) (int, error) {
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, what)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// landlockCreate makes a ruleset and returns its descriptor.
func landlockCreate(a *unix.LandlockRulesetAttr) (fd int, err error) {
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a), 0)
	if e != 0 {
		return -1, e
	}
	return int(n), nil
}

// installFilter has the kernel run a program ahead of each system call of any thread. It
// sets no_new_privs for threads that have not got it.
func installFilter(program []bpf.RawInstruction) error {
	filter := make([]unix.SockFilter, len(program))
	for i, p := range program {
		filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter)}
	n, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if e != 0 {
		return e
	}
	if n != 0 {
		return fmt.Errorf("thread %d has a filter of its own", n)
	}
	return nil
}
