package servertest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// DialPort connects to a port of this machine.
func (f *Fake) DialPort(ctx context.Context, id string, port int) (net.Conn, error) {
	if _, err := f.box(id); err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fault(sandbox.PortClosed, "", "nothing listens on port %d", port)
	}
	return conn, err
}

// User knows root.
func (f *Fake) User(_ context.Context, id, name string) (*sandbox.User, error) {
	if _, err := f.box(id); err != nil {
		return nil, err
	}
	if name != "root" && name != "0" {
		return nil, fault(sandbox.NotFound, "", "there is no user %q", name)
	}
	return &sandbox.User{Name: "root", Home: "/root"}, nil
}

// Environment returns the variables of a sandbox.
func (f *Fake) Environment(id string) (map[string]string, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	return b.env, nil
}

// ListTree walks.
func (f *Fake) ListTree(ctx context.Context, id, path string, depth int) (list []sandbox.FileInfo, err error) {
	root, err := f.path(id, path)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		below := strings.TrimPrefix(name, root+"/")
		info, err := f.StatFile(ctx, id, filepath.Join(path, below))
		if err != nil {
			return err
		}
		list = append(list, *info)
		if d.IsDir() && strings.Count(below, "/")+1 >= depth {
			return fs.SkipDir
		}
		return nil
	})
	return list, fileError(err)
}

// ComposeFile joins files.
func (f *Fake) ComposeFile(ctx context.Context, id, target string, sources []string, opts sandbox.WriteOptions) (*sandbox.FileInfo, error) {
	var all bytes.Buffer
	for _, s := range sources {
		if err := f.ReadFile(ctx, id, s, 0, -1, &all); err != nil {
			return nil, err
		}
	}
	if err := f.WriteFile(ctx, id, target, &all, opts); err != nil {
		return nil, err
	}
	for _, s := range sources {
		if s != target {
			if err := f.RemoveFile(ctx, id, s, false); err != nil {
				return nil, err
			}
		}
	}
	return f.StatFile(ctx, id, target)
}

// lookAgain is how often a watch looks for what has changed.
const lookAgain = 5 * time.Millisecond

// Watch compares listings.
func (f *Fake) Watch(ctx context.Context, id string, spec sandbox.WatchSpec) (sandbox.Watch, error) {
	list, err := f.ListFiles(ctx, id, spec.Path)
	if err != nil {
		return nil, err
	}
	w := &watch{f: f, id: id, spec: spec, known: make(map[string]bool)}
	w.ctx, w.cancel = context.WithCancel(ctx)
	for _, info := range list {
		w.known[info.Name] = true
	}
	return w, nil
}

type watch struct {
	f      *Fake
	id     string
	spec   sandbox.WatchSpec
	known  map[string]bool
	told   bool
	ctx    context.Context
	cancel context.CancelFunc
}

// Recv tells of files that are new. After that, one that is named overflow-something
// breaks the watch.
func (w *watch) Recv() (sandbox.Change, error) {
	for {
		list, err := w.f.ListFiles(w.ctx, w.id, w.spec.Path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return sandbox.Change{}, err
		}
		for _, info := range list {
			if w.known[info.Name] || strings.HasPrefix(info.Name, "new") {
				continue
			}
			if overflow := strings.HasPrefix(info.Name, "overflow"); overflow && !w.told {
				continue
			} else if overflow {
				return sandbox.Change{}, fault(sandbox.CapacityExceeded, "watch again", "changes have been missed")
			}
			w.known[info.Name], w.told = true, true
			change := sandbox.Change{Kind: sandbox.FileCreated, Name: info.Name}
			if w.spec.Entries {
				change.Entry = &info
			}
			return change, nil
		}
		select {
		case <-time.After(lookAgain):
		case <-w.ctx.Done():
			return sandbox.Change{}, w.ctx.Err()
		}
	}
}

func (w *watch) Close() error {
	w.cancel()
	return nil
}
