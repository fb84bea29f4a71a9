package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func TestExecBasics(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	for _, tc := range []struct {
		name   string
		req    wire.ExecRequest
		stdin  []string
		code   int
		stdout string
		stderr string
	}{
		{name: "separate streams and code", req: sh("echo out; echo err >&2; exit 3"), code: 3, stdout: "out\n", stderr: "err\n"},
		{name: "signal", req: sh("kill -TERM $$"), code: 128 + 15},
		{name: "environment", req: wire.ExecRequest{Argv: wire.Names("sh", "-c", "echo $A-$HOME"), Env: wire.Names("A=x=y", "HOME=/h")}, stdout: "x=y-/h\n"},
		{name: "working directory", req: wire.ExecRequest{Argv: wire.Names("pwd"), Cwd: wire.Name(dir)}, stdout: dir + "\n"},
		{name: "binary argument and output", req: wire.ExecRequest{Argv: []wire.Name{"printf", "%s", "\xff\xfe☕\n"}}, stdout: "\xff\xfe☕\n"},
		{name: "stdin ends by itself when there is none", req: wire.ExecRequest{Argv: wire.Names("cat")}},
		{name: "read without stdin", req: sh("read x; echo got:$x"), stdout: "got:\n"},
		{name: "stdin", req: wire.ExecRequest{Argv: wire.Names("sort")}, stdin: []string{"b\na\n", "c\n"}, stdout: "a\nb\nc\n"},
		{name: "empty stdin", req: wire.ExecRequest{Argv: wire.Names("cat")}, stdin: []string{""}},
		{name: "stdin that nobody wants", req: wire.ExecRequest{Argv: wire.Names("head", "-c", "3")}, stdin: []string{strings.Repeat("abc", 2<<20)}, stdout: "abc"},
		{name: "here-document", req: sh("cat <<'EOF'\nhello $x\nEOF\n"), stdout: "hello $x\n"},
		{name: "script that ends in a comment", req: sh("echo a # done"), stdout: "a\n"},
		{name: "script that ends in a backslash", req: sh("true \\")},
		{name: "64 KiB script", req: sh(strings.Repeat("true; ", 11000) + "exit 3"), code: 3},
		{name: "short output before a failure", req: sh("printf x; exit 3"), stdout: "x", code: 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := f.mustRun(t, tc.req, tc.stdin...)
			if o.Code != tc.code || o.stdout != tc.stdout || o.stderr != tc.stderr {
				t.Fatalf("got code %d, stdout %.100q, stderr %.100q; want %d, %.100q, %.100q", o.Code, o.stdout, o.stderr, tc.code, tc.stdout, tc.stderr)
			}
		})
	}
	if o := f.mustRun(t, sh(`echo "unclosed`)); o.Code == 0 || o.stderr == "" {
		t.Errorf("an unclosed quote gave code %d and stderr %q", o.Code, o.stderr)
	}
}

func TestExecMistakes(t *testing.T) {
	f := newGuest(t)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte{0, 1, 2, 3}, 0o755); err != nil {
		t.Fatal(err)
	}
	true_ := wire.Names("true")
	for _, tc := range []struct {
		name string
		req  wire.ExecRequest
		code wire.Code
		exit int
	}{
		{"no argv", wire.ExecRequest{}, wire.CodeBadRequest, 125},
		{"empty program", wire.ExecRequest{Argv: wire.Names("")}, wire.CodeBadRequest, 125},
		{"unknown program", wire.ExecRequest{Argv: wire.Names("no-such-binary")}, wire.CodeNotFound, 127},
		{"unknown path", wire.ExecRequest{Argv: wire.Names("/no/such")}, wire.CodeNotFound, 127},
		{"directory", wire.ExecRequest{Argv: wire.Names("/etc")}, wire.CodeNotExecutable, 126},
		{"data file", wire.ExecRequest{Argv: wire.Names("/etc/passwd")}, wire.CodePermission, 126},
		{"no interpreter", wire.ExecRequest{Argv: wire.Names(script)}, wire.CodeNotFound, 127},
		{"garbage", wire.ExecRequest{Argv: wire.Names(garbage)}, wire.CodeNotExecutable, 126},
		{"missing directory", wire.ExecRequest{Argv: true_, Cwd: "/nope"}, wire.CodeNotFound, 125},
		{"file as directory", wire.ExecRequest{Argv: true_, Cwd: "/etc/passwd"}, wire.CodeNotDirectory, 125},
		{"relative directory", wire.ExecRequest{Argv: true_, Cwd: "etc"}, wire.CodeBadRequest, 125},
		{"unknown user", wire.ExecRequest{Argv: true_, User: "nobody-such"}, wire.CodeNoSuchUser, 125},
		{"unknown group", wire.ExecRequest{Argv: true_, User: "0:nobody-such"}, wire.CodeNoSuchUser, 125},
		{"empty key", wire.ExecRequest{Argv: true_, Env: wire.Names("=x")}, wire.CodeBadRequest, 125},
		{"no value", wire.ExecRequest{Argv: true_, Env: wire.Names("x")}, wire.CodeBadRequest, 125},
		{"NUL in argument", wire.ExecRequest{Argv: wire.Names("echo", "a\x00b")}, wire.CodeBadRequest, 125},
		{"argument of 200 KiB", wire.ExecRequest{Argv: wire.Names("echo", strings.Repeat("x", 200<<10))}, wire.CodeTooLong, 126},
		{"3 MiB of arguments", wire.ExecRequest{Argv: wire.Names(strings.Fields("echo" + strings.Repeat(" "+strings.Repeat("x", 1000), 3<<10))...)}, wire.CodeTooLong, 126},
		{"negative limit", wire.ExecRequest{Argv: true_, StdoutLimit: -1}, wire.CodeBadRequest, 125},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := f.run(t.Context(), tc.req)
			if e := wantCode(t, err, tc.code); e.ExitCode() != tc.exit {
				t.Errorf("exit code of %v is %d, want %d", e, e.ExitCode(), tc.exit)
			}
		})
	}
}

func TestExecUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to run commands as other users")
	}
	f := newGuest(t)
	req := sh("id -u; id -g; echo $HOME")
	for spec, want := range map[string]string{
		"daemon": "1\n1\n/usr/sbin\n", "1": "1\n1\n/usr/sbin\n", "54321:7": "54321\n7\n/\n", "daemon:mail": "1\n8\n/usr/sbin\n", "": "0\n0\n/root\n",
	} {
		req.User = spec
		if o := f.mustRun(t, req); o.stdout != want {
			t.Errorf("user %q gave %q, want %q (stderr %q)", spec, o.stdout, want, o.stderr)
		}
	}
}

// A child in the background holds the pipes, but the command is over when its own process is; and the child lives on.
func TestExecBackgroundChild(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	for _, script := range []string{
		"sleep 300 & echo STARTED $!", "nohup sleep 300 2>/dev/null & echo STARTED $!", "setsid sleep 300 & echo STARTED $!",
		"(while :; do echo noise; sleep 0.01; done) & echo STARTED $!",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		o, err := f.run(ctx, sh(script))
		cancel()
		if err != nil || o.Code != 0 || !strings.Contains(o.stdout, "STARTED") || !o.Background {
			t.Fatalf("%s: %v, %+v", script, err, o)
		}
		_, pid, _ := strings.Cut(strings.TrimSpace(o.stdout[strings.Index(o.stdout, "STARTED"):]), " ")
		pid, _, _ = strings.Cut(pid, "\n")
		time.Sleep(50 * time.Millisecond) // time for a write to a closed pipe to be fatal
		if o := f.mustRun(t, sh("kill -KILL "+pid)); o.Code != 0 {
			t.Errorf("%s: the child did not live on: %s", script, o.stderr)
		}
	}
}

func TestExecTimeoutKillsTree(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	file := filepath.Join(t.TempDir(), "ticks")
	req := sh("echo begun; (setsid sh -c 'while :; do date >> " + file + "; sleep 0.02; done') & sleep 300")
	req.TimeoutMS = 700
	o := f.mustRun(t, req)
	if !o.TimedOut || o.Signal != 9 || o.Code != 137 || o.stdout != "begun\n" || o.Background {
		t.Fatalf("got %+v", o)
	}
	before, _ := os.ReadFile(file)
	time.Sleep(200 * time.Millisecond)
	if after, _ := os.ReadFile(file); len(before) == 0 || !bytes.Equal(before, after) {
		t.Fatalf("a descendant outlived the timeout: %d, then %d bytes", len(before), len(after))
	}
	req = sh("yes")
	req.TimeoutMS, req.StdoutLimit = 200, 1000
	if o := f.mustRun(t, req); !o.TimedOut || !o.StdoutCut || len(o.stdout) != 1000 {
		t.Fatalf("flooding: %+v", o.Exit)
	}
}

