package client

import (
	"context"
	"fmt"
	"net/http"

	"github.com/forkd-dev/forkd/api"
)

// CreateSnapshot makes a snapshot and calls progress, unless it is nil, from
// this goroutine as the work goes on.
func (c *Client) CreateSnapshot(ctx context.Context, req SnapshotRequest, progress func(Progress)) (*SnapshotInfo, error) {
	resp, err := c.rest.CreateSnapshot(ctx, req, wantLines)
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	defer drain(resp)
	lines := newLineReader(resp.Body)
	for {
		var event api.SnapshotEvent
		switch err := lines.next(&event); {
		case err != nil:
			return nil, fmt.Errorf("making the snapshot: %w", c.transportError(err))
		case event.Error != nil:
			return nil, fromBody(0, event.Error)
		case event.Snapshot != nil:
			return event.Snapshot, nil
		case event.Progress != nil && progress != nil:
			progress(*event.Progress)
		}
	}
}

func wantLines(_ context.Context, r *http.Request) error {
	r.Header.Set("Accept", linesType)
	return nil
}

// Snapshots lists the snapshots.
func (c *Client) Snapshots(ctx context.Context) ([]SnapshotInfo, error) {
	var out []SnapshotInfo
	resp, err := c.rest.ListSnapshots(ctx)
	return out, c.decode(&out, resp, err, http.StatusOK)
}

// Snapshot describes one snapshot.
func (c *Client) Snapshot(ctx context.Context, tag string) (*SnapshotDetail, error) {
	var out SnapshotDetail
	resp, err := c.rest.GetSnapshot(ctx, tag)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// RemoveOptions say what RemoveSnapshot does about what depends on a snapshot.
type RemoveOptions struct {
	Force   bool // end the sandboxes that run from it
	Cascade bool // remove the snapshots that were derived from it
}

// RemoveSnapshot removes a snapshot.
func (c *Client) RemoveSnapshot(ctx context.Context, tag string, opts RemoveOptions) error {
	return c.done(c.rest.DeleteSnapshot(ctx, tag, &api.DeleteSnapshotParams{Force: opts.Force, Cascade: opts.Cascade}))
}
