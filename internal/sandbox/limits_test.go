package sandbox

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestLimitsCheck(t *testing.T) {
	for _, l := range []Limits{
		{},
		{MemoryMiB: 1, CPUs: 0.01, CPUWeight: 1, Processes: 1, DiskMiB: 1, DiskRate: 1 << 10, NetRate: 1 << 10, Idle: 1},
		{MemoryMiB: MaxLimitMiB, CPUs: 1024, CPUWeight: 10000, Processes: MaxProcesses, DiskMiB: MaxLimitMiB, DiskRate: math.MaxInt64, NetRate: math.MaxInt64, Idle: MaxLifetime},
	} {
		if err := l.check(); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for what, l := range map[string]Limits{
		"memory":    {MemoryMiB: -1},
		"processes": {Processes: MaxProcesses + 1},
		"disk":      {DiskMiB: MaxLimitMiB + 1},
		"idle":      {Idle: -1},
		"NaN":       {CPUs: math.NaN()},
		"0.01":      {CPUs: 0.001},
		"weight":    {CPUWeight: 10001},
		"disk rate": {DiskRate: 1},
		"network":   {NetRate: -1},
	} {
		wantCode(t, what, l.check(), InvalidArgument, what)
	}
}

// Who is limited cannot fork out of it: of two limits the tighter counts, and of
// one and none the one.
func TestLimitsWithin(t *testing.T) {
	wide := Limits{MemoryMiB: 9, CPUs: 9, CPUWeight: 9, Processes: 9, DiskMiB: 9, DiskRate: 9, NetRate: 9, Idle: 9}
	tight := Limits{MemoryMiB: 1, CPUs: 1, CPUWeight: 1, Processes: 1, DiskMiB: 1, DiskRate: 1, NetRate: 1, Idle: 1}
	for _, c := range []struct{ mine, outer, want Limits }{
		{Limits{}, Limits{}, Limits{}},
		{wide, Limits{}, wide},
		{Limits{}, wide, wide},
		{wide, tight, tight},
		{tight, wide, tight},
		{Limits{CPUs: 2, DiskMiB: 3}, Limits{CPUs: 3, Processes: 4}, Limits{CPUs: 2, DiskMiB: 3, Processes: 4}},
	} {
		if got := c.mine.within(c.outer); got != c.want {
			t.Errorf("%+v within %+v is %+v", c.mine, c.outer, got)
		}
	}
}

// fails runs a script that must fail, and returns what it said.
func fails(t *testing.T, m *Manager, id, script string) string {
	t.Helper()
	var out bytes.Buffer
	r, err := m.Exec(t.Context(), id, Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil || r.ExitCode == 0 {
		t.Fatalf("%s: %+v, %v: %s", script, r, err, &out)
	}
	return out.String()
}

// available returns how many KiB df shows.
func available(t *testing.T, m *Manager, id string) int {
	t.Helper()
	kib, err := strconv.Atoi(strings.TrimSpace(sh(t, m, id, "df -k --output=avail / | tail -n 1")))
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

const fill = "dd if=/dev/zero of=/root/%s bs=1M count=%s 2>&1 && sync"

// The limit of the disk is an error of the program that writes, and holds over a
// pause, a rollback and a fork, but is no part of a branch (field case 083).
func TestDiskLimit(t *testing.T) {
	m := borrow(t)
	ctx := t.Context()
	id := forkOne(t, m, ForkSpec{Limits: Limits{DiskMiB: 20}})
	if got := available(t, m, id); got > 20<<10 || got < 18<<10 {
		t.Errorf("df shows %d KiB", got)
	}
	sh(t, m, id, strings.NewReplacer("%s", "12").Replace(strings.Replace(fill, "%s", "a", 1)))
	if text := fails(t, m, id, "dd if=/dev/zero of=/root/b bs=1M count=12"); !strings.Contains(text, "No space left on device") {
		t.Errorf("a full disk says %q", text)
	}
	err := m.WriteFile(ctx, id, "/root/c", bytes.NewReader(make([]byte, 4<<20)), WriteOptions{})
	wantCode(t, "writing a file", err, NoSpace, "")
	if e := err.(*Error); !strings.Contains(e.Hint, "20 MiB") {
		t.Errorf("the hint is %q", e.Hint)
	}
	sh(t, m, id, "rm /root/b; echo fine > /root/d; sync")

	// What it has used stays used.
	used := available(t, m, id)
	if _, err := m.Pause(ctx, id); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Resume(ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	if got := available(t, m, id); got > used || used > 9<<10 {
		t.Errorf("%d KiB were left, and after a pause %d", used, got)
	}
	if _, err := m.Branch(ctx, id, BranchSpec{Tag: "b", Wait: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Rollback(ctx, id, "b"); err != nil {
		t.Fatal(err)
	}
	if got := available(t, m, id); got > used {
		t.Errorf("%d KiB were left, and after a rollback %d", used, got)
	}

	// A fork has as much, or less, for itself; a child of the branch what its fork says.
	for want, spec := range map[int]ForkSpec{20: {N: 1}, 10: {N: 1, Limits: Limits{DiskMiB: 10}}} {
		children, err := m.ForkSandbox(ctx, id, spec)
		if err != nil || children[0].Err != nil {
			t.Fatal(err, children)
		}
		child := children[0].Sandbox
		if got := available(t, m, child.ID); child.Limits.DiskMiB != want || got > want<<10 || got < (want-2)<<10 {
			t.Errorf("a fork with %d MiB has %d KiB, and its limit is %d MiB", want, got, child.Limits.DiskMiB)
		}
	}
	free, err := m.Fork(ctx, ForkSpec{Tag: "b", N: 1})
	if err != nil || free[0].Err != nil {
		t.Fatal(err, free)
	}
	sh(t, m, free[0].Sandbox.ID, "dd if=/dev/zero of=/root/e bs=1M count=60")
}

// bomb forks as long as it can.
const bomb = `
import os, time
while True:
    try:
        if os.fork() == 0:
            break
    except OSError as e:
        print(e.strerror, flush=True)
        break
time.sleep(1000)
`

// A fork bomb meets the limit of processes; the agent and the interpreter answer
// (field cases 056, 152).
func TestProcessLimit(t *testing.T) {
	m := borrow(t)
	ctx := t.Context()
	id := forkOne(t, m, ForkSpec{Limits: Limits{Processes: 40}})
	p, err := m.StartProcess(ctx, id, ProcessSpec{Args: []string{"python3", "-c", bomb}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if out, err := p.Recv(); err != nil || string(out.Data) != "Resource temporarily unavailable\n" {
		t.Fatalf("the bomb says %q, %v", out.Data, err)
	}
	_, err = m.Exec(ctx, id, Command{Args: []string{"true"}})
	wantCode(t, "a command without a process for it", err, CapacityExceeded, "true")
	if e := err.(*Error); !strings.Contains(e.Hint, "40 processes") {
		t.Errorf("the hint is %q", e.Hint)
	}
	if got := evalIn(t, m, id, "6 * 7"); got != "42" {
		t.Errorf("6 * 7 is %s", got)
	}
	if _, err := m.Ping(ctx, id); err != nil {
		t.Error(err)
	}
	_, err = m.CreateContext(ctx, id, ContextSpec{})
	wantCode(t, "a context", err, CapacityExceeded, "")
	if err := m.SignalProcess(ctx, id, ProcessRef{PID: p.Process().PID}, 9); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err = m.Exec(ctx, id, Command{Args: []string{"true"}}); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if _, err := m.CreateContext(ctx, id, ContextSpec{}); err != nil {
		t.Error(err)
	}
}

// An idle lifetime begins when nobody uses the sandbox any more. A command, an
// attachment and a process that was started to live on its own count as use.
func TestIdleLifetime(t *testing.T) {
	const idle = 300 * time.Millisecond
	m := borrow(t)
	ctx := t.Context()
	gone := func(id string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if _, err := m.Sandbox(id); hasCode(err, NotFound) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("it lives on")
			}
		}
	}
	spec := ForkSpec{Limits: Limits{Idle: idle}}
	gone(forkOne(t, m, spec)) // nobody has used it at all

	id := forkOne(t, m, spec)
	sh(t, m, id, "sleep 1")
	if err := m.Kill(id); err != nil {
		t.Error("a command is no use:", err)
	}

	id = forkOne(t, m, spec)
	p, err := m.StartProcess(ctx, id, ProcessSpec{Args: []string{"sleep", "2"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	time.Sleep(3 * idle)
	if _, err := m.Sandbox(id); err != nil {
		t.Error("a process is no use:", err)
	}
	gone(id)

	spec.OnTimeout, spec.AutoResume = PauseOnTimeout, true
	id = forkOne(t, m, spec)
	evalIn(t, m, id, "x = 5; x")
	for deadline := time.Now().Add(time.Minute); describe(t, m, id).State != Paused; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not paused")
		}
	}
	if got := evalIn(t, m, id, "x"); got != "5" || describe(t, m, id).Limits.Idle != idle {
		t.Errorf("x is %s, %+v", got, describe(t, m, id))
	}
}

// A workspace that nobody uses is suspended, and has its limits when it is resumed.
func TestIdleWorkspace(t *testing.T) {
	m := borrow(t)
	ctx := t.Context()
	limits := Limits{Idle: 300 * time.Millisecond, DiskMiB: 20, Processes: 100}
	w, err := m.CreateWorkspace(ctx, WorkspaceSpec{Name: "w", Tag: benchTag, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	sh(t, m, w.SandboxID, "dd if=/dev/zero of=/root/a bs=1M count=12; sync")
	used := available(t, m, w.SandboxID)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if w, err = m.workspace("w"); err != nil {
			t.Fatal(err)
		}
		if w.State == WorkspaceSuspended {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is not suspended")
		}
	}
	if w, err = m.ResumeWorkspace(ctx, "w"); err != nil || w.Limits != limits {
		t.Fatalf("%+v, %v", w, err)
	}
	if got := available(t, m, w.SandboxID); got > used {
		t.Errorf("%d KiB were left, and after a suspension %d", used, got)
	}
}
