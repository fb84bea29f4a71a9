package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func TestEvalValues(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "math", "os.path")
	for _, tc := range []struct {
		code, value, repr, omitted string
	}{
		{code: "1 + 1", value: "2", repr: "2"},
		{code: "  [1, 2.5, None, True, {'a': 'é☕'}]  ", value: `[1,2.5,null,true,{"a":"é☕"}]`, repr: "[1, 2.5, None, True, {'a': 'é☕'}]"},
		{code: "None", value: "null", repr: "None"},
		{code: "-0.0", value: "-0.0", repr: "-0.0"},
		{code: "x = 5"},
		{code: ""},
		{code: "# nothing"},
		{code: "y = x + 1\nz = y * 2\nz", value: "12", repr: "12"},
		{code: "def f(n):\n    return n * x\n\nf(3)", value: "15", repr: "15"},
		{code: "math.floor(2.5) + len(os.sep)", value: "3", repr: "3"},
		{code: "__name__", value: `"__main__"`, repr: "'__main__'"},
		{code: "float('nan')", repr: "nan", omitted: "not_json"},
		{code: "[float('inf')]", repr: "[inf]", omitted: "not_json"},
		{code: "[1, float('nan')]", repr: "[1, nan]", omitted: "not_json"},
		{code: "[1, -2.5, 1e300, -0.0]", value: "[1, -2.5, 1e+300, -0.0]", repr: "[1, -2.5, 1e+300, -0.0]"},
		{code: "[0.12345678901234566, 2**53 - 1]", value: "[0.12345678901234566, 9007199254740991]", repr: "[0.12345678901234566, 9007199254740991]"},
		{code: "[0.5, 2**53]", repr: "[0.5, 9007199254740992]", omitted: "not_json"},
		{code: "[0.5, True]", value: "[0.5,true]", repr: "[0.5, True]"},
		{code: "[]", value: "[]", repr: "[]"},
		{code: "L = [None]\nclass Clears:\n    def __repr__(self):\n        L.clear()\n        return '\"\\\\'\nL[0] = Clears()\nL", value: "[]", repr: `["\]`},
		{code: "class Odd(float):\n    __repr__ = lambda self: '7'\n[Odd(2.5)]", value: "[2.5]", repr: "[7]"},
		{code: "2**53 - 1", value: "9007199254740991", repr: "9007199254740991"},
		{code: "2**70", repr: "1180591620717411303424", omitted: "not_json"},
		{code: "{'a': [2**53]}", repr: "{'a': [9007199254740992]}", omitted: "not_json"},
		{code: "[0.12345678901234566, '12345678901234567890']", value: `[0.12345678901234566,"12345678901234567890"]`, repr: "[0.12345678901234566, '12345678901234567890']"},
		{code: `b'\xff'`, repr: `b'\xff'`, omitted: "not_json"},
		{code: "{1: 2}", repr: "{1: 2}", omitted: "not_json"},
		{code: "(1, 2)", repr: "(1, 2)", omitted: "not_json"},
		{code: "{3}", repr: "{3}", omitted: "not_json"},
		{code: `'\udcff'`, repr: `'\udcff'`, omitted: "not_json"},
		{code: "a = []; a.append(a); a", repr: "[[...]]", omitted: "not_json"},
		{code: "a = []\nfor _ in range(200): a = [a]\nlen(repr(a))", value: "402", repr: "402"},
	} {
		r := f.eval(t, tc.code)
		if r.Error != nil || string(r.Value) != tc.value || r.Repr != tc.repr || r.ValueOmitted != tc.omitted || (r.Type == "") != (tc.repr == "") {
			t.Errorf("%q: value %s, repr %q, omitted %q, type %q, error %+v", tc.code, r.Value, r.Repr, r.ValueOmitted, r.Type, r.Error)
		}
	}
	r := f.eval(t, "'x' * 50_000_000")
	if r.ValueOmitted != "too_large" || !r.ReprCut || len(r.Repr) != 64<<10 {
		t.Errorf("large string: omitted %q, repr of %d, cut %v", r.ValueOmitted, len(r.Repr), r.ReprCut)
	}
	r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "list(range(1000))", MaxValue: 100, MaxRepr: 10})
	if err != nil || r.ValueOmitted != "too_large" || r.Repr != "[0, 1, 2, " {
		t.Errorf("limits: %+v, %v", r, err)
	}
	for limit, want := range map[int]string{9: "[1, 2, 3]", 8: "[1,2,3]", 6: ""} { // blanks do not count
		r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "[1, 2, 3]", MaxValue: limit})
		if err != nil || string(r.Value) != want {
			t.Errorf("within %d bytes: %s, %v", limit, r.Value, err)
		}
	}
	if got := f.value(t, "len('"+strings.Repeat("☕", 100000)+"')"); got != "100000" {
		t.Errorf("300 kB of code gave %s", got)
	}
}

