package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// smallLayers puts the layers of a home on a file system of its own, with so much
// room beyond what they take.
func smallLayers(t *testing.T, home string, room int64) (resize func(room int64)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making a small file system needs root")
	}
	path := filepath.Join(home, "layers")
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	files, size := make(map[string][]byte), int64(0)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(path, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = text
		size += (int64(len(text)) + 4095) &^ 4095
	}
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%d", size+room)); err != nil {
		t.Skipf("this root may not mount: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(path, syscall.MNT_DETACH) })
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(path, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(room int64) {
		if err := syscall.Mount("tmpfs", path, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", size+room)); err != nil {
			t.Fatal(err)
		}
	}
}

// A branch for which the disk is too small fails, whenever it is noticed, and
// leaves nothing. The source goes on, and the next branch has all that the failed
// one should have had (field case 029).
func TestBranchWithAFullDisk(t *testing.T) {
	home := cloneHome(t)
	resize := smallLayers(t, home, 4<<20)
	d := serve(t, home)
	id, _ := lively(t, d)
	d.eval(t, id, `
import numpy, zlib
mark, pattern = "m1", numpy.random.bytes(16 << 20)
def check(): return mark + str(zlib.crc32(pattern))`)
	sum := value[string](t, d, id, "check()")
	before := d.filesUnder(t, "layers")

	yes, no := true, false
	for _, mode := range []client.BranchRequest{{Tag: "b", Mode: client.BranchDiff, Wait: &yes}, {Tag: "b", Mode: client.BranchFull, Wait: &yes}} {
		_, err := d.Branch(limited(t, patience), id, mode)
		wantCode(t, err, "no_space", "FORKD_HOME")
		if _, err := d.Snapshot(t.Context(), "b"); !client.IsCode(err, "not_found") {
			t.Errorf("a branch that failed is there: %v", err)
		}
		d.ticks(t, id)
	}
	// One that is written behind the answer can be forked from until it fails, and
	// what was forked lives on.
	info := d.branch(t, id, client.BranchRequest{Tag: "b", Wait: &no})
	boxes, _, err := d.Fork(limited(t, patience), client.ForkRequest{SnapshotTag: "b"})
	if err != nil && !client.IsCode(err, "not_found") {
		t.Errorf("forking a branch that is being written: %v", err)
	}
	if _, err := d.WaitSnapshot(limited(t, patience), info.Tag); err == nil || !strings.Contains(err.Error(), "space") {
		t.Errorf("a branch without space was written: %v", err)
	}
	for _, box := range boxes {
		if got := value[string](t, d, box.ID, "check()"); got != sum {
			t.Errorf("a child of a branch that failed has %s, want %s", got, sum)
		}
		d.ticks(t, box.ID)
	}
	d.ticks(t, id)
	if after := d.filesUnder(t, "layers"); len(after) != len(before) {
		t.Errorf("files were left: %q, before %q", after, before)
	}

	resize(64 << 20)
	info = d.branch(t, id, client.BranchRequest{Tag: "b", Mode: client.BranchDiff, Wait: &yes})
	child := d.forkTag(t, info.Tag, 1)[0]
	if got := value[string](t, d, child, "check()"); got != sum {
		t.Errorf("the branch that had space has %s, want %s", got, sum)
	}
	d.ticks(t, child)
	d.ticks(t, id)
}

// A client that leaves gets no branch, and the source goes on.
func TestBranchOfAClientThatLeaves(t *testing.T) {
	d := shared(t)
	id, _ := lively(t, d)
	d.eval(t, id, "import numpy; blob = numpy.random.bytes(30 << 20); None")
	yes := true
	for i, delay := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), delay)
		name := fmt.Sprintf("left-%d", i)
		info, err := d.Branch(ctx, id, client.BranchRequest{Tag: name, Mode: client.BranchFull, Wait: &yes})
		cancel()
		d.ticks(t, id)
		if err == nil {
			t.Logf("after %s it was there already: %s", delay, info.Status)
		} else {
			eventually(t, patience, "the branch is given up", func() bool {
				_, err := d.Snapshot(t.Context(), name)
				return client.IsCode(err, "not_found")
			})
		}
		d.RemoveSnapshot(t.Context(), name, client.RemoveOptions{})
	}
}

