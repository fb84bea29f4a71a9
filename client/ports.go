package client

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/forkd-dev/forkd/api"
)

// DialPort connects to a TCP port on which something in the sandbox listens. ctx is
// for the whole life of the connection.
func (c *Client) DialPort(ctx context.Context, id string, port int) (io.ReadWriteCloser, error) {
	resp, err := c.rest.OpenPort(ctx, id, api.PortNumber(port), func(_ context.Context, r *http.Request) error {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "tcp")
		return nil
	})
	if resp, err = c.check(resp, err, http.StatusSwitchingProtocols); err != nil {
		return nil, err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		resp.Body.Close()
		return nil, errors.New("the way to the daemon does not let connections through")
	}
	return conn, nil
}
