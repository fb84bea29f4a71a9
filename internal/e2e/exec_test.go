package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// A command's output, exit status and signal, whatever it does. The cases are
// from the field, in its numbers: 030, 034, 036, 039, 040, 043, 050, 052.
func TestExec(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	cups := strings.Repeat("☕", 100_000)
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	sh := func(script string) []string { return []string{"sh", "-c", script} }
	for name, c := range map[string]struct {
		req            client.ExecRequest
		stdout, stderr string // exact
		status         int
		signal         string
		has            string // in stderr
		cut            bool   // stdout
	}{
		"both streams":     {req: client.ExecRequest{Args: sh("echo out; echo err >&2; exit 3")}, stdout: "out\n", stderr: "err\n", status: 3},
		"no shell":         {req: client.ExecRequest{Args: []string{"printf", "%s|", "a b", "$HOME", "*", "", "ü☕"}}, stdout: "a b|$HOME|*||ü☕|"},
		"signal":           {req: client.ExecRequest{Args: sh("kill -SEGV $$")}, status: 128 + 11, signal: "SIGSEGV"},
		"background":       {req: client.ExecRequest{Args: sh("sleep 1000 & echo STARTED")}, stdout: "STARTED\n"},
		"nohup":            {req: client.ExecRequest{Args: sh("nohup sleep 1000 & echo STARTED")}, stdout: "STARTED\n"},
		"setsid":           {req: client.ExecRequest{Args: sh("setsid sleep 1000 & echo STARTED")}, stdout: "STARTED\n"},
		"wide characters":  {req: client.ExecRequest{Args: []string{"python3", "-c", "print('☕' * 100_000, end='')"}}, stdout: cups},
		"split character":  {req: client.ExecRequest{Args: sh(`printf '\303'; sleep 0.05; printf '\251'`)}, stdout: "é"},
		"bytes":            {req: client.ExecRequest{Args: []string{"cat"}, StdinB64: binary}, stdout: string(binary)},
		"empty stdin":      {req: client.ExecRequest{Args: []string{"cat"}}},
		"read at the end":  {req: client.ExecRequest{Args: sh("read x; echo got:$x")}, stdout: "got:\n"},
		"stdin":            {req: client.ExecRequest{Args: []string{"tr", "a-z", "A-Z"}, Stdin: "hello ü\n"}, stdout: "HELLO ü\n"},
		"early close":      {req: client.ExecRequest{Args: []string{"head", "-c", "10"}, Stdin: strings.Repeat("x", 5<<20)}, stdout: "xxxxxxxxxx"},
		"slow reader":      {req: client.ExecRequest{Args: sh("sleep 0.5; wc -c"), Stdin: strings.Repeat("x", 5<<20)}, stdout: "5242880\n"},
		"here-document":    {req: client.ExecRequest{Args: sh("cat <<'EOF' > /tmp/a\nhello $x\nEOF\ncat /tmp/a")}, stdout: "hello $x\n"},
		"comment at end":   {req: client.ExecRequest{Args: sh("echo a # comment")}, stdout: "a\n"},
		"backslash at end": {req: client.ExecRequest{Args: sh("echo a\\")}, stdout: "a\\\n"},
		"unclosed quote":   {req: client.ExecRequest{Args: sh("echo 'a")}, status: 2, has: "nterminated"},
		"long script":      {req: client.ExecRequest{Args: sh("echo " + strings.Repeat("y", 100<<10) + " | wc -c")}, stdout: "102401\n"},
		"argument too big": {req: client.ExecRequest{Args: []string{"echo", strings.Repeat("z", 200<<10)}}, status: 126, has: "rgument"},
		"cwd":              {req: client.ExecRequest{Args: []string{"pwd"}, Cwd: "/usr/lib"}, stdout: "/usr/lib\n"},
		"home":             {req: client.ExecRequest{Args: sh("pwd; echo $HOME")}, stdout: "/root\n/root\n"},
		"env":              {req: client.ExecRequest{Args: sh(`echo "$A|$B|$LANG"`), Env: map[string]string{"A": "a b\nc", "B": "=ü"}}, stdout: "a b\nc|=ü|C.UTF-8\n"},
		"user":             {req: client.ExecRequest{Args: sh("id -un; id -u; touch /root/x"), User: "nobody"}, stdout: "nobody\n65534\n", status: 1, has: "ermission"},
		"uid and gid":      {req: client.ExecRequest{Args: sh("id -u; id -g"), User: "1234:5678"}, stdout: "1234\n5678\n"},
		"no such program":  {req: client.ExecRequest{Args: []string{"no-such-binary"}}, status: 127, has: "no-such-binary"},
		"a directory":      {req: client.ExecRequest{Args: []string{"/etc"}}, status: 126, has: "/etc"},
		"not executable":   {req: client.ExecRequest{Args: []string{"/etc/passwd"}}, status: 126, has: "/etc/passwd"},
		"under the limit":  {req: flood(999, 1000), stdout: strings.Repeat("o", 999), stderr: strings.Repeat("e", 999)},
		"at the limit":     {req: flood(1000, 1000), stdout: strings.Repeat("o", 1000), stderr: strings.Repeat("e", 1000)},
		"over the limit":   {req: flood(1001, 1000), stdout: strings.Repeat("o", 1000), stderr: strings.Repeat("e", 1000), cut: true},
		"far over":         {req: flood(4<<20, 1000), stdout: strings.Repeat("o", 1000), stderr: strings.Repeat("e", 1000), cut: true},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			out, err := d.Exec(limited(t, patience), id, c.req)
			if err != nil {
				t.Fatal(err)
			}
			stdout, stderr := whole(out.Stdout, out.StdoutB64), whole(out.Stderr, out.StderrB64)
			if stdout != c.stdout {
				t.Errorf("stdout has %d bytes %.100q, want %d bytes %.100q", len(stdout), stdout, len(c.stdout), c.stdout)
			}
			if c.has == "" && stderr != c.stderr || !strings.Contains(stderr, c.has) {
				t.Errorf("stderr has %d bytes %.200q, want %.100q", len(stderr), stderr, c.stderr+c.has)
			}
			signal := ""
			if out.Signal != nil {
				signal = *out.Signal
			}
			if out.ExitCode != c.status || signal != c.signal || out.TimedOut {
				t.Errorf("it ended with %d, %q, timed out %v; want %d, %q", out.ExitCode, signal, out.TimedOut, c.status, c.signal)
			}
			if out.StdoutTruncated != c.cut || out.StderrTruncated != c.cut {
				t.Errorf("truncated: %v, %v, want %v", out.StdoutTruncated, out.StderrTruncated, c.cut)
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
	if got := strings.TrimSpace(d.sh(t, id, "ps -eo args | grep -c '^sleep 1000$'")); got != "3" {
		t.Errorf("%s background processes live on, want 3", got)
	}
}

// flood prints n bytes on each stream under a limit.
func flood(n, limit int64) client.ExecRequest {
	script := fmt.Sprintf(`head -c %d /dev/zero | tr '\0' o; head -c %d /dev/zero | tr '\0' e >&2`, n, n)
	return client.ExecRequest{Args: []string{"sh", "-c", script}, OutputLimitBytes: &limit}
}

func whole(text string, b64 []byte) string {
	if b64 != nil {
		return string(b64)
	}
	return text
}

// field case 050
func TestExecRefusesWhatCannotRun(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	for name, c := range map[string]struct {
		req  client.ExecRequest
		code string
		word string
	}{
		"no program":    {client.ExecRequest{Args: []string{}}, "invalid_argument", "args"},
		"empty program": {client.ExecRequest{Args: []string{""}}, "invalid_argument", "args"},
		"NUL":           {client.ExecRequest{Args: []string{"echo", "a\x00b"}}, "invalid_argument", "args[1]"},
		"relative cwd":  {client.ExecRequest{Args: []string{"ls"}, Cwd: "tmp"}, "invalid_argument", "cwd"},
		"no such user":  {client.ExecRequest{Args: []string{"ls"}, User: "nobody-such"}, "invalid_argument", "nobody-such"},
		"bad variable":  {client.ExecRequest{Args: []string{"ls"}, Env: map[string]string{"A=B": "c"}}, "invalid_argument", "A=B"},
		"no variable":   {client.ExecRequest{Args: []string{"ls"}, Env: map[string]string{"": "c"}}, "invalid_argument", "env"},
		"zero timeout":  {client.ExecRequest{Args: []string{"ls"}, TimeoutSecs: client.Ptr(0.0)}, "invalid_argument", "timeout_secs"},
	} {
		_, err := d.Exec(limited(t, patience), id, c.req)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		wantCode(t, err, c.code, c.word)
	}
	// A directory that is missing is the request's fault or the command's; it
	// is never a success and never our fault.
	out, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: []string{"ls"}, Cwd: "/nope"})
	if err != nil {
		if !client.IsCode(err, "invalid_argument") && !client.IsCode(err, "not_found") || !strings.Contains(err.Error(), "/nope") {
			t.Errorf("a missing directory: %v", err)
		}
	} else if out.ExitCode == 0 || !strings.Contains(out.Stderr, "/nope") {
		t.Errorf("a missing directory: %+v", out)
	}
	_, err = d.Exec(limited(t, patience), id, client.ExecRequest{Args: manyArgs(3 << 20)})
	if err != nil && !client.IsCode(err, "invalid_argument") && !client.IsCode(err, "too_large") {
		t.Errorf("3 MiB of arguments: %v", err)
	}
}

