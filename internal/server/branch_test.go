package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// write puts a file into a sandbox.
func (s *site) write(t *testing.T, id, path, text string) {
	t.Helper()
	if err := s.c.WriteFile(context.Background(), id, path, strings.NewReader(text), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// says checks the content of a file.
func (s *site) says(t *testing.T, id, path, want string) {
	t.Helper()
	res, err := s.c.Exec(context.Background(), id, client.ExecRequest{Args: []string{"cat", "." + path}})
	if err != nil || res.Stdout != want {
		t.Errorf("%s in %s: %+v %v, want %q", path, id, res, err, want)
	}
}

func TestBranch(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	s.write(t, id, "/state", "before")
	info, err := s.c.Branch(ctx, id, client.BranchRequest{Tag: "b", Mode: client.BranchDiff})
	if err != nil {
		t.Fatal(err)
	}
	if info.Tag != "b" || info.BranchedFrom != id || info.Mode != client.BranchDiff || info.PauseMs != 1.5 || info.Status != api.SnapshotStatusReady {
		t.Errorf("%+v", info)
	}
	s.write(t, id, "/state", "after")
	boxes, _, err := s.c.Fork(ctx, client.ForkRequest{SnapshotTag: "b"})
	if err != nil {
		t.Fatal(err)
	}
	s.says(t, boxes[0].ID, "/state", "before")
	if boxes[0].BranchedFrom != id {
		t.Errorf("%+v", boxes[0])
	}
	if _, err := s.c.Rollback(ctx, id, "b"); err != nil {
		t.Fatal(err)
	}
	s.says(t, id, "/state", "before")
	detail, err := s.c.Snapshot(ctx, "b")
	if err != nil || detail.ChainDepth != 1 || detail.ParentTag != "pyagent" || detail.ParentContentHash == "" ||
		!slices.Equal(detail.Ancestors, []string{"pyagent"}) {
		t.Errorf("%+v %v", detail, err)
	}
	text, err := s.c.Metrics(ctx)
	if err != nil || !strings.Contains(text, `forkd_branch_duration_seconds_count{mode="diff"} 1`) ||
		!strings.Contains(text, `forkd_branch_pause_seconds_sum{mode="diff"} 0.0015`) {
		t.Errorf("metrics: %v\n%s", err, text)
	}
}

// TestBranchDefaults: without a body a branch is live, has a tag of its own and
// is waited for.
func TestBranchDefaults(t *testing.T) {
	s := newSite(t, "")
	s.WriteDelay = 50 * time.Millisecond
	id := s.fork(t)
	resp, text := s.ask(t, "POST", "/v1/sandboxes/"+id+"/branch", "")
	var info api.SnapshotInfo
	if err := json.Unmarshal([]byte(text), &info); err != nil || resp.StatusCode != 201 {
		t.Fatalf("%s %s", resp.Status, text)
	}
	if info.Tag == "" || info.Mode != api.BranchModeLive || info.Status != api.SnapshotStatusReady {
		t.Errorf("%+v", info)
	}
}

func TestBranchWithoutWaiting(t *testing.T) {
	s := newSite(t, "")
	s.WriteDelay = 200 * time.Millisecond
	ctx := context.Background()
	id := s.fork(t)
	info, err := s.c.Branch(ctx, id, client.BranchRequest{Tag: "b", Wait: client.Ptr(false)})
	if err != nil || info.Status != api.SnapshotStatusWriting {
		t.Fatalf("%+v %v", info, err)
	}
	if _, _, err := s.c.Fork(ctx, client.ForkRequest{SnapshotTag: "b"}); err != nil {
		t.Errorf("a fork before it is written: %v", err)
	}
	detail, err := s.c.WaitSnapshot(ctx, "b")
	if err != nil || detail.Status != api.SnapshotStatusReady {
		t.Errorf("%+v %v", detail, err)
	}
	if _, err := s.c.WaitSnapshot(ctx, "nosuch"); !client.IsCode(err, api.ErrorCodeNotFound) {
		t.Errorf("waiting for nothing: %v", err)
	}
}

// TestBranchRefused: what is wrong with the body of a branch is an error, not a
// branch with other settings.
func TestBranchRefused(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	for body, says := range map[string]string{
		`{"tag":`:              "ends too early",
		`{"tag":5}`:            "tag: must be a string",
		`[]`:                   "JSON object",
		`"x"`:                  "JSON object",
		`{} {}`:                "more than one",
		`{"taag":"x"}`:         "unknown field",
		`{"tag":"a/b"}`:        "tag: malformed",
		`{"tag":"../x"}`:       "tag: malformed",
		`{"tag":"a\u0000b"}`:   "tag: malformed",
		`{"mode":"sideways"}`:  "mode: must be full, diff or live",
		`{"wait":"yes"}`:       "wait: must be true or false",
		`{"mode":1}`:           "mode: must be a string",
		`{"tag":"x","wait":1}`: "wait: must be true or false",
	} {
		resp, text := s.ask(t, "POST", "/v1/sandboxes/"+id+"/branch", body)
		wantError(t, resp, text, 400, api.ErrorCodeInvalidArgument, says)
	}
	resp, text := s.ask(t, "POST", "/v1/sandboxes/"+id+"/branch", `{"tag":"`+strings.Repeat("x", 70<<10)+`"}`)
	wantError(t, resp, text, 413, api.ErrorCodeTooLarge, "limit")
	resp, text = s.ask(t, "POST", "/v1/sandboxes/"+id+"/branch", `{}`, "Content-Type", "text/plain")
	wantError(t, resp, text, 415, api.ErrorCodeUnsupportedMediaType, "text/plain")
	resp, text = s.ask(t, "POST", "/v1/sandboxes/nosuch/branch", `{}`)
	wantError(t, resp, text, 404, api.ErrorCodeNotFound, "nosuch")
	for body, says := range map[string]string{
		`{}`: "snapshot_tag: required", `{"snapshot_tag":"a/b"}`: "malformed", `{"tag":"pyagent"}`: "unknown field",
	} {
		resp, text = s.ask(t, "POST", "/v1/sandboxes/"+id+"/rollback", body)
		wantError(t, resp, text, 400, api.ErrorCodeInvalidArgument, says)
	}
	if all, _ := s.Snapshots(); len(all) != 1 {
		t.Errorf("refused requests made %d snapshots", len(all)-1)
	}
}

// TestBranchAtTheCap: who comes too early is told when to come again.
func TestBranchAtTheCap(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	s.BranchError = func() *sandbox.Error {
		return &sandbox.Error{Code: sandbox.CapacityExceeded, Message: "4 branches are being written"}
	}
	resp, text := s.ask(t, "POST", "/v1/sandboxes/"+id+"/branch", `{}`)
	wantError(t, resp, text, http.StatusServiceUnavailable, api.ErrorCodeCapacityExceeded, "being written")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// TestBranchOfALostClient: a branch that nobody has learnt of does not stay.
func TestBranchOfALostClient(t *testing.T) {
	s := newSite(t, "")
	s.WriteDelay = time.Minute
	id := s.fork(t)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		eventually(t, "a branch under way", func() bool { all, _ := s.Snapshots(); return len(all) == 2 })
		cancel()
	}()
	if _, err := s.c.Branch(ctx, id, client.BranchRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	eventually(t, "no branch", func() bool { all, _ := s.Snapshots(); return len(all) == 1 })
}

func TestForkFromSandbox(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	s.write(t, id, "/state", "ready")
	boxes, failed, err := s.c.Fork(ctx, client.ForkRequest{FromSandbox: id, N: client.Ptr(3)})
	if err != nil || len(failed) != 0 || len(boxes) != 3 {
		t.Fatalf("%v %v %v", boxes, failed, err)
	}
	for _, box := range boxes {
		s.says(t, box.ID, "/state", "ready")
		if box.BranchedFrom != id {
			t.Errorf("%+v", box)
		}
	}
	for body, says := range map[string]string{
		`{"from_sandbox":"` + id + `","snapshot_tag":"pyagent"}`: "from_sandbox: excludes",
		`{"from_sandbox":"` + id + `","n":0}`:                    "n: must be",
		`{"from_sandbox":""}`:                                    "snapshot_tag: required",
		`{"from_sandbox":5}`:                                     "from_sandbox: must be a string",
	} {
		resp, text := s.ask(t, "POST", "/v1/sandboxes", body)
		if strings.Contains(body, `""`) {
			says = "tag: required"
		}
		wantError(t, resp, text, 400, api.ErrorCodeInvalidArgument, says)
	}
	resp, text := s.ask(t, "POST", "/v1/sandboxes", `{"from_sandbox":"nosuch"}`)
	wantError(t, resp, text, 404, api.ErrorCodeNotFound, "nosuch")
	// The same key gives the same children.
	var made [2][]client.SandboxInfo
	for i := range made {
		if made[i], _, err = s.c.Fork(ctx, client.ForkRequest{FromSandbox: id}, client.WithKey("k")); err != nil {
			t.Fatal(err)
		}
	}
	if made[0][0].ID != made[1][0].ID {
		t.Errorf("%v", made)
	}
}
