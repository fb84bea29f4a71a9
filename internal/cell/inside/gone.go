package inside

import (
	"net"

	"golang.org/x/sys/unix"
)

// waitGone returns when the peer of a connection has closed it, or has sent
// something. It reads nothing.
func waitGone(c *net.UnixConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err != unix.EAGAIN && err != unix.EINTR
	})
}
