package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

func TestExec(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	for name, c := range map[string]struct {
		req    client.ExecRequest
		stdout string
		b64    string
		stderr string
		code   int
		signal string
		out    bool // timed out
	}{
		"streams":     {req: client.ExecRequest{Args: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}, stdout: "out\n", stderr: "err\n", code: 3},
		"env and cwd": {req: client.ExecRequest{Args: []string{"sh", "-c", "echo $A$B"}, Env: map[string]string{"A": "1", "B": "<&>"}, Cwd: "/"}, stdout: "1<&>\n"},
		"stdin":       {req: client.ExecRequest{Args: []string{"cat"}, Stdin: "hällo"}, stdout: "hällo"},
		"bytes in":    {req: client.ExecRequest{Args: []string{"od", "-An", "-tx1"}, StdinB64: []byte{0, 255}}, stdout: " 00 ff\n"},
		"bytes out":   {req: client.ExecRequest{Args: []string{"printf", `a\377\000b`}}, stdout: "a\uFFFD\x00b", b64: "a\xff\x00b"},
		"signal":      {req: client.ExecRequest{Args: []string{"sh", "-c", "kill -9 $$"}}, code: 137, signal: "killed"},
		"not found":   {req: client.ExecRequest{Args: []string{"no-such-program"}}, code: 127, stderr: "no-such-program: not found\n"},
		"timeout":     {req: client.ExecRequest{Args: []string{"sleep", "60"}, TimeoutSecs: client.Ptr(0.05)}, code: 137, signal: "killed", out: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.c.Exec(context.Background(), id, c.req)
			if err != nil {
				t.Fatal(err)
			}
			signal := ""
			if got.Signal != nil {
				signal = *got.Signal
			}
			if got.Stdout != c.stdout || string(got.StdoutB64) != c.b64 || got.Stderr != c.stderr ||
				got.ExitCode != c.code || signal != c.signal || got.TimedOut != c.out {
				t.Errorf("got %+v (signal %q)", got, signal)
			}
		})
	}
}

// TestTruncation: at, below and above the limit, the same for both streams.
func TestTruncation(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	const limit = 1000
	for _, n := range []int{limit - 1, limit, limit + 1, 4 * limit} {
		for _, to := range []string{"", ">&2"} {
			got, err := s.c.Exec(context.Background(), id, client.ExecRequest{
				Args:             []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x %s", n, to)},
				OutputLimitBytes: client.Ptr[int64](limit),
			})
			if err != nil {
				t.Fatal(err)
			}
			text, total, cut, other := got.Stdout, got.StdoutTotalBytes, got.StdoutTruncated, got.StderrTruncated
			if to != "" {
				text, total, cut, other = got.Stderr, got.StderrTotalBytes, got.StderrTruncated, got.StdoutTruncated
			}
			if len(text) != min(n, limit) || total != int64(n) || cut != (n > limit) || other {
				t.Errorf("%d bytes %s: kept %d, cut %v, other %v", n, to, len(text), cut, other)
			}
		}
	}
}

func TestEval(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	box := "/v1/sandboxes/" + id
	for code, want := range map[string]string{
		"1+1":            `{"error":null,"exit_code":0,"result":"2","result_truncated":false,"stderr":"","stderr_truncated":false,"stdout":"","stdout_truncated":false,"value":2}`,
		"None":           `{"error":null,"exit_code":0,"result":"None","result_truncated":false,"stderr":"","stderr_truncated":false,"stdout":"","stdout_truncated":false,"value":null}`,
		"x = 1":          `{"error":null,"exit_code":0,"result":null,"result_truncated":false,"stderr":"","stderr_truncated":false,"stdout":"","stdout_truncated":false}`,
		"float('nan')":   `{"error":null,"exit_code":0,"result":"nan","result_truncated":false,"stderr":"","stderr_truncated":false,"stdout":"","stdout_truncated":false}`,
		"print('hello')": `{"error":null,"exit_code":0,"result":null,"result_truncated":false,"stderr":"","stderr_truncated":false,"stdout":"hello\n","stdout_truncated":false}`,
		"bytes":          `{"error":null,"exit_code":0,"result":null,"result_truncated":false,"stderr":"","stderr_truncated":false,"stdout":"` + "\uFFFD" + `\u0000ok","stdout_b64":"/wBvaw==","stdout_truncated":false}`,
		"1/0": `{"error":{"message":"division by zero","traceback":"Traceback (most recent call last):\nZeroDivisionError: division by zero\n",` +
			`"type":"ZeroDivisionError"},"exit_code":1,"result":null,"result_truncated":false,"stderr":"","stderr_truncated":false,"stdout":"","stdout_truncated":false}`,
	} {
		resp, text := s.ask(t, "POST", box+"/eval", `{"code":"`+code+`"}`)
		if resp.StatusCode != 200 || strings.TrimSpace(text) != want {
			t.Errorf("%s:\n got %s %s\nwant %s", code, resp.Status, text, want)
		}
	}
}

