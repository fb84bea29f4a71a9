package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// A daemon that was killed with all of its cells leaves a lock, a socket and running guests' pages. Its
// successor takes over, has all snapshots, and knows which sandboxes are lost.
func TestKilledDaemonIsReplacedWithoutLoss(t *testing.T) {
	home := cloneHome(t)
	first := serve(t, home)
	first.eval(t, first.fork(t, 3)[0], "x = 1")
	before := first.filesUnder(t, ".")
	first.kill()

	second := serve(t, home)
	boxes, err := second.Sandboxes(t.Context())
	if err != nil || len(boxes) != 3 || slices.ContainsFunc(boxes, func(b client.SandboxInfo) bool { return b.State != "crashed" }) {
		t.Errorf("its sandboxes, whose processes were killed, too, are %+v, %v", boxes, err)
	}
	if got := value[int](t, second, second.fork(t, 1)[0], "6 * 7"); got != 42 {
		t.Errorf("6 * 7 = %d", got)
	}
	if after := second.filesUnder(t, "."); len(after) > len(before) {
		t.Errorf("files were left:\n%q\nbefore:\n%q", after, before)
	}
}

func TestSecondDaemonIsRefusedNamingTheFirst(t *testing.T) {
	d := shared(t)
	out, err := forkd(d.home, "serve", "--listen=").CombinedOutput()
	if err == nil || !strings.Contains(string(out), strconv.Itoa(d.cmd.Process.Pid)) || !strings.Contains(string(out), "forkd: hint:") {
		t.Errorf("a second daemon: %v\n%s", err, out)
	}
	if err := d.Health(t.Context()); err != nil {
		t.Errorf("the first daemon was harmed: %v", err)
	}
}

// field case 180
func TestDaemonKilledWhileMakingASnapshotLeavesNothing(t *testing.T) {
	home := cloneHome(t)
	want := (&daemon{home: home}).filesUnder(t, "snapshots", "layers", "images")
	req := client.SnapshotRequest{
		Tag: "half", Runtime: "none", MemoryMiB: client.Ptr(256),
		// A process that runs on; see TestHeldProcesses.
		Setup: [][]string{{"sh", "-c", `cd /root; (while :; do cat /etc/machine-id >> ids; sleep 0.05; done) > /dev/null 2>&1 &
			while [ ! -s ids ]; do sleep 0.05; done`}},
	}
	for _, step := range []string{"boot", "freeze"} {
		d := serve(t, home)
		ctx := limited(t, 10*time.Minute)
		_, err := d.CreateSnapshot(ctx, req, func(p client.Progress) {
			if p.Step == step && !d.ended() {
				d.cmd.Process.Kill()
			}
		})
		if err == nil {
			t.Fatalf("the snapshot was made although the daemon was killed at %q", step)
		}
		<-d.done
	}
	d := serve(t, home)
	if got := d.filesUnder(t, "snapshots", "layers", "images"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("files after two crashes:\n%q\nbefore:\n%q", got, want)
	}
	if _, err := d.Snapshot(t.Context(), "half"); !client.IsCode(err, "not_found") {
		t.Errorf("half a snapshot: %v", err)
	}
	if _, err := d.CreateSnapshot(limited(t, 10*time.Minute), req, nil); err != nil {
		t.Fatalf("the same request again: %v", err)
	}
	t.Run("HeldProcesses", func(t *testing.T) { testHeldProcesses(t, d, "half") })
	t.Run("Cancelled", func(t *testing.T) { testCancelledSnapshot(t, d, req) })
}

// testHeldProcesses: a process of the parent runs on in every child, but not
// before the child is itself.
func testHeldProcesses(t *testing.T, d *daemon, tag string) {
	ids := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, N: client.Ptr(4)})
	for _, id := range ids {
		own := strings.TrimSpace(d.sh(t, id, "cat /etc/machine-id"))
		var seen []string
		eventually(t, patience, "the process of the parent runs in "+id, func() bool {
			seen = strings.Fields(d.sh(t, id, "uniq /root/ids"))
			return seen[len(seen)-1] == own
		})
		if len(seen) != 2 {
			t.Errorf("the process saw the machine ids %q, want its parent's, then %s", seen, own)
		}
	}
	_, err := d.Eval(t.Context(), ids[0], client.EvalRequest{Code: "1"})
	wantCode(t, err, "no_runtime", "exec")
}