func manyArgs(total int) []string {
	args := []string{"true"}
	for range total / 1024 {
		args = append(args, strings.Repeat("a", 1024))
	}
	return args
}

// Output arrives while the command runs, and input goes in while it does
// (field cases 039, 040).
func TestStreamsFlowWhileTheCommandRuns(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	stdin, feed := io.Pipe()
	lines, stdout := io.Pipe()
	result := make(chan error, 1)
	go func() {
		exit, err := d.Run(limited(t, patience), id, client.Command{
			Args: []string{"sh", "-c", "while read x; do echo got $x; done; exit 5"}, Stdin: stdin, Stdout: stdout,
		})
		if err == nil && exit.ExitCode != 5 {
			err = fmt.Errorf("exit status %d", exit.ExitCode)
		}
		result <- err
	}()
	for i := range 5 {
		fmt.Fprintln(feed, i)
		var got string
		if _, err := fmt.Fscanf(lines, "got %s\n", &got); err != nil || got != fmt.Sprint(i) {
			t.Fatalf("line %d came back as %q, %v", i, got, err)
		}
	}
	feed.Close()
	if err := <-result; err != nil {
		t.Error(err)
	}
	for _, n := range []int{64<<10 - 1, 64 << 10, 64<<10 + 1, 8 << 20} {
		data := bytes.Repeat([]byte("0123456789abcde\xff"), n/16+1)[:n]
		var sum bytes.Buffer
		exit, err := d.Run(limited(t, patience), id, client.Command{Args: []string{"sha256sum"}, Stdin: bytes.NewReader(data), Stdout: &sum})
		if want := fmt.Sprintf("%x", sha256.Sum256(data)); err != nil || exit.ExitCode != 0 || !strings.HasPrefix(sum.String(), want) {
			t.Errorf("%d bytes of input: %v, %v, sum %.80q", n, exit, err, sum.String())
		}
	}
}

