package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// Commands that never read what they are sent hold up nobody, and leave nothing
// when their clients give up (field case 041).
func TestCommandsThatNeverReadHoldUpNobody(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.sh(t, id, "true")
	before := d.metric(t, "go_goroutines")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stuck sync.WaitGroup
	for range 20 {
		stuck.Go(func() {
			_, err := d.Run(ctx, id, client.Command{Args: []string{"sleep", "1000"}, Stdin: bytes.NewReader(make([]byte, 8<<20))})
			if err == nil {
				t.Error("a command that sleeps has ended")
			}
		})
	}
	eventually(t, patience, "all of them run", func() bool {
		return strings.TrimSpace(d.sh(t, id, "ps -eo args | grep -c '^sleep 1000' || true")) == "20"
	})
	for i := range 10 {
		if got := d.sh(t, id, fmt.Sprintf("echo %d", i)); got != fmt.Sprintln(i) {
			t.Errorf("echo %d printed %q", i, got)
		}
	}
	cancel()
	stuck.Wait()
	eventually(t, patience, "nothing of them is left", func() bool {
		left := strings.TrimSpace(d.sh(t, id, "ps -eo args | grep -c '^sleep 1000' || true"))
		return left == "0" && d.metric(t, "go_goroutines") <= before+10
	})
}

// field case 049
func TestOrphansAreReapedAndStatusesNotStolen(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	for range 2 {
		d.sh(t, id, "for i in $(seq 100); do (sh -c 'sleep 0.1 & exec true' &) ; done")
	}
	each(make([]int, 40), func(i, _ int) {
		out, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: []string{"sh", "-c", "exit 9"}})
		if err != nil || out.ExitCode != 9 {
			t.Errorf("exit 9: %+v, %v", out, err)
		}
	})
	eventually(t, patience, "no process is a zombie", func() bool {
		return strings.TrimSpace(d.sh(t, id, "ps -eo stat | grep -c ^Z || true")) == "0"
	})
}

// A guest that is out of memory loses the command that took it, not its agent nor
// its warm runtime (field case 056).
func TestOutOfMemoryEndsTheCommandOnly(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "kept = 'kept'")
	for _, hog := range [][]string{
		{"python3", "-c", "x = [b'x' * (8 << 20) for i in range(200)]"},
		{"sh", "-c", "a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done"},
	} {
		out, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: hog})
		if err != nil {
			t.Fatalf("%s: %v", hog[0], err)
		}
		killed := out.ExitCode == 137 && out.Signal != nil && *out.Signal == "SIGKILL"
		refused := strings.Contains(out.Stderr, "MemoryError") || strings.Contains(out.Stderr, "ut of")
		if out.ExitCode == 0 || !killed && !refused {
			t.Errorf("%s ended with %d, %.300q", hog[0], out.ExitCode, out.Stderr)
		}
		if got := d.sh(t, id, "echo alive"); got != "alive\n" {
			t.Errorf("afterwards: %q", got)
		}
	}
	if got := value[string](t, d, id, "kept"); got != "kept" {
		t.Errorf("the runtime has lost its state: %q", got)
	}
}

// A child that reaches its memory limit ends alone (the host gives it no more).
func TestMemoryLimitEndsOneChildOnly(t *testing.T) {
	d := shared(t)
	limit := client.ForkRequest{SnapshotTag: tag, N: client.Ptr(1), MemoryLimitMiB: client.Ptr(48)}
	id, other := d.forkWith(t, limit)[0], d.fork(t, 1)[0]
	if info, err := d.Sandbox(t.Context(), id); err != nil || info.MemoryLimitMiB == nil || *info.MemoryLimitMiB != 48 {
		t.Errorf("%+v, %v", info, err)
	}
	_, err := d.Exec(limited(t, patience), id, client.ExecRequest{
		Args: []string{"python3", "-c", "x = [bytes([i % 255 + 1]) * (1 << 20) for i in range(300)]; print(len(x))"},
	})
	wantCode(t, err, "sandbox_dead", "memory limit of 48 MiB")
	if e, ok := errors.AsType[*client.Error](err); !ok || !strings.Contains(e.Hint, "larger memory limit") {
		t.Errorf("what to do about it is %+v", err)
	}
	if info, err := d.Sandbox(t.Context(), id); err != nil || info.State != "crashed" || !strings.Contains(info.Reason, "memory limit of 48 MiB") {
		t.Errorf("%+v, %v", info, err)
	}
	if got := value[int](t, d, other, "3 * 5"); got != 15 {
		t.Errorf("3 * 5 = %d", got)
	}
}

// Rounds of fork, use and kill leave nothing in the daemon (field cases 185, 189).
func TestRoundsOfForkAndKillLeaveNothing(t *testing.T) {
	d := shared(t)
	rounds := func(n int) {
		for i := range n {
			boxes, _, err := d.Fork(t.Context(), client.ForkRequest{SnapshotTag: tag, N: client.Ptr(10)})
			if err != nil {
				t.Fatal(err)
			}
			if got := value[int](t, d, boxes[0].ID, fmt.Sprint(i)); got != i {
				t.Errorf("%d evaluates to %d", i, got)
			}
			for _, box := range boxes {
				if err := d.Kill(t.Context(), box.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	rounds(fewer(10))
	var before usage
	eventually(t, patience, "the daemon is at rest", func() bool { // nothing changes for a while
		last := before
		before = d.usage(t)
		time.Sleep(time.Second)
		return before == last || before.near(last)
	})
	rounds(fewer(50))
	eventually(t, patience, fmt.Sprintf("as little is in use as before: %+v", before), func() bool {
		return d.usage(t).near(before)
	})
}

// usage is what a daemon holds of its host.
type usage struct{ files, goroutines, maps, rssMiB int }

func (d *daemon) usage(t *testing.T) usage {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", d.cmd.Process.Pid)
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Skipf("looking at the daemon's resources needs Linux: %v", err)
	}
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		t.Fatal(err)
	}
	return usage{len(files), d.metric(t, "go_goroutines"), bytes.Count(maps, []byte("\n")), d.metric(t, "process_resident_memory_bytes") >> 20}
}

// near reports whether u is no more than was but for noise.
func (u usage) near(was usage) bool {
	return u.files <= was.files+4 && u.goroutines <= was.goroutines+6 && u.maps <= was.maps+64 && u.rssMiB <= was.rssMiB+48
}

// peakRSS returns the most memory that the daemon has had resident, in MiB.
func (d *daemon) peakRSS(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		t.Skipf("looking at the daemon's memory needs Linux: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}
