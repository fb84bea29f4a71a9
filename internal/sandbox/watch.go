package sandbox

import (
	"context"
	"path"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Watch tells of what happens in a directory from when it has returned until ctx
// ends.
func (m *Manager) Watch(ctx context.Context, id string, spec WatchSpec) (Watch, error) {
	var w Watch
	err := m.file(ctx, id, spec.Path, func(b *box) error {
		a, err := b.agent.Watch(ctx, wire.WatchRequest{Path: wire.Name(spec.Path), Recursive: spec.Recursive, Entries: spec.Entries})
		if err == nil {
			end, _ := m.using(b) // if it is about to leave, the watch ends with it
			w = &watch{b, a, spec.Path, end}
		}
		return err
	})
	return w, err
}

type watch struct {
	box   *box
	agent *agent.Watcher
	dir   string
	end   func()
}

func (w *watch) Recv() (Change, error) {
	c, err := w.agent.Recv()
	if err != nil {
		return Change{}, w.box.guestError(err, "watching %q", w.dir)
	}
	out := Change{Kind: ChangeKind(c.Kind), Name: string(c.Name)}
	if c.Entry != nil {
		info := fileInfo(path.Join(w.dir, out.Name), *c.Entry)
		out.Entry = &info
	}
	return out, nil
}

func (w *watch) Close() error {
	defer w.end()
	return w.agent.Close()
}
