package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// private waits until a sandbox has no more memory to itself than so much, and returns how
// much that is.
func (d *daemon) private(t *testing.T, id string, mib int64) (kib int64) {
	t.Helper()
	defer func() {
		if kib > mib<<10 {
			t.Logf("sandbox %s has %d KiB to itself", id, kib)
		}
	}()
	eventually(t, patience, fmt.Sprintf("sandbox %s has %d MiB to itself", id, mib), func() bool {
		info, err := d.Sandbox(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		kib = info.PrivateKiB
		return kib <= mib<<10
	})
	return kib
}

// anonymous returns how much memory of the process that a sandbox lives in has no file.
func (d *daemon) anonymous(t *testing.T, id string) (kib int) {
	t.Helper()
	info, err := d.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", info.PID))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// TestBranchedAllTheTime: a sandbox that is branched 200 times while it works has no more
// memory than one that is not, though it writes 2 MiB anew each time; its limit, which all
// that it has written would exceed many times, does not hit it; and each branch has what
// belongs to it. Children of branches that were not written yet go on like all others.
func TestBranchedAllTheTime(t *testing.T) {
	const limit = 48
	branches := fewer(200)
	d := serve(t, cloneHome(t))
	id := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, N: client.Ptr(1), MemoryLimitMiB: client.Ptr(limit)})[0]
	d.eval(t, id, `
import numpy, threading, time
data, round = numpy.zeros(2 << 18, dtype=numpy.uint64), 0
def write():
    global round
    round += 1
    data[:] = round * 1_000_003 + numpy.arange(len(data), dtype=numpy.uint64)
def check():
    want = round * 1_000_003 + numpy.arange(len(data), dtype=numpy.uint64)
    return round if (data == want).all() else -1
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()`)
	yes, no := true, false
	begun, most := d.anonymous(t, id), int64(0)
	var children []string
	var pause float64
	start := time.Now()
	for i := range branches {
		d.eval(t, id, "write()")
		req := client.BranchRequest{Tag: fmt.Sprintf("all-%d", i+1), Wait: &yes}
		if i%25 == 0 {
			req.Wait = &no
		}
		info := d.branch(t, id, req)
		pause += float64(info.PauseMs) / float64(branches)
		switch {
		case i%25 == 0:
			children = append(children, d.forkTag(t, info.Tag, 1)...)
			if _, err := d.WaitSnapshot(limited(t, patience), info.Tag); err != nil {
				t.Fatal(err)
			}
		case i%3 == 1: // some are removed as soon as they are there
			if _, err := d.RemoveSnapshot(limited(t, patience), info.Tag, client.RemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
		}
		most = max(most, d.private(t, id, ownMiB(limit/2)))
	}
	t.Logf("%d branches in %.1f s, each after 2 MiB: at most %d KiB private, %d KiB more in the process; mean pause %.2f ms",
		branches, time.Since(start).Seconds(), most, d.anonymous(t, id)-begun, pause)
	if got := value[int](t, d, id, "check()"); got != branches {
		t.Errorf("the sandbox is in round %d", got)
	}
	for i, child := range children {
		if got := value[int](t, d, child, "check()"); got != 25*i+1 {
			t.Errorf("a child of branch %d is in round %d", 25*i+1, got)
		}
	}
	for _, i := range []int{1, 4, 52, 100, 129, 198, 199} {
		if i > branches {
			break
		}
		child := d.forkTag(t, fmt.Sprintf("all-%d", i), 1)[0]
		if got := value[int](t, d, child, "check()"); got != i {
			t.Errorf("a child of branch %d is in round %d", i, got)
		}
		d.killAll([]string{child})
	}
	d.killAll(children)
	d.private(t, id, ownMiB(limit/2))
	if a, b := value[int](t, d, id, "ticks"), value[int](t, d, id, "time.sleep(.1) or ticks"); b <= a {
		t.Errorf("its thread stands still at %d", b)
	}
}

// TestLayersOutliveTheDaemon: a daemon that dies at any moment of a branch, or of what comes
// after one, leaves sandboxes and children whose memory is right, and the next daemon can branch
// them, fork them and have their memory back.
func TestLayersOutliveTheDaemon(t *testing.T) {
	home := cloneHome(t)
	d := serve(t, home)
	id := d.fork(t, 1)[0]
	d.eval(t, id, `
import numpy
data, round = numpy.zeros(4 << 18, dtype=numpy.uint64), 0
def write():
    global round
    round += 1
    data[:] = round * 1_000_003 + numpy.arange(len(data), dtype=numpy.uint64)
def check():
    want = round * 1_000_003 + numpy.arange(len(data), dtype=numpy.uint64)
    return round if (data == want).all() else -1`)
	children := make(map[string]int) // what round each is in
	for round := 1; round <= 12; round++ {
		d.eval(t, id, "write()")
		req := client.BranchRequest{Tag: fmt.Sprintf("out-%d", round), Wait: client.Ptr(round%2 == 0)}
		d.branch(t, id, req)
		switch round % 4 {
		case 0:
			children[d.forkTag(t, req.Tag, 1)[0]] = round
		case 1: // of what may be in memory yet
			children[d.forkTag(t, req.Tag, 1)[0]] = round
		case 2:
			children[d.forkWith(t, client.ForkRequest{FromSandbox: id, N: client.Ptr(1)})[0]] = round
		case 3:
			d.RemoveSnapshot(limited(t, patience), req.Tag, client.RemoveOptions{Force: true})
		}
		time.Sleep(time.Duration(round*13%100) * time.Millisecond)
		d.killAlone()
		d = serve(t, home)
		if got := value[int](t, d, id, "check()"); got != round {
			t.Fatalf("the sandbox is in round %d, not %d", got, round)
		}
		for child, want := range children {
			if got := value[int](t, d, child, "check()"); got != want {
				t.Errorf("after round %d a child of %d is in %d", round, want, got)
			}
		}
	}
	for child := range children {
		d.killAll([]string{child})
	}
	d.branch(t, id, client.BranchRequest{Tag: "out-last", Wait: client.Ptr(true)})
	d.private(t, id, ownMiB(24))
	last := d.forkTag(t, "out-last", 1)[0]
	if got := value[int](t, d, last, "check()"); got != 12 {
		t.Errorf("a child of the last branch is in round %d", got)
	}
}
