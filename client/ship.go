package client

import (
	"context"
	"io"
	"net/http"

	"github.com/forkd-dev/forkd/api"
)

const packType = "application/zstd"

// Pack opens a snapshot, with all that it stands on, as one file for reading;
// the caller closes it. A read that ends with io.EOF has had the whole pack.
func (c *Client) Pack(ctx context.Context, tag string) (io.ReadCloser, error) {
	resp, err := c.rest.PackSnapshot(ctx, tag)
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Unpack makes a snapshot of a pack. An empty tag leaves it the one that it was
// packed with.
func (c *Client) Unpack(ctx context.Context, r io.Reader, tag string) (*SnapshotInfo, error) {
	var out SnapshotInfo
	resp, err := c.rest.UnpackSnapshotWithBody(ctx, &api.UnpackSnapshotParams{Tag: tag}, packType, io.NopCloser(r))
	if err := c.decode(&out, resp, err, http.StatusCreated); err != nil {
		return nil, err
	}
	return &out, nil
}

// Push has the daemon send a snapshot to a web server, a hub or a registry.
func (c *Client) Push(ctx context.Context, tag string, req PushRequest, progress func(Progress)) (*SnapshotInfo, error) {
	resp, err := c.rest.PushSnapshot(ctx, tag, req, wantLines)
	return c.follow(resp, err, "sending the snapshot", progress)
}

// Pull has the daemon fetch a snapshot from a web server, a hub or a registry.
func (c *Client) Pull(ctx context.Context, req PullRequest, progress func(Progress)) (*SnapshotInfo, error) {
	resp, err := c.rest.PullSnapshot(ctx, req, wantLines)
	return c.follow(resp, err, "fetching the snapshot", progress)
}
