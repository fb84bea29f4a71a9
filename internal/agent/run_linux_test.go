package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// ran is a run as its caller has seen it.
type ran struct {
	*agent.RunResult
	stdout, stderr string
	displays       []*wire.Display
	order          []string // what came, in its order
}

func (f *fixture) runCode(ctx context.Context, req agent.RunRequest) (ran, error) {
	var r ran
	var err error
	r.RunResult, err = f.RunCode(ctx, req, func(e agent.RunEvent) error {
		switch {
		case e.Stdout != "":
			r.stdout += e.Stdout
			r.order = append(r.order, e.Stdout)
		case e.Stderr != "":
			r.stderr += e.Stderr
		case e.Display != nil:
			r.displays = append(r.displays, e.Display)
			r.order = append(r.order, string(e.Display.Data["text/plain"]))
		}
		return nil
	})
	return r, err
}

func (f *fixture) mustRunCode(t *testing.T, language, code string, env ...string) ran {
	t.Helper()
	r, err := f.runCode(t.Context(), agent.RunRequest{Language: language, Code: code, Env: wire.Names(env...)})
	if err != nil {
		t.Fatalf("running %.80q: %v", code, detail(err))
	}
	return r
}

// text returns the plain text of the main result.
func (r ran) text() string {
	for _, d := range r.displays {
		if d.Main {
			var s string
			_ = json.Unmarshal(d.Data["text/plain"], &s)
			return s
		}
	}
	return ""
}

func needProgram(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s", name)
	}
}

func TestRunBash(t *testing.T) {
	needProgram(t, "bash")
	f := newGuest(t)
	for _, tc := range []struct {
		code, stdout, stderr, status string
		env                          []string
	}{
		{code: "echo one; echo two >&2", stdout: "one\n", stderr: "two\n"},
		{code: "x=5; f() { echo f$x; }; cd /tmp"},
		{code: "f; pwd", stdout: "f5\n/tmp\n"},
		{code: "echo $FOO", stdout: "it's \"bar\"\n", env: []string{`FOO=it's "bar"`}},
		{code: "echo ${FOO:-default}", stdout: "default\n"},
		{code: "export FOO=kept"},
		{code: "echo $FOO; FOO=changed", stdout: "other\n", env: []string{"FOO=other"}},
		{code: "echo $FOO", stdout: "kept\n"},
		{code: "(exit 3)", status: "3"},
		{code: "true"},
		{code: "cat; read line; echo :$line:", stdout: "::\n"},
		{code: "for i in 1 2 3; do\n  echo $i\ndone <<<x", stdout: "1\n2\n3\n"},
		{code: "cat <<'EOF'\nhere 'it' is\nEOF", stdout: "here 'it' is\n"},
		{code: "sleep 0.01 & wait; echo $((1+1)); printf 'no newline'", stdout: "2\nno newline"},
		{code: "", stdout: ""},
		{code: "echo -n '\u2615'", stdout: "\u2615"},
		{code: "echo 'history !x'; set -o | grep -c histexpand.*on", stdout: "history !x\n0\n", status: "1"},
	} {
		r := f.mustRunCode(t, "bash", tc.code, tc.env...)
		status := ""
		if r.Error != nil {
			status = r.Error.Value
		}
		if r.stdout != tc.stdout || r.stderr != tc.stderr || status != tc.status {
			t.Errorf("%q: stdout %q, stderr %q, error %+v", tc.code, r.stdout, r.stderr, r.Error)
		}
	}
	r := f.mustRunCode(t, "bash", "nosuchcommand")
	if r.Error == nil || r.Error.Value != "127" || !strings.Contains(r.stderr, "nosuchcommand: command not found") {
		t.Errorf("%q, %+v", r.stderr, r.Error)
	}
	if r := f.mustRunCode(t, "bash", "if then"); r.Error == nil || !strings.Contains(r.stderr, "syntax error") {
		t.Errorf("%q, %+v", r.stderr, r.Error)
	}
	if r := f.mustRunCode(t, "bash", "seq 100000"); len(r.stdout) != 588895 || !strings.HasSuffix(r.stdout, "99999\n100000\n") {
		t.Errorf("%d bytes", len(r.stdout))
	}
	if r := f.mustRunCode(t, "bash", "true"); r.Count != 21 {
		t.Errorf("count is %d", r.Count)
	}
}

