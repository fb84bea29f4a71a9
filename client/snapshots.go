package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/forkd-dev/forkd/api"
)

// CreateSnapshot makes a snapshot and calls progress, unless it is nil, from
// this goroutine as the work goes on.
func (c *Client) CreateSnapshot(ctx context.Context, req SnapshotRequest, progress func(Progress)) (*SnapshotInfo, error) {
	resp, err := c.rest.CreateSnapshot(ctx, req, wantLines)
	return c.follow(resp, err, "making the snapshot", progress)
}

// DeriveSnapshot makes a snapshot of another one after some work in it.
func (c *Client) DeriveSnapshot(ctx context.Context, from string, req DeriveRequest, progress func(Progress)) (*SnapshotInfo, error) {
	resp, err := c.rest.DeriveSnapshot(ctx, from, req, wantLines)
	return c.follow(resp, err, "making the snapshot", progress)
}

// VerifySnapshot compares every byte of a snapshot with its hashes. A damaged
// one is an error with the code not_bootable.
func (c *Client) VerifySnapshot(ctx context.Context, tag string, progress func(Progress)) (*SnapshotInfo, error) {
	resp, err := c.rest.VerifySnapshot(ctx, tag, wantLines)
	return c.follow(resp, err, "verifying the snapshot", progress)
}

// follow reads the events of work that ends with a snapshot.
func (c *Client) follow(resp *http.Response, err error, what string, progress func(Progress)) (*SnapshotInfo, error) {
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	defer drain(resp)
	lines := newLineReader(resp.Body)
	for {
		var event api.SnapshotEvent
		switch err := lines.next(&event); {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", what, c.transportError(err))
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

// CompactSnapshot flattens the chain of a snapshot into a new one under the tag
// to.
func (c *Client) CompactSnapshot(ctx context.Context, from, to string) (*SnapshotInfo, error) {
	var out SnapshotInfo
	resp, err := c.rest.CompactSnapshot(ctx, from, api.CompactRequest{To: to})
	if err := c.decode(&out, resp, err, http.StatusCreated); err != nil {
		return nil, err
	}
	return &out, nil
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
// At most one may be set.
type RemoveOptions struct {
	Force   bool // end its sandboxes; snapshots that stand on it keep the layers they need
	Cascade bool // remove the snapshots that stand on it, and end all their sandboxes
}

// RemoveSnapshot removes a snapshot and returns the tags of all that were
// removed with it, its own included.
func (c *Client) RemoveSnapshot(ctx context.Context, tag string, opts RemoveOptions) ([]string, error) {
	resp, err := c.rest.DeleteSnapshot(ctx, tag, &api.DeleteSnapshotParams{Force: opts.Force, Cascade: opts.Cascade})
	resp, err = c.check(resp, err, http.StatusNoContent, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer drain(resp)
	out := api.RemovedSnapshots{Removed: []string{tag}}
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			return nil, fmt.Errorf("reading the daemon's answer: %w", err)
		}
	}
	return out.Removed, nil
}
