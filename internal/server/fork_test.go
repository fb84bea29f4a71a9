package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/sandbox"
	"github.com/forkd-dev/forkd/internal/server/servertest"
)

func failing(indexes ...int) func(*servertest.Fake) {
	return func(f *servertest.Fake) {
		f.ForkError = func(i int) *sandbox.Error {
			for _, bad := range indexes {
				if i == bad {
					return &sandbox.Error{Code: sandbox.CapacityExceeded, Message: fmt.Sprintf("no room for child %d", i), Hint: "end some"}
				}
			}
			return nil
		}
	}
}

func TestForkNames(t *testing.T) {
	s := newSite(t, "")
	for _, body := range []string{
		`{"snapshot_tag":"pyagent","n":3}`,
		`{"tag":"pyagent","count":3}`,
		`{"tag":"pyagent","snapshot_tag":"pyagent","n":3,"count":3}`,
	} {
		resp, text := s.ask(t, "POST", "/v1/sandboxes", body)
		var boxes []map[string]any
		if err := json.Unmarshal([]byte(text), &boxes); err != nil || resp.StatusCode != 201 || len(boxes) != 3 {
			t.Fatalf("%s: %s %s", body, resp.Status, text)
		}
		// Old clients read these keys; they are there even when they are null.
		for _, key := range []string{"id", "snapshot_tag", "netns", "guest_addr", "created_at_unix", "pid", "memory_limit_mib"} {
			if _, ok := boxes[0][key]; !ok {
				t.Errorf("no %s in %v", key, boxes[0])
			}
		}
	}
}

func TestForkOptions(t *testing.T) {
	s := newSite(t, "")
	boxes, failed, err := s.c.Fork(context.Background(), client.ForkRequest{
		Tag: "pyagent", MemoryLimitMiB: client.Ptr(64), TimeoutSecs: client.Ptr(3600.0),
	})
	if err != nil || len(failed) != 0 || len(boxes) != 1 {
		t.Fatal(boxes, failed, err)
	}
	if boxes[0].MemoryLimitMiB == nil || *boxes[0].MemoryLimitMiB != 64 {
		t.Errorf("memory limit %v", boxes[0].MemoryLimitMiB)
	}
	if b := boxes[0]; b.CPUs != nil || b.CPUWeight != nil || b.PIDsLimit != nil || b.DiskLimitMiB != nil || b.DiskBytesPerSec != nil || b.NetBytesPerSec != nil || b.IdleTimeoutSecs != nil {
		t.Errorf("limits that nobody has asked for: %+v", b)
	}
	if at := boxes[0].ExpiresAt; at == nil || time.Until(*at) < 59*time.Minute || time.Until(*at) > time.Hour {
		t.Errorf("expires at %v", at)
	}
}

// Limits are passed on and shown.
func TestForkLimits(t *testing.T) {
	s := newSite(t, "")
	limits := `"memory_limit_mib":64,"cpus":0.5,"cpu_weight":50,"pids_limit":100,"disk_limit_mib":200,"disk_bytes_per_sec":1048576,"net_bytes_per_sec":2048,"idle_timeout_secs":1.5`
	want := sandbox.Limits{MemoryMiB: 64, CPUs: 0.5, CPUWeight: 50, Processes: 100, DiskMiB: 200, DiskRate: 1 << 20, NetRate: 2048, Idle: 1500 * time.Millisecond}
	resp, text := s.ask(t, "POST", "/v1/sandboxes", `{"tag":"pyagent",`+limits+`}`)
	if resp.StatusCode != 201 || s.Sandboxes()[0].Limits != want {
		t.Errorf("%s %s: %+v", resp.Status, text, s.Sandboxes())
	}
	_, space := s.ask(t, "POST", "/v1/workspaces", `{"name":"w","snapshot_tag":"pyagent",`+limits+`}`)
	for _, field := range strings.Split(limits, ",") {
		if !strings.Contains(text, field) || !strings.Contains(space, field) {
			t.Errorf("%s is missing in %s or %s", field, text, space)
		}
	}
}

func TestForkPartly(t *testing.T) {
	s := newSite(t, "", failing(1, 3))
	boxes, failed, err := s.c.Fork(context.Background(), client.ForkRequest{SnapshotTag: "pyagent", N: client.Ptr(5)})
	if err != nil {
		t.Fatal(err)
	}
	if len(boxes) != 3 || len(failed) != 2 || failed[0].Index != 1 || failed[1].Index != 3 {
		t.Fatalf("boxes %v, failed %v", boxes, failed)
	}
	if failed[0].Code != api.ErrorCodeCapacityExceeded || failed[0].Error != "no room for child 1" || failed[0].Hint != "end some" {
		t.Errorf("failed[0] = %+v", failed[0])
	}
	if all := s.Sandboxes(); len(all) != 3 {
		t.Errorf("%d run, the answer names 3", len(all))
	}
}

// What the host cannot bear is refused with the numbers, and with when to ask again.
func TestForkShortage(t *testing.T) {
	s := newSite(t, "", func(f *servertest.Fake) {
		f.ForkError = func(int) *sandbox.Error {
			return &sandbox.Error{
				Code: sandbox.CapacityExceeded, Message: "no room", Retry: 4500 * time.Millisecond,
				Shortage: &sandbox.Shortage{Resource: sandbox.ResourceMemory, Needed: 5, Free: 4, Held: 3},
			}
		}
	})
	resp, text := s.ask(t, "POST", "/v1/sandboxes", `{"tag":"pyagent"}`)
	wantError(t, resp, text, 503, "capacity_exceeded", "no room")
	if got := resp.Header.Get("Retry-After"); got != "5" || !strings.Contains(text, `"shortage":{"free":4,"held":3,"needed":5,"resource":"memory"}`) {
		t.Errorf("Retry-After is %q, the answer %s", got, text)
	}
	var e *client.Error
	if _, _, err := s.c.Fork(t.Context(), client.ForkRequest{Tag: "pyagent"}); !errors.As(err, &e) || e.Shortage == nil || e.Shortage.Needed != 5 || e.RetryAfter != 5*time.Second {
		t.Errorf("the client has %+v", e)
	}
}

