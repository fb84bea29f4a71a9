package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// branch makes a branch that is removed with the test, its children included.
func (d *daemon) branch(t *testing.T, id string, req client.BranchRequest) *client.SnapshotInfo {
	t.Helper()
	info, err := d.Branch(limited(t, patience), id, req)
	if err != nil {
		t.Fatalf("branch of %s: %v", id, err)
	}
	t.Cleanup(func() { d.RemoveSnapshot(context.Background(), info.Tag, client.RemoveOptions{Cascade: true}) })
	if info.BranchedFrom != id || info.PauseMs <= 0 || info.Mode == "" {
		t.Errorf("branch of %s is %+v", id, info)
	}
	return info
}

func (d *daemon) forkTag(t *testing.T, tag string, n int) []string {
	t.Helper()
	return d.forkWith(t, client.ForkRequest{SnapshotTag: tag, N: &n})
}

// lively is a sandbox with something of everything going on: interpreter state,
// an open file, data that is not synced, and a job that counts in the background.
func lively(t *testing.T, d *daemon) (id string, pid int) {
	t.Helper()
	id = d.fork(t, 1)[0]
	pid = value[int](t, d, id, `
import os, threading, time
x = 21
f = open("/root/open", "w+"); f.write("unsynced"); f.flush()
os.getpid()`)
	d.sh(t, id, `: > /root/ticks; nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i >> /root/ticks; `+nap(20*time.Millisecond)+`; done' >/dev/null 2>&1 & echo $! > /root/job`)
	return id, pid
}

// ticks waits until the job of a lively sandbox has gone on, and looks at what it
// has counted: without gaps or repetitions, whatever happened on the way.
func (d *daemon) ticks(t *testing.T, id string) {
	t.Helper()
	const code = `
def ticks(): return open("/root/ticks").read().split("\n")[:-1]
before, until = len(ticks()), time.monotonic() + 60
while len(ticks()) < before + 2 and time.monotonic() < until: time.sleep(0.01)
os.kill(int(open("/root/job").read()), 0)
now = ticks()
len(now) >= before + 2 and now == [str(n + 1) for n in range(len(now))]`
	if !value[bool](t, d, id, code) {
		t.Errorf("the job of %s has counted %s", id, d.eval(t, id, "now").Value)
	}
}

// Children of a branch have all that the source had at that instant, in every
// mode, and nothing that it did later; and so have theirs. All of them are
// themselves (field cases 013, 015, 022, 138, 140, 142).
func TestBranchKeepsEverything(t *testing.T) {
	d := shared(t)
	id, pid := lively(t, d)
	seen := make(map[string]string)
	check := func(who string) {
		t.Helper()
		person := value[identity](t, d, who, identityCode)
		for name, v := range person.uniques() {
			if owner, taken := seen[name+v]; taken || v == "" {
				t.Errorf("%s of %s is %q, as that of %s", name, who, v, owner)
			}
			seen[name+v] = who
		}
	}
	check(id)
	yes, no := true, false
	for i, mode := range []client.BranchRequest{{Wait: &no}, {Mode: client.BranchDiff, Wait: &yes}, {Mode: client.BranchFull, Wait: &yes}} {
		d.eval(t, id, fmt.Sprintf("x = 21; generation = %d; f.seek(0); f.truncate(); f.write('unsynced %d'); f.flush()", i, i))
		before := value[float64](t, d, id, "time.monotonic()")
		info := d.branch(t, id, mode)
		if *mode.Wait && info.Status != "ready" {
			t.Errorf("after waiting, the status is %s", info.Status)
		}
		d.eval(t, id, "x = 'later'; f.write(' later'); f.flush()")
		d.ticks(t, id)
		children := d.forkTag(t, info.Tag, 2)
		for _, child := range children {
			got := string(d.eval(t, child, `f.write(" child"); f.flush(); [x, os.getpid(), generation, open("/root/open").read()]`).Value)
			if want := fmt.Sprintf(`[21,%d,%d,"unsynced %d child"]`, pid, i, i); got != want {
				t.Errorf("%s of %s: got %s, want %s", child, info.Tag, got, want)
			}
			if now := value[float64](t, d, child, "time.monotonic()"); now < before {
				t.Errorf("the monotonic clock of %s went back from %v to %v", child, before, now)
			}
			d.ticks(t, child)
			check(child)
		}
		testClock(t, d, children)
		d.eval(t, children[0], "x = 22")
		grand := d.forkTag(t, d.branch(t, children[0], client.BranchRequest{}).Tag, 2)
		for _, g := range grand {
			if got := value[int](t, d, g, "x"); got != 22 {
				t.Errorf("x is %d in the grandchild %s", got, g)
			}
			d.ticks(t, g)
			check(g)
		}
		testClock(t, d, grand)
		d.killAll(append(children, grand...))
	}
	d.ticks(t, id)
}