func TestInterrupt(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	done := make(chan *client.EvalResult)
	go func() {
		res, err := s.c.Eval(context.Background(), id, client.EvalRequest{Code: "sleep"})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	eventually(t, "the evaluation", func() bool { return s.Running() == 1 })
	if err := s.c.Interrupt(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	if res := <-done; res == nil || res.Error == nil || res.Error.Type != "KeyboardInterrupt" {
		t.Errorf("got %+v", res)
	}
}

func TestStream(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	var out, errs bytes.Buffer
	exit, err := s.c.Run(context.Background(), id, client.Command{
		Args:  []string{"sh", "-c", `cat; printf '\377\000' ; echo problem >&2; exit 7`},
		Stdin: strings.NewReader("hällo "), Stdout: &out, Stderr: &errs,
	})
	if err != nil {
		t.Fatal(err)
	}
	if exit.ExitCode != 7 || out.String() != "hällo \xff\x00" || errs.String() != "problem\n" {
		t.Errorf("exit %+v, out %q, err %q", exit, &out, &errs)
	}
}

// TestStreamLarge: more than any buffer on the way, both ways at once, in bytes
// that are never text.
func TestStreamLarge(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	data := bytes.Repeat([]byte("0123456789\xff\x00abcdé"), 1<<18)
	var out bytes.Buffer
	exit, err := s.c.Run(context.Background(), id, client.Command{
		Args: []string{"cat"}, Stdin: bytes.NewReader(data), Stdout: &out,
	})
	if err != nil || exit.ExitCode != 0 {
		t.Fatal(exit, err)
	}
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes went in, %d others came out", len(data), out.Len())
	}
}

// TestStreamIsLive: input that is sent after output was seen arrives.
func TestStreamIsLive(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	in, typed := io.Pipe()
	screen, out := io.Pipe()
	go func() {
		_, err := s.c.Run(context.Background(), id, client.Command{Args: []string{"cat"}, Stdin: in, Stdout: out})
		out.CloseWithError(err)
	}()
	buf := make([]byte, 100)
	for _, text := range []string{"one\n", "two\n", "three\n"} {
		typed.Write([]byte(text))
		n, err := screen.Read(buf)
		if err != nil || string(buf[:n]) != text {
			t.Fatalf("typed %q, saw %q, %v", text, buf[:n], err)
		}
	}
	typed.Close()
	if rest, err := io.ReadAll(screen); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q %v", rest, err)
	}
}

// TestStreamInputLeft: a command that ends without reading its input, while the
// client still holds it open.
func TestStreamInputLeft(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	for range 3 {
		in, typed := io.Pipe()
		exit, err := s.c.Run(context.Background(), id, client.Command{Args: []string{"sh", "-c", "exit 4"}, Stdin: in})
		if err != nil || exit.ExitCode != 4 {
			t.Errorf("%+v, %v", exit, err)
		}
		typed.Close()
	}
}

func TestStreamErrors(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	if _, err := s.c.Run(ctx, "nosuch", client.Command{Args: []string{"true"}}); !client.IsCode(err, api.ErrorCodeNotFound) {
		t.Errorf("unknown sandbox: %v", err)
	}
	if _, err := s.c.Run(ctx, id, client.Command{}); !client.IsCode(err, api.ErrorCodeInvalidArgument) {
		t.Errorf("no program: %v", err)
	}
	broken := errors.New("the disk fell off")
	_, err := s.c.Run(ctx, id, client.Command{Args: []string{"cat"}, Stdin: iotest.ErrReader(broken)})
	if !errors.Is(err, broken) {
		t.Errorf("broken input: %v", err)
	}
	_, err = s.c.Run(ctx, id, client.Command{Args: []string{"echo", "x"}, Stdout: writerFunc(func([]byte) (int, error) { return 0, broken })})
	if !errors.Is(err, broken) {
		t.Errorf("broken output: %v", err)
	}
	eventually(t, "the end of all commands", func() bool { return s.Running() == 0 })
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestStreamWrongInput sends lines that no client of ours would.
func TestStreamWrongInput(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	path := "/v1/sandboxes/" + id + "/exec/stream"
	for name, c := range map[string]struct{ body, says string }{
		"empty":          {"\n\n", "empty"},
		"not JSON":       {"true\n", "must be a JSON object"},
		"no args":        {"{}\n", "args: "},
		"stdin too soon": {`{"args":["cat"],"stdin":"x"}` + "\n", "not part of the first line"},
		"bad input":      {`{"args":["cat"]}` + "\n" + `{"stdni":"x"}` + "\n", "unknown field"},
		"both inputs":    {`{"args":["cat"]}` + "\n" + `{"stdin":"x","stdin_b64":"eA=="}` + "\n", "together"},
		"long line":      {`{"args":["cat"]}` + "\n" + `{"stdin":"` + strings.Repeat("x", maxStreamLine) + `"}` + "\n", "over the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, text := s.ask(t, "POST", path, c.body, "Content-Type", ndjsonType)
			if !strings.Contains(text, `"error"`) || !strings.Contains(text, c.says) {
				t.Errorf("%s %s", resp.Status, text)
			}
		})
	}
	resp, text := s.ask(t, "POST", path, `{"args":["true"]}`)
	wantError(t, resp, text, 415, "unsupported_media_type", "application/x-ndjson")
	eventually(t, "the end of all commands", func() bool { return s.Running() == 0 })
}

// TestSilentStream: a silent command's stream shows that it lives, and its
// empty lines disturb nobody.
func TestSilentStream(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	resp, text := s.ask(t, "POST", "/v1/sandboxes/"+id+"/exec/stream", `{"args":["sleep","0.2"]}`, "Content-Type", ndjsonType)
	if resp.StatusCode != 200 || !strings.HasPrefix(text, "\n") || !strings.Contains(text, `{"exit":{`) {
		t.Errorf("%s %q", resp.Status, text)
	}
	if exit, err := s.c.Run(context.Background(), id, client.Command{Args: []string{"sleep", "0.2"}}); err != nil || exit.ExitCode != 0 {
		t.Error(exit, err)
	}
}

// TestDisconnect: whatever a client was waiting for, its leaving ends it.
func TestDisconnect(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	sleep := []string{"sleep", "600"}
	for name, wait := range map[string]func(ctx context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := s.c.Exec(ctx, id, client.ExecRequest{Args: sleep})
			return err
		},
		"exec with much input": func(ctx context.Context) error {
			_, err := s.c.Exec(ctx, id, client.ExecRequest{Args: sleep, Stdin: strings.Repeat("x", 8<<20)})
			return err
		},
		"eval": func(ctx context.Context) error {
			_, err := s.c.Eval(ctx, id, client.EvalRequest{Code: "sleep"})
			return err
		},
		"eval of many": func(ctx context.Context) error {
			return s.c.EvalAll(ctx, []string{id}, client.EvalRequest{Code: "sleep"}, nil)
		},
		"stream": func(ctx context.Context) error {
			_, err := s.c.Run(ctx, id, client.Command{Args: sleep})
			return err
		},
		"stream with open input": func(ctx context.Context) error {
			in, _ := io.Pipe()
			_, err := s.c.Run(ctx, id, client.Command{Args: sleep, Stdin: in})
			return err
		},
		"stream with more input than is read": func(ctx context.Context) error {
			_, err := s.c.Run(ctx, id, client.Command{Args: sleep, Stdin: zeros{}})
			return err
		},
		"stream with endless output": func(ctx context.Context) error {
			_, err := s.c.Run(ctx, id, client.Command{Args: []string{"yes"}, Stdout: io.Discard})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- wait(ctx) }()
			eventually(t, "the command", func() bool { return s.Running() == 1 })
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("the client got %v", err)
			}
			eventually(t, "the end of the command", func() bool { return s.Running() == 0 })
		})
	}
}

