package quiet

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// backlog is how many connections may wait to be accepted.
const backlog = 128

// ListenVsock returns a listening socket on a vsock port. It is blocking and closed on exec.
func ListenVsock(port uint32) (int, error) {
	return listen(unix.AF_VSOCK, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}, fmt.Sprintf("vsock port %d", port))
}

// ListenUnix returns a listening socket at a path, which it takes over from a socket that nobody serves any more.
func ListenUnix(path string) (int, error) {
	if err := unix.Unlink(path); err != nil && err != unix.ENOENT {
		return -1, fmt.Errorf("removing old socket %s: %w", path, err)
	}
	return listen(unix.AF_UNIX, &unix.SockaddrUnix{Name: path}, path)
}

func listen(family int, address unix.Sockaddr, name string) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("making socket for %s: %w", name, err)
	}
	if err = unix.Bind(fd, address); err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listening on %s: %w", name, err)
	}
	return fd, nil
}
