package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/cell/celltest"
)

// TestSandboxesOutliveTheDaemon: whatever ends the daemon, its successor finds every
// sandbox as it was, and can do everything with it.
func TestSandboxesOutliveTheDaemon(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*daemon)
	}{
		{"killed", (*daemon).killAlone},
		{"ended for a successor", func(d *daemon) {
			d.cmd.Process.Signal(syscall.SIGHUP)
			<-d.done
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := cloneHome(t)
			d := serve(t, home)
			ids := d.forkWith(t, client.ForkRequest{
				SnapshotTag: tag, N: client.Ptr(3), Metadata: map[string]string{"who": "me"}, Env: map[string]string{"GREETING": "hello"},
			})
			busy, dormant, branched := ids[0], ids[1], ids[2]
			d.eval(t, busy, "import random; random.seed(7); x = 41; first = random.random()")
			d.sh(t, busy, "echo kept > /root/f; nohup sh -c 'while :; do date >> /root/dates; "+nap(50*time.Millisecond)+"; done' > /dev/null 2>&1 &")
			if _, err := d.SetLifetime(limited(t, patience), busy, time.Hour); err != nil {
				t.Fatal(err)
			}
			// Children of what only the memory of a process holds.
			d.eval(t, branched, "y = 5")
			children, _, err := d.Fork(limited(t, patience), client.ForkRequest{FromSandbox: branched, N: client.Ptr(2)})
			if err != nil {
				t.Fatal(err)
			}
			before, err := d.Sandbox(limited(t, patience), busy)
			if err != nil {
				t.Fatal(err)
			}
			c.end(d)

			d = serve(t, home)
			t.Cleanup(func() { d.killAll(ids); d.killAll([]string{children[0].ID, children[1].ID}) })
			all, err := d.Sandboxes(limited(t, patience))
			if err != nil || len(all) != 5 {
				t.Fatalf("%d sandboxes: %+v, %v", len(all), all, err)
			}
			after, err := d.Sandbox(limited(t, patience), busy)
			if err != nil {
				t.Fatal(err)
			}
			if after.State != "running" || after.SnapshotTag != before.SnapshotTag || after.CreatedAtUnix != before.CreatedAtUnix ||
				after.ExpiresAt == nil || !after.ExpiresAt.Equal(*before.ExpiresAt) || after.Metadata["who"] != "me" {
				t.Errorf("it was %+v and is %+v", before, after)
			}
			// It was refreshed once: what it has seeded itself is as it was.
			if got := value[bool](t, d, busy, "random.seed(7) or x == 41 and random.random() == first"); !got {
				t.Error("the runtime has lost its state")
			}
			if got := d.sh(t, busy, `echo $GREETING; cat /root/f; a=$(wc -l < /root/dates); while [ $(wc -l < /root/dates) -le $a ]; do sleep 0.05; done`); got != "hello\nkept\n" {
				t.Errorf("a command sees %q", got)
			}
			if got := value[int](t, d, dormant, "6 * 7"); got != 42 {
				t.Errorf("one that was dormant: %d", got)
			}
			for _, child := range children {
				if got := value[int](t, d, child.ID, "y"); got != 5 {
					t.Errorf("a child of a branch in memory has %d", got)
				}
			}
			// Branch, fork, roll back, pause: all of it works as before.
			info, err := d.Branch(limited(t, patience), busy, client.BranchRequest{Tag: "later", Wait: client.Ptr(true)})
			if err != nil {
				t.Fatal(err)
			}
			if info.BranchedFrom != busy {
				t.Errorf("the branch is %+v", info)
			}
			grandchild := d.forkWith(t, client.ForkRequest{SnapshotTag: "later"})[0]
			if got := value[int](t, d, grandchild, "x"); got != 41 {
				t.Errorf("a child of the branch has %d", got)
			}
			if _, err := d.Branch(limited(t, patience), children[0].ID, client.BranchRequest{Tag: "of-memory", Wait: client.Ptr(true)}); err != nil {
				t.Errorf("branching a child of what only memory holds: %v", err)
			}
			d.pause(t, branched)
			d.resume(t, branched)
			if got := value[int](t, d, branched, "y"); got != 5 {
				t.Errorf("after a pause: %d", got)
			}
			if _, err := d.Rollback(limited(t, patience), busy, tag); err != nil {
				t.Fatal(err)
			}
			if got := value[bool](t, d, busy, "'x' in globals()"); got {
				t.Error("the rollback has left x")
			}
			// New children come where their siblings are, and of the same snapshot.
			d.fork(t, 2)
		})
	}
}

