package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

// script is a monitor whose guest is a function. It ends when that returns,
// with the error.
type script func(console io.Writer) error

type scripted struct {
	ended  chan struct{}
	err    error
	closed bool
}

func (s *scripted) done() <-chan struct{} { return s.ended }
func (s *scripted) ending() error         { return s.err }
func (s *scripted) used() usage           { return usage{} }
func (s *scripted) close()                { s.closed = true }

func (f script) start(_ context.Context, _ spec, console io.Writer) (machine, error) {
	if f == nil {
		return nil, errors.New("no such program")
	}
	s := &scripted{ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		s.err = f(console)
	}()
	return s, nil
}

func say(console io.Writer, lines ...suite.Line) {
	for _, l := range lines {
		fmt.Fprintf(console, "%s\r\n", l)
	}
}

// whole is a guest that does all right, one second per step.
func whole(console io.Writer) error {
	for i, l := range []suite.Line{
		{Event: suite.Done, Name: suite.Boot},
		{Event: suite.Start, Name: "a"},
		{Event: suite.Done, Name: "a"},
		{Event: suite.Sum, Name: "a", Text: "1"},
		{Event: suite.End, Name: "-"},
	} {
		time.Sleep(time.Second)
		l.Time = time.Duration(i) * time.Second
		say(console, l)
	}
	return nil
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		got := run(t.Context(), script(whole), spec{}, []string{"a"}, time.Minute, func(name string, s *sample) {
			took = append(took, fmt.Sprint(name, s.host))
		})
		want := sample{host: time.Second, guest: time.Second, sum: "1"}
		if *got["a"] != want || got[suite.Boot].host != time.Second || got[suite.Boot].err != nil {
			t.Errorf("a: %+v, boot: %+v", *got["a"], *got[suite.Boot])
		}
		if s := strings.Join(took, " "); s != "boot1s a1s" {
			t.Errorf("took %q", s)
		}
	})
}

func TestRunFails(t *testing.T) {
	hang := func(console io.Writer) error { time.Sleep(time.Hour); return nil }
	for name, c := range map[string]struct {
		guest script
		want  string // in the error of what was running
	}{
		"no program": {nil, "no such program"},
		"hang in the boot": {func(console io.Writer) error {
			fmt.Fprint(console, "Kernel panic")
			return hang(console)
		}, "timed out after 1m0s while running boot; the end of its console:\nKernel panic"},
		"hang in a workload": {func(console io.Writer) error {
			say(console, suite.Line{Event: suite.Done, Name: suite.Boot}, suite.Line{Event: suite.Start, Name: "a"})
			return hang(console)
		}, "timed out after 1m0s while running a"},
		"end in the boot": {func(io.Writer) error { return nil }, "ended while running boot"},
		"broken machine":  {func(io.Writer) error { return errors.New("no memory") }, "ended while running boot: no memory"},
		"guest gives up": {func(console io.Writer) error {
			say(console, suite.Line{Event: suite.Fail, Name: "-", Text: "no disk"})
			return nil
		}, "the guest gave up: no disk"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := run(t.Context(), c.guest, spec{}, []string{"a"}, time.Minute, func(string, *sample) {})
				err := got[suite.Boot].err
				if err == nil {
					err = got["a"].err
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error is %v, want %q in it", err, c.want)
				}
				time.Sleep(2 * time.Hour) // for the guest to be gone
			})
		})
	}
}

func TestRunIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		got := run(ctx, script(whole), spec{}, []string{"a"}, time.Minute, func(string, *sample) {})
		if err := got["a"].err; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		time.Sleep(time.Minute)
	})
}

func TestConsole(t *testing.T) {
	c := newConsole(nil)
	line := suite.Line{Event: suite.Start, Name: "a", Text: "x"}
	text := "boot message\r\n" + line.String() + "\r\n" + suite.Mark + "nonsense\nrest"
	for i := range len(text) { // as slowly as a console can be
		if n, err := c.Write([]byte(text[i : i+1])); n != 1 || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	if r := <-c.reports; r.Line != line || r.err != nil || r.at.IsZero() {
		t.Errorf("first report is %+v", r)
	}
	if r := <-c.reports; r.err == nil {
		t.Errorf("second report is %+v, want an error", r)
	}
	if got := c.rest(); got != "boot message\r\nrest" {
		t.Errorf("other output is %q", got)
	}
}

func TestConsoleIsBounded(t *testing.T) {
	c := newConsole(nil)
	long := strings.Repeat("x", 10*maxLine)
	for range 20 {
		fmt.Fprint(c, long)
	}
	if len(c.line) > maxLine {
		t.Errorf("an endless line takes %d bytes", len(c.line))
	}
	for range 2 * maxPending {
		say(c, suite.Line{Event: suite.Start, Name: "a"})
	}
	if len(c.reports) > maxPending || len(c.other.Text) > maxOther {
		t.Errorf("%d reports and %d bytes are kept", len(c.reports), len(c.other.Text))
	}
}
