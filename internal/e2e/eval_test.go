package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// What code evaluates to, prints and raises; every case is followed by one that
// shows that the interpreter and its state have survived. A value is null where
// JSON has nothing for it, and then the repr tells it (field case 057).
func TestEval(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "kept = {'a': 1}")
	for name, c := range map[string]struct {
		code           string
		result         string // repr; "-" for none
		value          string // JSON; "" for none
		stdout, stderr string
		error          string // type
		message        string // part of it
		trace          string // part of it
	}{
		"expression":     {code: "6 * 7", result: "42", value: "42"},
		"numpy":          {code: "numpy.zeros(5).tolist()", result: "[0.0, 0.0, 0.0, 0.0, 0.0]", value: "[0.0,0.0,0.0,0.0,0.0]"},
		"array":          {code: "numpy.arange(3)", result: "array([0, 1, 2])"},
		"statement":      {code: "x = 5", result: "-"},
		"state":          {code: "import math\ndef area(r):\n    return math.pi * r * r\narea(x := 2)", result: "12.566370614359172", value: "12.566370614359172"},
		"none":           {code: "None", result: "None", value: "null"},
		"print":          {code: "print('out'); import sys; print('err', file=sys.stderr); 'ü☕'", result: "'ü☕'", value: `"ü☕"`, stdout: "out\n", stderr: "err\n"},
		"exception":      {code: "def f():\n    raise ValueError('no ☕')\nf()", result: "-", error: "ValueError", message: "no ☕", trace: "in f"},
		"syntax error":   {code: "x = = 1", result: "-", error: "SyntaxError"},
		"sys.exit":       {code: "import sys; sys.exit(3)", result: "-", error: "SystemExit", message: "3"},
		"exit":           {code: "exit()", result: "-", error: "SystemExit"},
		"recursion":      {code: "def r(n): return r(n + 1)\nr(0)", result: "-", error: "RecursionError"},
		"raise nothing":  {code: "raise KeyboardInterrupt", result: "-", error: "KeyboardInterrupt"},
		"bytes printed":  {code: "import sys; sys.stdout.buffer.write(b'\\xff\\x00\\xfe'); None", result: "None", value: "null", stdout: "\xff\x00\xfe"},
		"nan":            {code: "float('nan')", result: "nan"},
		"infinity":       {code: "[1, float('inf')]", result: "[1, inf]"},
		"minus zero":     {code: "-0.0", result: "-0.0", value: "-0.0"},
		"huge int":       {code: "2**70", result: "1180591620717411303424"},
		"safe int":       {code: "2**53 - 1", result: "9007199254740991", value: "9007199254740991"},
		"bytes":          {code: "b'\\xff'", result: `b'\xff'`},
		"int keys":       {code: "{1: 2}", result: "{1: 2}"},
		"tuple":          {code: "(1, 'a')", result: "(1, 'a')"},
		"cut":            {code: "type('Long', (), {'__repr__': lambda self: 'é' * 70_000})()", result: strings.Repeat("é", 64<<10)},
		"circle":         {code: "l = []; l.append(l); l", result: "[[...]]"},
		"surrogate":      {code: "'\\ud800'", result: `'\ud800'`},
		"repr raises":    {code: "class Bad:\n    def __repr__(self): raise TypeError('bad repr')\nBad()", result: "-", error: "TypeError", message: "bad repr"},
		"message raises": {code: "class Worse(Exception):\n    def __str__(self): raise TypeError\nraise Worse()", result: "-", error: "Worse"},
		"fork":           {code: "import os\npid = os.fork()\nif pid == 0:\n    os._exit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])", result: "7", value: "7"},
		"fork returns":   {code: "pid = os.fork()\nif pid: os.waitpid(pid, 0)\npid > 0", result: "True", value: "true"},
		"subprocess":     {code: "import subprocess; subprocess.run(['sh', '-c', 'echo hi; exit 4']).returncode", result: "4", value: "4", stdout: "hi\n"},
		"close 0 1 2":    {code: "for fd in 0, 1, 2: os.close(fd)", result: "-"},
		"close streams":  {code: "import sys; sys.stdout.close(); sys.stderr = None", result: "-"},
		"spoil":          {code: "import builtins; builtins.len = None; builtins.print = None; del builtins.repr", result: "-"},
		"threads":        {code: "import threading; r = []; ts = [threading.Thread(target=r.append, args=(i,)) for i in range(9)]; [t.start() for t in ts]; [t.join() for t in ts]; sorted(r)", result: "[0, 1, 2, 3, 4, 5, 6, 7, 8]", value: "[0,1,2,3,4,5,6,7,8]"},
		"long code":      {code: "sum([" + strings.Repeat("1,", 150_000) + "])", result: "150000", value: "150000"},
		"signal handler": {code: "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.raise_signal(signal.SIGTERM)", result: "None", value: "null"},
	} {
		t.Run(name, func(t *testing.T) {
			id := id
			if name == "spoil" { // it is the user's own to spoil, so in a child of its own
				id = d.fork(t, 1)[0]
				d.eval(t, id, "kept = {'a': 1}")
			}
			d.eval(t, id, "import numpy, os")
			out, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: c.code})
			if err != nil {
				t.Fatal(err)
			}
			if out.ResultTruncated != (name == "cut") {
				t.Errorf("truncated: %v", out.ResultTruncated)
			}
			result := "-"
			if out.Result != nil {
				result = *out.Result
			}
			if result != c.result || string(out.Value) != c.value {
				t.Errorf("result %.100q value %.100s, want %q %s", result, out.Value, c.result, c.value)
			}
			if stdout, stderr := whole(out.Stdout, out.StdoutB64), whole(out.Stderr, out.StderrB64); stdout != c.stdout || stderr != c.stderr {
				t.Errorf("printed %.100q and %.100q, want %q and %q", stdout, stderr, c.stdout, c.stderr)
			}
			if c.error == "" && out.Error != nil || c.error != "" && (out.Error == nil || out.Error.Type != c.error || out.ExitCode != 1) {
				t.Errorf("error %+v, want %q", out.Error, c.error)
			} else if c.error != "" && (!strings.Contains(out.Error.Message, c.message) || !strings.Contains(out.Error.Traceback, c.trace)) {
				t.Errorf("error %+v, want it to have %q and %q", out.Error, c.message, c.trace)
			}
			if got := string(d.eval(t, id, "kept").Value); got != `{"a":1}` {
				t.Errorf("afterwards kept = %s", got)
			}
		})
	}
}

