package client

import (
	"context"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/api"
)

// Values of ForkRequest.OnTimeout.
const (
	KillOnTimeout  = api.TimeoutActionKill
	PauseOnTimeout = api.TimeoutActionPause
)

// Pause saves a sandbox to disk, memory and processes included. It outlives the
// daemon, uses no memory, and goes on with Resume.
func (c *Client) Pause(ctx context.Context, id string) (*SandboxInfo, error) {
	resp, err := c.rest.PauseSandbox(ctx, id)
	return c.sandbox(resp, err)
}

// Resume has a paused sandbox go on, with a lifetime from now on; zero is the one
// that it was given last, if any. Of one that runs nothing changes.
func (c *Client) Resume(ctx context.Context, id string, lifetime time.Duration) (*SandboxInfo, error) {
	var req api.ResumeRequest
	if lifetime != 0 {
		req.TimeoutSecs = Ptr(lifetime.Seconds())
	}
	resp, err := c.rest.ResumeSandbox(ctx, id, req)
	return c.sandbox(resp, err)
}

// SetLifetime limits how long a sandbox lives from now on; zero is no limit. Of a
// paused one it is the lifetime that a Resume gives it.
func (c *Client) SetLifetime(ctx context.Context, id string, d time.Duration) (*SandboxInfo, error) {
	var req api.TimeoutRequest
	if d != 0 {
		req.TimeoutSecs = Ptr(d.Seconds())
	}
	resp, err := c.rest.SetSandboxTimeout(ctx, id, req)
	return c.sandbox(resp, err)
}

// ExtendLifetime has a sandbox live for so long from now on at least. It never moves
// its end earlier.
func (c *Client) ExtendLifetime(ctx context.Context, id string, d time.Duration) (*SandboxInfo, error) {
	resp, err := c.rest.SetSandboxTimeout(ctx, id, api.TimeoutRequest{TimeoutSecs: Ptr(d.Seconds()), Extend: true})
	return c.sandbox(resp, err)
}

// SandboxMetrics tells what a sandbox uses.
func (c *Client) SandboxMetrics(ctx context.Context, id string) (*SandboxMetrics, error) {
	var out SandboxMetrics
	resp, err := c.rest.GetSandboxMetrics(ctx, id)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// sandbox reads an answer that describes a sandbox.
func (c *Client) sandbox(resp *http.Response, err error) (*SandboxInfo, error) {
	var out SandboxInfo
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}
