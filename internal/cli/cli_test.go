package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/daemon/launch"
	"github.com/forkd-dev/forkd/internal/sandbox"
	"github.com/forkd-dev/forkd/internal/server"
	"github.com/forkd-dev/forkd/internal/server/servertest"
)

// TestMain makes this test binary a forkd without machines, for the stories in
// testdata.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"forkd": func() { os.Exit(Main(fakeApp(System()), os.Args[1:])) }})
}

// fakeApp is forkd with a fake domain behind "serve".
func fakeApp(io Streams) App {
	program, _ := exec.LookPath("forkd")
	return App{
		Version: "v0-test", Program: program, Streams: io,
		Agent:  func() error { return nil },
		Engine: func(string) (name, why string, err error) { return "fake", "it is the only one", nil },
		Serve: func(ctx context.Context, o ServeOptions) error {
			return daemon.Serve(ctx, daemon.Config{
				Home: o.Home, Listen: o.Listen, ListenOptional: o.ListenOptional, Token: o.Token, Log: o.Log,
				Version: "v0-test", Engine: "fake",
				Open: func(context.Context) (daemon.Backend, error) { return newFake(o.Home), nil },
			})
		},
	}
}

func newFake(dir string) *servertest.Fake {
	fake := servertest.New(dir, "base")
	// A file "full" makes the disk that.
	fake.BranchError = func() *sandbox.Error {
		if _, err := os.Stat(filepath.Join(dir, "full")); err != nil {
			return nil
		}
		return &sandbox.Error{Code: sandbox.NoSpace, Message: "no space left on device", Hint: "free some disk space"}
	}
	fake.CreateSteps = []sandbox.Progress{
		{Step: "packages", Message: "fetching packages", Done: 1, Total: 2},
		{Step: "packages", Message: "fetching packages", Done: 2, Total: 2},
		{Step: "boot"},
	}
	// What "bench branch" dirties memory with.
	fake.Evals = map[string]sandbox.EvalResult{
		"long":  {Repr: "xxxx", ReprTruncated: true},
		"lines": {Stdout: []byte("one\ntwo\n"), Stderr: []byte("careful"), Repr: "3"},
	}
	for _, mib := range []int{linkDirtyMiB, 30, 300} {
		fake.Evals[dirtyCode(mib)] = sandbox.EvalResult{}
	}
	return fake
}

// TestStories runs testdata/*.txt, the command line's specification. Each has a
// daemon of its own, in this process, with one snapshot, "base".
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			socket := filepath.Join(env.WorkDir, "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				return err
			}
			srv := &http.Server{Handler: server.New(server.Config{Manager: newFake(env.WorkDir), Version: "v0-test", Engine: "fake", Executor: "interpreter"})}
			go srv.Serve(l)
			home := filepath.Join(env.WorkDir, "home")
			env.Defer(func() {
				srv.Close()
				stopDaemon(home)
			})
			env.Setenv("FORKD_URL", "unix://"+socket)
			env.Setenv("FORKD_HOME", home)
			env.Setenv("FORKD_TAG", "base")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": wantStatus,
			"stop": func(ts *testscript.TestScript, _ bool, _ []string) {
				stopDaemon(ts.Getenv("FORKD_HOME"))
			},
		},
	})
}

// wantStatus is "status N command…": the exact exit status.
func wantStatus(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("status %d, want %d", got, want)
	}
}