// TestVanishedReader: a client that stops reading and then is gone without a
// word, as when its machine loses power and the kernel gives up.
func TestVanishedReader(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.tcp, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	first := `{"args":["yes"]}` + "\n"
	fmt.Fprintf(conn, "POST /v1/sandboxes/%s/exec/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n"+
		"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", id, ndjsonType, len(first), first)
	eventually(t, "the command", func() bool { return s.Running() == 1 })
	time.Sleep(50 * time.Millisecond) // buffers fill
	if _, err := s.c.Exec(context.Background(), id, client.ExecRequest{Args: []string{"true"}}); err != nil {
		t.Errorf("beside a reader that does not read: %v", err)
	}
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
	eventually(t, "the end of the command", func() bool { return s.Running() == 0 })
}

// TestConnectionIsKept: a connection that carried a whole stream is used
// again.
func TestConnectionIsKept(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	conns := 0
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conns++
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	c, err := client.New(client.Config{URL: s.tcp, Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 5 {
		if _, err := c.Run(context.Background(), id, client.Command{Args: []string{"cat"}, Stdin: strings.NewReader("x")}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Eval(context.Background(), id, client.EvalRequest{Code: "1+1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Eval(context.Background(), "nosuch", client.EvalRequest{Code: "1+1"}); err == nil {
			t.Fatal("no error")
		}
	}
	if conns > 3 { // a busy host may need one before the last is back
		t.Errorf("15 requests took %d connections", conns)
	}
}

func FuzzStreamInput(f *testing.F) {
	f.Add([]byte(`{"stdin":"x"}` + "\n" + `{"stdin_b64":"eA=="}`))
	f.Add([]byte("\n\n{}\n"))
	f.Add([]byte(`{"stdin":`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, w := io.Pipe()
		go io.Copy(io.Discard, r)
		copyInput(bufio.NewReader(bytes.NewReader(body)), w)
		r.Close()
	})
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"tag":"a","n":1}`, `{"args":["a"],"env":{"a":"b"},"timeout_secs":1e3}`, `{"n":1e999}`, `{"cpus":0.5,"pids_limit":1,"idle_timeout_secs":1}`, `[`, `{"setup":[["a"]]}`, `{"sandboxes":["a","b"],"code":"1"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var fork api.ForkRequest
		if decodeJSON(body, &fork) == nil {
			if spec, err := forkSpec(&fork, body); err == nil && (spec.N < 1 || spec.N > maxFork || spec.Lifetime < 0) {
				t.Errorf("%q became %+v", body, spec)
			}
		}
		var run api.ExecRequest
		if decodeJSON(body, &run) == nil {
			if cmd, err := command(&run, 1); err == nil && (len(cmd.Args) == 0 || cmd.Timeout < 0) {
				t.Errorf("%q became %+v", body, cmd)
			}
		}
		var all api.EvalAllRequest
		if decodeJSON(body, &all) == nil && checkBoxes("sandboxes", all.Sandboxes) == nil {
			if n := len(slices.Compact(slices.Sorted(slices.Values(all.Sandboxes)))); n != len(all.Sandboxes) || n < 1 || n > maxEvals {
				t.Errorf("%q names %d sandboxes", body, n)
			}
		}
		var snap api.SnapshotRequest
		if decodeJSON(body, &snap) == nil {
			snapshotSpec(&snap)
		}
	})
}
