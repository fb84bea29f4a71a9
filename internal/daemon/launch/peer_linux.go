package launch

import (
	"net"

	"golang.org/x/sys/unix"
)

// PeerOf tells the process at the other end of a Unix connection: for one that
// was dialed, the process that listens. It reports whether the kernel told.
func PeerOf(conn net.Conn) (p Peer, known bool) {
	sock, ok := conn.(*net.UnixConn)
	if !ok {
		return p, false
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return p, false
	}
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p, known = Peer{PID: int(cred.Pid), UID: int(cred.Uid)}, true
		}
	})
	return p, known
}