// testCancelledSnapshot: a client that goes away in the middle ends the work.
func testCancelledSnapshot(t *testing.T, d *daemon, req client.SnapshotRequest) {
	want := d.filesUnder(t, "snapshots", "layers")
	_, err := d.CreateSnapshot(limited(t, patience), req, nil)
	wantCode(t, err, "already_exists", req.Tag)
	req.Tag = "cancelled"
	ctx, cancel := context.WithCancel(limited(t, patience))
	defer cancel()
	_, err = d.CreateSnapshot(ctx, req, func(p client.Progress) {
		if p.Step == "boot" {
			_, err := d.CreateSnapshot(ctx, req, nil)
			wantCode(t, err, "already_exists", req.Tag)
			_, err = d.RemoveSnapshot(ctx, req.Tag, client.RemoveOptions{Force: true})
			wantCode(t, err, "in_use", req.Tag)
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	eventually(t, patience, "the daemon gives up", func() bool {
		_, err := d.RemoveSnapshot(t.Context(), req.Tag, client.RemoveOptions{})
		return client.IsCode(err, "not_found")
	})
	if got := d.filesUnder(t, "snapshots", "layers"); len(got) != len(want) {
		t.Errorf("files after a cancelled snapshot: %q", got)
	}
}

func TestFullDiskIsAnErrorThatLeavesNothing(t *testing.T) {
	shared(t)
	if os.Getuid() != 0 {
		t.Skip("making a small file system needs root")
	}
	home := cloneHome(t)
	for _, dir := range []string{"snapshots", "layers"} {
		path := filepath.Join(home, dir)
		os.RemoveAll(path)
		os.Mkdir(path, 0o700)
		if err := syscall.Mount("tmpfs", path, "tmpfs", 0, "size=8m"); err != nil {
			t.Skipf("this root may not mount: %v", err)
		}
		t.Cleanup(func() { syscall.Unmount(path, syscall.MNT_DETACH) })
	}
	d := serve(t, home)
	_, err := d.CreateSnapshot(limited(t, 10*time.Minute), client.SnapshotRequest{
		Tag: "full", Runtime: "none", MemoryMiB: client.Ptr(256),
	}, nil)
	wantCode(t, err, "no_space", "FORKD_HOME")
	if left := d.filesUnder(t, "snapshots", "layers"); len(left) != 0 {
		t.Errorf("files were left: %q", left)
	}
	if _, err := d.Snapshot(t.Context(), "full"); !client.IsCode(err, "not_found") {
		t.Errorf("a snapshot that had no space: %v", err)
	}
}

func TestSnapshotRefusesWhatCannotBe(t *testing.T) {
	d := shared(t)
	before := d.filesUnder(t, "snapshots", "layers", "images")
	for name, c := range map[string]struct {
		req  client.SnapshotRequest
		code string
		word string
	}{
		"the tag is taken":   {client.SnapshotRequest{Tag: tag}, "already_exists", tag},
		"a bad tag":          {client.SnapshotRequest{Tag: "a/b"}, "invalid_argument", "tag"},
		"little memory":      {client.SnapshotRequest{Tag: "t", MemoryMiB: client.Ptr(1)}, "invalid_argument", "memory_mib"},
		"a huge disk":        {client.SnapshotRequest{Tag: "t", DiskMiB: client.Ptr(1 << 40)}, "invalid_argument", "disk_mib"},
		"unknown runtime":    {client.SnapshotRequest{Tag: "t", Runtime: "ruby"}, "invalid_argument", "ruby"},
		"bad package":        {client.SnapshotRequest{Tag: "t", Packages: []string{"../x"}}, "invalid_argument", "../x"},
		"a mirror like none": {client.SnapshotRequest{Tag: "t", Packages: []string{"jq"}, Mirror: "no-url"}, "invalid_argument", "no-url"},
		"nobody there":       {client.SnapshotRequest{Tag: "t", Packages: []string{"jq"}, Mirror: "http://127.0.0.1:1"}, "unavailable", "FORKD_DEBIAN_MIRROR"},
	} {
		_, err := d.CreateSnapshot(limited(t, patience), c.req, nil)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		t.Run(name, func(t *testing.T) { wantCode(t, err, c.code, c.word) })
	}
	if after := d.filesUnder(t, "snapshots", "layers", "images"); len(after) != len(before) {
		t.Errorf("files were left: %q", after)
	}
}
