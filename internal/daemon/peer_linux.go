package daemon

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peer names the process at the other end of a connection, if the kernel tells.
func peer(conn net.Conn) string {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	text := ""
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			text = fmt.Sprintf(" (process %d)", cred.Pid)
		}
	})
	return text
}