// stopDaemon ends a daemon that a story has started.
func stopDaemon(home string) {
	c, err := client.New(client.Config{URL: "unix://" + client.Socket(home)})
	if err != nil {
		return
	}
	defer c.Close()
	v, err := c.Version(context.Background())
	if err != nil {
		return
	}
	syscall.Kill(v.PID, syscall.SIGTERM)
	for range 1000 {
		if !launch.Running(home) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// terminal runs a command line with all streams on a terminal, against a fake
// daemon, and returns what it wrote.
func terminal(t *testing.T, fake server.Manager, input string, args ...string) (status int, out, errs string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: server.New(server.Config{
		Manager: fake, Version: "v0-test", Engine: "fake", Log: slog.New(slog.DiscardHandler),
	})}
	go srv.Serve(l)
	defer srv.Close()
	var stdout, stderr strings.Builder
	io := Streams{
		In: strings.NewReader(input), Out: &stdout, Err: &stderr,
		InTTY: true, OutTTY: true, ErrTTY: true,
	}
	t.Setenv("FORKD_URL", "")
	status = Main(fakeApp(io), append([]string{"--url", "unix://" + socket}, args...))
	return status, stdout.String(), stderr.String()
}

func TestTablesOnTerminal(t *testing.T) {
	fake := newFake(t.TempDir())
	status, out, errs := terminal(t, fake, "", "fork", "-t", "base", "-n", "2", "--timeout", "1h")
	if status != 0 {
		t.Fatal(errs)
	}
	lines := strings.Split(out, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "ID ") || strings.Fields(lines[1])[0] != "sb000000000001" {
		t.Errorf("fork printed\n%s", out)
	}
	if strings.Contains(out, "\t") || !strings.Contains(out, "0s ago") || !strings.Contains(out, "in 59m") || !strings.Contains(out, "64.0 KiB") {
		t.Errorf("fork printed\n%s", out)
	}
	if i, j := strings.Index(lines[0], "STATE"), strings.Index(lines[1], "running"); i != j {
		t.Errorf("columns are not aligned:\n%s", out)
	}
	status, out, errs = terminal(t, servertest.New(t.TempDir()), "", "ls")
	if status != 0 || out != "" || errs != "no sandboxes\n" {
		t.Errorf("an empty list: %d %q %q", status, out, errs)
	}
	_, out, _ = terminal(t, fake, "", "images", "--json")
	if !strings.HasPrefix(out, "[\n  {\n") {
		t.Errorf("JSON on a terminal: %q", out)
	}
}

func TestProgressOnTerminal(t *testing.T) {
	fake := newFake(t.TempDir())
	status, out, errs := terminal(t, fake, "", "snapshot", "-t", "new")
	if status != 0 || !strings.HasPrefix(out, "snapshot new is ready (") {
		t.Fatalf("%d %q %q", status, out, errs)
	}
	for _, want := range []string{
		"\r\x1b[Kfetching packages  50%  (0s)", "\r\x1b[Kfetching packages  100%  (0s)\n", "\r\x1b[Kboot the parent  (0s)\n",
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in %q", want, errs)
		}
	}
}

func TestQuickstartAsks(t *testing.T) {
	for answer, want := range map[string]int{"n\n": 1, "no\n": 1, "y\n": 0, "\n": 0, "Yes\n": 0} {
		fake := newFake(t.TempDir())
		status, _, errs := terminal(t, fake, answer, "quickstart", "-n", "1", "-t", "new")
		all, _ := fake.Snapshots()
		if status != want || (len(all) == 2) != (want == 0) || !strings.Contains(errs, "[Y/n]") {
			t.Errorf("%q: status %d, %d snapshots, %s", answer, status, len(all), errs)
		}
	}
	if status, _, errs := terminal(t, newFake(t.TempDir()), "", "quickstart", "-n", "1", "-t", "new", "--yes"); status != 0 || strings.Contains(errs, "[Y/n]") {
		t.Errorf("with --yes: %d %s", status, errs)
	}
}

