package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

var began = time.Unix(1000, 0)

// at makes a report at so many seconds after the start; the guest's clock
// began a second later.
func at(seconds int, event suite.Event, name string) report {
	d := time.Duration(seconds) * time.Second
	return report{Line: suite.Line{Event: event, Name: name, Time: d - time.Second}, at: began.Add(d)}
}

func withText(r report, exit int, text string) report {
	r.Exit, r.Text = exit, text
	return r
}

func TestTally(t *testing.T) {
	tally := newTally([]string{"a", "b"}, began)
	for i, r := range []report{
		at(3, suite.Done, suite.Boot),
		at(4, suite.Start, "a"),
		at(6, suite.Done, "a"),
		withText(at(7, suite.Sum, "a"), 0, "11"),
		at(8, suite.Start, "b"),
		withText(at(13, suite.Done, "b"), 2, "no such file"),
		withText(at(13, suite.Sum, "b"), 0, "22"),
		at(14, suite.End, "-"),
	} {
		if err := tally.take(r, usage{uint64(i) * 100, time.Duration(i) * time.Second}); err != nil {
			t.Fatalf("report %d: %v", i, err)
		}
	}
	got := tally.finish(nil)
	for name, want := range map[string]sample{
		suite.Boot: {host: 3 * time.Second},
		"a":        {host: 2 * time.Second, guest: 2 * time.Second, used: usage{100, time.Second}, sum: "11"},
	} {
		if *got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, *got[name], want)
		}
	}
	if b := got["b"]; b.err == nil || !strings.Contains(b.err.Error(), "exit status 2: no such file") || b.host != 5*time.Second {
		t.Errorf("b: %+v, want its exit status as an error", *b)
	}
	if !tally.ended {
		t.Error("the end was not noticed")
	}
}

func TestTallyInsistsOnOrder(t *testing.T) {
	boot, start := at(1, suite.Done, suite.Boot), at(2, suite.Start, "a")
	done, sum := at(3, suite.Done, "a"), withText(at(4, suite.Sum, "a"), 0, "1")
	end := at(5, suite.End, "-")
	garbled := report{err: errors.New("garbled")}
	for name, reports := range map[string][]report{
		"workload before the boot": {start},
		"two boots":                {boot, boot},
		"end without workloads":    {boot, end},
		"end within a workload":    {boot, start, end},
		"start twice":              {boot, start, start},
		"done without start":       {boot, done},
		"sum without done":         {boot, start, sum},
		"sum first":                {boot, sum},
		"sum missing":              {boot, start, done, end},
		"done twice":               {boot, start, done, done},
		"another workload":         {boot, at(2, suite.Start, "z")},
		"after the end":            {boot, start, done, sum, end, end},
		"garbled":                  {boot, garbled},
		"guest gave up":            {boot, at(2, suite.Fail, "-")},
	} {
		tally := newTally([]string{"a"}, began)
		var err error
		for i, r := range reports {
			if err != nil {
				t.Errorf("%s: refused at report %d already: %v", name, i, err)
			}
			err = tally.take(r, usage{})
		}
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTallyExplainsWhatIsMissing(t *testing.T) {
	cause := errors.New("timed out")
	tally := newTally([]string{"a", "b"}, began)
	for _, r := range []report{at(1, suite.Done, suite.Boot), at(2, suite.Start, "a")} {
		if err := tally.take(r, usage{}); err != nil {
			t.Fatal(err)
		}
	}
	got := tally.finish(cause)
	if got[suite.Boot].err != nil {
		t.Errorf("the boot, which succeeded, has error %v", got[suite.Boot].err)
	}
	if err := got["a"].err; !errors.Is(err, cause) || errors.Is(err, errNotRun) {
		t.Errorf("a, which was running, has error %v", err)
	}
	if err := got["b"].err; !errors.Is(err, errNotRun) || !strings.Contains(err.Error(), "a failed") {
		t.Errorf("b, which was not reached, has error %v", err)
	}
}