func TestEvalErrors(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	nullError := "SyntaxError"
	if f.value(t, "import sys; sys.version_info < (3, 12)") == "true" {
		nullError = "ValueError"
	}
	for _, tc := range []struct {
		code, kind, message, trace string
	}{
		{"1/0", "ZeroDivisionError", "division by zero", "1/0"},
		{"def g():\n    raise KeyError('k')\ng()", "KeyError", "'k'", "raise KeyError('k')"},
		{"g()", "KeyError", "'k'", "raise KeyError('k')"}, // a line from an earlier evaluation
		{"1 +", "SyntaxError", "invalid syntax", "1 +"},
		{"if 1:\nx", "IndentationError", "", ""},
		{"class E(Exception):\n    def __str__(self): 1/0\nraise E", "E", "<the message could not be made: ZeroDivisionError>", ""},
		{"class R:\n    def __repr__(self): raise ValueError('no repr')\nR()", "ValueError", "no repr", "no repr"},
		{"def r(): r()\nr()", "RecursionError", "maximum recursion", "repeated"},
		{"'" + "(" + "'\n" + strings.Repeat("(", 1000), "SyntaxError", "", ""},
		{"x = bytearray(1 << 60)", "MemoryError", "", "MemoryError"},
		{"a\x00b", nullError, "null", ""},
		{"raise KeyboardInterrupt", "KeyboardInterrupt", "", ""},
		{"raise Exception('m' * 10_000_000)", "Exception", "characters left out", "left out"},
		{"import json\njson.loads('{')", "json.decoder.JSONDecodeError", "Expecting property name", "json.loads"},
	} {
		r := f.eval(t, tc.code)
		if r.Error == nil || r.Error.Type != tc.kind || !strings.Contains(r.Error.Message, tc.message) || !strings.Contains(r.Error.Traceback, tc.trace) {
			t.Errorf("%.40q: %.200v", tc.code, r.Error)
			continue
		}
		if strings.Contains(r.Error.Traceback, "python.py") || r.Error.Interrupted || r.Value != nil {
			t.Errorf("%.40q: value %s, error %.300q", tc.code, r.Value, r.Error.Traceback)
		}
	}
	for code, want := range map[string]int{"import sys; sys.exit()": 0, "exit(3)": 3, "sys.exit('message')": 1, "raise SystemExit(257)": 1} {
		r := f.eval(t, code)
		if r.Error == nil || r.Error.Type != "SystemExit" || r.Error.ExitCode == nil || *r.Error.ExitCode != want {
			t.Errorf("%q: %+v", code, r.Error)
		}
	}
}

func TestEvalOutput(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	r := f.eval(t, `import os, subprocess, sys
print("one")
os.write(1, b"two\n")
subprocess.run(["echo", "three"])
sys.stdout.buffer.write(b"\xff\xfe\n")
print("\udcff")
print("err", file=sys.stderr)
print("no newline", end="")`)
	if r.Error != nil || string(r.Stdout) != "one\ntwo\nthree\n\xff\xfe\n\xff\nno newline" || string(r.Stderr) != "err\n" || r.StdoutCut {
		t.Fatalf("stdout %q, stderr %q, error %+v", r.Stdout, r.Stderr, r.Error)
	}
	r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", MaxOutput: 1000, Code: "for _ in range(100000): print('0123456789')\n'done'"})
	if err != nil || len(r.Stdout) != 1000 || !r.StdoutCut || r.StdoutBytes != 1100000 || string(r.Value) != `"done"` {
		t.Fatalf("%d bytes of output, cut %v of %d, %v", len(r.Stdout), r.StdoutCut, r.StdoutBytes, err)
	}
	r, err = f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", MaxOutput: 1000, Code: "os.write(2, b'x' * 5000)"})
	if err != nil || len(r.Stderr) != 1000 || !r.StderrCut || r.StderrBytes != 5000 {
		t.Fatalf("%d bytes of output, cut %v of %d, %v", len(r.Stderr), r.StderrCut, r.StderrBytes, err)
	}
	if r := f.eval(t, "1"); len(r.Stdout)+len(r.Stderr) != 0 || r.StdoutBytes != 0 {
		t.Errorf("output was left over: %q %q", r.Stdout, r.Stderr)
	}
	if r := f.eval(t, "input()"); r.Error == nil || r.Error.Type != "EOFError" {
		t.Errorf("input gave %+v", r.Error)
	}
}

