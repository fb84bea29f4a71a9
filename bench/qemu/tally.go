package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

// sample is one workload measured once on one machine.
type sample struct {
	host  time.Duration
	guest time.Duration // by the guest's clock; zero for the boot
	used  usage
	sum   string // hash of the output
	err   error
}

// usage is what a machine has used since it was started; zero if unknown.
type usage struct {
	instructions uint64        // that the guest retired
	cpu          time.Duration // of the host
}

// tally turns the reports of one run into samples, and insists on their order.
type tally struct {
	names   []string // of the workloads, in order
	samples map[string]*sample

	current string // workload that the next report is about
	running bool   // current has started and not ended
	from    instant
	ended   bool
}

// instant is where a workload began, by every measure there is.
type instant struct {
	host  time.Time
	guest time.Duration
	used  usage
}

// newTally begins with the boot, which the host starts.
func newTally(names []string, began time.Time) *tally {
	return &tally{
		names:   names,
		samples: make(map[string]*sample),
		current: suite.Boot,
		running: true,
		from:    instant{host: began},
	}
}

// take accounts for one report, with what the machine has used so far. After an
// error nothing more can be learnt from this run.
func (t *tally) take(r report, used usage) error {
	if r.err != nil {
		return r.err
	}
	ofCurrent := r.Name == t.current
	switch {
	case r.Event == suite.Fail:
		return fmt.Errorf("the guest gave up: %s", r.Text)
	case r.Event == suite.Start && ofCurrent && !t.running:
		t.from = instant{r.at, r.Time, used}
		t.running = true
	case r.Event == suite.Done && ofCurrent && t.running:
		t.done(r, used)
	case r.Event == suite.Sum && ofCurrent && !t.running && t.samples[t.current] != nil:
		t.samples[t.current].sum = r.Text
		t.next()
	case r.Event == suite.End && t.current == "" && !t.ended:
		t.ended = true
	default:
		return fmt.Errorf("report out of order: %s", r.Line)
	}
	return nil
}

func (t *tally) done(r report, used usage) {
	s := &sample{
		host:  r.at.Sub(t.from.host),
		guest: r.Time - t.from.guest,
		used:  usage{used.instructions - t.from.used.instructions, used.cpu - t.from.used.cpu},
	}
	if r.Exit != 0 {
		s.err = fmt.Errorf("exit status %d: %s", r.Exit, r.Text)
	}
	t.running = false
	t.samples[t.current] = s
	if t.current == suite.Boot {
		s.guest = 0 // its clock began later than ours
		t.next()
	}
}

// next goes on to the first workload without a sample.
func (t *tally) next() {
	t.current = ""
	for _, name := range t.names {
		if t.samples[name] == nil {
			t.current = name
			return
		}
	}
}

// phase says what the guest is busy with.
func (t *tally) phase() string {
	switch {
	case t.ended:
		return "powering off"
	case t.current == "":
		return "coming to its end"
	case t.running:
		return "running " + t.current
	}
	return "preparing " + t.current
}

var errNotRun = errors.New("not run")

// finish gives every workload that was not measured the reason: cause for the
// one that was going on, and that it was not run for those after it.
func (t *tally) finish(cause error) map[string]*sample {
	for _, name := range append([]string{suite.Boot}, t.names...) {
		switch s := t.samples[name]; {
		case s != nil && (s.err != nil || s.sum != "" || name == suite.Boot):
		case name == t.current:
			t.samples[name] = &sample{err: cause}
		default:
			t.samples[name] = &sample{err: fmt.Errorf("%w, since %s failed", errNotRun, t.current)}
		}
	}
	return t.samples
}
