package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent"
)

// fresh returns a guest whose runtime was held, and has evaluated nothing since.
func fresh(t *testing.T) *fixture {
	t.Helper()
	f := newGuest(t)
	f.startPython(t)
	f.hold(t)
	return f
}

// hold has the runtime be as a child finds it.
func (f *fixture) hold(t *testing.T) {
	t.Helper()
	if _, err := f.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What code does does not depend on who has compiled it.
func TestCompiledElsewhere(t *testing.T) {
	by, alone, other := fresh(t), fresh(t), fresh(t) // which count evaluations alike
	for _, code := range []string{
		"1 + 1",
		"  [1, 'é', None, 2.5e300, 1j, (), b'x', ...]",
		"x = 5",
		"x = 5\nx * 2",
		"import json\ndef f(n):\n    return [json.dumps(n)]\nf(3)",
		"print('said')\n7",
		"# nothing",
		"def g():\n    raise KeyError('k')\ng()",
		"1/0",
		"x = 1\nx.y",
		"f'{1:>{3}}' + 'a' 'b'",
		strings.Repeat("x = [1, 2, 3]\n", 5000) + "len(x)",
	} {
		compiled, err := by.Compile(t.Context(), "python", code)
		if err != nil {
			t.Errorf("%.40q: %v", code, err)
			continue
		}
		alone.hold(t)
		other.hold(t)
		want := alone.eval(t, code)
		got, err := other.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: code, Compiled: compiled})
		if err != nil {
			t.Fatal(err)
		}
		got.ID = want.ID
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%.40q: %+v %+v, by itself %+v %+v", code, got, got.Error, want, want.Error)
		}
	}
}

// Compiling executes nothing. What would be told while code is compiled has to be told where it is evaluated.
func TestCompile(t *testing.T) {
	f := fresh(t)
	trace := filepath.Join(t.TempDir(), "trace")
	if _, err := f.Compile(t.Context(), "python", fmt.Sprintf("open(%q, 'w').close()", trace)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(trace); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the code was executed: %v", err)
	}
	for _, code := range []string{"1 +", "1 is 1", "x = 1\nreturn", "a\x00b", "[x for x in {8, 0}]", "def f():\n    return 1 in (2, {8, 0}) or 3 in {4, 5}"} {
		if compiled, err := f.Compile(t.Context(), "python", code); !errors.Is(err, agent.ErrNotShared) {
			t.Errorf("%q compiles to %q, %v", code, compiled, err)
		}
	}
	// Whatever is done with warnings.
	f.eval(t, "import logging; logging.captureWarnings(True)")
	if compiled, err := f.Compile(t.Context(), "python", "2 is 2"); !errors.Is(err, agent.ErrNotShared) {
		t.Errorf("what warns in a log compiles to %q, %v", compiled, err)
	}
	if _, err := f.Compile(t.Context(), "none", "1"); errors.Is(err, agent.ErrNotShared) || err == nil {
		t.Errorf("a runtime that there is not: %v", err)
	}
	// Nor does a part of wrong code.
	if r := f.eval(t, fmt.Sprintf("open(%q, 'w').close()\n(yield)", trace)); r.Error == nil || r.Error.Type != "SyntaxError" {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(trace); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half of wrong code was executed: %v", err)
	}
}

// A runtime takes what was compiled elsewhere only as long as it is as that one was. What it cannot read it compiles.
func TestCompiledIsOfAFreshRuntime(t *testing.T) {
	f := fresh(t)
	two, err := f.Compile(t.Context(), "python", "2")
	if err != nil {
		t.Fatal(err)
	}
	f.hold(t)
	value := func(compiled []byte) string {
		t.Helper()
		r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "1", Compiled: compiled})
		if err != nil || r.Error != nil {
			t.Fatal(err, r.Error)
		}
		return string(r.Value)
	}
	if got := value(two); got != "2" {
		t.Errorf("what was compiled elsewhere is not used: %s", got)
	}
	f.eval(t, "x = 1")
	if got := value(two); got != "2" { // kept as what the code compiles to
		t.Errorf("it is not kept: %s", got)
	}
	f = fresh(t)
	f.eval(t, "0")
	if got := value(two); got != "1" {
		t.Errorf("a used runtime gave %s", got)
	}
	if r, err := fresh(t).Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "12345", Compiled: two, MaxRepr: 3}); err != nil || r.Repr != "123" {
		t.Errorf("with a limit: %+v, %v", r, err)
	}
	for _, bad := range []string{"?", "\xe3", "N", "(\x02\x00\x00\x00Ni\x01\x00\x00\x00", "i\x01\x00\x00\x00"} {
		f := fresh(t)
		if r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "1", Compiled: []byte(bad)}); err != nil || string(r.Value) != "1" {
			t.Errorf("%q gave %+v, %v", bad, r, err)
		}
	}
}

// A child of a branch that evaluates nothing begins as fresh as any other; one in which an evaluation goes on, and the source, do not.
func TestCompiledInABranch(t *testing.T) {
	for name, tc := range map[string]struct {
		child, busy bool
		want        string
	}{"child": {child: true, want: "2"}, "busy child": {child: true, busy: true, want: "1"}, "source": {want: "1"}} {
		t.Run(name, func(t *testing.T) {
			f := fresh(t)
			needCgroups(t, f)
			two, err := f.Compile(t.Context(), "python", "2")
			if err != nil {
				t.Fatal(err)
			}
			f.eval(t, "import os, time")
			goOn := filepath.Join(t.TempDir(), "go-on")
			if tc.busy {
				go f.newClient().Eval(t.Context(), agent.EvalRequest{
					Runtime: "python", Code: fmt.Sprintf("open(%[1]q + '.begun', 'w').close()\nwhile not os.path.exists(%[1]q): time.sleep(.01)", goOn),
				})
				eventually(t, "an evaluation is under way", func() bool { _, err := os.Stat(goOn + ".begun"); return err == nil })
			}
			held := f.branch(t)
			if tc.child {
				held.Abandon()
				if err := f.Refresh(t.Context(), identity(1)); err != nil {
					t.Fatal(err)
				}
			} else if _, err := held.Release(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(goOn, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := f.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "1", Compiled: two})
			if err != nil || string(r.Value) != tc.want {
				t.Errorf("it gives %+v, %v", r, err)
			}
		})
	}
}