// Whatever user code does to the interpreter, the next evaluation works.
func TestEvalSpoiledInterpreter(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	f.eval(t, "import sys, os; kept = 'kept'")
	for _, code := range []string{
		"import os; os.close(0); os.close(1); os.close(2)",
		"import sys; sys.stdout.close(); sys.stderr.close()",
		"del sys.stdout", "sys.stdout = 5", "sys.stdout = None",
		"import builtins; builtins.len = builtins.print = builtins.getattr = None; builtins.len",
		"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
		"import gc; gc.disable(); gc.set_threshold(1)",
		"sys.setrecursionlimit(100)",
		"import threading; [threading.Thread(target=lambda: None).start() for _ in range(4)]; 0",
		"pid = os.fork()\nif not pid: kept = 'child'\nos.waitpid(pid, 0) if pid else 0",
		"pid = os.fork()\nif not pid: 1/0\nos.waitpid(pid, 0)[1]",
		"for k in list(sys.modules):\n    if k not in ('sys', 'builtins', '__main__'): sys.modules.pop(k)",
		"sys.stdout.write('x' * 100)",
	} {
		f.eval(t, code)
		if r := f.eval(t, "sys.stdout.write('out'); kept"); string(r.Value) != `"kept"` || string(r.Stdout) != "out" {
			t.Fatalf("after %q: value %s, stdout %q, error %+v", code, r.Value, r.Stdout, r.Error)
		}
	}
	// What was closed is closed for the code that closed it.
	if r := f.eval(t, "sys.stdout.close()\n[sys.stdout.closed, sys.stdout.write('x')]"); r.Error == nil || r.Error.Type != "ValueError" {
		t.Errorf("writing to a closed stream gives %+v", r)
	}
}

// stoppable returns a client of a guest that can be stopped: what it is sent then, on a connection that
// is made then, it gets when hold, called with the port, returns.
func (f *fixture) stoppable(t *testing.T, stopped *atomic.Bool, hold func(port uint32)) *agent.Client {
	c := agent.NewClient(func(ctx context.Context, port uint32) (net.Conn, error) {
		if !stopped.Load() {
			return f.dial(ctx, port)
		}
		ours, theirs := net.Pipe()
		out, in, err := os.Pipe() // keeps what nobody has read
		if err != nil {
			return nil, err
		}
		go func() {
			defer in.Close()
			io.Copy(in, theirs)
		}()
		go func() {
			defer theirs.Close()
			defer out.Close()
			hold(port)
			conn, err := f.dial(t.Context(), port)
			if err != nil {
				return
			}
			defer conn.Close()
			go func() {
				io.Copy(conn, out)
				conn.(*net.UnixConn).CloseWrite() // it does not hear yet that nobody waits for an answer
			}()
			io.Copy(theirs, conn)
		}()
		return ours, nil
	})
	c.SetInterruptTime(20 * time.Millisecond)
	t.Cleanup(func() { c.Close() })
	return c
}

// A guest that its host has stopped has not ignored anything: its interpreter is not replaced
// for that when it goes on.
func TestEvalTimeoutOfAStoppedGuest(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "time")
	f.eval(t, "kept = 1")
	stopped, goesOn := new(atomic.Bool), make(chan struct{})
	c := f.stoppable(t, stopped, func(uint32) { <-goesOn })
	if _, err := c.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "0"}); err != nil {
		t.Fatal(err)
	}
	stopped.Store(true)
	time.AfterFunc(4*time.Second, func() { close(goesOn) })
	_, err := c.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "time.sleep(6)", Timeout: 100 * time.Millisecond})
	if _, limited := errors.AsType[*agent.TimeoutError](err); err != nil && !limited {
		t.Errorf("error %v", err)
	}
	if got := f.value(t, "kept"); got != "1" {
		t.Errorf("kept is %s", got)
	}
}

