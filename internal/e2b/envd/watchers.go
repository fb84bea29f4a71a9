package envd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Limits of watchers.
const (
	maxWatchers     = 64   // of a sandbox
	maxPending      = 4096 // changes that nobody has asked for yet
	watcherLifetime = 10 * time.Minute
)

// watchers are those of all sandboxes, by id.
type watchers struct {
	host Host

	mu     sync.Mutex
	all    map[string]*watcher
	closed bool
	wg     sync.WaitGroup
}

// watcher collects changes until somebody asks for them. When there are too many
// it waits, and the domain gives up on it if that takes too long: nothing is left
// out silently.
type watcher struct {
	call  *call // that made it
	watch sandbox.Watch
	ctx   context.Context // ends with the watcher
	end   context.CancelFunc
	idle  *time.Timer // removes it

	mu      sync.Mutex
	room    *sync.Cond // there is room in pending, or the end
	pending []*pb.FilesystemEvent
	err     error // why there will be no more
}

func newWatchers(host Host) *watchers { return &watchers{host: host, all: map[string]*watcher{}} }

func (ws *watchers) add(c *call, spec sandbox.WatchSpec) (string, error) {
	w := &watcher{call: c}
	w.room = sync.NewCond(&w.mu)
	w.ctx, w.end = context.WithCancel(context.Background())
	watch, err := ws.host.Watch(w.ctx, c.id(), spec)
	if err != nil {
		w.end()
		return "", err
	}
	w.watch = watch
	context.AfterFunc(w.ctx, w.stop)
	id := rand.Text()
	if err := ws.enter(id, w); err != nil {
		w.end()
		watch.Close()
		return "", err
	}
	return id, nil
}

func (ws *watchers) enter(id string, w *watcher) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return connect.NewError(connect.CodeUnavailable, errors.New("forkd is shutting down"))
	}
	count := 0
	for _, other := range ws.all {
		if other.call.id() == w.call.id() {
			count++
		}
	}
	if count >= maxWatchers {
		return connect.NewError(connect.CodeResourceExhausted,
			fmt.Errorf("a sandbox has at most %d watchers: remove one that is not needed", maxWatchers))
	}
	ws.all[id] = w
	w.idle = time.AfterFunc(watcherLifetime, func() { ws.remove(id, w.call.id()) })
	ws.wg.Go(w.collect)
	return nil
}

// remove reports whether there was such a watcher.
func (ws *watchers) remove(id, box string) bool {
	w := ws.get(id, box)
	if w == nil {
		return false
	}
	ws.mu.Lock()
	delete(ws.all, id)
	ws.mu.Unlock()
	w.idle.Stop()
	w.end()
	return true
}

func (ws *watchers) get(id, box string) *watcher {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.all[id]; w != nil && w.call.id() == box {
		return w
	}
	return nil
}

func (ws *watchers) close() {
	ws.mu.Lock()
	ws.closed = true
	for _, w := range ws.all {
		w.idle.Stop()
		w.end()
	}
	clear(ws.all)
	ws.mu.Unlock()
	ws.wg.Wait()
}

// stop ends what collect may wait for. It may close the watch a second time.
func (w *watcher) stop() {
	w.watch.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room.Broadcast()
}

func (w *watcher) collect() {
	defer w.watch.Close()
	for {
		change, err := w.watch.Recv()
		var event *pb.FilesystemEvent
		if err == nil {
			event = w.call.fileEvent(w.ctx, change)
		}
		w.mu.Lock()
		for len(w.pending) >= maxPending && w.ctx.Err() == nil {
			w.room.Wait()
		}
		if err != nil || w.ctx.Err() != nil {
			w.err = errors.Join(err, w.ctx.Err())
			w.mu.Unlock()
			return
		}
		w.pending = append(w.pending, event)
		w.mu.Unlock()
	}
}

// take returns what has happened since the last time; an error only when there
// is nothing any more.
func (w *watcher) take() ([]*pb.FilesystemEvent, error) {
	w.idle.Reset(watcherLifetime)
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.pending
	w.pending = nil
	w.room.Signal()
	if len(events) == 0 && w.err != nil {
		return nil, w.err
	}
	return events, nil
}

func noWatcher(id string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %s not found", id))
}

func (f *filesystem) CreateWatcher(ctx context.Context, req *pb.CreateWatcherRequest) (*pb.CreateWatcherResponse, error) {
	c := callOf(ctx)
	spec, err := c.watchSpec(ctx, req)
	if err != nil {
		return nil, rpcError(err)
	}
	id, err := f.watchers.add(c, spec)
	if err != nil {
		return nil, rpcError(err)
	}
	return &pb.CreateWatcherResponse{WatcherId: id}, nil
}

func (f *filesystem) GetWatcherEvents(ctx context.Context, req *pb.GetWatcherEventsRequest) (*pb.GetWatcherEventsResponse, error) {
	w := f.watchers.get(req.GetWatcherId(), callOf(ctx).id())
	if w == nil {
		return nil, noWatcher(req.GetWatcherId())
	}
	events, err := w.take()
	if err != nil {
		return nil, rpcError(err)
	}
	return &pb.GetWatcherEventsResponse{Events: events}, nil
}

func (f *filesystem) RemoveWatcher(ctx context.Context, req *pb.RemoveWatcherRequest) (*pb.RemoveWatcherResponse, error) {
	if !f.watchers.remove(req.GetWatcherId(), callOf(ctx).id()) {
		return nil, noWatcher(req.GetWatcherId())
	}
	return &pb.RemoveWatcherResponse{}, nil
}
