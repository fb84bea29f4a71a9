package agent

import (
	"context"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Watcher tells of changes in a directory of the guest, in their order. Close it. Recv belongs to one goroutine; Close may be
// called by another.
type Watcher struct {
	call    *call
	pending []wire.Change
}

// Watch begins to watch a directory: whatever happens after it has returned is told. It ends with its context.
func (c *Client) Watch(ctx context.Context, req wire.WatchRequest) (*Watcher, error) {
	call, err := c.openLong(ctx, wire.OpWatch, req)
	if err != nil {
		return nil, err
	}
	return &Watcher{call: call}, nil
}

// Recv waits for the next change. The error has code CodeOverflow when Recv was called too seldom, so that changes were
// missed, and CodeNotFound when the directory is no more or has moved. No change comes after an error.
func (w *Watcher) Recv() (wire.Change, error) {
	for len(w.pending) == 0 {
		kind, payload, err := w.call.next()
		if err != nil {
			return wire.Change{}, err
		}
		if kind != wire.TypeChanges {
			return wire.Change{}, w.call.unexpected(kind)
		}
		if w.pending, err = decode[[]wire.Change](payload); err != nil {
			return wire.Change{}, err
		}
	}
	change := w.pending[0]
	w.pending = w.pending[1:]
	return change, nil
}

// Close stops watching.
func (w *Watcher) Close() error {
	w.call.close()
	return nil
}
