//go:build linux && amd64

// Package kvm tests the whole of forkd on the engine kvm: a Debian guest boots, Python
// is warmed, a snapshot is frozen, and children of it compute. On a host without KVM
// all that happens in an emulated one, where it takes minutes, so it is done only when
// FORKD_TEST_KVM is set.
package kvm

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/hosttest"
	"github.com/forkd-dev/forkd/internal/image"
)

// base has the program, and the home with an image in it. The tests inside have it in
// the same place. FORKD_TEST_HOME names a directory where it stays for the next run.
var base = filepath.Join(cmp.Or(os.Getenv("FORKD_TEST_HOME"), os.TempDir()), "forkd-test-kvm")

func TestMain(m *testing.M) {
	hosttest.Main(m, hosttest.Files{Prepare: prepare, Unless: enabled, MemoryMiB: 4096})
}

const enabled = "FORKD_TEST_KVM"

func program() string { return filepath.Join(base, "forkd") }
func home() string    { return filepath.Join(base, "home") }

// prepare builds the program as the Makefile does, and an image, for which there is no
// network in an emulated host.
func prepare(ctx context.Context, f *hosttest.Files) error {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(home(), 0o700); err != nil {
		return err
	}
	agent, overlay := filepath.Join(base, "agent"), filepath.Join(base, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(root, "cmd/forkd/guest/forkd-agent.amd64"): agent,
	}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-buildvcs=false", "-ldflags=-s -w", "-o", agent, "./cmd/forkd-agent"},
		{"-overlay", overlay, "-ldflags=-s -w -X main.version=e2e", "-o", program(), "./cmd/forkd"},
	} {
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath"}, args...)...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building: %w: %s", err, out)
		}
	}
	code, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	img, err := image.Build(ctx, image.Options{Home: home(), Arch: "amd64", Agent: code})
	if err != nil {
		return err
	}
	yardstick, err := withLibraries("/bin/true")
	f.Paths = append(yardstick, program(), img.Dir)
	return err
}

// withLibraries returns the files that a program needs to run, as far as it names them
// itself.
func withLibraries(program string) ([]string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := []string{program}
	if s := f.Section(".interp"); s != nil {
		name, err := s.Data()
		if err != nil {
			return nil, err
		}
		files = append(files, strings.TrimRight(string(name), "\x00"))
	}
	libraries, err := f.ImportedLibraries()
	for _, name := range libraries {
		for _, dir := range []string{"/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib", "/lib"} {
			if path := filepath.Join(dir, name); err == nil && exists(path) {
				files = append(files, path)
				break
			}
		}
	}
	return files, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// forkd runs the command line and returns what it prints.
func forkd(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(), args...)
	cmd.Env = append(os.Environ(), "FORKD_HOME="+home(), "FORKD_ENGINE=kvm")
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("forkd %s: %w: %s", strings.Join(args, " "), err, messages.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// must is forkd for what does not fail.
func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := forkd(t, args...)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(home(), "daemon.log"))
		t.Fatalf("%v; the daemon's log:\n%s", err, log)
	}
	return out
}

func want(t *testing.T, expected string, args ...string) {
	t.Helper()
	if got := must(t, args...); got != expected {
		t.Errorf("forkd %s: %q, want %q", strings.Join(args, " "), got, expected)
	}
}

// TestKVM makes a snapshot, and what the others test is made of it.
func TestKVM(t *testing.T) {
	if os.Getenv(enabled) == "" {
		t.Skipf("set %s=1: without KVM it takes minutes", enabled)
	}
	hosttest.Need(t)
	t.Cleanup(func() { exec.Command(program(), "stop").Run() })
	must(t, "snapshot", "--tag", "py", "--memory-mib", "256")
	t.Run("user", testUser)
	t.Run("processor", testProcessor)
	t.Run("restore", testRestore)
}

// testUser goes the way of a user: children that differ, a branch of one of them in the
// middle of its work, a child of the branch, and a child that wants more
// memory than it may have.
func testUser(t *testing.T) {
	ids := strings.Fields(must(t, "fork", "--tag", "py", "-n", "3", "--quiet"))
	if len(ids) != 3 {
		t.Fatalf("forked %q", ids)
	}
	for i, id := range ids {
		want(t, fmt.Sprint(i*i), "eval", "--child", id, "--", fmt.Sprintf("(x := %d) ** 2", i))
	}
	for i, id := range ids {
		want(t, fmt.Sprint(i), "eval", "--child", id, "--", "x")
	}
	want(t, "x86_64", "exec", "--child", ids[0], "--", "uname", "-m")
	seen := map[string]bool{}
	for _, id := range ids {
		seen[must(t, "exec", "--child", id, "--", "cat", "/proc/sys/kernel/random/boot_id", "/etc/machine-id")] = true
		seen[must(t, "eval", "--child", id, "--", "__import__('random').random(), numpy.random.rand()")] = true
	}
	if len(seen) != 2*len(ids) {
		t.Errorf("children have identities in common: %v", seen)
	}
	must(t, "exec", "--child", ids[2], "--", "sh", "-c", "echo kept > /root/file")
	must(t, "snapshot", "--from-sandbox", ids[2], "--tag", "branch")
	want(t, "3", "eval", "--child", ids[2], "--", "x + 1")
	child := must(t, "fork", "--tag", "branch", "--quiet")
	want(t, "2", "eval", "--child", child, "--", "x")
	want(t, "kept", "exec", "--child", child, "--", "cat", "/root/file")
	limited := must(t, "fork", "--tag", "py", "--memory-limit-mib", "16", "--quiet")
	want(t, "1", "eval", "--child", limited, "--", "1")
	if out, err := forkd(t, "eval", "--child", limited, "--", "len(b'x' * (130 << 20))"); err == nil || !strings.Contains(err.Error(), "memory limit of 16 MiB") {
		t.Errorf("a child that needs more than its limit: %q, %v", out, err)
	}
	want(t, "0", "eval", "--child", ids[0], "--", "x")
}

// testProcessor: a child with a limit of processors gets so much, and children that
// compete get what their weights say. Counted is how often a loop goes round.
func testProcessor(t *testing.T) {
	busy := func(id string) float64 {
		const code = "import time\nend, n = time.monotonic() + 4, 0\nwhile time.monotonic() < end: n += 1\nn"
		n, err := strconv.ParseFloat(must(t, "eval", "--child", id, "--", code), 64)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	child := func(flags ...string) string {
		return must(t, append([]string{"fork", "--tag", "py", "--quiet"}, flags...)...)
	}
	free, bounded := child(), child("--cpus", "0.2")
	busy(free) // what a guest does first takes it longer
	busy(bounded)
	if all, some := busy(free), busy(bounded); some < all/20 || some > all/2 {
		t.Errorf("with a fifth of a processor it goes round %v times, without a limit %v times", some, all)
	}
	if runtime.NumCPU() > 1 {
		return // they would not compete
	}
	light, heavy := child("--cpu-weight", "50"), child("--cpu-weight", "500")
	var counts [2]float64
	var wg sync.WaitGroup
	for i, id := range []string{light, heavy} {
		busy(id)
		wg.Go(func() { counts[i] = busy(id) })
	}
	wg.Wait()
	if counts[1] < 2*counts[0] {
		t.Errorf("with ten times the weight it goes round %v times, with the smaller one %v times", counts[1], counts[0])
	}
}
