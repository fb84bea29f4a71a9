package e2e

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// attack starts a shell script that goes on until its sandbox is ended.
func (d *daemon) attack(t *testing.T, limits client.ForkRequest, script string) (id string) {
	t.Helper()
	limits.SnapshotTag = tag
	id = d.forkWith(t, limits)[0]
	if _, err := d.SpawnProcess(limited(t, patience), id, client.ProcessRequest{Args: []string{"/bin/bash", "-c", script}}); err != nil {
		t.Fatal(err)
	}
	return id
}

// written is how many bytes the files in a home have that are no snapshots.
func written(t *testing.T, home string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && (entry.Name() == "layers" || entry.Name() == "snapshots") {
			return fs.SkipDir
		}
		if err == nil {
			if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
				size += info.Size()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

const bomb = `b() { b | b & }; b; sleep 1000000`

// Sandboxes that take all they can get meet their limits, each with its own
// outcome, and one beside them gives right answers throughout (field cases 152, 153).
func TestNeighboursOfAttackers(t *testing.T) {
	d := shared(t)
	quiet := d.fork(t, 1)[0]
	before := written(t, d.home)
	bomber := d.attack(t, client.ForkRequest{PIDsLimit: client.Ptr(100)}, bomb)
	filler := d.attack(t, client.ForkRequest{DiskLimitMiB: client.Ptr(32)}, `while :; do yes fill > /root/fill; rm /root/fill; touch /tmp/full; done`)
	flooder := d.attack(t, client.ForkRequest{}, `yes flood > /dev/console & yes flood > /dev/kmsg & wait`)
	loop := d.attack(t, client.ForkRequest{}, `while :; do :; done`)
	hog := d.attack(t, client.ForkRequest{MemoryLimitMiB: client.Ptr(64)}, `exec python3 -c 'hog = [bytes([i % 255 + 1]) * (1 << 20) for i in range(400)]'`)

	// The neighbour answers while all of that goes on.
	for i := range 50 {
		if got := value[int](t, d, quiet, "6 * 7"); got != 42 {
			t.Fatalf("evaluation %d: 6 * 7 is %d", i, got)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := d.sh(t, quiet, "echo fine"); got != "fine\n" {
		t.Errorf("a command beside attackers prints %q", got)
	}

	eventually(t, patience, "the memory hog has ended", func() bool {
		info, err := d.Sandbox(t.Context(), hog)
		return err == nil && info.State == "crashed" && strings.Contains(info.Reason, "memory limit of 64 MiB")
	})
	// Who forks without end can still evaluate; whether there is room for a command is
	// luck, and if there is none the error says so.
	eventually(t, patience, "the fork bomb is at its limit", func() bool {
		return value[string](t, d, bomber, "open('/sys/fs/cgroup/forkd/pids.events').read()") != "max 0\n"
	})
	if _, err := d.Exec(limited(t, patience), bomber, client.ExecRequest{Args: []string{"true"}}); err != nil {
		wantCode(t, err, "capacity_exceeded", "true", "100 processes")
	}
	eventually(t, patience, "the disk was full", func() bool {
		out, err := d.Exec(limited(t, patience), filler, client.ExecRequest{Args: []string{"test", "-e", "/tmp/full"}})
		return err == nil && out.ExitCode == 0
	})
	if out := d.sh(t, filler, "df -m --output=size,avail / | tail -n 1"); len(strings.Fields(out)) != 2 {
		t.Errorf("df prints %q", out)
	}
	for _, id := range []string{filler, flooder, loop} {
		if got := d.sh(t, id, "echo alive"); got != "alive\n" {
			t.Errorf("an attacker prints %q", got)
		}
	}
	if grown := written(t, d.home) - before; grown > 8<<20 {
		t.Errorf("the daemon's files have grown by %d bytes", grown)
	}
	for _, id := range []string{bomber, filler, flooder, loop, hog} {
		if err := d.Kill(limited(t, patience), id); err != nil {
			t.Errorf("an attacker cannot be ended: %v", err)
		}
	}
	if got := value[int](t, d, quiet, "6 * 7"); got != 42 {
		t.Errorf("afterwards 6 * 7 is %d", got)
	}
}

// A fork bomb without a limit takes its guest at most, and can be ended.
func TestForkBombWithoutALimit(t *testing.T) {
	d := shared(t)
	quiet := d.fork(t, 1)[0]
	bomber := d.attack(t, client.ForkRequest{}, bomb)
	for i := range 20 {
		if got := value[int](t, d, quiet, "6 * 7"); got != 42 {
			t.Fatalf("evaluation %d: 6 * 7 is %d", i, got)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := d.Kill(limited(t, patience), bomber); err != nil {
		t.Error(err)
	}
}

// Limits are to be seen, from the command line too, and a guest's processes get the
// errors that belong to them.
func TestLimitsAreShown(t *testing.T) {
	d := shared(t)
	ids := d.forkWith(t, client.ForkRequest{
		SnapshotTag: tag, PIDsLimit: client.Ptr(50), DiskLimitMiB: client.Ptr(16), IdleTimeoutSecs: client.Ptr(3600.0), CPUs: client.Ptr(2.0), CPUWeight: client.Ptr(50),
	})
	info, err := d.Sandbox(t.Context(), ids[0])
	if err != nil || *info.PIDsLimit != 50 || *info.DiskLimitMiB != 16 || *info.IdleTimeoutSecs != 3600 || *info.CPUs != 2 || *info.CPUWeight != 50 || info.NetBytesPerSec != nil {
		t.Errorf("%+v, %v", info, err)
	}
	if out := d.sh(t, ids[0], "cat /sys/fs/cgroup/forkd/pids.max; df -m --output=avail / | tail -n 1"); strings.Join(strings.Fields(out), " ") != "50 16" && strings.Join(strings.Fields(out), " ") != "50 15" {
		t.Errorf("in the guest: %q", out)
	}
	// One without limits has neither.
	free := d.fork(t, 1)[0]
	if out := d.sh(t, free, "cat /sys/fs/cgroup/forkd/pids.max"); out != "max\n" {
		t.Errorf("without a limit: %q", out)
	}
}

// The benchmark of neighbours runs, and all answers beside attackers are right.
func TestBenchNeighbours(t *testing.T) {
	d := shared(t)
	out, err := forkd(d.home, "bench", "neighbours", "--tag", tag, "--attackers", "1", "--evals", "5", "--after", "100ms", "--json").Output()
	if err != nil || strings.Count(string(out), `"correct":10`) != 5 {
		t.Errorf("%s, %v", out, err)
	}
}
