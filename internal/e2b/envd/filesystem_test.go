package envd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// hostPath is where a file of the sandbox lies on this machine.
func (s *site) hostPath(path string) string { return filepath.Join(s.host.Dir, s.id, path) }

func TestStat(t *testing.T) {
	s := newSite(t)
	c := s.files(connect.WithProtoJSON())
	s.put(t, "/home/user/d/file", "12345")
	s.host.written["/home/user/d/file"] = sandbox.WriteOptions{User: "user", Attrs: map[string]string{
		"e2b.kind": "test", "other": "x", "e2b.bad": "\xff",
	}}
	for link, target := range map[string]string{"rel": "d/file", "abs": "/home/user/d/file", "dir": "d", "broken": "nowhere", "loop": "loop", "chain": "rel"} {
		if strings.HasPrefix(target, "/") {
			target = s.hostPath(target)
		}
		if err := os.Symlink(target, s.hostPath("/home/user/"+link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []struct {
		path, user, full string
		kind             pb.FileType
		target           string
	}{
		{"d/file", "", "/home/user/d/file", pb.FileType_FILE_TYPE_FILE, ""},
		{"/home/user/d/file", "", "/home/user/d/file", pb.FileType_FILE_TYPE_FILE, ""},
		{"~/d/file", "", "/home/user/d/file", pb.FileType_FILE_TYPE_FILE, ""},
		{"../user/d/../d", "", "/home/user/d", pb.FileType_FILE_TYPE_DIRECTORY, ""},
		{"../home/user/d", "root", "/home/user/d", pb.FileType_FILE_TYPE_DIRECTORY, ""},
		{"", "", "/home/user", pb.FileType_FILE_TYPE_DIRECTORY, ""},
		{"~", "root", "/root", pb.FileType_FILE_TYPE_DIRECTORY, ""},
		{"rel", "", "/home/user/rel", pb.FileType_FILE_TYPE_FILE, "/home/user/d/file"},
		{"chain", "", "/home/user/chain", pb.FileType_FILE_TYPE_FILE, "/home/user/d/file"},
		{"dir", "", "/home/user/dir", pb.FileType_FILE_TYPE_DIRECTORY, "/home/user/d"},
		{"broken", "", "/home/user/broken", pb.FileType_FILE_TYPE_SYMLINK, "/home/user/broken"},
		{"loop", "", "/home/user/loop", pb.FileType_FILE_TYPE_SYMLINK, "/home/user/loop"},
	} {
		ctx := t.Context()
		if k.user != "" {
			ctx = as(ctx, k.user)
		}
		resp, err := c.Stat(ctx, &pb.StatRequest{Path: k.path})
		if err != nil {
			t.Errorf("%q: %v", k.path, err)
			continue
		}
		if e := resp.Entry; e.Path != k.full || e.Name != filepath.Base(k.full) || e.Type != k.kind || e.GetSymlinkTarget() != k.target {
			t.Errorf("%q: %v, want %+v", k.path, e, k)
		}
	}
	resp, err := c.Stat(t.Context(), &pb.StatRequest{Path: "d/file"})
	if err != nil {
		t.Fatal(err)
	}
	e := resp.Entry
	if e.Size != 5 || e.Mode != 0o644 || e.Permissions != "-rw-r--r--" || e.Owner != "user" || e.Group != "user" ||
		time.Since(e.ModifiedTime.AsTime()) > time.Hour || !reflect.DeepEqual(e.Metadata, map[string]string{"kind": "test"}) {
		t.Errorf("%v", e)
	}
	for path, code := range map[string]connect.Code{
		"gone": connect.CodeNotFound, "~ann/x": connect.CodeInvalidArgument, "a\x00b": connect.CodeInvalidArgument,
	} {
		_, err := c.Stat(t.Context(), &pb.StatRequest{Path: path})
		wantCode(t, err, code, "")
	}
	for _, user := range []string{"stranger", ""} {
		_, err = c.Stat(as(t.Context(), user), &pb.StatRequest{Path: "/"})
		wantCode(t, err, connect.CodeUnauthenticated, "invalid username: '"+user+"'")
	}
}

func TestDirectories(t *testing.T) {
	s := newSite(t)
	c := s.files()
	ctx := t.Context()
	made, err := c.MakeDir(ctx, &pb.MakeDirRequest{Path: "a/b"})
	if err != nil || made.Entry.Path != "/home/user/a/b" || made.Entry.Type != pb.FileType_FILE_TYPE_DIRECTORY {
		t.Fatal(made, err)
	}
	if want := (sandbox.MakeDirOptions{Parents: true, User: "user"}); s.host.made != want {
		t.Errorf("made with %+v", s.host.made)
	}
	_, err = c.MakeDir(ctx, &pb.MakeDirRequest{Path: "a/b"})
	wantCode(t, err, connect.CodeAlreadyExists, "directory already exists: /home/user/a/b")
	s.put(t, "/home/user/a/f\xff", "x")
	s.put(t, "/home/user/a/b/deep/er", "y")

	list := func(path string, depth uint32) (names []string) {
		t.Helper()
		resp, err := c.ListDir(ctx, &pb.ListDirRequest{Path: path, Depth: depth})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Entries {
			names = append(names, strings.TrimPrefix(e.Path, "/home/user/a/"))
		}
		slices.Sort(names)
		return names
	}
	for depth, want := range [][]string{{"b", "f\uFFFD"}, {"b", "f\uFFFD"}, {"b", "b/deep", "f\uFFFD"}, {"b", "b/deep", "b/deep/er", "f\uFFFD"}} {
		if got := list("a", uint32(depth)); !slices.Equal(got, want) {
			t.Errorf("depth %d: %q, want %q", depth, got, want)
		}
	}
	_, err = c.ListDir(ctx, &pb.ListDirRequest{Path: "gone"})
	wantCode(t, err, connect.CodeNotFound, "")

	moved, err := c.Move(ctx, &pb.MoveRequest{Source: "a/b/deep/er", Destination: "new/place/x"})
	if err != nil || moved.Entry.Path != "/home/user/new/place/x" || s.get(t, "/home/user/new/place/x") != "y" {
		t.Errorf("%v, %v", moved, err)
	}
	_, err = c.Move(ctx, &pb.MoveRequest{Source: "gone", Destination: "new/other/x"})
	wantCode(t, err, connect.CodeNotFound, "")
	if s.get(t, "/home/user/new/other") != "(missing)" {
		t.Error("a move that failed has made a directory")
	}
	for range 2 { // the second time there is nothing
		if _, err := c.Remove(ctx, &pb.RemoveRequest{Path: "a"}); err != nil {
			t.Error(err)
		}
	}
	_, err = c.Stat(ctx, &pb.StatRequest{Path: "a"})
	wantCode(t, err, connect.CodeNotFound, "")
}

func TestWatchDir(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.files(connect.WithProtoJSON()).WatchDir(ctx, &pb.WatchDirRequest{Path: "", IncludeEntry: true, AllowNetworkMounts: true})
	if err != nil || !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatal(err, stream.Err(), stream.Msg())
	}
	s.put(t, "/home/user/f", "x")
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	e := stream.Msg().GetFilesystem()
	if e.GetName() != "f" || e.GetType() != pb.EventType_EVENT_TYPE_CREATE || e.GetEntry().GetPath() != "/home/user/f" || e.GetEntry().GetSize() != 1 {
		t.Errorf("%v", e)
	}
	s.put(t, "/home/user/overflow", "")
	if stream.Receive() {
		t.Error("an event after an overflow")
	}
	wantCode(t, stream.Err(), connect.CodeResourceExhausted, "missed; watch again")
	stream.Close()

	stream, err = s.files().WatchDir(ctx, &pb.WatchDirRequest{Path: ""})
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	cancel()
	for stream.Receive() {
	}
	stream.Close()
	gone, err := s.files().WatchDir(t.Context(), &pb.WatchDirRequest{Path: "gone"})
	if err == nil && !gone.Receive() {
		err = gone.Err()
		gone.Close()
	}
	wantCode(t, err, connect.CodeNotFound, "")
}

func TestWatcher(t *testing.T) {
	s := newSite(t)
	c := s.files()
	ctx := t.Context()
	w, err := c.CreateWatcher(ctx, &pb.CreateWatcherRequest{Path: "/home/user"})
	if err != nil {
		t.Fatal(err)
	}
	wait := func(n int) (names []string) {
		t.Helper()
		for len(names) < n {
			resp, err := c.GetWatcherEvents(ctx, &pb.GetWatcherEventsRequest{WatcherId: w.WatcherId})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range resp.Events {
				names = append(names, e.Name)
			}
			time.Sleep(time.Millisecond)
		}
		return names
	}
	s.put(t, "/home/user/a", "")
	if got := wait(1); !slices.Equal(got, []string{"a"}) {
		t.Error(got)
	}
	s.put(t, "/home/user/b", "")
	s.put(t, "/home/user/c", "")
	if got := wait(2); !slices.Equal(got, []string{"b", "c"}) {
		t.Error(got)
	}
	own := s.id
	s.id = "sbffffffffffff"
	_, err = c.GetWatcherEvents(ctx, &pb.GetWatcherEventsRequest{WatcherId: w.WatcherId})
	wantCode(t, err, connect.CodeNotFound, "watcher with id")
	s.id = own
	if _, err := c.RemoveWatcher(ctx, &pb.RemoveWatcherRequest{WatcherId: w.WatcherId}); err != nil {
		t.Fatal(err)
	}
	_, err = c.RemoveWatcher(ctx, &pb.RemoveWatcherRequest{WatcherId: w.WatcherId})
	wantCode(t, err, connect.CodeNotFound, "watcher with id")
	_, err = c.CreateWatcher(ctx, &pb.CreateWatcherRequest{Path: "gone"})
	wantCode(t, err, connect.CodeNotFound, "")

	// The rest ends with the service.
	for i := range maxWatchers + 1 {
		_, err = c.CreateWatcher(ctx, &pb.CreateWatcherRequest{Path: "/root"})
		if (err != nil) != (i == maxWatchers) {
			t.Fatalf("watcher %d: %v", i, err)
		}
	}
	wantCode(t, err, connect.CodeResourceExhausted, "remove one")
}

// flood is a watch that never ends.
type flood struct {
	n     atomic.Int64
	done  chan struct{}
	close sync.Once
}

func (f *flood) Recv() (sandbox.Change, error) {
	select {
	case <-f.done:
		return sandbox.Change{}, os.ErrClosed
	default:
	}
	return sandbox.Change{Kind: sandbox.FileWritten, Name: fmt.Sprint(f.n.Add(1))}, nil
}

func (f *flood) Close() error {
	f.close.Do(func() { close(f.done) })
	return nil
}

type floodHost struct {
	Host
	flood *flood
}

func (h floodHost) Watch(context.Context, string, sandbox.WatchSpec) (sandbox.Watch, error) {
	return h.flood, nil
}

// TestWatcherIsBounded: a watcher that nobody asks holds so many changes and no
// more, and leaves none out.
func TestWatcherIsBounded(t *testing.T) {
	f := &flood{done: make(chan struct{})}
	ws := newWatchers(floodHost{nil, f})
	c := &call{target: &front.Target{ID: "sb000000000001"}}
	id, err := ws.add(c, sandbox.WatchSpec{})
	if err != nil {
		t.Fatal(err)
	}
	for f.n.Load() <= maxPending {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond)
	if n := f.n.Load(); n != maxPending+1 { // one is on its way
		t.Fatalf("it took %d changes", n)
	}
	w := ws.get(id, c.id())
	next := 1
	for next < 3*maxPending {
		events, err := w.take()
		if err != nil || len(events) > maxPending {
			t.Fatal(len(events), err)
		}
		for _, e := range events {
			if e.Name != fmt.Sprint(next) {
				t.Fatalf("event %q, want %d", e.Name, next)
			}
			next++
		}
	}
	ws.close()
	for err = nil; err == nil; _, err = w.take() {
	}
	if _, err := ws.add(c, sandbox.WatchSpec{}); err == nil {
		t.Error("added to what is closed")
	}
}
