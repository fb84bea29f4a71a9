package sandbox

import (
	"context"
	"net"
)

// DialPort connects to a TCP port on which something in the sandbox listens, on
// 127.0.0.1 or ::1. ctx is for dialing only. The error is PortClosed if nobody
// listens. The connection has CloseWrite.
func (m *Manager) DialPort(ctx context.Context, id string, port int) (net.Conn, error) {
	if port < 1 || port > 1<<16-1 {
		return nil, fail(InvalidArgument, "", "ports are 1 to 65535, not %d", port)
	}
	b, done, err := m.use(ctx, id)
	if err != nil {
		return nil, err
	}
	conn, err := b.agent.DialPort(ctx, uint16(port))
	if err != nil {
		done()
		return nil, b.guestError(err, "connecting to port %d", port)
	}
	return usedConn{conn, done}, nil
}
