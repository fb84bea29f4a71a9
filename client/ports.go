package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"

	"github.com/forkd-dev/forkd/api"
)

// ErrReset is how a connection to a port ends that is cut short: the server has reset it,
// or is gone with its sandbox.
var ErrReset = errors.New("the server in the sandbox broke a connection")

// DialPort connects to a TCP port on which something in the sandbox listens. ctx is
// for the whole life of the connection. It has CloseWrite. Its Read returns io.EOF when the
// server has ended what it says, and ErrReset if that was cut short. Its Write returns ErrReset
// if the server takes no more, and what it has said may still be read.
func (c *Client) DialPort(ctx context.Context, id string, port int) (io.ReadWriteCloser, error) {
	resp, err := c.rest.OpenPort(ctx, id, api.PortNumber(port), func(_ context.Context, r *http.Request) error {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "tcp-chunked")
		return nil
	})
	if resp, err = c.check(resp, err, http.StatusSwitchingProtocols); err != nil {
		return nil, err
	}
	conn, ok := resp.Body.(halfCloser)
	if !ok {
		resp.Body.Close()
		return nil, errors.New("the way to the daemon does not let connections through")
	}
	return &portConn{conn, httputil.NewChunkedReader(conn)}, nil
}

type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// portConn is a connection to a port, whose incoming bytes are in chunks.
type portConn struct {
	halfCloser
	in io.Reader
}

func (c *portConn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	if err != io.EOF {
		err = broken(err)
	}
	return n, err
}

func (c *portConn) Write(b []byte) (int, error) {
	n, err := c.halfCloser.Write(b)
	return n, broken(err)
}

// broken returns ErrReset for an error of a connection that is not closed here. Which one it is
// depends on where the way to the server broke, and on what was in it then.
func broken(err error) error {
	if err == nil || errors.Is(err, net.ErrClosed) {
		return err
	}
	return ErrReset
}
