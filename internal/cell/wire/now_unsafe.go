package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// readNow and writeNow are read(2) and write(2) of a socket that does not wait. The Go runtime is not told of them, since in a
// process that was idle it would wake its monitor thread, which then looks every 20 µs whether the call takes long: for
// a frame that costs more than the call.

func readNow(fd uintptr, b []byte) (int, error) { return now(unix.SYS_READ, fd, b) }

func writeNow(fd uintptr, b []byte) (int, error) { return now(unix.SYS_WRITE, fd, b) }

func now(call, fd uintptr, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