// Who leaves an evaluation in a guest that its host has stopped does not wait for it, and the guest
// does not go on with it for ever, also if it hears of the interrupt first.
func TestEvalLeftInAStoppedGuest(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	f.eval(t, "kept = 1")
	stopped, goesOn, begins := new(atomic.Bool), make(chan struct{}), make(chan struct{})
	c := f.stoppable(t, stopped, func(port uint32) {
		<-goesOn
		if port != wire.AgentPort {
			<-begins
		}
	})
	info, _ := f.Runtime("python")
	c.Adopt(info)
	stopped.Store(true)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("left"))
	defer cancel()
	_, err := c.Eval(ctx, agent.EvalRequest{Runtime: "python", Code: "kept = 2\nwhile True: pass", Timeout: 10 * time.Millisecond})
	if err == nil || err.Error() != "left" {
		t.Errorf("error %v", err)
	}
	close(goesOn)
	stopped.Store(false)
	time.Sleep(200 * time.Millisecond) // in which the guest hears of the interrupts that there are
	close(begins)
	within, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	for begun := false; !begun; time.Sleep(10 * time.Millisecond) {
		r, err := f.Eval(within, agent.EvalRequest{Runtime: "python", Code: "kept"})
		if err != nil {
			t.Fatal("it is still evaluated: ", err)
		}
		begun = string(r.Value) == "2"
	}
}

func TestEvalTimeoutKeepsState(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "time", "subprocess")
	f.eval(t, "kept = 1")
	for _, code := range []string{"while True: pass", "time.sleep(100)", "subprocess.run(['sleep', '100'])", "import os; os.system('sleep 100')",
		"class R:\n    def __repr__(self):\n        while True: pass\nR()"} {
		if strings.Contains(code, "os.system") {
			needCgroups(t, f)
		}
		r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "print('begun')\n" + code, Timeout: 100 * time.Millisecond})
		if _, ok := errors.AsType[*agent.TimeoutError](err); !ok || r == nil || string(r.Stdout) != "begun\n" || r.Error.Type != "KeyboardInterrupt" {
			t.Fatalf("%q: %+v, error %v", code, r, err)
		}
		if got := f.value(t, "kept"); got != "1" {
			t.Fatalf("after %q, kept is %s", code, got)
		}
	}
	// The context ends an evaluation too, and the next one does not wait long.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := f.Eval(ctx, agent.EvalRequest{Runtime: "python", Code: "while True: pass"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error is %v", err)
	}
	if got := f.value(t, "kept"); got != "1" {
		t.Fatalf("kept is %s", got)
	}
	// A result in time is a result, and a late interrupt hits nothing.
	if r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "7", Timeout: time.Minute}); err != nil || string(r.Value) != "7" {
		t.Fatalf("%+v, %v", r, err)
	}
	timer := time.AfterFunc(50*time.Millisecond, func() { _ = f.Interrupt(context.Background(), "python") })
	defer timer.Stop()
	if r := f.eval(t, "while True: pass"); r.Error == nil || !r.Error.Interrupted {
		t.Fatalf("%+v", r)
	}
	if r, err := f.InterruptRuntime(t.Context(), "python", 7); r.Delivered || r.Other || err != nil {
		t.Fatalf("interrupting nothing: %+v, %v", r, err)
	}
}