// TestDeadCellTakesOnlyItsOwn: the end of one process of machines is told, with its
// reason, and nobody else notices.
func TestDeadCellTakesOnlyItsOwn(t *testing.T) {
	d := serve(t, cloneHome(t))
	ctx := limited(t, patience)
	mine := d.fork(t, 2)
	d.eval(t, mine[0], "x = 1")
	// A snapshot that shares nothing lives in another process.
	if _, err := d.Branch(ctx, mine[0], client.BranchRequest{Tag: "apart", Mode: client.BranchFull, Wait: client.Ptr(true)}); err != nil {
		t.Fatal(err)
	}
	other := d.forkWith(t, client.ForkRequest{SnapshotTag: "apart"})[0]
	d.eval(t, other, "x")
	running := make(chan error, 1)
	go func() {
		_, err := d.Exec(ctx, mine[1], client.ExecRequest{Args: []string{"sleep", "600"}})
		running <- err
	}()
	d.sh(t, mine[1], "while ! pgrep -x sleep > /dev/null 2>&1 && ! ps | grep -q '[s]leep 600'; do sleep 0.05; done")
	// Where a process has one machine, the first one is of others, too.
	victim := ownerOf(t, d, mine[1])
	lost := slices.DeleteFunc(slices.Clone(mine), func(id string) bool { return ownerOf(t, d, id) != victim })
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-running:
		wantCode(t, err, "sandbox_dead", "killed")
	case <-time.After(patience):
		t.Fatal("the command goes on for ever")
	}
	for _, id := range lost {
		info, err := d.Sandbox(ctx, id)
		if err != nil || info.State != "crashed" || !strings.Contains(info.Reason, fmt.Sprint(victim)) {
			t.Errorf("%s: %+v, %v", id, info, err)
		}
	}
	if r := d.cli(t, "", "port-forward", lost[0], "0:80"); r.status != 1 || r.stdout != "" || !strings.Contains(r.stderr, "has ended") {
		t.Errorf("forwarding a port of what has crashed: %+v", r)
	}
	for _, id := range []string{mine[0], other} {
		if slices.Contains(lost, id) {
			continue
		}
		if got := value[int](t, d, id, "x"); got != 1 {
			t.Errorf("%s, which is not of that process, has %d", id, got)
		}
	}
	// The next child does not notice either.
	if got := value[int](t, d, d.fork(t, 1)[0], "6 * 7"); got != 42 {
		t.Errorf("6 * 7 = %d", got)
	}
}

// TestLostWhileNoDaemonRan: of sandboxes whose process ends while there is no daemon the next one tells
// that they are lost and why, and so does every one after it; as it tells what became of those that
// were gone before.
func TestLostWhileNoDaemonRan(t *testing.T) {
	home := cloneHome(t)
	d := serve(t, home)
	ids := d.fork(t, 3)
	lost, killed := ids[0], ids[1]
	d.eval(t, lost, "x = 1")
	if err := d.Kill(limited(t, patience), killed); err != nil {
		t.Fatal(err)
	}
	pid := ownerOf(t, d, lost)
	gone := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == killed || ownerOf(t, d, id) != pid })
	// The last one dies with the daemon that has just made it.
	gone = append(gone, d.fork(t, 1)...)
	last := gone[len(gone)-1]
	pids := []int{pid}
	if other := ownerOf(t, d, last); other != pid {
		pids = append(pids, other)
	}
	d.killAlone()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []func(*daemon){(*daemon).killAlone, (*daemon).stop} {
		d = serve(t, home)
		ctx := limited(t, patience)
		all, err := d.Sandboxes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range gone {
			i := slices.IndexFunc(all, func(s client.SandboxInfo) bool { return s.ID == id })
			if i < 0 || all[i].State != "crashed" || all[i].SnapshotTag != tag || !slices.ContainsFunc(pids, func(pid int) bool {
				return strings.Contains(all[i].Reason, fmt.Sprintf("process %d ended while no daemon watched", pid))
			}) {
				t.Fatalf("%s is not listed as lost: %+v", id, all)
			}
			_, err := d.Eval(ctx, id, client.EvalRequest{Code: "x"})
			wantCode(t, err, "sandbox_dead", "ended while no daemon watched")
		}
		_, err = d.Sandbox(ctx, killed)
		wantCode(t, err, "not_found", "it was killed")
		if got := value[int](t, d, d.fork(t, 1)[0], "6 * 7"); got != 42 {
			t.Errorf("6 * 7 = %d", got)
		}
		end(d)
	}
	// An orderly end leaves nothing to be listed, and the reasons.
	d = serve(t, home)
	ctx := limited(t, patience)
	if all, err := d.Sandboxes(ctx); err != nil || len(all) != 0 {
		t.Errorf("listed are %+v, %v", all, err)
	}
	_, err := d.Eval(ctx, lost, client.EvalRequest{Code: "x"})
	wantCode(t, err, "not_found", "ended while no daemon watched")
	_, err = d.Sandbox(ctx, killed)
	wantCode(t, err, "not_found", "it was killed")
}

