package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/forkd-dev/forkd/api"
)

// RunCode runs code in a context and passes on what it prints and displays, as it
// comes: event gets one of stdout, stderr and a result at a time. It returns how the
// run ended; an exception that the code raises is part of that, not an error. When
// ctx ends or event returns an error, the run is interrupted.
func (c *Client) RunCode(ctx context.Context, id string, req RunRequest, event func(RunEvent) error) (*RunEnd, error) {
	resp, err := c.rest.RunCode(ctx, id, req)
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	lines := newLineReader(resp.Body)
	lines.max = maxResultLine
	for {
		var e RunEvent
		if err := lines.next(&e); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("running the code: %w", c.transportError(err))
		}
		switch {
		case e.Error != nil:
			return nil, fromBody(0, e.Error)
		case e.End != nil:
			drain(resp)
			return e.End, nil
		case event == nil:
			continue
		}
		if err := event(e); err != nil {
			return nil, err
		}
	}
}

// maxResultLine is how long the line of a result may be, which may hold images.
const maxResultLine = 256 << 20

// CreateContext starts an interpreter that keeps state between runs.
func (c *Client) CreateContext(ctx context.Context, id string, req ContextRequest) (*CodeContext, error) {
	var out CodeContext
	resp, err := c.rest.CreateContext(ctx, id, req)
	if err := c.decode(&out, resp, err, http.StatusCreated); err != nil {
		return nil, err
	}
	return &out, nil
}

// Contexts lists the interpreters that keep state between runs.
func (c *Client) Contexts(ctx context.Context, id string) ([]CodeContext, error) {
	var out []CodeContext
	resp, err := c.rest.ListContexts(ctx, id)
	return out, c.decode(&out, resp, err, http.StatusOK)
}

// RemoveContext ends a context.
func (c *Client) RemoveContext(ctx context.Context, id, name string) error {
	return c.done(c.rest.RemoveContext(ctx, id, api.ContextID(name)))
}

// RestartContext starts the interpreter of a context anew, without its state.
func (c *Client) RestartContext(ctx context.Context, id, name string) error {
	return c.done(c.rest.RestartContext(ctx, id, api.ContextID(name)))
}