// The time limit of an evaluation is none of the one that it waits for, which a client has left behind: that goes on, and the
// state stays.
func TestEvalTimeoutBehindAnother(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "os", "time")
	f.eval(t, "kept = 1")
	goOn := filepath.Join(t.TempDir(), "go-on")
	other := f.newClient()
	defer other.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := other.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: fmt.Sprintf("while not os.path.exists(%q): time.sleep(.01)\nkept += 1", goOn)})
		ended <- err
	}()
	for r, err := f.InterruptRuntime(t.Context(), "python", 7); !r.Other; r, err = f.InterruptRuntime(t.Context(), "python", 7) {
		if err != nil {
			t.Fatal(err)
		}
	}
	late := &agent.TimeoutError{}
	waits := f.newClient()
	defer waits.Close()
	if r, err := waits.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "kept = 0", Timeout: 50 * time.Millisecond}); !errors.As(err, &late) || !late.Unmet || r.Error == nil {
		t.Fatalf("%+v, error %v", r, err)
	}
	run := agent.RunRequest{Code: "kept = 0", Timeout: 50 * time.Millisecond}
	if _, err := f.RunCode(t.Context(), run, func(agent.RunEvent) error { return nil }); !errors.As(err, &late) || !late.Unmet {
		t.Fatalf("of a run the error is %v", err)
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := f.value(t, "kept"); got != "2" {
		t.Errorf("kept is %s", got)
	}
}

func TestEvalLostRuntime(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "os", "ctypes")
	for code, cause := range map[string]string{
		"os._exit(3)":             "ended with status 3",
		"os.kill(os.getpid(), 9)": "SIGKILL",
		"ctypes.string_at(0)":     "SIGSEGV",
		"os.closerange(3, 1000)":  "ended with status 70",
	} {
		f.eval(t, "lost = 1")
		_, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: code})
		restarted, ok := errors.AsType[*agent.RestartedError](err)
		if !ok || !strings.Contains(restarted.Cause, cause) || restarted.TimedOut {
			t.Fatalf("%q: error is %v", code, err)
		}
		if r := f.eval(t, "os; lost"); r.Error == nil || r.Error.Type != "NameError" {
			t.Fatalf("%q: the new process has old state: %+v", code, r)
		}
	}
	info, err := f.Ping(t.Context())
	if err != nil || len(info.Runtimes) != 1 || info.Runtimes[0].Starts != 5 || !info.Runtimes[0].Alive {
		t.Fatalf("%+v, %v", info, err)
	}
}

func TestEvalStuckRuntimeIsReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the whole grace of two interrupts")
	}
	f := newGuest(t)
	f.startPython(t)
	code := "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass"
	_, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: code, Timeout: 50 * time.Millisecond})
	if restarted, ok := errors.AsType[*agent.RestartedError](err); !ok || !restarted.TimedOut {
		t.Fatalf("error is %v", err)
	}
	if got := f.value(t, "1"); got != "1" {
		t.Fatal(got)
	}
}

func TestEvalConcurrentCallersTakeTurns(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	f.eval(t, "n = 0")
	var wg sync.WaitGroup
	other := f.newClient() // knows nothing of the runtime yet
	defer other.Close()
	for i := range 8 {
		client := f.Client
		if i%2 == 0 {
			client = other
		}
		wg.Go(func() {
			for range 20 {
				if r, err := client.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "n += 1"}); err != nil || r.Error != nil {
					t.Errorf("%+v, %v", r, err)
				}
			}
		})
	}
	wg.Wait()
	if got := f.value(t, "n"); got != "160" {
		t.Errorf("n is %s", got)
	}
	if _, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "ruby", Code: "1"}); wantCode(t, err, wire.CodeNotFound).Field != "runtime" {
		t.Error(err)
	}
}