// TestStoppedProcess: a process of machines that the host has stopped holds up nobody but who uses
// its sandboxes, and those no longer than they want to wait. What they have given up does not go on in
// the guest when that does.
func TestStoppedProcess(t *testing.T) {
	d := serve(t, cloneHome(t))
	ctx := limited(t, patience)
	ids := d.fork(t, 2)
	d.eval(t, ids[0], "x = 1")
	d.eval(t, ids[1], "x = 1")
	d.sh(t, ids[0], "true")
	stopped := ownerOf(t, d, ids[0])
	celltest.Stop(t, stopped)
	defer syscall.Kill(stopped, syscall.SIGCONT) // if the test ends early
	if got := value[int](t, d, d.fork(t, 1)[0], "6 * 7"); got != 42 {
		t.Errorf("in another child, 6 * 7 = %d", got)
	}
	second := client.Ptr(1.0)
	_, err := d.Eval(ctx, ids[0], client.EvalRequest{Code: "x = 2\nwhile True: pass", TimeoutSecs: second})
	wantCode(t, err, "timeout", "does not answer")
	_, err = d.Exec(ctx, ids[0], client.ExecRequest{Args: []string{"sleep", "600"}, TimeoutSecs: second})
	wantCode(t, err, "timeout", "does not answer")
	_, err = d.Pause(ctx, ids[0])
	wantCode(t, err, "timeout", "does not answer")
	if err := d.Kill(ctx, ids[1]); err != nil {
		t.Errorf("killing its neighbour: %v", err)
	}
	celltest.Continue(t, stopped)
	if got := value[int](t, d, ids[0], "was, x = x, 3\nwas"); got != 1 && got != 2 {
		t.Errorf("x is %d", got)
	}
	d.sh(t, ids[0], "while ps | grep -q '[s]leep 600'; do sleep 0.05; done")
	if got := value[int](t, d, ids[0], "x"); got != 3 {
		t.Errorf("x is %d after an evaluation that was answered: one before was begun later", got)
	}
	if _, err := d.Pause(ctx, ids[0]); err != nil {
		t.Error(err)
	}
}

// TestStoppedWhileTheDaemonDies: a process of machines that the host has stopped when a daemon starts keeps
// that one from nothing, and loses nothing by it: its sandboxes are listed, can be killed, and go on with
// their state when the process does.
func TestStoppedWhileTheDaemonDies(t *testing.T) {
	home := cloneHome(t)
	d := serve(t, home)
	ids := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, N: client.Ptr(3), Metadata: map[string]string{"app": "desk"}})
	kept, killed := ids[0], ids[1]
	d.eval(t, kept, "x = 41")
	d.sh(t, kept, "echo hello > /root/greeting")
	owner := make(map[string]int)
	for _, id := range ids {
		owner[id] = ownerOf(t, d, id)
	}
	stopped := slices.Compact([]int{owner[kept], owner[killed]}) // it may be one
	ids = slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(stopped, owner[id]) })
	for _, pid := range stopped {
		celltest.Stop(t, pid)
		defer syscall.Kill(pid, syscall.SIGCONT) // if the test ends early
	}
	for range 2 { // the second one finds what the first one has waited for
		d.killAlone()
		d = serve(t, home)
		ctx := limited(t, patience)
		all, err := d.Sandboxes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			i := slices.IndexFunc(all, func(s client.SandboxInfo) bool { return s.ID == id })
			if i < 0 || all[i].State != "running" || all[i].SnapshotTag != tag || all[i].PID != owner[id] || all[i].Reason == "" {
				t.Fatalf("%s is not listed as one that is not taken over yet: %+v", id, all)
			}
		}
		if got := value[int](t, d, d.fork(t, 1)[0], "6 * 7"); got != 42 {
			t.Errorf("6 * 7 = %d", got)
		}
		_, err = d.Eval(ctx, kept, client.EvalRequest{Code: "x"})
		wantCode(t, err, "timeout", "does not answer")
		_, err = d.Pause(ctx, kept)
		wantCode(t, err, "timeout", "does not answer")
		if i := slices.Index(ids, killed); i >= 0 {
			if err := d.Kill(ctx, killed); err != nil {
				t.Errorf("killing one of them: %v", err)
			}
			ids = slices.Delete(ids, i, i+1)
		}
	}
	celltest.Continue(t, owner[kept])
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		info, err := d.Sandbox(t.Context(), kept)
		if err != nil || time.Now().After(end) {
			t.Fatalf("it is not taken over: %+v, %v", info, err)
		}
		if info.Reason == "" && info.Metadata["app"] == "desk" {
			break
		}
	}
	if got := value[int](t, d, kept, "x + 1"); got != 42 {
		t.Errorf("x is %d", got-1)
	}
	if got := d.sh(t, kept, "cat /root/greeting"); got != "hello\n" {
		t.Errorf("its file is %q", got)
	}
	_, err := d.Sandbox(t.Context(), killed)
	wantCode(t, err, "not_found", "it was killed")
	if _, err := d.Pause(limited(t, patience), kept); err != nil {
		t.Errorf("pausing it: %v", err)
	}
}

