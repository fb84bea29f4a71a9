package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/forkd-dev/forkd/api"
)

// WatchOptions say what to tell of changes.
type WatchOptions struct {
	Recursive bool // also in directories below, and those that are made later
	Entries   bool // describe what has changed
}

// Watch begins to watch a directory; whatever happens after it has returned is told.
// It ends with ctx. Close it.
func (c *Client) Watch(ctx context.Context, id, path string, opts WatchOptions) (*Watcher, error) {
	params := api.WatchFilesParams{Path: path, Recursive: opts.Recursive, Entries: opts.Entries}
	resp, err := c.rest.WatchFiles(ctx, id, &params)
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &Watcher{c, resp, newLineReader(resp.Body)}, nil
}

// Watcher tells of changes in a directory. Its methods but Close belong to one
// goroutine.
type Watcher struct {
	client *Client
	resp   *http.Response
	lines  *lineReader
}

// Recv waits for the next change. No change comes after an error.
func (w *Watcher) Recv() (*WatchEvent, error) {
	event := new(WatchEvent)
	if err := w.lines.next(event); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("watching: %w", w.client.transportError(err))
	}
	if event.Error != nil {
		return nil, fromBody(0, event.Error)
	}
	return event, nil
}

// Close stops watching.
func (w *Watcher) Close() error { return w.resp.Body.Close() }