func TestForkNone(t *testing.T) {
	s := newSite(t, "", failing(0, 1))
	resp, text := s.ask(t, "POST", "/v1/sandboxes", `{"tag":"pyagent","n":2}`)
	wantError(t, resp, text, 503, "capacity_exceeded", "none of 2 children could be started: no room for child 0")
}

// TestForkAbandoned: a client that leaves before it has the answer leaves no
// child behind.
func TestForkAbandoned(t *testing.T) {
	s := newSite(t, "")
	forked := make(chan struct{})
	release := make(chan struct{})
	s.ForkError = func(int) *sandbox.Error {
		close(forked)
		<-release
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, _, err := s.c.Fork(ctx, client.ForkRequest{Tag: "pyagent"})
		done <- err
	}()
	<-forked
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	time.Sleep(20 * time.Millisecond) // give the server time to notice
	close(release)
	eventually(t, "an end of the request", func() bool { return strings.Contains(s.log.String(), "status=499") })
	if all := s.Sandboxes(); len(all) != 0 {
		t.Errorf("left behind: %v", all)
	}
}

func TestForkKey(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	req := client.ForkRequest{Tag: "pyagent", N: client.Ptr(2)}
	s.ForkDelay = 20 * time.Millisecond
	var wg sync.WaitGroup
	ids := make([]string, 10)
	for i := range ids {
		wg.Go(func() {
			boxes, _, err := s.c.Fork(ctx, req, client.WithKey("k1"))
			if err != nil || len(boxes) != 2 {
				t.Error(boxes, err)
				return
			}
			ids[i] = boxes[0].ID + boxes[1].ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("one key gave different children: %v", ids)
			break
		}
	}
	if all := s.Sandboxes(); len(all) != 2 {
		t.Errorf("%d sandboxes, want 2", len(all))
	}
	_, _, err := s.c.Fork(ctx, client.ForkRequest{Tag: "pyagent", N: client.Ptr(3)}, client.WithKey("k1"))
	if !client.IsCode(err, api.ErrorCodeAlreadyExists) {
		t.Errorf("the key with another body: %v", err)
	}
	if boxes, _, err := s.c.Fork(ctx, req, client.WithKey("k2")); err != nil || boxes[0].ID+boxes[1].ID == ids[0] {
		t.Errorf("another key: %v %v", boxes, err)
	}
}

// TestForkKeySurvivesDisconnect: with a key the client can come back for what
// it was not there to receive.
func TestForkKeySurvivesDisconnect(t *testing.T) {
	s := newSite(t, "")
	s.ForkDelay = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	req := client.ForkRequest{Tag: "pyagent"}
	if _, _, err := s.c.Fork(ctx, req, client.WithKey("k")); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the first try: %v", err)
	}
	boxes, _, err := s.c.Fork(context.Background(), req, client.WithKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	if all := s.Sandboxes(); len(all) != 1 || all[0].ID != boxes[0].ID {
		t.Errorf("there are %v, the answer was %v", all, boxes)
	}
}

// TestForkKeyForgetsFailure: nothing was made, so the next try is a first one.
func TestForkKeyForgetsFailure(t *testing.T) {
	s := newSite(t, "", failing(0))
	req := client.ForkRequest{Tag: "pyagent"}
	if _, _, err := s.c.Fork(context.Background(), req, client.WithKey("k")); err == nil {
		t.Fatal("the first try worked")
	}
	s.ForkError = nil
	if _, _, err := s.c.Fork(context.Background(), req, client.WithKey("k")); err != nil {
		t.Errorf("the second try: %v", err)
	}
}

func TestIdempotencyBounds(t *testing.T) {
	now := time.Unix(0, 0)
	i := newIdempotency(func() time.Time { return now })
	calls := 0
	do := func(key string) {
		i.do(context.Background(), key, [32]byte{}, func() (*api.ForkPartial, error) {
			calls++
			return &api.ForkPartial{}, nil
		})
	}
	for n := range 3 * maxKeys {
		do(fmt.Sprint(n))
	}
	if len(i.byKey) > maxKeys || len(i.order) != len(i.byKey) {
		t.Errorf("%d keys in %d places, the limit is %d", len(i.byKey), len(i.order), maxKeys)
	}
	calls = 0
	do(fmt.Sprint(3*maxKeys - 1))
	if calls != 0 {
		t.Error("the newest key was forgotten")
	}
	now = now.Add(keyLife)
	do(fmt.Sprint(3*maxKeys - 1))
	if calls != 1 {
		t.Error("an old key was remembered")
	}
}

// BenchmarkFork100 measures what REST adds to a fork of 100.
func BenchmarkFork100(b *testing.B) {
	s := newSite(b, "")
	ctx := context.Background()
	for b.Loop() {
		boxes, _, err := s.c.Fork(ctx, client.ForkRequest{Tag: "pyagent", N: client.Ptr(100)})
		if err != nil || len(boxes) != 100 {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkEval measures what REST adds to an evaluation.
func BenchmarkEval(b *testing.B) {
	s := newSite(b, "")
	id := s.fork(b)
	ctx := context.Background()
	for b.Loop() {
		if _, err := s.c.Eval(ctx, id, client.EvalRequest{Code: "numpy.zeros(5).tolist()"}); err != nil {
			b.Fatal(err)
		}
	}
}