// The output of a command goes on across branches, no line lost or repeated, and
// in the children the command runs to its end without a reader. Other commands
// are answered all the time (field case 025).
func TestStreamsAcrossBranches(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	const lines = 100
	var out strings.Builder
	var wg sync.WaitGroup
	ctx := limited(t, patience)
	wg.Go(func() {
		exit, err := d.Run(ctx, id, client.Command{Stdout: &out,
			Args: []string{"sh", "-c", fmt.Sprintf("for i in $(seq %d); do echo $i; echo $i >> /root/lines; sleep 0.02; done", lines)}})
		if err != nil || exit.ExitCode != 0 {
			t.Errorf("the command ended with %+v, %v", exit, err)
		}
	})
	d.sh(t, id, "until [ -s /root/lines ]; do sleep 0.01; done")
	var hi sync.WaitGroup
	hi.Go(func() {
		for range 20 {
			d.sh(t, id, "echo hi")
		}
	})
	var children []string
	for range 3 {
		children = append(children, d.forkTag(t, d.branch(t, id, client.BranchRequest{}).Tag, 1)...)
	}
	for _, child := range children {
		d.sh(t, child, "echo hi")
		got := value[[]int](t, d, child, fmt.Sprintf(`
import time
def lines(): return [int(n) for n in open("/root/lines").read().split()]
while len(lines()) < %d: time.sleep(0.05)
lines()`, lines))
		if len(got) != lines || got[0] != 1 || got[lines-1] != lines {
			t.Errorf("in the child %s the command has written %v", child, got)
		}
	}
	hi.Wait()
	wg.Wait()
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	if out.String() != want.String() {
		t.Errorf("the stream is %q", out.String())
	}
}

// An evaluation that runs at the instant of a branch goes on in the source, and
// in the child, where nobody gets its value; but what it does stays. It never
// draws there what the source draws.
func TestBranchDuringAnEvaluation(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	result := make(chan string, 1)
	go func() {
		out, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: `
import os, numpy, random
n, drawn = 0, []
open("/root/running", "w").close()
while not os.path.exists("/root/stop"):
    n += 1
    if os.path.exists("/root/draw") and len(drawn) < 40:
        drawn.append((random.getrandbits(50), int(numpy.random.randint(1 << 50)), random.gauss(0, 1)))
len(drawn)`})
		if err != nil {
			result <- err.Error()
			return
		}
		result <- string(out.Value)
	}()
	d.sh(t, id, "until [ -e /root/running ]; do sleep 0.01; done")
	info := d.branch(t, id, client.BranchRequest{})
	children := d.forkTag(t, info.Tag, 2)
	seen := make(map[string]string)
	for _, who := range append(children, id) {
		d.sh(t, who, "touch /root/draw; sleep 0.5; touch /root/stop")
		if who == id {
			if got := <-result; got != "40" {
				t.Errorf("in the source the evaluation ended with %s", got)
			}
		}
		for _, draw := range value[[][]any](t, d, who, "list(map(list, drawn))") {
			for i, v := range draw {
				key := fmt.Sprint(i, v)
				if owner, repeated := seen[key]; repeated {
					t.Errorf("%s draws %v, as %s", who, v, owner)
				}
				seen[key] = who
			}
		}
		if got := value[int](t, d, who, "n"); got < 1 {
			t.Errorf("n is %d in %s", got, who)
		}
	}
	if len(seen) != 3*40*len(children)+3*40 {
		t.Errorf("%d numbers were drawn", len(seen))
	}
}

