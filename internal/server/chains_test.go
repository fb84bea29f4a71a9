package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

// chain makes a <- b <- c on pyagent, and d on a.
func (s *site) chain(t *testing.T) {
	t.Helper()
	for _, link := range [][2]string{{"pyagent", "a"}, {"a", "b"}, {"b", "c"}, {"a", "d"}} {
		_, err := s.c.DeriveSnapshot(context.Background(), link[0], client.DeriveRequest{
			Tag: link[1], Commands: [][]string{{"touch", link[1]}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (s *site) tags(t *testing.T) string {
	t.Helper()
	all, err := s.c.Snapshots(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var tags []string
	for _, info := range all {
		tags = append(tags, info.Tag)
	}
	return strings.Join(tags, " ")
}

func TestRemoveFromChain(t *testing.T) {
	ctx := context.Background()
	s := newSite(t, "")
	s.chain(t)
	boxes, _, err := s.c.Fork(ctx, client.ForkRequest{SnapshotTag: "a"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.c.RemoveSnapshot(ctx, "a", client.RemoveOptions{})
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != api.ErrorCodeInUse || !slices.Equal(refused.Dependents, []string{boxes[0].ID, "b", "d"}) {
		t.Fatalf("%+v", err)
	}
	_, err = s.c.RemoveSnapshot(ctx, "a", client.RemoveOptions{Cascade: true, Force: true})
	if !client.IsCode(err, api.ErrorCodeInvalidArgument) {
		t.Errorf("both: %v", err)
	}
	if removed, err := s.c.RemoveSnapshot(ctx, "b", client.RemoveOptions{Force: true}); err != nil || !slices.Equal(removed, []string{"b"}) {
		t.Errorf("force: %v %v", removed, err)
	}
	if got := s.tags(t); got != "a c d pyagent" {
		t.Errorf("after force: %s", got)
	}
	removed, err := s.c.RemoveSnapshot(ctx, "a", client.RemoveOptions{Cascade: true})
	if err != nil || !slices.Equal(removed, []string{"a", "d"}) {
		t.Errorf("cascade: %v %v", removed, err)
	}
	if got := s.tags(t); got != "c pyagent" || len(s.Sandboxes()) != 0 {
		t.Errorf("after cascade: %s, %v", got, s.Sandboxes())
	}
}

func TestDerive(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	var steps []string
	info, err := s.c.DeriveSnapshot(ctx, "pyagent", client.DeriveRequest{
		Tag: "new", Commands: [][]string{{"sh", "-c", "echo x > f"}}, Evals: []string{"x = 1"},
	}, func(p client.Progress) { steps = append(steps, p.Step) })
	if err != nil || info.Tag != "new" || strings.Join(steps, " ") != "exec eval" {
		t.Errorf("%+v %v %q", info, err, steps)
	}
	_, err = s.c.DeriveSnapshot(ctx, "pyagent", client.DeriveRequest{Tag: "bad", Commands: [][]string{{"sh", "-c", "echo why; exit 3"}}}, nil)
	var failed *client.Error
	if !errors.As(err, &failed) || !strings.Contains(failed.Message, "exit status 3") || !strings.Contains(failed.Hint, "why") {
		t.Errorf("%+v", err)
	}
	for body, says := range map[string]string{
		`{}`:                                  "tag: required",
		`{"tag":"x"}`:                         "at least one",
		`{"tag":"x","commands":[[]]}`:         "commands[0]: must name a program",
		`{"tag":"x","commands":["ls"]}`:       "commands: must be an array",
		`{"tag":"x","evals":[""]}`:            "evals[0]: must not be empty",
		`{"tag":"x","commands":[["\u0000"]]}`: "commands[0]: holds a NUL byte",
	} {
		resp, text := s.ask(t, "POST", "/v1/snapshots/pyagent/derive", body)
		wantError(t, resp, text, 400, api.ErrorCodeInvalidArgument, says)
	}
	if got := s.tags(t); got != "new pyagent" || len(s.Sandboxes()) != 0 {
		t.Errorf("left: %s %v", got, s.Sandboxes())
	}
}

func TestCompactAndVerify(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	s.chain(t)
	if _, err := s.c.CompactSnapshot(ctx, "c", "flat"); err != nil {
		t.Fatal(err)
	}
	if detail, err := s.c.Snapshot(ctx, "flat"); err != nil || detail.ChainDepth != 0 {
		t.Errorf("%+v %v", detail, err)
	}
	if _, err := s.c.CompactSnapshot(ctx, "c", "flat"); !client.IsCode(err, api.ErrorCodeAlreadyExists) {
		t.Errorf("again: %v", err)
	}
	if _, err := s.c.CompactSnapshot(ctx, "c", "../x"); !client.IsCode(err, api.ErrorCodeInvalidArgument) {
		t.Errorf("a bad tag: %v", err)
	}
	if _, err := s.c.CompactSnapshot(ctx, "nosuch", "x"); !client.IsCode(err, api.ErrorCodeNotFound) {
		t.Errorf("of nothing: %v", err)
	}
	var seen client.Progress
	if info, err := s.c.VerifySnapshot(ctx, "c", func(p client.Progress) { seen = p }); err != nil || info.Tag != "c" || seen.Total != 2 {
		t.Errorf("%+v %v %+v", info, err, seen)
	}
	if _, err := s.c.CompactSnapshot(ctx, "c", "damaged"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.VerifySnapshot(ctx, "damaged", nil); !client.IsCode(err, api.ErrorCodeNotBootable) {
		t.Errorf("a damaged one: %v", err)
	}
	resp, text := s.ask(t, "POST", "/v1/snapshots/damaged/verify", "")
	wantError(t, resp, text, 409, api.ErrorCodeNotBootable, "memory.layer")
}

func TestTree(t *testing.T) {
	s := newSite(t, "")
	s.chain(t)
	id := s.fork(t)
	nodes, err := s.c.Tree(context.Background())
	if err != nil || len(nodes) != 6 {
		t.Fatalf("%+v %v", nodes, err)
	}
	parents := map[string]string{}
	for _, n := range nodes {
		parents[n.Name] = n.Parent
	}
	for name, parent := range map[string]string{"pyagent": "", "a": "pyagent", "b": "a", "c": "b", "d": "a", id: "pyagent"} {
		if parents[name] != parent {
			t.Errorf("parent of %s is %q, want %q", name, parents[name], parent)
		}
	}
}

func TestWorkspaces(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	made, err := s.c.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "w", SnapshotTag: "pyagent", MemoryLimitMiB: client.Ptr(64)})
	if err != nil || made.State != api.WorkspaceStateRunning || made.SandboxID == "" || *made.MemoryLimitMiB != 64 {
		t.Fatalf("%+v %v", made, err)
	}
	s.write(t, made.SandboxID, "/f", "kept")
	if w, err := s.c.SuspendWorkspace(ctx, "w"); err != nil || w.State != api.WorkspaceStateSuspended || w.SandboxID != "" || w.SuspendedAtUnix == 0 {
		t.Errorf("%+v %v", w, err)
	}
	w, err := s.c.ResumeWorkspace(ctx, "w")
	if err != nil || w.State != api.WorkspaceStateRunning || w.SandboxID == made.SandboxID {
		t.Fatalf("%+v %v", w, err)
	}
	s.says(t, w.SandboxID, "/f", "kept")
	if _, err := s.c.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "w", SnapshotTag: "pyagent"}); !client.IsCode(err, api.ErrorCodeAlreadyExists) {
		t.Errorf("again: %v", err)
	}
	for body, says := range map[string]string{
		`{"name":"a/b","snapshot_tag":"pyagent"}`:                    "name: malformed name",
		`{"snapshot_tag":"pyagent"}`:                                 "name: required",
		`{"name":"x"}`:                                               "snapshot_tag: required",
		`{"name":"x","snapshot_tag":"pyagent","memory_limit_mib":0}`: "memory_limit_mib: must be",
	} {
		resp, text := s.ask(t, "POST", "/v1/workspaces", body)
		wantError(t, resp, text, 400, api.ErrorCodeInvalidArgument, says)
	}
	if err := s.c.RemoveWorkspace(ctx, "w"); err != nil {
		t.Error(err)
	}
	if _, err := s.c.Workspace(ctx, "w"); !client.IsCode(err, api.ErrorCodeNotFound) {
		t.Errorf("after: %v", err)
	}
}