// A peer that breaks the protocol on a runtime's port is told so, and harms nobody.
func TestEvalHostilePeer(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	eval := func(v any) []byte {
		b, _ := json.Marshal(v)
		return wire.AppendFrame(nil, wire.TypeEval, b)
	}
	compiled := func(id uint64, code string, left int) []byte {
		b := (&wire.CompiledEval{ID: id, Code: code}).Append(nil)
		return wire.AppendFrame(nil, wire.TypeEvalCompiled, b[:len(b)-left])
	}
	for name, tc := range map[string]struct {
		send []byte
		code wire.Code
	}{
		"unknown frame":   {wire.AppendFrame(nil, 99, nil), wire.CodeUnknownFrame},
		"not JSON":        {wire.AppendFrame(nil, wire.TypeEval, []byte("{")), wire.CodeBadRequest},
		"not UTF-8":       {wire.AppendFrame(nil, wire.TypeEval, []byte("\"\xff\"")), wire.CodeBadRequest},
		"not an object":   {wire.AppendFrame(nil, wire.TypeEval, []byte("[1]")), wire.CodeBadRequest},
		"no id":           {eval(map[string]any{"code": "1"}), wire.CodeBadRequest},
		"id out of range": {eval(map[string]any{"code": "1", "id": -1}), wire.CodeBadRequest},
		"unknown member":  {eval(map[string]any{"code": "1", "id": 1, "pty": true}), wire.CodeBadRequest},
		"bad limit":       {eval(map[string]any{"code": "1", "id": 1, "max_repr": -1}), wire.CodeBadRequest},
		"compiled header": {compiled(1, "1", 2), wire.CodeBadRequest},
		"compiled, cut":   {compiled(1, "1", 1), wire.CodeBadRequest},
		"compiled, bytes": {compiled(1, "\xff", 0), wire.CodeBadRequest},
		"compiled, no id": {compiled(0, "1", 0), wire.CodeBadRequest},
		"compile number":  {eval(map[string]any{"code": "1", "id": 1, "compile": 1}), wire.CodeBadRequest},
		"deep JSON":       {wire.AppendFrame(nil, wire.TypeEval, bytes.Repeat([]byte("["), 100000)), wire.CodeBadRequest},
		"huge frame":      {[]byte{0xff, 0xff, 0xff, 0xff, 48}, wire.CodeBadRequest},
	} {
		conn, err := net.Dial("unix", f.socket(wire.RuntimePort))
		if err != nil {
			t.Fatal(err)
		}
		conn.Write(tc.send)
		kind, payload, err := wire.NewReader(conn).Next()
		conn.Close()
		if err != nil || kind != wire.TypeError || wire.DecodeError(payload).Code != tc.code {
			t.Errorf("%s: frame %d %q, error %v", name, kind, payload, err)
		}
	}
	// Frames may come in pieces and together.
	conn, err := net.Dial("unix", f.socket(wire.RuntimePort))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	both := append(eval(wire.EvalRequest{ID: 1, Code: "'a'"}), eval(wire.EvalRequest{ID: 2, Code: "'b'"})...)
	for _, piece := range [][]byte{both[:3], both[3:10], both[10 : len(both)-5], both[len(both)-5:]} {
		conn.Write(piece)
		time.Sleep(5 * time.Millisecond)
	}
	in := wire.NewReader(conn)
	for id, want := range []string{`"a"`, `"b"`} {
		_, payload, err := in.Next()
		var r wire.EvalResult
		if err != nil || json.Unmarshal(payload, &r) != nil || r.ID != uint64(id+1) || string(r.Value) != want {
			t.Errorf("answer %d: %s, %v", id, payload, err)
		}
	}
	if got := f.value(t, "1"); got != "1" {
		t.Error(got)
	}
}

func TestRuntimeStartFailures(t *testing.T) {
	f := newGuest(t)
	program := pythonProgram(t)
	for name, tc := range map[string]struct {
		req    wire.RuntimeStart
		code   wire.Code
		detail string
	}{
		"bad name":       {wire.RuntimeStart{Name: "a b", Kind: "python"}, wire.CodeBadRequest, ""},
		"unknown kind":   {wire.RuntimeStart{Name: "cobol"}, wire.CodeUnknownKind, ""},
		"no interpreter": {wire.RuntimeStart{Name: "python", Program: "/no/python"}, wire.CodeNotFound, ""},
		"no module":      {wire.RuntimeStart{Name: "python", Program: program, Imports: []string{"no_such_module"}}, wire.CodeRuntimeFailed, "no_such_module"},
		"statement":      {wire.RuntimeStart{Name: "python", Program: program, Imports: []string{"os; 1"}}, wire.CodeBadRequest, ""},
		"warm-up fails":  {wire.RuntimeStart{Name: "python", Program: program, Warmup: []string{"1/0"}}, wire.CodeRuntimeFailed, "ZeroDivisionError"},
		"dies":           {wire.RuntimeStart{Name: "python", Program: program, Warmup: []string{"import os; os.write(2, b'last words'); os._exit(4)"}}, wire.CodeRuntimeFailed, "last words"},
		"unknown user":   {wire.RuntimeStart{Name: "python", Program: program, User: "nobody-such"}, wire.CodeNoSuchUser, ""},
	} {
		_, err := f.StartRuntime(t.Context(), tc.req)
		if e := wantCode(t, err, tc.code); !strings.Contains(e.Detail, tc.detail) {
			t.Errorf("%s: detail %q", name, e.Detail)
		}
	}
	// A caller that leaves takes the unfinished runtime along, and the name is free.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := f.StartRuntime(ctx, wire.RuntimeStart{Name: "python", Program: program, Warmup: []string{"while True: pass"}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	eventually(t, "the name is free again", func() bool {
		info, err := f.Ping(t.Context())
		return err == nil && len(info.Runtimes) == 0
	})
	f.startPython(t)
	_, err = f.StartRuntime(t.Context(), wire.RuntimeStart{Name: "python", Program: program})
	wantCode(t, err, wire.CodeExists)
	if got := f.value(t, fmt.Sprintf("%d", 42)); got != "42" {
		t.Error(got)
	}
}

