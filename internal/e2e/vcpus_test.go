package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// vcpus is how many vCPUs the machines of these tests have; the host may have
// fewer processors.
const vcpus = 4

// A machine with several vCPUs boots, is frozen and forked like any other, and its
// vCPUs agree on what memory holds: a program hammers atomic operations, locks,
// futexes, mappings and processes, and checks its sums.
//
// FORKD_TEST_LONG makes it a minute instead of seconds.
func TestSeveralVCPUs(t *testing.T) {
	d := shared(t)
	const tag = "four"
	n := vcpus
	_, err := d.CreateSnapshot(limited(t, 6*time.Minute), client.SnapshotRequest{Tag: tag, VCPUs: &n, Modules: &[]string{"threading"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.RemoveSnapshot(context.Background(), tag, client.RemoveOptions{}) })
	if !usesKVM() { // there it was built ahead
		if err := buildHammer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range executions(d) {
		t.Run(mode.name, func(t *testing.T) {
			d := mode.daemon(t)
			children := 2
			ids := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, N: &children})
			if got := strings.TrimSpace(d.sh(t, ids[0], "nproc")); got != fmt.Sprint(vcpus) {
				t.Errorf("nproc says %s, want %d", got, vcpus)
			}
			if got := value[int](t, d, ids[1], "__import__('os').cpu_count()"); got != vcpus {
				t.Errorf("Python sees %d processors, want %d", got, vcpus)
			}
			d.putFile(t, ids[0], hammerProgram(), "/root/hammer", 0o755)
			d.hammer(t, ids[0])
			// The other child was idle beside it, and is well.
			if got := value[int](t, d, ids[1], "sum(range(1000))"); got != 499500 {
				t.Errorf("a child beside it sums to %d", got)
			}
		})
	}
}

// execution is a way in which an engine executes guests' code.
type execution struct {
	name   string
	daemon func(t *testing.T) *daemon
}

// executions returns those of the engine under test.
func executions(d *daemon) []execution {
	this := func(*testing.T) *daemon { return d }
	if usesKVM() {
		return []execution{{"processor", this}}
	}
	return []execution{
		{"translated", this},
		{"interpreted", func(t *testing.T) *daemon { return serve(t, cloneHome(t), "FORKD_JIT=off") }},
	}
}

// hammer runs the program in a child.
func (d *daemon) hammer(t *testing.T, id string) {
	t.Helper()
	seconds := 5
	if os.Getenv("FORKD_TEST_LONG") != "" {
		seconds = 60
	}
	out, err := d.Exec(limited(t, time.Duration(seconds)*time.Second+2*patience), id, client.ExecRequest{Args: []string{"/root/hammer", fmt.Sprint(seconds)}})
	if err != nil {
		t.Fatal(err)
	}
	if out.ExitCode != 0 || !strings.HasPrefix(out.Stdout, fmt.Sprintf("processors %d, rounds ", vcpus)) {
		t.Errorf("exit status %d\n%s%s", out.ExitCode, out.Stdout, out.Stderr)
	}
	t.Logf("%s", out.Stdout)
}