// field case 038
func TestNoOutputIsLostAndNoStatusStolen(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	var lost atomic.Int32
	each(make([]int, 200), func(i, _ int) {
		var out strings.Builder
		exit, err := d.Run(limited(t, patience), id, client.Command{
			Args: []string{"/bin/sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i%200)}, Stdout: &out,
		})
		if err != nil || exit.ExitCode != i%200 || out.String() != fmt.Sprintln(i) {
			if lost.Add(1) < 5 {
				t.Errorf("command %d: %v, %v, %q", i, exit, err, out.String())
			}
		}
	})
	if n := lost.Load(); n > 0 {
		t.Errorf("%d of 200 went wrong", n)
	}
}

// A timeout or a client that goes away kills the whole tree, and what was printed
// until then has arrived (field cases 032, 042).
func TestTimeoutKillsTheWholeTree(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	const tree = `(while :; do date +%s%N >> /tmp/ticks; sleep 0.1; done) & (setsid sleep 3333 &) ; echo partial; sleep 3333; touch /tmp/late`
	frozen := func(t *testing.T) {
		t.Helper()
		eventually(t, patience, "the tree is gone", func() bool {
			return strings.TrimSpace(d.sh(t, id, "ps -eo args | grep -c '^sleep' || true")) == "0"
		})
		if got := d.sh(t, id, "wc -c < /tmp/ticks; sleep 0.5; wc -c < /tmp/ticks; ls /tmp/late 2>&1 | grep -c cannot"); len(strings.Fields(got)) != 3 || strings.Fields(got)[0] != strings.Fields(got)[1] {
			t.Errorf("the tree goes on: %q", got)
		}
	}
	t.Run("timeout", func(t *testing.T) {
		out, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: []string{"sh", "-c", tree}, TimeoutSecs: client.Ptr(1.5)})
		if err != nil || !out.TimedOut || out.Stdout != "partial\n" || out.ExitCode == 0 {
			t.Fatalf("%+v, %v", out, err)
		}
		if out.DurationMs < 1500 || out.DurationMs > 20_000 {
			t.Errorf("it was killed after %v ms", out.DurationMs)
		}
		frozen(t)
	})
	t.Run("flood", func(t *testing.T) {
		out, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: []string{"yes"}, TimeoutSecs: client.Ptr(0.5)})
		if err != nil || !out.TimedOut || !strings.HasPrefix(out.Stdout, "y\ny\n") {
			t.Fatalf("%v", err)
		}
	})
	t.Run("client goes away", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out strings.Builder
		_, err := d.Run(ctx, id, client.Command{Args: []string{"sh", "-c", tree}, Stdout: writerFunc(func(b []byte) (int, error) {
			cancel() // once it has begun
			return out.Write(b)
		})})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%q, %v", out.String(), err)
		}
		frozen(t)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
