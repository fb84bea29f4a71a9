package jail

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limitedJailer returns a Jailer with cgroups, if the host has any to give.
func limitedJailer(t *testing.T) *Jailer {
	t.Helper()
	j := newJailer(t)
	if j.found.State != Stands {
		t.Skipf("the host gives no cgroup: %s", j.found.Detail)
	}
	return j
}

// TestCgroupMemory: who takes too much memory dies of it, and nobody else.
func TestCgroupMemory(t *testing.T) {
	j := limitedJailer(t)
	neighbour := lock(t, j, Spec{}, Profile{})
	p := lock(t, j, Spec{Limits: Limits{MemoryBytes: 64 << 20}}, Profile{})
	p.must("hoard", order{Arg: "8"})
	if u, err := p.Usage(); err != nil || u.MemoryBytes < 8<<20 || u.MemoryBytes > 64<<20 || u.OOMKills != 0 || u.Threads < 2 || u.CPUMicros <= 0 {
		t.Errorf("after 8 MiB: %+v, %v", u, err)
	}
	if _, died := p.do("hoard", order{Arg: "128"}); !died {
		t.Error("it has got 128 MiB of 64")
	}
	if u, err := p.Usage(); err != nil || u.OOMKills == 0 {
		t.Errorf("nothing tells why it died: %+v, %v", u, err)
	}
	neighbour.must("work", order{})
}

// TestCgroupThreads: threads are bounded, and who wants more dies of it.
func TestCgroupThreads(t *testing.T) {
	p := lock(t, limitedJailer(t), Spec{Threads: 40}, Profile{})
	p.must("multiply", order{Arg: "10"})
	if _, died := p.do("multiply", order{Arg: "200"}); !died {
		// The threads come a moment later.
		deadline := time.Now().Add(10 * time.Second)
		for time.Now().Before(deadline) && unix.Kill(p.PID, 0) == nil && status(t, p.PID, "State")[0] != 'Z' {
			if n := status(t, p.PID, "Threads"); len(n) > 2 {
				t.Fatalf("it has %s threads", n)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// TestCgroupLimits: limits reach the kernel, can be changed, and taken back.
func TestCgroupLimits(t *testing.T) {
	p := lock(t, limitedJailer(t), Spec{Limits: Limits{MemoryBytes: 1 << 30, CPUWeight: 50, CPUMilli: 500}}, Profile{})
	files := []string{"memory.max", "cpu.weight", "cpu.max"}
	before, after := []string{"1073741824", "50", "50000 100000"}, []string{"max", "100", "max 100000"}
	if p.Group.Version == 1 {
		files = []string{"memory.limit_in_bytes", "cpu.shares", "cpu.cfs_quota_us"}
		before, after = []string{"1073741824", "512", "50000"}, []string{"9223372036854771712", "1024", "-1"}
	}
	read := func() (values []string) {
		for _, f := range files {
			controller, _, _ := strings.Cut(f, ".")
			b, err := os.ReadFile(filepath.Join(p.Group.Dirs[controller], f))
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, strings.TrimSpace(string(b)))
		}
		return values
	}
	if got := read(); !slices.Equal(got, before) {
		t.Errorf("%v are %v, want %v", files, got, before)
	}
	if err := p.Limit(Limits{}); err != nil {
		t.Fatal(err)
	}
	if got := read(); !slices.Equal(got, after) {
		t.Errorf("taken back, %v are %v, want %v", files, got, after)
	}
	if err := p.Limit(Limits{CPUMilli: -1}); err == nil {
		t.Error("a negative limit was set")
	}
}

// TestSweep: what a Jailer before has left is ended, but for what somebody knows, which
// goes on and can be adopted.
func TestSweep(t *testing.T) {
	first := limitedJailer(t)
	known, orphan := lock(t, first, Spec{}, Profile{}), lock(t, first, Spec{}, Profile{})
	record, err := json.Marshal(known.Process)
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	second := &Jailer{offer: first.offer, group: first.group, found: first.found, users: first.users}
	removed, err := second.Sweep(ctx, func(name string) bool { return name == known.Name })
	if err != nil || !slices.Equal(removed, []string{orphan.Name}) {
		t.Errorf("removed %v, %v, want %s", removed, err, orphan.Name)
	}
	if err := orphan.cmd.Wait(); err == nil {
		t.Error("the orphan has ended well")
	}
	known.must("work", order{})

	var found Process
	if err := json.Unmarshal(record, &found); err != nil {
		t.Fatal(err)
	}
	second.users, err = newUsers(found.User, 1)
	if err != nil {
		t.Fatal(err)
	}
	second.Adopt(&found)
	if u, err := found.Usage(); err != nil || u.Threads < 2 {
		t.Errorf("%+v, %v", u, err)
	}
	if found.User != 0 {
		if id, err := second.users.take(); err == nil {
			t.Errorf("%d was given out, which is that of an adopted process", id)
		}
	}
	if err := found.Remove(ctx); err != nil {
		t.Error(err)
	}
	if err := known.cmd.Wait(); err == nil {
		t.Error("the adopted process has ended well")
	}
	if found.User != 0 {
		if _, err := second.users.take(); err != nil {
			t.Errorf("the user of a process that was removed is not free: %v", err)
		}
	}
}

// TestNameIsTaken: two processes do not share a cgroup.
func TestNameIsTaken(t *testing.T) {
	j := limitedJailer(t)
	p := lock(t, j, Spec{}, Profile{})
	if _, err := tryLock(t, j, Spec{Name: p.Name}, Profile{}); err == nil {
		t.Error("a second process of that name was started")
	}
	p.must("nothing", order{})
	if _, err := os.Stat(p.Group.each()[0]); err != nil {
		t.Errorf("the first one's cgroup is gone: %v", err)
	}
}

// TestNoGroup: what is no cgroup is no place for a group, and the report says why.
func TestNoGroup(t *testing.T) {
	j, err := New(Config{Group: "test", CgroupParent: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if f := j.Offers().Find(Cgroup); f.State != Missing || f.Detail == "" || f.Fix == "" {
		t.Errorf("%+v", f)
	}
	p := lock(t, j, Spec{Limits: Limits{MemoryBytes: 1}}, Profile{})
	p.must("work", order{})
	if _, err := j.Start(command("plain"), Spec{Name: "x", Require: []Wall{Cgroup}}); !errors.Is(err, ErrRequired) {
		t.Errorf("a process that has to have a cgroup: %v", err)
	}
}
