package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client/internal/rest"
)

// Health asks whether the daemon answers; it needs no token.
func (c *Client) Health(ctx context.Context) error {
	var out api.Health
	resp, err := c.rest.GetHealth(ctx)
	return c.decode(&out, resp, err, http.StatusOK)
}

// Version tells which daemon answers.
func (c *Client) Version(ctx context.Context) (*Version, error) {
	var out Version
	resp, err := c.rest.GetVersion(ctx)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// Metrics returns the daemon's metrics in the Prometheus text format.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	resp, err := c.rest.GetMetrics(ctx)
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return "", err
	}
	defer drain(resp)
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// ForkOption changes how Fork asks.
type ForkOption func(*api.ForkSandboxesParams)

// WithKey makes repeating a fork safe: the daemon answers a second request with
// the same key and body with the children of the first. Without a key, children
// of a request that ctx ended are ended too; with one, they stay.
func WithKey(key string) ForkOption {
	return func(p *api.ForkSandboxesParams) { p.IdempotencyKey = key }
}

// Fork makes children of a snapshot, or of a running sandbox. It returns those that run and one error
// for each that does not; err is for a fork that made none.
func (c *Client) Fork(ctx context.Context, req ForkRequest, opts ...ForkOption) ([]SandboxInfo, []ForkError, error) {
	var params api.ForkSandboxesParams
	for _, opt := range opts {
		opt(&params)
	}
	resp, err := c.rest.ForkSandboxes(ctx, &params, req, exactHeaders)
	resp, err = c.check(resp, err, http.StatusCreated, http.StatusMultiStatus)
	if err != nil {
		return nil, nil, err
	}
	defer drain(resp)
	var out api.ForkPartial
	if resp.StatusCode == http.StatusMultiStatus {
		err = json.NewDecoder(resp.Body).Decode(&out)
	} else {
		err = json.NewDecoder(resp.Body).Decode(&out.Sandboxes)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the daemon's answer: %w", err)
	}
	return out.Sandboxes, out.Errors, nil
}

// exactHeaders drops the empty key that the generated code sends for none.
func exactHeaders(_ context.Context, r *http.Request) error {
	if r.Header.Get("Idempotency-Key") == "" {
		r.Header.Del("Idempotency-Key")
	}
	return nil
}

// Filter says which sandboxes to list; empty fields do not matter.
type Filter struct {
	States   []string          // such as running and paused
	Metadata map[string]string // all of which they have
}

// Sandboxes lists the sandboxes, paused ones too, oldest first.
func (c *Client) Sandboxes(ctx context.Context) ([]SandboxInfo, error) {
	return c.FindSandboxes(ctx, Filter{})
}

// FindSandboxes lists some of the sandboxes, oldest first.
func (c *Client) FindSandboxes(ctx context.Context, f Filter) ([]SandboxInfo, error) {
	var params api.ListSandboxesParams
	for _, state := range f.States {
		params.State = append(params.State, api.ListSandboxesParamsState(state))
	}
	for name, value := range f.Metadata {
		params.Metadata = append(params.Metadata, name+"="+value)
	}
	var out []SandboxInfo
	resp, err := c.rest.ListSandboxes(ctx, &params)
	return out, c.decode(&out, resp, err, http.StatusOK)
}

// Sandbox describes one sandbox.
func (c *Client) Sandbox(ctx context.Context, id string) (*SandboxInfo, error) {
	var out SandboxInfo
	resp, err := c.rest.GetSandbox(ctx, id)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// Kill ends a sandbox.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.done(c.rest.KillSandbox(ctx, id))
}

// Ping asks the agent in a sandbox for a sign of life.
func (c *Client) Ping(ctx context.Context, id string) (*PingResult, error) {
	var out PingResult
	resp, err := c.rest.PingSandbox(ctx, id)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// Eval evaluates code in a sandbox's warm runtime. An exception that the code
// raises is in the result, not an error.
func (c *Client) Eval(ctx context.Context, id string, req EvalRequest) (*EvalResult, error) {
	var out EvalResult
	resp, err := c.rest.EvalSandbox(ctx, id, req)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// Interrupt interrupts the evaluation that is running in a sandbox.
func (c *Client) Interrupt(ctx context.Context, id string) error {
	return c.done(c.rest.InterruptSandbox(ctx, id))
}

// Exec runs a command to its end and returns its output, cut at a limit. See
// Run for output as it is produced.
func (c *Client) Exec(ctx context.Context, id string, req ExecRequest) (*ExecResult, error) {
	var out ExecResult
	resp, err := c.rest.ExecSandbox(ctx, id, req)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

var _ rest.HttpRequestDoer = (*http.Client)(nil)