func TestExecOutputLimit(t *testing.T) {
	f := newGuest(t)
	const limit = 100000
	for _, size := range []int{limit - 1, limit, limit + 1, 4 * limit} {
		req := sh(fmt.Sprintf("head -c %d /dev/zero; head -c %d /dev/zero >&2", size, size))
		req.StdoutLimit, req.StderrLimit = limit, limit
		o := f.mustRun(t, req)
		cut := size > limit
		if o.StdoutCut != cut || o.StderrCut != cut || o.StdoutBytes != int64(size) || o.StderrBytes != int64(size) ||
			len(o.stdout) != min(size, limit) || len(o.stderr) != min(size, limit) || o.Code != 0 {
			t.Errorf("%d bytes: passed on %d and %d, %+v", size, len(o.stdout), len(o.stderr), o.Exit)
		}
	}
	req := sh("printf 'é☕%.0s' $(seq 20000)")
	if o := f.mustRun(t, req); o.stdout != strings.Repeat("é☕", 20000) {
		t.Errorf("characters were damaged in %d bytes", len(o.stdout))
	}
}

func TestExecLargeStdin(t *testing.T) {
	f := newGuest(t)
	for _, size := range []int{64<<10 - 1, 64 << 10, 64<<10 + 1, 5 << 20} {
		data := make([]byte, size)
		rand.Read(data)
		want := fmt.Sprintf("%x  -\n", sha256.Sum256(data))
		if o := f.mustRun(t, wire.ExecRequest{Argv: wire.Names("sha256sum")}, string(data)); o.stdout != want {
			t.Errorf("%d bytes: digest %q, want %q", size, o.stdout, want)
		}
	}
	// There and back through both pipes at once.
	data := strings.Repeat("0123456789abcdef", 1<<17)
	if o := f.mustRun(t, wire.ExecRequest{Argv: wire.Names("cat")}, data); o.stdout != data {
		t.Errorf("cat returned %d of %d bytes", len(o.stdout), len(data))
	}
}

// Commands that do not read their input block neither each other nor the end of the connection.
func TestExecReaderThatNeverReads(t *testing.T) {
	f := newGuest(t)
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := f.run(ctx, wire.ExecRequest{Argv: wire.Names("sleep", "60")}, strings.Repeat("x", 8<<20))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error is %v", err)
			}
		})
	}
	for range 10 {
		f.mustRun(t, wire.ExecRequest{Argv: wire.Names("true")})
	}
	wg.Wait()
	eventually(t, "goroutines return to where they were", func() bool { return runtime.NumGoroutine() <= before+2 })
}

func TestExecSignalOvertakesInput(t *testing.T) {
	f := newGuest(t)
	p, err := f.Exec(t.Context(), wire.ExecRequest{Argv: wire.Names("sleep", "60"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	go p.Write(make([]byte, 1<<20)) // more than pipe and window take
	time.Sleep(20 * time.Millisecond)
	if err := p.Signal(15); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(nil, nil)
	if err != nil || exit.Signal != 15 || exit.Code != 143 {
		t.Fatalf("got %+v, %v", exit, err)
	}
	if _, err := p.Write([]byte("late")); err != io.ErrClosedPipe {
		t.Errorf("writing after the end: %v", err)
	}
	if err := p.CloseStdin(); err != io.ErrClosedPipe {
		t.Errorf("closing after the end: %v", err)
	}
}

func TestExecDisconnect(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	p, err := f.Exec(ctx, sh("(setsid sleep 301) & echo $$; sleep 300"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := p.Recv(); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	eventually(t, "the command ends", func() bool { return !f.alive(t, p.PID) })
}

// Every exit code reaches its own caller, every output comes before its exit, and orphans leave no zombies.
func TestExecManyAndReaping(t *testing.T) {
	f := newGuest(t)
	becomeSubreaper(t)
	f.mustRun(t, sh("for i in $(seq 100); do (sh -c 'sleep 0.01 & exec true' &); done"))
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 12 {
				code := (worker*12 + i) % 100
				o, err := f.run(t.Context(), sh(fmt.Sprintf("echo %d; exit %d", code, code)))
				if err != nil || o.Code != code || o.stdout != fmt.Sprintln(code) {
					t.Errorf("%d: got code %d, output %q, error %v", code, o.Code, o.stdout, err)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "no zombies", func() bool { return zombies(t) == 0 })
}

func zombies(t *testing.T) int {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	count := 0
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if fields[0] == "Z" && fields[1] == strconv.Itoa(os.Getpid()) {
			count++
		}
	}
	return count
}

func TestExecFailingWriterEndsCommand(t *testing.T) {
	f := newGuest(t)
	boom := errors.New("boom")
	_, err := f.Run(t.Context(), sh("yes"), agent.Streams{Stdout: failingWriter{boom}})
	if !errors.Is(err, boom) {
		t.Fatalf("error is %v", err)
	}
	_, err = f.Run(t.Context(), wire.ExecRequest{Argv: wire.Names("cat")}, agent.Streams{Stdin: io.MultiReader(strings.NewReader("half"), failingReader{boom})})
	if !errors.Is(err, boom) {
		t.Fatalf("error is %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }
