package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

func (d *daemon) pause(t *testing.T, id string) {
	t.Helper()
	if info, err := d.Pause(limited(t, patience), id); err != nil || info.State != "paused" {
		t.Fatalf("%+v, %v", info, err)
	}
}

func (d *daemon) resume(t *testing.T, id string) {
	t.Helper()
	if info, err := d.Resume(limited(t, patience), id, 0); err != nil || info.State != "running" || info.ID != id {
		t.Fatalf("%+v, %v", info, err)
	}
}

// Time in a sandbox across a pause: the wall clock is right afterwards, and the
// monotonic clock has stood still and never goes back (field case 138).
func TestClocksAcrossAPause(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "import time; wall, mono = time.time(), time.monotonic()")
	d.pause(t, id)
	time.Sleep(2 * time.Second)
	before := time.Now()
	d.resume(t, id)
	got := value[[]float64](t, d, id, "[time.time(), time.time() - wall, time.monotonic() - mono]")
	after := time.Now()
	if at := time.UnixMicro(int64(got[0] * 1e6)); at.Before(before.Add(-time.Second)) || at.After(after.Add(time.Second)) {
		t.Errorf("the guest's clock is %s, the host's %s", at, after)
	}
	if got[1] < 2 || got[2] < 0 || got[2] > got[1]-1.5 {
		t.Errorf("the wall clock went on by %.3f s, the monotonic one by %.3f s", got[1], got[2])
	}
}

// Processes go on where they stood: a loop counts on without a gap, a server still
// listens, and one that was started to live on its own can be attached to.
func TestProcessesGoOnAfterAPause(t *testing.T) {
	d := shared(t)
	ctx := limited(t, patience)
	id := d.fork(t, 1)[0]
	p, err := d.SpawnProcess(ctx, id, client.ProcessRequest{
		Args: []string{"sh", "-c", "i=0; while read line; do i=$((i+1)); echo $i $line; done"}, Stdin: true, Tag: "count",
	})
	if err != nil {
		t.Fatal(err)
	}
	d.sh(t, id, "nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i >> /root/n; "+nap(20*time.Millisecond)+"; done' > /dev/null 2>&1 &")
	ref := client.ProcessRef{Tag: "count"}
	for i := range 3 {
		a, err := d.AttachProcess(ctx, id, ref)
		if err != nil {
			t.Fatal(err)
		}
		if a.Process.PID != p.PID {
			t.Errorf("it is process %d, was %d", a.Process.PID, p.PID)
		}
		word := fmt.Sprintf("word%d", i)
		if err := d.WriteProcess(ctx, id, client.ProcessRef{PID: p.PID}, []byte(word+"\n")); err != nil {
			t.Fatal(err)
		}
		if out, err := a.Recv(); err != nil || string(out.Data) != fmt.Sprintf("%d %s\n", i+1, word) {
			t.Errorf("%q, %v", out.Data, err)
		}
		d.pause(t, id)
		if _, err := a.Recv(); !client.IsCode(err, "paused") {
			t.Errorf("who listens while it is paused gets %v", err)
		}
		a.Close()
		d.resume(t, id)
	}
	// The loop has left out no number.
	d.sh(t, id, "set -e; n=$(wc -l < /root/n); while [ $(wc -l < /root/n) -le $n ]; do sleep 0.02; done; head -n $n /root/n > /root/m; seq $n | cmp - /root/m")
}