// After a daemon was killed while branches were being written, those that it had
// promised are there whole, and the others are gone with their space.
func TestBranchesAfterAKill(t *testing.T) {
	home := cloneHome(t)
	yes, no := true, false
	for round := range 2 {
		d, err := startDaemon(home)
		if err != nil {
			t.Fatal(err)
		}
		id, _ := lively(t, d)
		d.eval(t, id, "import numpy; blob = numpy.random.bytes(6 << 20); None")
		promised := fmt.Sprintf("promised-%d", round)
		d.branch(t, id, client.BranchRequest{Tag: promised, Mode: client.BranchDiff, Wait: &yes})
		d.eval(t, id, "blob = numpy.random.bytes(6 << 20); None")
		for i, req := range []client.BranchRequest{{Mode: client.BranchLive}, {Mode: client.BranchFull}, {Mode: client.BranchDiff}} {
			req.Tag, req.Wait = fmt.Sprintf("open-%d-%d", round, i), &no
			if _, err := d.Branch(limited(t, patience), id, req); err != nil {
				t.Fatal(err)
			}
		}
		inTheMiddle(time.Duration(round) * 30 * time.Millisecond)
		d.kill()

		d = serve(t, home)
		list, err := d.Snapshots(limited(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, s := range list {
			found = found || s.Tag == promised
			if s.Status != "ready" {
				t.Errorf("%s is %s", s.Tag, s.Status)
			}
			if s.Tag == tag {
				continue
			}
			if _, err := d.VerifySnapshot(limited(t, patience), s.Tag, nil); err != nil {
				t.Errorf("%s: %v", s.Tag, err)
			}
		}
		if !found {
			t.Errorf("%s is lost", promised)
		}
		for _, path := range d.filesUnder(t, "snapshots", "layers") {
			if strings.Contains(path, ".tmp-") {
				t.Errorf("%s is left", path)
			}
		}
		child := d.forkTag(t, promised, 1)[0]
		if got := value[int](t, d, child, "x + len(blob)"); got != 21+6<<20 {
			t.Errorf("x + len(blob) is %d", got)
		}
		d.ticks(t, child)
		d.stop()
	}
}

// Somebody truncates what a sandbox and its branches stand on: those that need it
// end or fail, with a word, and the daemon does not (field case 009).
func TestBranchOverATruncatedFile(t *testing.T) {
	home := cloneHome(t)
	d := serve(t, home)
	ids := d.fork(t, 2)
	for _, id := range ids {
		d.eval(t, id, "x = 21")
	}
	for _, path := range d.filesUnder(t, "layers") {
		ownFile(t, path) // what is mapped already stays as it is
	}
	d.stop()
	d = serve(t, home)
	ids = d.fork(t, 2)
	d.eval(t, ids[0], "x = 21")
	for _, path := range d.filesUnder(t, "layers") {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	}
	yes, no := true, false
	for _, id := range ids {
		for _, req := range []client.BranchRequest{{Tag: "b", Wait: &no}, {Mode: client.BranchDiff, Wait: &yes}, {Mode: client.BranchFull, Wait: &yes}} {
			info, err := d.Branch(limited(t, patience), id, req)
			if err == nil && req.Mode == client.BranchFull {
				t.Errorf("a full branch of what is not there any more: %+v", info)
			}
		}
	}
	_, _, err := d.Fork(limited(t, patience), client.ForkRequest{SnapshotTag: tag})
	wantCode(t, err, "not_bootable")
	if _, err := d.Snapshots(limited(t, patience)); err != nil {
		t.Errorf("the daemon does not answer: %v", err)
	}
}
