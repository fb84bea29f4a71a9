package agent

import (
	"context"
	"net"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// DialPort connects to a TCP port on the guest's loopback interface: 127.0.0.1, then ::1. The error has code CodeRefused when
// nobody listens. The context is for dialing only. The connection can be closed for writing alone if those that the
// client's dial function makes can; see CloseWriter.
func (c *Client) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	call, err := c.openLong(ctx, wire.OpDial, wire.DialRequest{Port: port})
	if err != nil {
		return nil, err
	}
	if !call.stop() {
		return nil, context.Cause(ctx) // it is being closed
	}
	return call.conn, nil
}

// CloseWriter is what connections of DialPort implement besides net.Conn.
type CloseWriter interface {
	// CloseWrite tells the other side that no more comes.
	CloseWrite() error
}
