package envd

import (
	"context"
	"fmt"
	"math"
	"path"

	"connectrpc.com/connect"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// filesystem is the service filesystem.Filesystem.
type filesystem struct {
	host     Host
	watchers *watchers
}

func (f *filesystem) Stat(ctx context.Context, req *pb.StatRequest) (*pb.StatResponse, error) {
	c := callOf(ctx)
	name, err := c.path(ctx, req.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	entry, err := c.entry(ctx, name)
	if err != nil {
		return nil, rpcError(err)
	}
	return &pb.StatResponse{Entry: entry}, nil
}

func (f *filesystem) MakeDir(ctx context.Context, req *pb.MakeDirRequest) (*pb.MakeDirResponse, error) {
	c := callOf(ctx)
	name, err := c.path(ctx, req.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	info, created, err := f.host.MakeDir(ctx, c.id(), name, sandbox.MakeDirOptions{Parents: true, User: c.user})
	switch {
	case isCode(err, sandbox.AlreadyExists):
		return nil, connect.NewError(connect.CodeInvalidArgument,
			fmt.Errorf("path already exists but it is not a directory: %s", name))
	case err != nil:
		return nil, rpcError(err)
	case !created:
		return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", name))
	}
	return &pb.MakeDirResponse{Entry: c.describe(ctx, info)}, nil
}

func (f *filesystem) Move(ctx context.Context, req *pb.MoveRequest) (*pb.MoveResponse, error) {
	c := callOf(ctx)
	from, err := c.path(ctx, req.GetSource())
	if err != nil {
		return nil, rpcError(err)
	}
	to, err := c.path(ctx, req.GetDestination())
	if err != nil {
		return nil, rpcError(err)
	}
	if err := c.move(ctx, from, to); err != nil {
		return nil, rpcError(err)
	}
	entry, err := c.entry(ctx, to)
	if err != nil {
		return nil, rpcError(err)
	}
	return &pb.MoveResponse{Entry: entry}, nil
}

// move makes the directories above to only when they turn out to be missing.
func (c *call) move(ctx context.Context, from, to string) error {
	err := c.host.RenameFile(ctx, c.id(), from, to)
	if !isCode(err, sandbox.NotFound) {
		return err
	}
	if _, statErr := c.host.StatFile(ctx, c.id(), from); statErr != nil {
		return statErr
	}
	opts := sandbox.MakeDirOptions{Parents: true, User: c.user}
	if _, _, err := c.host.MakeDir(ctx, c.id(), path.Dir(to), opts); err != nil {
		return err
	}
	return c.host.RenameFile(ctx, c.id(), from, to)
}

func (f *filesystem) ListDir(ctx context.Context, req *pb.ListDirRequest) (*pb.ListDirResponse, error) {
	c := callOf(ctx)
	name, err := c.path(ctx, req.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	depth := int(min(max(req.GetDepth(), 1), math.MaxInt32)) // 0 is what old SDKs send
	infos, err := f.host.ListTree(ctx, c.id(), name, depth)
	if err != nil {
		return nil, rpcError(err)
	}
	list := &pb.ListDirResponse{Entries: make([]*pb.EntryInfo, 0, len(infos))}
	for i := range infos {
		list.Entries = append(list.Entries, c.describe(ctx, &infos[i]))
	}
	return list, rpcError(ctx.Err())
}

// Remove is content when there is nothing to remove.
func (f *filesystem) Remove(ctx context.Context, req *pb.RemoveRequest) (*pb.RemoveResponse, error) {
	c := callOf(ctx)
	name, err := c.path(ctx, req.GetPath())
	if err == nil {
		err = f.host.RemoveFile(ctx, c.id(), name, true)
	}
	if err != nil && !isCode(err, sandbox.NotFound) {
		return nil, rpcError(err)
	}
	return &pb.RemoveResponse{}, nil
}
