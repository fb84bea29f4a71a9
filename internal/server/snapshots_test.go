package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

var steps = []sandbox.Progress{
	{Step: "packages", Message: "fetching", Done: 1, Total: 2},
	{Step: "boot", Message: "booting"},
}

func TestCreateSnapshot(t *testing.T) {
	s := newSite(t, "")
	s.CreateSteps = steps
	var got []string
	info, err := s.c.CreateSnapshot(context.Background(), client.SnapshotRequest{Tag: "new"}, func(p client.Progress) {
		got = append(got, p.Step)
	})
	if err != nil {
		t.Fatal(err)
	}
	if info.Tag != "new" || info.Status != api.SnapshotStatusReady || !info.Bootable || strings.Join(got, " ") != "packages boot" {
		t.Errorf("%+v after %q", info, got)
	}
	_, err = s.c.CreateSnapshot(context.Background(), client.SnapshotRequest{Tag: "new"}, nil)
	if !client.IsCode(err, api.ErrorCodeAlreadyExists) {
		t.Errorf("again: %v", err)
	}
	detail, err := s.c.Snapshot(context.Background(), "new")
	if err != nil || detail.MemoryMiB != 512 || detail.Ancestors == nil {
		t.Errorf("detail %+v, %v", detail, err)
	}
}

// TestCreateSnapshotFailsLate: an error after progress travels in the stream.
func TestCreateSnapshotFailsLate(t *testing.T) {
	s := newSite(t, "")
	s.CreateSteps = []sandbox.Progress{steps[0], steps[1]}
	s.StepDelay = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	_, err := s.c.CreateSnapshot(ctx, client.SnapshotRequest{Tag: "gone"}, func(client.Progress) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	eventually(t, "an end of the work", func() bool { return strings.Contains(s.log.String(), "went away") })
	if all, _ := s.Snapshots(); len(all) != 1 {
		t.Errorf("left behind: %v", all)
	}
}

func TestRemoveSnapshot(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	_, err := s.c.RemoveSnapshot(ctx, "pyagent", client.RemoveOptions{})
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != api.ErrorCodeInUse || len(refused.Dependents) != 1 || refused.Dependents[0] != id {
		t.Fatalf("with a sandbox: %+v", err)
	}
	if _, err := s.c.RemoveSnapshot(ctx, "pyagent", client.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if len(s.Sandboxes()) != 0 {
		t.Error("the sandbox still runs")
	}
}
