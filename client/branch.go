package client

import (
	"context"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/api"
)

// Modes of a branch; see the API's description for what they mean.
const (
	BranchFull = api.BranchModeFull
	BranchDiff = api.BranchModeDiff
	BranchLive = api.BranchModeLive
)

// Branch makes a snapshot of a running sandbox, which goes on running. The
// answer of a request that does not wait may have the status writing; see
// WaitSnapshot.
func (c *Client) Branch(ctx context.Context, id string, req BranchRequest) (*SnapshotInfo, error) {
	var out SnapshotInfo
	resp, err := c.rest.BranchSandbox(ctx, id, req)
	if err := c.decode(&out, resp, err, http.StatusCreated); err != nil {
		return nil, err
	}
	return &out, nil
}

// How often WaitSnapshot asks, at first and at last. Writing takes from
// milliseconds to seconds; what the asking adds stays a small part of it.
const (
	pollFirst = time.Millisecond
	pollLast  = 100 * time.Millisecond
)

// WaitSnapshot returns when a snapshot is no longer being written. One whose
// writing has failed is an error: not_bootable, or not_found when it is gone.
func (c *Client) WaitSnapshot(ctx context.Context, tag string) (*SnapshotDetail, error) {
	for wait := pollFirst; ; wait = min(wait+wait/8, pollLast) {
		s, err := c.Snapshot(ctx, tag)
		switch {
		case err != nil:
			return nil, err
		case s.Status == api.SnapshotStatusReady:
			return s, nil
		case s.Status == api.SnapshotStatusFailed:
			return nil, &Error{Code: api.ErrorCodeNotBootable, Message: "snapshot " + tag + " could not be written: " + s.Warning}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Rollback takes a sandbox back, in place, to a snapshot that it descends from.
func (c *Client) Rollback(ctx context.Context, id, tag string) (*SandboxInfo, error) {
	var out SandboxInfo
	resp, err := c.rest.RollbackSandbox(ctx, id, api.RollbackRequest{SnapshotTag: tag})
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// Tree lists snapshots and sandboxes with what each of them comes from, parents
// before their children.
func (c *Client) Tree(ctx context.Context) ([]TreeNode, error) {
	var out []TreeNode
	resp, err := c.rest.GetTree(ctx)
	return out, c.decode(&out, resp, err, http.StatusOK)
}
