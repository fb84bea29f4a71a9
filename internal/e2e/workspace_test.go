package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// A workspace goes on where it was after suspensions, an orderly end of the
// daemon, and with its last suspended state after a kill.
func TestWorkspaceOutlivesTheDaemon(t *testing.T) {
	home := cloneHome(t)
	d := serve(t, home)
	ctx := limited(t, patience)
	w, err := d.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "desk", SnapshotTag: tag})
	if err != nil {
		t.Fatal(err)
	}
	if w.State != "running" || w.SandboxID == "" || w.SnapshotTag != tag {
		t.Fatalf("%+v", w)
	}
	_, err = d.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "desk", SnapshotTag: tag})
	wantCode(t, err, "already_exists", "desk")
	id := w.SandboxID
	d.eval(t, id, "import os; x = 1; f = open('/root/f', 'w'); f.write('one '); f.flush()")
	d.sh(t, id, "nohup sh -c 'while :; do date >> /root/dates; "+nap(50*time.Millisecond)+"; done' > /dev/null 2>&1 &")

	w, err = d.SuspendWorkspace(ctx, "desk")
	if err != nil || w.State != "suspended" || w.SandboxID != "" || w.SnapshotTag == tag {
		t.Fatalf("%+v, %v", w, err)
	}
	if _, err := d.Sandbox(ctx, id); !client.IsCode(err, "not_found") {
		t.Errorf("its sandbox is still there: %v", err)
	}
	if again, err := d.SuspendWorkspace(ctx, "desk"); err != nil || again.SnapshotTag != w.SnapshotTag {
		t.Errorf("suspended twice: %+v, %v", again, err)
	}
	_, err = d.RemoveSnapshot(ctx, w.SnapshotTag, client.RemoveOptions{Force: true})
	wantCode(t, err, "in_use", "desk")

	// resume goes on in a daemon, which then ends in order.
	resume := func(d *daemon, want string) string {
		t.Helper()
		w, err := d.ResumeWorkspace(limited(t, patience), "desk")
		if err != nil || w.State != "running" {
			t.Fatalf("resuming: %+v, %v", w, err)
		}
		got := d.sh(t, w.SandboxID, `a=$(wc -l < /root/dates); while [ $(wc -l < /root/dates) -le $a ]; do sleep 0.05; done; cat /root/f`)
		if x := value[int](t, d, w.SandboxID, "x"); got != want || x != 1 {
			t.Errorf("it resumes with %q, x is %d", got, x)
		}
		return w.SandboxID
	}
	id = resume(d, "one ")
	d.eval(t, id, "f.write('two '); f.flush()")
	d.stop()

	d = serve(t, home)
	list, err := d.Workspaces(ctx)
	if err != nil || len(list) != 1 || list[0].State != "suspended" || list[0].Warning != "" {
		t.Fatalf("after a restart: %+v, %v", list, err)
	}
	id = resume(d, "one two ")
	d.eval(t, id, "f.write('three '); f.flush()")
	d.kill()

	d = serve(t, home)
	id = resume(d, "one two ")
	states := func() (n int) {
		t.Helper()
		snapshots, err := d.Snapshots(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range snapshots {
			if strings.HasPrefix(s.Tag, "ws-desk-") {
				n++
			}
		}
		return n
	}
	if n := states(); n != 1 {
		t.Errorf("it has %d snapshots", n)
	}
	if err := d.RemoveWorkspace(ctx, "desk"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Sandbox(ctx, id); !client.IsCode(err, "not_found") {
		t.Errorf("its sandbox is still there: %v", err)
	}
	if n := states(); n != 0 {
		t.Errorf("it has left %d snapshots", n)
	}
	_, err = d.ResumeWorkspace(ctx, "desk")
	wantCode(t, err, "not_found", "desk")
}

// A workspace that is removed while it is resumed stays removed, and nothing of
// it runs (field case 019).
func TestWorkspaceRemovedWhileItResumes(t *testing.T) {
	d := shared(t)
	for _, delay := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond} {
		ctx := limited(t, patience)
		w, err := d.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "gone", SnapshotTag: tag})
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, d.Kill(ctx, w.SandboxID), "in_use", "gone")
		if _, err := d.SuspendWorkspace(ctx, "gone"); err != nil {
			t.Fatal(err)
		}
		resumed := make(chan error, 1)
		go func() {
			_, err := d.ResumeWorkspace(context.WithoutCancel(ctx), "gone")
			resumed <- err
		}()
		inTheMiddle(delay)
		if err := d.RemoveWorkspace(ctx, "gone"); err != nil {
			t.Fatal(err)
		}
		var e *client.Error
		if err := <-resumed; err != nil && !errors.As(err, &e) {
			t.Errorf("after %s: %v", delay, err)
		}
		boxes, err := d.Sandboxes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, box := range boxes {
			if box.Workspace == "gone" {
				t.Errorf("after %s its sandbox %s is %s", delay, box.ID, box.State)
			}
		}
	}
}

// A daemon with a workspace for which the disk is too small is not stopped by the
// way; when it has to end, it tells what was lost (field case 029).
func TestWorkspaceThatCannotBeSaved(t *testing.T) {
	home := cloneHome(t)
	resize := smallLayers(t, home, 4<<20)
	d := serve(t, home)
	w, err := d.CreateWorkspace(limited(t, patience), client.WorkspaceRequest{Name: "desk", SnapshotTag: tag})
	if err != nil {
		t.Fatal(err)
	}
	d.eval(t, w.SandboxID, "import numpy; pattern = numpy.random.bytes(16 << 20); x = 1")
	const lost = `workspace "desk" is not saved: `
	if got := d.cli(t, "", "stop"); got.status != 1 || !strings.Contains(got.stderr, lost) || !strings.Contains(got.stderr, "no space") || d.ended() {
		t.Fatalf("stopping it: %+v", got)
	}
	if x := value[int](t, d, w.SandboxID, "x"); x != 1 {
		t.Errorf("x is %d", x)
	}

	resize(64 << 20)
	if got := d.cli(t, "", "stop"); got.status != 0 || got.stderr != "" {
		t.Fatalf("stopping it with space: %+v", got)
	}
	d = serve(t, home)
	if w, err = d.ResumeWorkspace(limited(t, patience), "desk"); err != nil {
		t.Fatal(err)
	}
	if x := value[int](t, d, w.SandboxID, "x"); x != 1 {
		t.Errorf("it resumes with x = %d", x)
	}

	d.eval(t, w.SandboxID, "pattern = numpy.random.bytes(64 << 20)")
	d.stop()
	if log := d.log.String(); d.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(log, `"level":"ERROR"`) ||
		!strings.Contains(log, "forkd: error: "+lost) {
		t.Errorf("ended by a signal: %v", d.cmd.ProcessState)
	}
}