// Branch after branch of one source: each holds its own instant and only what
// has changed since the one before (field cases 005, 022).
func TestManyBranches(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "import numpy; kept = numpy.random.bytes(8 << 20); seen = []; None")
	no := false
	var tags []string
	var first, last *client.SnapshotDetail
	for i := range 20 {
		d.eval(t, id, fmt.Sprintf("seen.append(%d); open('/root/n', 'a').write('%d ')", i, i))
		info := d.branch(t, id, client.BranchRequest{Tag: fmt.Sprintf("many-%d", i), Wait: &no})
		tags = append(tags, info.Tag)
		detail, err := d.WaitSnapshot(limited(t, patience), info.Tag)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = detail
		}
		last = detail
		t.Logf("%s: pause %.2f ms, %d KiB of its own", info.Tag, info.PauseMs, detail.ExclusiveBytes>>10)
	}
	if len(last.Ancestors) == 0 || last.ParentTag != tag || first.ParentTag != tag {
		t.Errorf("the last branch is %+v", last)
	}
	if last.ExclusiveBytes >= 8<<20 {
		t.Errorf("the last branch stores %d bytes again", last.ExclusiveBytes)
	}
	for _, i := range []int{0, 1, 10, 19} {
		child := d.forkTag(t, tags[i], 1)[0]
		want := make([]string, i+1)
		for n := range want {
			want[n] = strconv.Itoa(n)
		}
		if got := string(d.eval(t, child, "seen").Value); got != "["+strings.Join(want, ",")+"]" {
			t.Errorf("branch %d has seen %s", i, got)
		}
		if got := strings.TrimSpace(d.sh(t, child, "cat /root/n")); got != strings.Join(want, " ") {
			t.Errorf("branch %d has the file %q", i, got)
		}
	}
	// Any of them can go while others stand on the same layers.
	for _, i := range []int{0, 10} {
		if _, err := d.RemoveSnapshot(limited(t, patience), tags[i], client.RemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}
	child := d.forkTag(t, tags[19], 1)[0]
	if got := value[int](t, d, child, "len(seen) + len(kept)"); got != 20+8<<20 {
		t.Errorf("after others were removed the last branch has %d", got)
	}
}

