package envd

import (
	"context"

	"connectrpc.com/connect"

	"github.com/forkd-dev/forkd/internal/e2b/envd/pulse"
	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// watchRequest is what both forms of watching ask for.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

func (c *call) watchSpec(ctx context.Context, req watchRequest) (sandbox.WatchSpec, error) {
	name, err := c.path(ctx, req.GetPath())
	return sandbox.WatchSpec{Path: name, Recursive: req.GetRecursive(), Entries: req.GetIncludeEntry()}, err
}

// WatchDir ends with an error if its client does not keep up with the changes.
func (f *filesystem) WatchDir(ctx context.Context, req *pb.WatchDirRequest, stream *connect.ServerStream[pb.WatchDirResponse]) error {
	c := callOf(ctx)
	spec, err := c.watchSpec(ctx, req)
	if err != nil {
		return rpcError(err)
	}
	watch, err := f.host.Watch(ctx, c.id(), spec)
	if err != nil {
		return rpcError(err)
	}
	defer watch.Close()
	stop := context.AfterFunc(ctx, func() { watch.Close() }) // Recv does not know the context
	defer stop()
	heart := pulse.Start(c.ping, c.ping, func() error {
		return stream.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}})
	})
	defer heart.Stop()

	event := &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}}
	for {
		if err := heart.Send(func() error { return stream.Send(event) }); err != nil {
			return err
		}
		change, err := watch.Recv()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return rpcError(err)
		}
		event = &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: c.fileEvent(ctx, change)}}
	}
}

var eventTypes = map[sandbox.ChangeKind]pb.EventType{
	sandbox.FileCreated: pb.EventType_EVENT_TYPE_CREATE,
	sandbox.FileWritten: pb.EventType_EVENT_TYPE_WRITE,
	sandbox.FileRemoved: pb.EventType_EVENT_TYPE_REMOVE,
	sandbox.FileRenamed: pb.EventType_EVENT_TYPE_RENAME,
	sandbox.FileChmod:   pb.EventType_EVENT_TYPE_CHMOD,
}

func (c *call) fileEvent(ctx context.Context, change sandbox.Change) *pb.FilesystemEvent {
	event := &pb.FilesystemEvent{Name: text(change.Name), Type: eventTypes[change.Kind]}
	if event.Name == "" {
		event.Name = "." // the directory itself
	}
	if change.Entry != nil {
		event.Entry = c.describe(ctx, change.Entry)
	}
	return event
}