func TestRunJavaScript(t *testing.T) {
	needProgram(t, "node")
	f := newGuest(t)
	for _, tc := range []struct {
		code, text, stdout, stderr, failure string
		env                                 []string
	}{
		{code: "1 + 1", text: "2"},
		{code: "console.log('out'); console.error('err')", stdout: "out\n", stderr: "err\n"},
		{code: "let a = 1; const b = [1, 'x']"},
		{code: "let a = 2; function f() { return a }"},
		{code: "f(), b", text: "[ 1, 'x' ]"},
		{code: "await Promise.resolve('raw')", text: "raw"},
		{code: "const { promisify } = require('util'); await promisify(setTimeout)(5); typeof promisify", text: "function"},
		{code: "import { readFileSync as read } from 'fs'\nimport os, * as all from 'os'\nimport 'path'\nconsole.log(typeof read, os.EOL === all.EOL)", stdout: "function true\n"},
		{code: "(await import('path')).basename('/a/import')", text: "import"},
		{code: "process.env.FOO", text: "bar", env: []string{"FOO=bar"}},
		{code: "process.env.FOO || 'default'", text: "default"},
		{code: "undefined"},
		{code: "null", text: "null"},
		{code: "-0", text: "-0"},
		{code: "10n ** 20n", text: "100000000000000000000n"},
		{code: "NaN", text: "NaN"},
		{code: "new Map([[1, { deep: [1] }]])", text: "Map(1) { 1 => { deep: [ 1 ] } }"},
		{code: "new Promise(() => {}); 5", text: "5"},
		{code: "throw new TypeError('no')", failure: "TypeError: no"},
		{code: "await Promise.reject(new RangeError('async'))", failure: "RangeError: async"},
		{code: "throw 'text'", failure: "string: text"},
		{code: "1 +", failure: "SyntaxError: Unexpected end of input"},
		{code: "nosuch", failure: "ReferenceError: nosuch is not defined"},
		{code: "process.exit(3)", failure: "Exit: process.exit(3) was called; the context goes on"},
		{code: "setTimeout(() => { throw new Error('late') }, 1); await new Promise(r => setTimeout(r, 20)); a", text: "2", stderr: "late"},
		{code: "Promise.reject(new Error('unseen')); await new Promise(r => setTimeout(r, 20))", stderr: "unseen"},
		{code: "require('child_process').execSync('echo from a shell').toString()", text: "from a shell\n"},
		{code: "require('child_process').spawnSync('echo', ['inherited'], { stdio: 'inherit' }); console.log('after')", stdout: "inherited\nafter\n"},
		{code: "class K { x = 1 }; new K()", text: "K { x: 1 }"},
		{code: "/* \u2615 */ '\u2615'", text: "\u2615"},
	} {
		r := f.mustRunCode(t, "javascript", tc.code, tc.env...)
		failure := ""
		if r.Error != nil {
			failure = r.Error.Name + ": " + r.Error.Value
		}
		if r.text() != tc.text || r.stdout != tc.stdout || !strings.Contains(r.stderr, tc.stderr) || tc.stderr == "" && r.stderr != "" || failure != tc.failure {
			t.Errorf("%q: text %q, stdout %q, stderr %q, error %+v", tc.code, r.text(), r.stdout, r.stderr, r.Error)
		}
	}
	r := f.mustRunCode(t, "javascript", "function thrower() {\n  throw new Error('deep')\n}\nthrower()")
	if r.Error == nil || !strings.Contains(r.Error.Traceback, "at thrower (Cell[31]:2:9)") || strings.Contains(r.Error.Traceback, "inspector") {
		t.Errorf("%+v", r.Error)
	}
	r = f.mustRunCode(t, "javascript", "display({ 'text/html': '<b>' }, { raw: true }); console.log('between'); display([1]); ({ _toPng: () => Buffer.from('png'), toString: () => 's' })")
	if len(r.displays) != 3 || string(r.displays[0].Data["text/html"]) != `"<b>"` || string(r.displays[2].Data["image/png"]) != `"cG5n"` || !r.displays[2].Main {
		t.Errorf("%+v", r.displays)
	}
	if i := slices.Index(r.order, `"[ 1 ]"`); i < 0 || !slices.Contains(r.order[:i], "between\n") {
		t.Errorf("output comes after what was shown later: %q", r.order)
	}
	if r.Count != 32 {
		t.Errorf("count is %d", r.Count)
	}
}