// Two clients want the same tag at the same time: one gets it, the other is told
// so, and what the tag leads to is the winner's (field case 017).
func TestBranchesToTheSameTag(t *testing.T) {
	d := shared(t)
	ids := d.fork(t, 2)
	for i, id := range ids {
		d.eval(t, id, fmt.Sprintf("me = %d", i))
	}
	for round := range 8 {
		won := make([]*client.SnapshotInfo, 2)
		name := fmt.Sprintf("same-%d", round)
		each(ids, func(i int, id string) {
			info, err := d.Branch(limited(t, patience), id, client.BranchRequest{Tag: name})
			if err != nil {
				wantCode(t, err, "already_exists", name)
				return
			}
			won[i] = info
		})
		if (won[0] == nil) == (won[1] == nil) {
			t.Fatalf("round %d: %v", round, won)
		}
		winner := slices.IndexFunc(won, func(w *client.SnapshotInfo) bool { return w != nil })
		child := d.forkTag(t, name, 1)[0]
		if got := value[int](t, d, child, "me"); got != winner {
			t.Errorf("round %d: the winner is %d, the branch is of %d", round, winner, got)
		}
		d.Kill(t.Context(), child)
		if _, err := d.RemoveSnapshot(limited(t, patience), name, client.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// A fork of a sandbox is of its present, not of a snapshot of before, and leaves
// nothing but the children (field cases 003, 007, 011).
func TestForkOfASandbox(t *testing.T) {
	d := shared(t)
	id, pid := lively(t, d)
	d.sh(t, id, "mkdir -p /w && echo ready > /w/state")
	before, err := d.Snapshots(limited(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	n := 5
	children := d.forkWith(t, client.ForkRequest{FromSandbox: id, N: &n})
	each(children, func(i int, child string) {
		if got := d.sh(t, child, "cat /w/state"); got != "ready\n" {
			t.Errorf("%s has %q", child, got)
		}
		if got := string(d.eval(t, child, "[x, os.getpid()]").Value); got != fmt.Sprintf("[21,%d]", pid) {
			t.Errorf("%s has %s", child, got)
		}
		d.ticks(t, child)
		info, err := d.Sandbox(limited(t, patience), child)
		if err != nil || info.SnapshotTag != tag || info.ExpiresAt != nil {
			t.Errorf("%s is %+v, %v", child, info, err)
		}
	})
	d.ticks(t, id)
	after, err := d.Snapshots(limited(t, patience))
	if err != nil || len(after) != len(before) {
		t.Errorf("there were %d snapshots and are %d, %v", len(before), len(after), err)
	}
	// A child of a fork can be branched for keeps, although what it stands on was
	// never on the disk.
	d.eval(t, children[1], "x = 5")
	yes := true
	kept := d.branch(t, children[1], client.BranchRequest{Wait: &yes})
	d.killAll(children)
	if got := value[int](t, d, d.forkTag(t, kept.Tag, 1)[0], "x"); got != 5 {
		t.Errorf("x is %d", got)
	}
	// One whose source is killed meanwhile ends with the children or with a word.
	for _, delay := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond} {
		source := d.fork(t, 1)[0]
		d.eval(t, source, "1")
		time.AfterFunc(delay, func() { d.Kill(context.Background(), source) })
		boxes, failed, err := d.Fork(limited(t, patience), client.ForkRequest{FromSandbox: source, N: &n})
		if err != nil && !client.IsCode(err, "sandbox_dead") && !client.IsCode(err, "not_found") {
			t.Errorf("after %s: %v", delay, err)
		}
		if len(failed) > 0 {
			t.Errorf("after %s: %v", delay, failed)
		}
		for _, box := range boxes {
			if got := value[int](t, d, box.ID, "1+1"); got != 2 {
				t.Errorf("a child of a killed source says %d", got)
			}
			d.Kill(t.Context(), box.ID)
		}
	}
}

// Operations on one sandbox at the same time end in an order that could have
// been, and never leave it standing still (field case 018).
func TestBranchesAtTheSameTime(t *testing.T) {
	d := shared(t)
	id, _ := lively(t, d)
	var mu sync.Mutex
	var tags []string
	each(make([]int, 24), func(i, _ int) {
		switch i % 4 {
		case 0:
			d.sh(t, id, "true")
		case 1:
			if got := value[int](t, d, id, "x"); got != 21 {
				t.Errorf("x is %d", got)
			}
		default:
			wait := i%2 == 0
			info := d.branch(t, id, client.BranchRequest{Wait: &wait})
			mu.Lock()
			defer mu.Unlock()
			tags = append(tags, info.Tag)
		}
	})
	d.ticks(t, id)
	for _, name := range tags[:3] {
		child := d.forkTag(t, name, 1)[0]
		if got := value[int](t, d, child, "x"); got != 21 {
			t.Errorf("x is %d in a child of %s", got, name)
		}
		d.ticks(t, child)
	}
}