// TestStoppedWhileTheJournalIsLost: what lives in a process that the host has stopped is not resumed a second time from what
// it was before, by however many daemons that do not know what the process has.
func TestStoppedWhileTheJournalIsLost(t *testing.T) {
	home := cloneHome(t)
	d := serve(t, home)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "x = 1")
	d.pause(t, id)
	d.resume(t, id)
	d.eval(t, id, "x = 2")
	stopped := ownerOf(t, d, id)
	celltest.Stop(t, stopped)
	defer syscall.Kill(stopped, syscall.SIGCONT) // if the test ends early
	d.killAlone()
	if err := os.Remove(filepath.Join(home, "journal")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d = serve(t, home)
		_, err := d.Resume(limited(t, patience), id, 0)
		wantCode(t, err, "timeout", "journal")
		d.killAlone()
	}
	d = serve(t, home)
	celltest.Continue(t, stopped)
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		info, err := d.Sandbox(t.Context(), id)
		if err != nil || time.Now().After(end) {
			t.Fatalf("it is not taken over: %+v, %v", info, err)
		}
		if info.State == "running" && info.Reason == "" {
			break
		}
	}
	if got := value[int](t, d, id, "x"); got != 2 {
		t.Errorf("x is %d", got)
	}
}

// ownerOf returns the process that a sandbox lives in.
func ownerOf(t *testing.T, d *daemon, id string) int {
	t.Helper()
	info, err := d.Sandbox(context.Background(), id)
	if err != nil || info.PID == 0 {
		t.Fatalf("no process for %s: %+v, %v", id, info, err)
	}
	return info.PID
}

// TestDaemonDiesInTheMiddle: what was being done to a sandbox when the daemon died has been
// done or has not, and the sandbox can be used, once, and ended.
func TestDaemonDiesInTheMiddle(t *testing.T) {
	home := cloneHome(t)
	d := serve(t, home)
	id := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, TimeoutSecs: client.Ptr(3600.)})[0]
	d.eval(t, id, "x = 1; blob = bytearray(numpy.random.bytes(60 << 20))")
	if _, err := d.Branch(limited(t, patience), id, client.BranchRequest{Tag: "before", Wait: client.Ptr(true)}); err != nil {
		t.Fatal(err)
	}
	for round := range 9 {
		d.eval(t, id, "x = 1; blob[::4096] = bytes(len(blob[::4096]))")
		do := []func(context.Context){
			func(ctx context.Context) { d.Pause(ctx, id) },
			func(ctx context.Context) { d.Rollback(ctx, id, "before") },
			func(ctx context.Context) {
				d.Branch(ctx, id, client.BranchRequest{Tag: fmt.Sprint("cut-", round), Wait: client.Ptr(true)})
			},
		}[round%3]
		done := make(chan struct{})
		go func() {
			defer close(done)
			do(context.Background())
		}()
		inTheMiddle(time.Duration(3+7*round) * time.Millisecond)
		d.killAlone()
		<-done
		d = serve(t, home)
		all, err := d.Sandboxes(limited(t, patience))
		if err != nil || len(all) != 1 || all[0].ID != id {
			t.Fatalf("round %d: %+v, %v", round, all, err)
		}
		if all[0].State == "paused" {
			d.resume(t, id)
		}
		if got := value[int](t, d, id, "x + 1"); got != 2 {
			t.Errorf("round %d: x + 1 is %d", round, got)
		}
		d.sh(t, id, "true")
	}
	info, err := d.Sandbox(limited(t, patience), id)
	if err != nil || info.ExpiresAt == nil {
		t.Errorf("its lifetime is lost: %+v, %v", info, err)
	}
	// Ended is ended, also for the daemons to come.
	if err := d.Kill(limited(t, patience), id); err != nil {
		t.Fatal(err)
	}
	d.killAlone()
	d = serve(t, home)
	if all, err := d.Sandboxes(limited(t, patience)); err != nil || len(all) != 0 {
		t.Errorf("what was ended is there: %+v, %v", all, err)
	}
}