func TestRunPython(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	for _, tc := range []struct {
		code, text, stdout, stderr, failure string
		env                                 []string
	}{
		{code: "1 + 1", text: "2"},
		{code: "x = 5"},
		{code: "None"},
		{code: "'text'", text: "'text'"},
		{code: "print('out'); x", text: "5", stdout: "out\n"},
		{code: "import sys; print('err', file=sys.stderr)", stderr: "err\n"},
		{code: "import os; os.getenv('FOO')", text: "'b=r'", env: []string{"FOO=b=r"}},
		{code: "os.getenv('FOO', 'default')", text: "'default'"},
		{code: "1/0", failure: "ZeroDivisionError: division by zero"},
		{code: "nosuch", failure: "NameError: name 'nosuch' is not defined"},
		{code: "1 +", failure: "SyntaxError: invalid syntax (Cell In[11], line 1)"},
		{code: "sys.exit(3)", failure: "SystemExit: 3"},
		{code: "exec('a b')", failure: "SyntaxError: invalid syntax (<string>, line 1)"},
		{code: "    y = 1\n    y + x", text: "6"},
		{code: "import asyncio\nawait asyncio.sleep(0.001)\nx", text: "5"},
		{code: "async def g():\n    yield 1\n[v async for v in g()]", text: "[1]"},
		{code: "print('a')\nos.system('echo b')\nos.write(1, b'c\\n')\nprint('d', end='')", stdout: "a\nb\nc\nd"},
		{code: "import subprocess\nprint('a')\nsubprocess.run(['sh', '-c', 'echo b; echo e >&2; seq 20000 | tail -1']).returncode", text: "0", stdout: "a\nb\n20000\n", stderr: "e\n"},
		{code: "pid = os.fork()\nif pid == 0: print('child')\nelse: os.wait(); print('parent')", stdout: "child\nparent\n"},
		{code: "for i in range(3000): print(i)", stdout: numbers(3000)},
		{code: "sys.stdout.write('\u2615' * 100000) and None", stdout: strings.Repeat("\u2615", 100000)},
		{code: "sys.stdout.buffer.write(b'\\xff\\n') and None", stdout: "\ufffd\n"},
		{code: "import threading\nthread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()", stdout: "thread\n"},
		{code: "input()", failure: "EOFError: EOF when reading a line"},
		{code: "!echo $x {x + 1} $HOME | wc -w", stdout: "3\n"},
		{code: "lines = !printf 'a\\nb'\nif lines:\n    !echo yes\nlines", text: "['a', 'b']", stdout: "yes\n"},
		{code: "%matplotlib inline\ns = \"\"\"\n!no\n%no\n\"\"\"\n%env FOO=1\nlen(s)", text: "9", stdout: "env: FOO=1\n"},
		{code: "%%bash\necho cell", stdout: "cell\n"},
		{code: "%nosuch", failure: "UsageError: line magic %nosuch is not known here"},
		{code: "class E(Exception):\n    def __str__(self): 1/0\nraise E", failure: "E: <the message could not be made: ZeroDivisionError>"},
		{code: "class R:\n    def __repr__(self): raise ValueError('no repr')\nR()", failure: "ValueError: no repr"},
		{code: "import signal, time\ndef late(*_): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, 0.02)\nwhile True: print('.' * 1000)", stdout: "…", failure: "TimeoutError: late"},
	} {
		r := f.mustRunCode(t, "", tc.code, tc.env...)
		failure := ""
		if r.Error != nil {
			failure = r.Error.Name + ": " + r.Error.Value
		}
		if r.text() != tc.text || r.stdout != tc.stdout && tc.stdout != "…" || r.stderr != tc.stderr || failure != tc.failure {
			t.Errorf("%q: text %q, stdout %.200q, stderr %q, error %+v", tc.code, r.text(), r.stdout, r.stderr, r.Error)
		}
	}
	if r := f.mustRunCode(t, "python", "def deep():\n    raise ValueError('v')\n\ndeep()"); r.Count != 33 || !strings.Contains(r.Error.Traceback, "Cell In[33]\", line 2, in deep\n    raise ValueError('v')") || strings.Contains(r.Error.Traceback, "python") {
		t.Errorf("%+v", r)
	}
	// Runs and evaluations share the namespace and the interpreter.
	if got := f.value(t, "x + len(lines)"); got != "7" {
		t.Error(got)
	}
	if r := f.eval(t, "os.getenv('FOO'), print('captured')"); string(r.Stdout) != "captured\n" || r.Repr != "('1', None)" {
		t.Errorf("%+v", r)
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// What code brings forth arrives while it runs.
func TestRunStreams(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "os", "time")
	for name, tc := range map[string]struct{ language, code string }{
		"print":   {"python", "import os, time\nprint('first')\nwhile not os.path.exists(%q): time.sleep(0.005)\nprint('second')"},
		"flush":   {"python", "print('first', end='', flush=True)\nwhile not os.path.exists(%q): pass\nprint('second')"},
		"burst":   {"python", "for i in range(500): print('first')\nwhile not os.path.exists(%q): time.sleep(0.005)\nprint('second')"},
		"program": {"python", "import subprocess\nsubprocess.run(['sh', '-c', 'echo first; while ! test -e %s; do sleep 0.01; done; echo second'])"},
		"system":  {"python", "import os; os.system('echo first; while ! test -e %s; do sleep 0.01; done; echo second')"},
		"bash":    {"bash", "echo first; while ! test -e %s; do sleep 0.01; done; echo second"},
		"node":    {"javascript", "console.log('first'); while (!require('fs').existsSync(%q)) await new Promise(r => setTimeout(r, 5)); console.log('second')"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "node" {
				needProgram(t, "node")
			}
			flag := t.TempDir() + "/flag"
			var out strings.Builder
			_, err := f.RunCode(t.Context(), agent.RunRequest{Language: tc.language, Code: fmt.Sprintf(tc.code, flag)}, func(e agent.RunEvent) error {
				if strings.Contains(e.Stdout, "first") {
					if err := os.WriteFile(flag, nil, 0o600); err != nil {
						return err
					}
				}
				out.WriteString(e.Stdout)
				return nil
			})
			if err != nil || !strings.HasPrefix(out.String(), "first") || !strings.HasSuffix(out.String(), "second\n") {
				t.Errorf("%q, %v", out.String(), err)
			}
		})
	}
}