func TestQuickstartWrongAnswer(t *testing.T) {
	fake := newFake(t.TempDir())
	fake.Evals = map[string]sandbox.EvalResult{probe: {Repr: "[0.0]"}}
	status, out, errs := terminal(t, fake, "", "quickstart", "-n", "3", "-t", "base")
	if status != 1 || !strings.Contains(out, "0/3 right answers") || !strings.Contains(errs, "forkd: error: 3 of 3 answers were wrong\n") {
		t.Errorf("%d\n%s\n%s", status, out, errs)
	}
	if left := fake.Sandboxes(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPartialFork(t *testing.T) {
	fake := newFake(t.TempDir())
	fake.ForkError = func(i int) *sandbox.Error {
		if i == 1 {
			return &sandbox.Error{Code: sandbox.NoSpace, Message: "the disk is full", Hint: "free some"}
		}
		return nil
	}
	status, out, errs := terminal(t, fake, "", "fork", "-t", "base", "-n", "3", "-q")
	if status != 1 || out != "sb000000000001\nsb000000000002\n" ||
		errs != "forkd: child 1: the disk is full\nforkd: error: 1 of 3 children could not be started\nforkd: hint: free some\n" {
		t.Errorf("fork: %d %q %q", status, out, errs)
	}
	fake.ForkError = func(i int) *sandbox.Error {
		if i == 2 {
			return &sandbox.Error{Code: sandbox.NoSpace, Message: "the disk is full"}
		}
		return nil
	}
	if left := fake.Sandboxes(); len(left) != 2 {
		t.Errorf("fork keeps what runs, there are %d", len(left))
	}
	if status, _, _ := terminal(t, fake, "", "quickstart", "-t", "base", "-n", "3"); status != 1 {
		t.Errorf("quickstart: %d", status)
	}
	if left := fake.Sandboxes(); len(left) != 2 {
		t.Errorf("quickstart ends what it made, there are %d", len(left))
	}
}

// TestKillRace: of two that end the same sandboxes, none fails.
func TestKillRace(t *testing.T) {
	fake := newFake(t.TempDir())
	if status, _, errs := terminal(t, fake, "", "fork", "-t", "base", "-n", "3"); status != 0 {
		t.Fatal(errs)
	}
	late := &lateFake{fake}
	status, out, errs := terminal(t, late, "", "kill", "--all", "--json")
	if status != 0 || errs != "" || !strings.Contains(out, "sb000000000002") || strings.Contains(out, "sb000000000001") {
		t.Errorf("kill --all: %d %q %q", status, out, errs)
	}
}

// lateFake loses its first sandbox as soon as it has been listed.
type lateFake struct{ *servertest.Fake }

func (f *lateFake) Sandboxes() []sandbox.Info {
	all := f.Fake.Sandboxes()
	f.Fake.Kill(all[0].ID)
	return all
}

func TestConnectionHints(t *testing.T) {
	home := t.TempDir()
	log := launch.LogFile(home)
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"lost, with a log":    {&client.LostError{URL: "unix://" + client.Socket(home), Err: io.EOF}, log},
		"lost, without":       {&client.LostError{URL: "unix:///nobody/here", Err: io.EOF}, "the daemon's log"},
		"lost, far away":      {&client.LostError{URL: "http://far:1", Err: io.EOF}, "the daemon's log"},
		"another user's":      {&client.ConnectError{URL: "unix:///s", Err: syscall.EACCES}, "another user's"},
		"a path without end":  {&client.ConnectError{URL: "unix:///s", Err: syscall.EINVAL}, "FORKD_HOME"},
		"none on this socket": {&client.ConnectError{URL: "unix:///s", Err: syscall.ENOENT}, "forkd serve"},
		"none on this port":   {&client.ConnectError{URL: "http://x:1", Err: syscall.ECONNREFUSED}, "forkd serve"},
	} {
		if got := hintOf(fmt.Errorf("doing it: %w", c.err)); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "0.5": 500 * time.Millisecond, "1m30s": 90 * time.Second, "5ms": 5 * time.Millisecond,
	} {
		var d duration
		if err := d.Set(text); err != nil || time.Duration(d) != want {
			t.Errorf("%s: %v %v", text, time.Duration(d), err)
		}
	}
	for _, text := range []string{"", "0", "-1", "-5s", "x", "1e999", "NaN", "1y"} {
		var d duration
		if d.Set(text) == nil {
			t.Errorf("%q was taken as %v", text, time.Duration(d))
		}
	}
}

// TestMissingModule: who lacks a module is told where modules come from.
func TestMissingModule(t *testing.T) {
	for text, want := range map[string]string{
		"starting python: ModuleNotFoundError: No module named 'nosuchmod'": "--packages", "the guest is out of memory": "",
	} {
		err := &client.Error{Code: api.ErrorCodeInvalidArgument, Message: text}
		if hint := hintOf(missingModule(err)); !strings.Contains(hint, want) || (hint == "") != (want == "") {
			t.Errorf("%s: hint %q", text, hint)
		}
	}
}

// TestSnapshotLines: what does not apply to a snapshot has no line.
func TestSnapshotLines(t *testing.T) {
	for name, c := range map[string]struct {
		mode              api.BranchMode
		depth             int
		pause             float64
		hasMode, hasPause bool
	}{
		"a branch":        {client.BranchDiff, 1, 0.5, true, true},
		"a full branch":   {client.BranchFull, 0, 0.5, true, true},
		"derived":         {client.BranchDiff, 1, 0, true, false},
		"flattened":       {client.BranchDiff, 0, 0, false, false},
		"a machine's own": {"", 0, 0, false, false},
	} {
		text := fmt.Sprint(describeSnapshot(&Streams{}, &client.SnapshotDetail{Mode: c.mode, ChainDepth: c.depth, PauseMs: c.pause}))
		if strings.Contains(text, "[mode ") != c.hasMode || strings.Contains(text, "[pause ") != c.hasPause {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestBenchGrowth: what shrank has not grown by less than nothing.
func TestBenchGrowth(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "10")
	os.Mkdir(dir, 0o700)
	os.WriteFile(filepath.Join(dir, "stat"), []byte("10 (x) S 1 1 1 0 -1 4 1 0 0 0 100 0 0 0 2"), 0o600)
	os.WriteFile(filepath.Join(dir, "smaps_rollup"), []byte("Pss: 1000 kB\n"), 0o600)
	for base, want := range map[int64]int64{400: 600, 1000: 0, 1500: 0} {
		b := &bench{procs: &processes{root: root, daemon: 10}}
		if got, err := b.growth(t.Context(), base); err != nil || got != want || b.shrunk != (base > 1000) {
			t.Errorf("from %d: %d %v, shrunk %v", base, got, err, b.shrunk)
		}
	}
}

func TestPercentile(t *testing.T) {
	var values []float64
	for i := range 200 {
		values = append(values, float64((i*7)%200+1)) // 1 to 200, mixed
	}
	for p, want := range map[int]float64{50: 100, 99: 198, 100: 200, 1: 2} {
		if got := percentile(values, p); got != want {
			t.Errorf("p%d = %v, want %v", p, got, want)
		}
	}
	if got := percentile([]float64{3}, 50); got != 3 {
		t.Errorf("of one value: %v", got)
	}
}

func TestProcessMeasures(t *testing.T) {
	pss, err := parsePSS([]byte("55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss:    120 kB\nPss:     87 kB\nPss_Dirty: 3 kB\n"))
	if err != nil || pss != 87 {
		t.Errorf("PSS %d %v", pss, err)
	}
	if _, err := parsePSS([]byte("Rss: 1 kB\n")); err == nil {
		t.Error("no PSS, no error")
	}
	stat, err := parseStat([]byte("42 (a) b (c) S 7 1 1 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 100 1 1\n"))
	if err != nil || stat.parent != 7 || stat.ticks != 300 {
		t.Errorf("stat %+v %v", stat, err)
	}
	for _, text := range []string{"", "1 (a) S", "1 (a) S x 1 1 0 -1 4194304 100 0 0 0 y z 0 0"} {
		if _, err := parseStat([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// TestProcessesOfDaemon: the daemon's descendants count, others do not.
func TestProcessesOfDaemon(t *testing.T) {
	root := t.TempDir()
	for pid, parent := range map[int]int{10: 1, 11: 10, 12: 11, 20: 1} {
		dir := filepath.Join(root, strconv.Itoa(pid))
		os.Mkdir(dir, 0o700)
		os.WriteFile(filepath.Join(dir, "stat"), []byte(strconv.Itoa(pid)+" (x) S "+strconv.Itoa(parent)+" 1 1 0 -1 4 1 0 0 0 100 0 0 0 2"), 0o600)
		os.WriteFile(filepath.Join(dir, "smaps_rollup"), []byte("Pss: 1000 kB\n"), 0o600)
	}
	p := &processes{root: root, daemon: 10}
	if kib, err := p.pss(); err != nil || kib != 3000 {
		t.Errorf("PSS %d %v, want that of 10, 11 and 12", kib, err)
	}
	if secs, err := p.cpu(); err != nil || secs != 3 {
		t.Errorf("CPU %v %v", secs, err)
	}
	p.daemon = 99
	if _, err := p.pss(); err == nil {
		t.Error("a daemon that is not here was measured")
	}
}

// TestInputs: what the daemon says of a field is said of what the command took it from, and no name of a flag that there is
// not in a command is told.
func TestInputs(t *testing.T) {
	root := newRoot(&factory{app: &App{}, io: &Streams{}})
	for _, c := range []struct{ command, says, want string }{
		{"fork", "timeout_secs: must be over 0", "--timeout in seconds: must be over 0"},
		{"fork", "idle_timeout_secs: must be over 0", "--idle-timeout in seconds: must be over 0"},
		{"fork", "n: must be 1 to 1000, not 0", "--count: must be 1 to 1000, not 0"},
		{"fork", `snapshot_tag: malformed tag "x: y"`, `--tag: malformed tag "x: y"`},
		{"fork", "disk_bytes_per_sec: must be 1024", "--disk-rate in bytes per second: must be 1024"},
		{"fork", "memory must be even: so", "memory must be even: so"},
		{"fork", "stdin: not part", "stdin: not part"},
		{"timeout", "timeout_secs: must be over 0", "TIME in seconds: must be over 0"},
		{"exec", "tag: has more than 64 bytes", "--name: has more than 64 bytes"},
		{"exec", "args[1]: holds a NUL byte", "COMMAND: holds a NUL byte"},
		{"eval", "code: required", "CODE: required"},
		{"eval", `sandboxes[2]: "x" is there already`, `--child: "x" is there already`},
		{"rollback", "snapshot_tag: required", "--to: required"},
		{"snapshot", "setup[0]: must name a program", "--setup: must name a program"},
		{"snapshot-diff", "commands, evals: give at least one", "--exec, --eval: give at least one"},
		{"snapshot-compact", "tag: malformed", "--from: malformed"},
		{"rmi", "tag: malformed", "TAG: malformed"},
		{"push", "reference: required", "REFERENCE: required"},
		{"watch", "path: must be absolute", "DIRECTORY: must be absolute"},
	} {
		cmd, _, err := root.Find([]string{c.command})
		if err != nil {
			t.Fatal(err)
		}
		if got := wording(cmd, &client.Error{Code: api.ErrorCodeInvalidArgument, Message: c.says}); got != c.want {
			t.Errorf("%s: %q is told as %q, want %q", c.command, c.says, got, c.want)
		}
		if got := wording(cmd, &client.Error{Code: api.ErrorCodeNotFound, Message: c.says}); got != c.says {
			t.Errorf("%s: what is no mistake of the user's is told as %q", c.command, got)
		}
	}
}

// TestCodeThatIsTooLong: who has more code than a request may have is told another way.
func TestCodeThatIsTooLong(t *testing.T) {
	fake := newFake(t.TempDir())
	if status, _, errs := terminal(t, fake, "", "fork", "-t", "base", "-q"); status != 0 {
		t.Fatal(errs)
	}
	for _, args := range [][]string{{"eval", "-"}, {"eval", "--all", "-"}, {"run-code", "-"}} {
		status, _, errs := terminal(t, fake, strings.Repeat("x", 8<<20), args...)
		if status != 1 || !strings.Contains(errs, "over the limit of 8388608 bytes") || !strings.Contains(errs, "\nforkd: hint: copy it into the sandbox with `forkd cp`") {
			t.Errorf("%s: %d %s", args, status, errs)
		}
	}
}

// TestMemoryThatIsNotKnown: quickstart says why.
func TestMemoryThatIsNotKnown(t *testing.T) {
	q := &quickstart{quickstartOptions: &quickstartOptions{n: 10}, procs: &processes{root: procRoot, daemon: os.Getpid()}, baseline: 1 << 40}
	q.result.IdleKiBPerChild, q.result.EvaledKiBPerChild = client.Ptr(7.0), q.growth()
	for want, change := range map[string]func(){
		"memory per child: 7 KiB idle, unknown after the evaluation; the daemon's processes gave back more meanwhile than the children took": func() {},
		"memory per child: 7 KiB idle, unknown after the evaluation; the memory of the daemon's processes cannot be read from here":          func() { q.procs = nil },
		"memory per child: 7 KiB idle, 7 KiB after the evaluation":                                                                           func() { q.result.EvaledKiBPerChild = q.result.IdleKiBPerChild },
	} {
		was := *q
		if change(); q.memory() != want {
			t.Errorf("it says %q, want %q", q.memory(), want)
		}
		*q = was
	}
}

// TestOutputIsDescribed: what a list has in a pipe, where it has no heading, is what help says, and the heading on a terminal.
func TestOutputIsDescribed(t *testing.T) {
	fake := newFake(t.TempDir())
	_, help, _ := terminal(t, fake, "", "help", "output")
	for _, args := range [][]string{
		{"workspace", "create", "desk", "-t", "base"}, {"exec", "--detach", "--", "sleep", "60"},
	} {
		if status, _, errs := terminal(t, fake, "", args...); status != 0 {
			t.Fatalf("%s: %s", args, errs)
		}
	}
	for name, args := range map[string][]string{
		"fork, ls": {"ls"}, "images": {"images"}, "ps": {"ps"}, "stats": {"stats"}, "workspace ls": {"workspace", "ls"},
	} {
		_, out, errs := terminal(t, fake, "", args...)
		heading, _, _ := strings.Cut(out, "\n")
		want := fmt.Sprintf("\n%-14s%s\n", name, strings.Join(strings.Fields(heading), " "))
		if heading == "" || !strings.Contains(help, want) {
			t.Errorf("help lacks %q: %s%s", want, out, errs)
		}
	}
	if status, _, errs := terminal(t, fake, "", "kill", "--all"); status != 0 {
		t.Error(errs)
	}
}