// An endless evaluation ends at its timeout or when it is interrupted, and keeps
// the state of the interpreter.
func TestEvalIsInterruptedWithoutLosingState(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "kept = 1; import time")
	for _, code := range []string{"while True: kept += 1", "time.sleep(1000)", "print('partial'); sum(range(10**12))", "import re; re.match('(a*)*b', 'a' * 40)"} {
		out, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: code, TimeoutSecs: client.Ptr(1.0)})
		if err != nil {
			if client.IsCode(err, "runtime_lost") && !strings.Contains(code, "kept") && !strings.Contains(code, "sleep") {
				t.Logf("%s: %v", code, err) // C code that never looks at signals costs the runtime
				d.eval(t, id, "kept = 1; import time")
				continue
			}
			t.Fatalf("%s: %v", code, err)
		}
		if out.Error == nil || out.Error.Type != "TimeoutError" {
			t.Errorf("%s: %+v", code, out)
		}
		if strings.Contains(code, "partial") && out.Stdout != "partial\n" {
			t.Errorf("%s printed %q", code, out.Stdout)
		}
		if got := value[int](t, d, id, "kept"); got < 1 {
			t.Errorf("kept = %d", got)
		}
	}
	done := make(chan *client.EvalResult, 1)
	go func() {
		out, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: "began = True\nwhile True: pass"})
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	for ended := false; !ended; {
		if err := d.Interrupt(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		select {
		case out := <-done:
			ended = true
			if out == nil || out.Error == nil || out.Error.Type != "KeyboardInterrupt" {
				t.Errorf("%+v", out)
			}
		case <-time.After(300 * time.Millisecond):
		}
	}
	if got := value[bool](t, d, id, "kept >= 1"); !got {
		t.Error("the state is lost")
	}
}

// A client that goes away interrupts its evaluation, so that the next one runs.
func TestEvalOfAClientThatGoesAwayEnds(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "n = 0")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := d.Eval(ctx, id, client.EvalRequest{Code: "while True: n += 1"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	a := value[int](t, d, id, "n")
	if b := value[int](t, d, id, "n"); a != b {
		t.Errorf("it goes on: n is %d, then %d", a, b)
	}
}

func TestHugeOutputOfEvalIsCutWithAMark(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	out := d.eval(t, id, "for i in range(50): print('x' * 1_000_000)\n'done'")
	if !out.StdoutTruncated || out.StderrTruncated || len(out.Stdout) == 0 || len(out.Stdout) > 16<<20 || strings.Trim(out.Stdout, "x\n") != "" {
		t.Errorf("%d bytes, truncated %v", len(out.Stdout), out.StdoutTruncated)
	}
	if string(out.Value) != `"done"` {
		t.Errorf("value %s", out.Value)
	}
	out = d.eval(t, id, "'y' * 50_000_000")
	if out.Value != nil || out.Result == nil || len(*out.Result) > 1<<20 || !strings.HasPrefix(*out.Result, "'yyy") {
		t.Errorf("a huge value: %d bytes of value", len(out.Value))
	}
	if got := value[int](t, d, id, "1 + 1"); got != 2 {
		t.Errorf("1 + 1 = %d", got)
	}
}

// Evaluations in one sandbox at the same time run one after another, each with
// its own answer and output.
func TestConcurrentEvalsDoNotMix(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.eval(t, id, "import time; log = []")
	each(make([]int, 40), func(i, _ int) {
		out, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: fmt.Sprintf("log.append(%d)\nprint(%d)\ntime.sleep(0.002)\nlog.append(%d)\n%d", i, i, i, i)})
		if err != nil || string(out.Value) != fmt.Sprint(i) || out.Stdout != fmt.Sprintln(i) {
			t.Errorf("eval %d: %+v, %v", i, out, err)
		}
	})
	if got := value[bool](t, d, id, "len(log) == 80 and log[::2] == log[1::2] and sorted(log[::2]) == list(range(40))"); !got {
		t.Errorf("they ran into each other: %s", d.eval(t, id, "log").Value)
	}
}