func TestRunInterrupted(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	f.startPython(t, "time", "subprocess", "os")
	for _, tc := range []struct{ language, keep, kept, code, name string }{
		{"python", "kept = 1", "kept", "while True: pass", "KeyboardInterrupt"},
		{"python", "kept = 1", "kept", "time.sleep(100)", "KeyboardInterrupt"},
		{"python", "kept = 1", "kept", "subprocess.run(['sleep', '100'])", "KeyboardInterrupt"},
		{"python", "kept = 1", "kept", "while True: print('x' * 100)", "KeyboardInterrupt"},
		{"python", "kept = 1", "kept", "os.system('sleep 100')", "KeyboardInterrupt"},
		{"bash", "kept=1", "echo $kept", "while :; do :; done", "ExitStatus"},
		{"bash", "kept=1", "echo $kept", "sleep 100", "ExitStatus"},
		{"bash", "kept=1", "echo $kept", "while :; do sleep 100; done; echo never", "ExitStatus"},
		{"bash", "kept=1", "echo $kept", "yes", "ExitStatus"},
		{"javascript", "let kept = 1", "kept", "for (;;) ;", "Interrupted"},
		{"javascript", "let kept = 1", "kept", "await new Promise(() => {})", "Interrupted"},
		{"javascript", "let kept = 1", "kept", "await null; for (;;) ;", "Interrupted"},
		{"javascript", "let kept = 1", "kept", "require('child_process').execSync('sleep 100')", ""},
	} {
		t.Run(tc.language+" "+tc.code, func(t *testing.T) {
			if tc.language == "javascript" {
				needProgram(t, "node")
			}
			f.mustRunCode(t, tc.language, tc.keep)
			r, err := f.runCode(t.Context(), agent.RunRequest{Language: tc.language, Code: tc.code, Timeout: 100 * time.Millisecond})
			if _, ok := errors.AsType[*agent.TimeoutError](err); !ok || r.Error == nil || tc.name != "" && r.Error.Name != tc.name || !r.Error.Interrupted {
				t.Fatalf("%+v, %v", r.RunResult, detail(err))
			}
			if r := f.mustRunCode(t, tc.language, tc.kept); strings.TrimSpace(r.stdout+r.text()) != "1" {
				t.Errorf("kept %q %q", r.stdout, r.text())
			}
			// The end of the context interrupts, too.
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := f.runCode(ctx, agent.RunRequest{Language: tc.language, Code: tc.code}); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			if r := f.mustRunCode(t, tc.language, tc.kept); strings.TrimSpace(r.stdout+r.text()) != "1" {
				t.Errorf("kept %q %q after the context ended", r.stdout, r.text())
			}
		})
	}
	// A receiver that has enough ends the run.
	f.mustRunCode(t, "", "kept = 1")
	enough := errors.New("enough")
	_, err := f.RunCode(t.Context(), agent.RunRequest{Code: "while True: print(1)"}, func(agent.RunEvent) error { return enough })
	if !errors.Is(err, enough) {
		t.Error(err)
	}
	if r := f.mustRunCode(t, "", "kept"); r.text() != "1" {
		t.Error(r.text())
	}
}