// A daemon that is killed in the middle of pauses loses nothing that it has
// acknowledged, and leaves nothing of those that it has not.
func TestKilledWhilePausing(t *testing.T) {
	home := cloneHome(t)
	d := serve(t, home)
	var mu sync.Mutex
	acknowledged := make(map[string]int) // what x is, by id
	for round := range 4 {
		ids := make([]string, 4)
		for i := range ids {
			ids[i] = d.fork(t, 1)[0]
			d.eval(t, ids[i], fmt.Sprintf("x = %d; blob = numpy.full(1 << 20, x)", 100*round+i))
		}
		var all sync.WaitGroup
		for i, id := range ids {
			all.Go(func() {
				if _, err := d.Pause(context.Background(), id); err == nil {
					mu.Lock()
					defer mu.Unlock()
					acknowledged[id] = 100*round + i
				}
			})
		}
		inTheMiddle(time.Duration(round) * 80 * time.Millisecond)
		d.kill()
		all.Wait()
		d = serve(t, home)
		list, err := d.Sandboxes(limited(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		states := make(map[string]string)
		for _, info := range list {
			states[info.ID] = string(info.State)
			if info.State != "paused" && (info.State != "crashed" || info.Reason == "") {
				t.Errorf("after the restart %s is %s, because %q", info.ID, info.State, info.Reason)
			}
		}
		for id := range acknowledged {
			if states[id] != "paused" {
				t.Errorf("round %d: %s was acknowledged as paused, and is %q", round, id, states[id])
			}
		}
		// Each snapshot of a pause belongs to a sandbox that is listed.
		snapshots, err := d.Snapshots(limited(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range snapshots {
			if strings.HasPrefix(s.Tag, "paused-") && (states[s.KeptFor] != "paused" || !s.Bootable) {
				t.Errorf("round %d: left is %+v", round, s)
			}
		}
	}
	t.Logf("%d pauses were acknowledged", len(acknowledged))
	for id, want := range acknowledged {
		d.resume(t, id)
		if got := value[int](t, d, id, "x if (blob == x).all() else -1"); got != want {
			t.Errorf("x of %s is %d, want %d", id, got, want)
		}
		if err := d.Kill(limited(t, patience), id); err != nil {
			t.Error(err)
		}
	}
}

// After a delete is acknowledged a sandbox is gone, whatever was under way (field
// cases 019, 122).
func TestKilledWhileResuming(t *testing.T) {
	d := shared(t)
	for _, delay := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		for what, do := range map[string]func(context.Context, string) (*client.SandboxInfo, error){
			"pausing":  d.Pause,
			"resuming": func(ctx context.Context, id string) (*client.SandboxInfo, error) { return d.Resume(ctx, id, 0) },
		} {
			id := d.fork(t, 1)[0]
			d.eval(t, id, "x = 1")
			if what == "resuming" {
				d.pause(t, id)
			}
			done := make(chan error, 1)
			go func() {
				_, err := do(context.Background(), id)
				done <- err
			}()
			inTheMiddle(delay)
			if err := d.Kill(limited(t, patience), id); err != nil {
				t.Errorf("killing while %s: %v", what, err)
			}
			var e *client.Error
			if err := <-done; err != nil && !errors.As(err, &e) {
				t.Errorf("%s: %v", what, err)
			}
			_, err := d.Sandbox(limited(t, patience), id)
			wantCode(t, err, "not_found", id)
			wantCode(t, d.Kill(limited(t, patience), id), "not_found", id)
		}
	}
	snapshots, err := d.Snapshots(limited(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range snapshots {
		if strings.HasPrefix(s.Tag, "paused-") {
			t.Errorf("left is %+v", s)
		}
	}
}

// A pause for which the disk is too small fails, and the sandbox goes on.
func TestPauseOnAFullDisk(t *testing.T) {
	home := cloneHome(t)
	resize := smallLayers(t, home, 4<<20)
	d := serve(t, home)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "blob = numpy.random.bytes(16 << 20); x = 7")
	_, err := d.Pause(limited(t, patience), id)
	wantCode(t, err, "no_space", "")
	if got := value[int](t, d, id, "x + len(blob) * 0"); got != 7 {
		t.Errorf("x is %d", got)
	}
	if info, err := d.Sandbox(limited(t, patience), id); err != nil || info.State != "running" {
		t.Errorf("%+v, %v", info, err)
	}
	resize(256 << 20)
	d.pause(t, id)
	d.resume(t, id)
	if got := value[int](t, d, id, "x"); got != 7 {
		t.Errorf("x is %d", got)
	}
}
