package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/guest"
	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// fakeKernel records what a refresh changes; the machine that runs the tests keeps its clock and name.
type fakeKernel struct {
	mu  sync.Mutex
	has kernelState
}

type kernelState struct {
	entropy  string
	clock    int64
	hostname string
	fail     string // the step that fails
}

func (k *fakeKernel) Reseed(entropy []byte) error {
	return k.step("random", func(s *kernelState) { s.entropy = string(entropy) })
}

func (k *fakeKernel) SetClock(ns int64) error {
	return k.step("clock", func(s *kernelState) { s.clock = ns })
}

func (k *fakeKernel) SetHostname(name string) error {
	return k.step("hostname", func(s *kernelState) { s.hostname = name })
}

func (k *fakeKernel) step(name string, do func(*kernelState)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	do(&k.has)
	if k.has.fail == name {
		return errors.New("made to fail")
	}
	return nil
}

func (k *fakeKernel) state() kernelState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.has
}

func (k *fakeKernel) failAt(step string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.has.fail = step
}

// fixture is a guest server in this process, reached over Unix sockets.
type fixture struct {
	*agent.Client
	dir    string
	kernel *fakeKernel
	server *guest.Server
	id     *guest.Identity
}

var fixtures atomic.Int64

func newGuest(t *testing.T) *fixture { return newGuestIn(t, "/", cgroupDir()) }

// newGuestIn is newGuest with another root for file operations, or without cgroups.
func newGuestIn(t *testing.T, root, cgroups string) *fixture {
	t.Helper()
	dir := t.TempDir()
	f := &fixture{dir: dir, kernel: new(fakeKernel)}
	var err error
	if f.id, err = guest.OpenIdentity(filepath.Join(dir, "identity")); err != nil {
		t.Fatal(err)
	}
	f.server, err = guest.New(guest.Config{
		Root:     root,
		Cgroups:  cgroups,
		Listen:   func(port uint32) (int, error) { return quiet.ListenUnix(f.socket(port)) },
		Dir:      dir,
		Capture:  dir,
		Env:      []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"},
		Kernel:   f.kernel,
		Identity: f.id,
		Quotas:   guest.Quotas{Processes: filepath.Join(dir, "pids.max"), KeptBack: filepath.Join(dir, "kept-back")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.server.Listen(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.server.Serve() }()
	f.Client = f.newClient()
	t.Cleanup(func() {
		f.Client.Close()
		f.server.Close()
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
		removeCgroup(t, cgroups)
	})
	return f
}

func (f *fixture) socket(port uint32) string {
	return filepath.Join(f.dir, fmt.Sprintf("%d.sock", port))
}

func (f *fixture) dial(ctx context.Context, port uint32) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", f.socket(port))
}

func (f *fixture) newClient() *agent.Client { return agent.NewClient(f.dial) }

// cgroupDir returns a fresh cgroup v2 directory that this process may use, or "".
func cgroupDir() string {
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(mount, fmt.Sprintf("forkd-test-%d-%d", os.Getpid(), fixtures.Add(1)))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err == nil {
			return dir
		}
		os.Remove(dir)
	}
	return ""
}

func removeCgroup(t *testing.T, dir string) {
	if dir == "" {
		return
	}
	kill := filepath.Join(dir, "cgroup.kill")
	_ = os.WriteFile(kill, []byte("1"), 0)
	for range 200 {
		_ = filepath.WalkDir(dir, func(string, os.DirEntry, error) error { return nil })
		if removeTree(dir) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("cgroup %s cannot be removed", dir)
}

func removeTree(dir string) bool {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()))
		}
	}
	return os.Remove(dir) == nil
}

func needCgroups(t *testing.T, f *fixture) {
	t.Helper()
	info, err := f.Ping(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !info.Cgroups {
		t.Skip("needs a writable cgroup v2 hierarchy to hold or kill process trees")
	}
}

func sh(script string) wire.ExecRequest {
	return wire.ExecRequest{Argv: wire.Names("sh", "-c", script)}
}

// outcome is a finished command.
type outcome struct {
	wire.Exit
	stdout, stderr string
}

func (f *fixture) mustRun(t *testing.T, req wire.ExecRequest, stdin ...string) outcome {
	t.Helper()
	o, err := f.run(t.Context(), req, stdin...)
	if err != nil {
		t.Fatalf("running %q: %v", req.Argv, err)
	}
	return o
}

func (f *fixture) run(ctx context.Context, req wire.ExecRequest, stdin ...string) (outcome, error) {
	var stdout, stderr bytes.Buffer
	streams := agent.Streams{Stdout: &stdout, Stderr: &stderr}
	if len(stdin) > 0 {
		streams.Stdin = strings.NewReader(strings.Join(stdin, ""))
	}
	exit, err := f.Run(ctx, req, streams)
	return outcome{exit, stdout.String(), stderr.String()}, err
}

// alive reports whether a process exists.
func (f *fixture) alive(t *testing.T, pid int) bool {
	t.Helper()
	return f.mustRun(t, sh(fmt.Sprintf("kill -0 %d 2>/dev/null", pid))).Code == 0
}

func wantCode(t *testing.T, err error, code wire.Code) *wire.Error {
	t.Helper()
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		t.Fatalf("error is %v, want a typed error with code %s", err, code)
	}
	if e.Code != code {
		t.Fatalf("error is %v, want code %s", e, code)
	}
	return e
}

// eventually waits for something that happens soon but not at once.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 4000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("never happened: %s", what)
}

// pythonProgram is the interpreter that tests use: a real one rather than a version manager's script.
func pythonProgram(t *testing.T) wire.Name {
	t.Helper()
	for dir := range strings.SplitSeq("/usr/bin:/usr/local/bin:"+os.Getenv("PATH"), ":") {
		program := filepath.Join(dir, "python3")
		if info, err := os.Stat(program); err == nil && info.Mode()&0o111 != 0 {
			return wire.Name(program)
		}
	}
	t.Skip("needs a python3")
	return ""
}

func (f *fixture) startPython(t *testing.T, imports ...string) {
	t.Helper()
	_, err := f.StartRuntime(t.Context(), wire.RuntimeStart{Name: "python", Program: pythonProgram(t), Imports: imports})
	if err != nil {
		t.Fatalf("starting python: %v", detail(err))
	}
}

func detail(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return fmt.Sprintf("%v\n%s", e, e.Detail)
	}
	return fmt.Sprint(err)
}

func (f *fixture) eval(t *testing.T, code string) *agent.EvalResult {
	t.Helper()
	r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: code})
	if err != nil {
		t.Fatalf("evaluating %.80q: %v", code, err)
	}
	return r
}

// value evaluates code that must succeed and returns its JSON.
func (f *fixture) value(t *testing.T, code string) string {
	t.Helper()
	r := f.eval(t, code)
	if r.Error != nil {
		t.Fatalf("evaluating %.80q: %s", code, r.Error.Traceback)
	}
	return string(r.Value)
}