func TestRunLost(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "os")
	for _, tc := range []struct{ language, code, cause, check, want string }{
		{"python", "lost = 1; os._exit(3)", "ended with status 3", "'lost' in globals()", "False"},
		{"bash", "lost=1; exit 4", "ended with status 4", "echo ${lost:-gone}", "gone"},
		{"bash", "lost=1; kill -9 $$", "SIGKILL", "echo ${lost:-gone}", "gone"},
		{"javascript", "globalThis.lost = 1; process.reallyExit(5)", "ended with status 5", "typeof lost", "undefined"},
	} {
		if tc.language == "javascript" {
			needProgram(t, "node")
		}
		r, err := f.runCode(t.Context(), agent.RunRequest{Language: tc.language, Code: "1"})
		if err != nil {
			t.Fatal(err, r)
		}
		_, err = f.runCode(t.Context(), agent.RunRequest{Language: tc.language, Code: tc.code})
		if restarted, ok := errors.AsType[*agent.RestartedError](err); !ok || !strings.Contains(restarted.Cause, tc.cause) {
			t.Fatalf("%s: error is %v", tc.code, err)
		}
		got := f.mustRunCode(t, tc.language, tc.check)
		if strings.TrimSpace(got.stdout+got.text()) != tc.want || got.Count != 1 {
			t.Errorf("%s: %q %q, count %d", tc.code, got.stdout, got.text(), got.Count)
		}
	}
}
