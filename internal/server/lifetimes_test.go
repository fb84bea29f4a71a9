package server

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// A paused sandbox is listed and can be found, is told apart from one that is gone,
// and resumes by itself if that is wanted (field cases 122, 124).
func TestPausedSandboxes(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	fork := func(req client.ForkRequest) string {
		t.Helper()
		req.SnapshotTag = "pyagent"
		boxes, _, err := s.c.Fork(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return boxes[0].ID
	}
	plain := fork(client.ForkRequest{Metadata: map[string]string{"app": "a", "n": "1=1"}, TimeoutSecs: client.Ptr(60.0)})
	eager := fork(client.ForkRequest{Metadata: map[string]string{"app": "a"}, AutoResume: true, OnTimeout: client.PauseOnTimeout, Env: map[string]string{"A": "1"}})
	other := s.fork(t)
	for _, id := range []string{plain, eager} {
		info, err := s.c.Pause(ctx, id)
		if err != nil || info.State != "paused" || info.PausedAt == nil || info.ExpiresAt != nil {
			t.Fatalf("%+v, %v", info, err)
		}
	}
	find := func(f client.Filter) (ids []string) {
		t.Helper()
		list, err := s.c.FindSandboxes(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range list {
			ids = append(ids, info.ID)
		}
		return ids
	}
	for _, c := range []struct {
		filter client.Filter
		want   []string
	}{
		{client.Filter{}, []string{plain, eager, other}},
		{client.Filter{States: []string{"paused"}}, []string{plain, eager}},
		{client.Filter{States: []string{"running"}}, []string{other}},
		{client.Filter{States: []string{"running", "paused"}}, []string{plain, eager, other}},
		{client.Filter{Metadata: map[string]string{"app": "a"}}, []string{plain, eager}},
		{client.Filter{Metadata: map[string]string{"app": "a", "n": "1=1"}}, []string{plain}},
		{client.Filter{Metadata: map[string]string{"app": ""}}, nil},
	} {
		if got := find(c.filter); !slices.Equal(got, c.want) {
			t.Errorf("%+v finds %q, want %q", c.filter, got, c.want)
		}
	}
	if _, err := s.c.Exec(ctx, plain, client.ExecRequest{Args: []string{"true"}}); !client.IsCode(err, "paused") {
		t.Errorf("using it: %v", err)
	}
	if _, err := s.c.Pause(ctx, plain); !client.IsCode(err, "failed_precondition") {
		t.Errorf("pausing it again: %v", err)
	}
	res, err := s.c.Exec(ctx, eager, client.ExecRequest{Args: []string{"sh", "-c", "echo $A"}})
	if err != nil || res.Stdout != "1\n" {
		t.Errorf("%+v, %v", res, err)
	}
	if info, err := s.c.Sandbox(ctx, eager); err != nil || info.State != "running" || info.OnTimeout != client.PauseOnTimeout || !info.AutoResume {
		t.Errorf("%+v, %v", info, err)
	}
	info, err := s.c.Resume(ctx, plain, 0)
	if err != nil || info.State != "running" || info.ExpiresAt == nil || info.PausedAt != nil || info.Metadata["app"] != "a" {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := s.c.Pause(ctx, plain); err != nil {
		t.Fatal(err)
	}
	if err := s.c.Kill(ctx, plain); err != nil {
		t.Error(err)
	}
	if err := s.c.Kill(ctx, plain); !client.IsCode(err, "not_found") {
		t.Errorf("killing it again: %v", err)
	}
}

// Only setting a lifetime shortens it; null is for none (field case 125).
func TestTimeouts(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	left := func(info *client.SandboxInfo, err error) time.Duration {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if info.ExpiresAt == nil {
			return 0
		}
		return time.Until(*info.ExpiresAt).Round(10 * time.Second)
	}
	for _, c := range []struct {
		what string
		do   func(context.Context, string, time.Duration) (*client.SandboxInfo, error)
		d    time.Duration
		want time.Duration
	}{
		{"extending what has no end", s.c.ExtendLifetime, time.Minute, 0},
		{"setting", s.c.SetLifetime, 30 * time.Minute, 30 * time.Minute},
		{"extending by less", s.c.ExtendLifetime, time.Minute, 30 * time.Minute},
		{"extending by more", s.c.ExtendLifetime, time.Hour, time.Hour},
		{"resuming what runs", s.c.Resume, time.Minute, time.Hour},
		{"setting less", s.c.SetLifetime, time.Minute, time.Minute},
		{"setting none", s.c.SetLifetime, 0, 0},
	} {
		if got := left(c.do(ctx, id, c.d)); got != c.want {
			t.Errorf("%s: %s are left, want %s", c.what, got, c.want)
		}
	}
	m, err := s.c.SandboxMetrics(ctx, id)
	if err != nil || m.VCPUs != 1 || m.MemTotalBytes < m.MemUsedBytes || m.CPUPercent == 0 || m.Time.IsZero() {
		t.Errorf("%+v, %v", m, err)
	}
}
