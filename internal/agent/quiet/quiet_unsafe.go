//go:build linux

package quiet

import (
	"math"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func read(fd uintptr, p []byte) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), errno
}

func receive(fd uintptr, p []byte, flags int) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(flags), 0, 0)
	return int(n), errno
}

func write(fd uintptr, p []byte) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), errno
}

func pwrite(fd uintptr, p []byte, offset int64) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_PWRITE64, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(offset), 0, 0)
	return int(n), errno
}

func ftruncate(fd uintptr, size int64) unix.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_FTRUNCATE, fd, uintptr(size), 0)
	return errno
}

func accept(fd uintptr) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, fd, 0, 0, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, 0)
	return int(n), errno
}

// readable reports whether reading, or accepting, does not have to wait, after a wait of at most d. If it cannot tell, it
// says so.
func readable(fd uintptr, d time.Duration) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	wait := unix.NsecToTimespec(int64(d))
	n, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 1, uintptr(unsafe.Pointer(&wait)), 0, 0, 0)
	return n != 0 || errno != 0
}

func shutdown(fd uintptr) unix.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_SHUTDOWN, fd, unix.SHUT_RDWR, 0)
	return errno
}

func ioctl(fd uintptr, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, fd, request, uintptr(arg))
	return errno
}

// poolInfo is struct rand_pool_info of <linux/random.h> with room for one refresh.
type poolInfo struct {
	entropyBits int32
	size        int32
	buf         [64]byte
}

func addEntropy(fd uintptr, entropy []byte) unix.Errno {
	var info poolInfo
	info.size = int32(copy(info.buf[:], entropy))
	info.entropyBits = 8 * info.size
	return ioctl(fd, unix.RNDADDENTROPY, unsafe.Pointer(&info))
}

func reseed(fd uintptr) unix.Errno { return ioctl(fd, unix.RNDRESEEDCRNG, nil) }

func getrandom(p []byte) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_GETRANDOM, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.GRND_NONBLOCK)
	return int(n), errno
}

func processWrite(pid int, pieces []Piece) (int, unix.Errno) {
	var local [maxPieces]unix.Iovec
	var remote [maxPieces]unix.RemoteIovec
	for i, p := range pieces {
		local[i] = unix.Iovec{Base: unsafe.SliceData(p.Content), Len: uint64(len(p.Content))}
		remote[i] = unix.RemoteIovec{Base: uintptr(p.Address), Len: len(p.Content)}
	}
	count := uintptr(len(pieces))
	n, _, errno := syscall.RawSyscall6(unix.SYS_PROCESS_VM_WRITEV, uintptr(pid), uintptr(unsafe.Pointer(&local)), count, uintptr(unsafe.Pointer(&remote)), count, 0)
	return int(n), errno
}

func futexWake(word *byte) unix.Errno {
	const wake = 1 // FUTEX_WAKE
	_, _, errno := syscall.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), wake, math.MaxInt32)
	return errno
}

func setClock(ns int64) unix.Errno {
	ts := unix.NsecToTimespec(ns)
	_, _, errno := syscall.RawSyscall(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, uintptr(unsafe.Pointer(&ts)), 0)
	return errno
}

func setHostname(name string) unix.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_SETHOSTNAME, uintptr(unsafe.Pointer(unsafe.StringData(name))), uintptr(len(name)), 0)
	return errno
}
