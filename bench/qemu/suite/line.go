package suite

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Mark begins every line that is meant for the harness. The kernel may write
// to the same console, so it is looked for anywhere in a line.
const Mark = "FORKD-BENCH "

// Event is what a line reports.
type Event string

// The events of a run, in order: Done of Boot, then Start, Done and Sum of
// each workload, then End. Fail takes the place of End when the guest cannot
// go on.
const (
	Start Event = "start" // the workload's first process starts now
	Done  Event = "done"  // its last process has ended
	Sum   Event = "sum"   // what it printed, known once that was checked
	End   Event = "end"   // the guest is about to power off
	Fail  Event = "fail"  // the guest gives up
)

// Line is one report of the guest.
type Line struct {
	Event Event
	Name  string        // of the workload; "-" for End and Fail
	Time  time.Duration // the guest's CLOCK_MONOTONIC, as a cross-check of the host's
	Exit  int           // of Done: the first exit status that is not zero, -1 for a signal
	Text  string        // of Sum: hash of the output; of Fail and a failed Done: what went wrong
}

// String renders a line without a line break. ParseLine reads it.
func (l Line) String() string {
	return fmt.Sprintf("%s%s %s t=%d exit=%d text=%s",
		Mark, l.Event, l.Name, l.Time.Nanoseconds(), l.Exit, strconv.QuoteToASCII(l.Text))
}

// ParseLine reads a console line. ok is false for a line without the mark,
// which is none of ours; a line with the mark that makes no sense is an error.
func ParseLine(s string) (l Line, ok bool, err error) {
	at := strings.Index(s, Mark)
	if at < 0 {
		return Line{}, false, nil
	}
	s = strings.TrimRight(s[at+len(Mark):], "\r\n")
	bad := func() (Line, bool, error) { return Line{}, true, fmt.Errorf("garbled report of the guest: %.200q", s) }
	fields := strings.SplitN(s, " ", 5)
	if len(fields) != 5 {
		return bad()
	}
	nanos, err1 := strconv.ParseInt(value(fields[2], "t="), 10, 64)
	exit, err2 := strconv.Atoi(value(fields[3], "exit="))
	text, err3 := strconv.Unquote(value(fields[4], "text="))
	if err1 != nil || err2 != nil || err3 != nil || nanos < 0 || fields[1] == "" {
		return bad()
	}
	l = Line{Event: Event(fields[0]), Name: fields[1], Time: time.Duration(nanos), Exit: exit, Text: text}
	switch l.Event {
	case Start, Done, Sum, End, Fail:
		return l, true, nil
	}
	return bad()
}

// value returns what follows the prefix, and nothing when it is not there.
func value(s, prefix string) string {
	v, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return ""
	}
	return v
}

// Parameter begins the word of the kernel command line that lists the
// workloads to run, separated by commas.
const Parameter = "forkd.bench="