// An answer that is not small stays with the guest until there is room for it. Waiting for that is within no time limit, and
// what comes after it is as ever.
func TestEvalAnswerWaitsForRoom(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	f.eval(t, "kept = 1")
	evaluate := func(ctx context.Context, code string, timeout time.Duration, room func(context.Context) error) (*agent.EvalResult, error) {
		t.Helper()
		e, err := agent.EvalRequest{Code: code}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return f.Evaluate(ctx, "python", e.WaitingFor(room), timeout)
	}
	if r, err := evaluate(t.Context(), "'x' * 10_000", 0, func(context.Context) error { return errors.New("asked for room") }); err != nil || len(r.Value) != 10_002 {
		t.Errorf("a small answer: %v", err)
	}

	for name, code := range map[string]string{"a value": "kept += 1; print('so'); 'x' * 1_000_000", "output": "kept += 1; print('x' * 1_000_000); 'so'"} {
		asked := 0
		const limit = 100 * time.Millisecond
		r, err := evaluate(t.Context(), code, limit, func(context.Context) error {
			asked++
			time.Sleep(limit + 3*agent.InterruptGrace) // after which a runtime that ignores its limit is replaced
			return nil
		})
		if err != nil || asked != 1 || r.Error != nil || len(r.Value)+len(r.Stdout) < 1_000_000 {
			t.Fatalf("%s: %v, asked for room %d times: %+.200v", name, err, asked, r)
		}
	}

	full := errors.New("no room")
	if _, err := evaluate(t.Context(), "kept += 1; 'x' * 1_000_000", time.Minute, func(context.Context) error { return full }); err != full {
		t.Errorf("without room: %v", err)
	}
	if got := f.value(t, "kept"); got != "4" {
		t.Errorf("after them kept is %s", got)
	}
	// Who leaves meanwhile does not wait.
	ctx, cancel := context.WithCancel(t.Context())
	_, err := evaluate(ctx, "'x' * 1_000_000", 0, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := f.value(t, "kept"); got != "4" {
		t.Errorf("at the end kept is %s", got)
	}
}

// An answer that waits for room makes way for whoever wants the interpreter: nobody waits for a client that does not read.
func TestEvalAnswerMakesWay(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	for name, next := range map[string]func() error{
		"an evaluation": func() error {
			_, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "1"})
			return err
		},
		"a run": func() error {
			_, err := f.RunCode(t.Context(), agent.RunRequest{Code: "1"}, func(agent.RunEvent) error { return nil })
			return err
		},
	} {
		e, err := agent.EvalRequest{Code: "'x' * 1_000_000"}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		waits, answered := make(chan struct{}), make(chan error, 1)
		go func() {
			r, err := f.Evaluate(t.Context(), "python", e.WaitingFor(func(ctx context.Context) error {
				close(waits)
				<-ctx.Done()
				return context.Cause(ctx)
			}), time.Minute)
			if err == nil && len(r.Value) != 1_000_002 {
				err = fmt.Errorf("the answer has %d bytes", len(r.Value))
			}
			answered <- err
		}()
		<-waits
		if err := next(); err != nil {
			t.Errorf("%s behind it: %v", name, err)
		}
		if err := <-answered; err != nil {
			t.Errorf("before %s: %v", name, err)
		}
	}
}
