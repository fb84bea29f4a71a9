package journal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// ledger is what a journal tells, all lines together.
type ledger struct {
	most     int                 // sandboxes that there can be
	listed   map[string]*listing // sandboxes that began and are not gone, by id
	departed departed
	lacks    bool   // something that it does not tell may have happened
	last     uint64 // number that was given to one
}

// listing is of one sandbox.
type listing struct {
	Sandbox
	number uint64 // orders them by what became of them last
}

// Sandbox is what is told of one that is listed.
type Sandbox struct {
	ID      string
	*Origin        // its siblings', too: not to be changed
	State   State  // that it ended in; empty: it has not
	Reason  string // why it has ended
}

func newLedger(most int) *ledger {
	return &ledger{
		most: most, listed: make(map[string]*listing),
		departed: departed{usual: most, most: most, known: make(map[string]departure)},
	}
}

// add takes note of an entry. What of it changes nothing is taken out of it; it reports
// whether anything is left.
func (l *ledger) add(e *entry) bool {
	left := make([]string, 0, len(e.IDs))
	for _, id := range e.IDs {
		if l.note(id, e) {
			left = append(left, id)
		}
	}
	e.IDs = left
	return len(left) > 0
}

// note takes note of what an entry tells of one sandbox, and reports whether that changes
// anything.
func (l *ledger) note(id string, e *entry) bool {
	has := l.listed[id]
	switch {
	case e.Event == began:
		has = &listing{Sandbox: Sandbox{ID: id, Origin: &e.Origin}}
		l.listed[id] = has
	case has == nil && (e.Event == ended || e.Reason == "" || e.Reason == l.departed.reason(id)):
		return false
	case e.Event == ended:
		has.State, has.Reason = e.State, e.Reason
	default:
		cell := e.Cell
		if has != nil {
			cell = has.Cell
		}
		delete(l.listed, id)
		if e.Reason != "" {
			l.departed.add(id, departure{e.Reason, cell})
		}
		return true
	}
	l.last++
	has.number = l.last
	return true
}

// sandboxes returns those that are listed: first those that have ended, in that order.
func (l *ledger) sandboxes() []Sandbox {
	all := make([]*listing, 0, len(l.listed))
	for _, has := range l.listed {
		all = append(all, has)
	}
	slices.SortFunc(all, func(a, b *listing) int {
		if (a.State == "") != (b.State == "") {
			return cmp.Compare(b.State, a.State)
		}
		return cmp.Compare(a.number, b.number)
	})
	list := make([]Sandbox, len(all))
	for i, has := range all {
		list[i] = has.Sandbox
	}
	return list
}

// lines returns the shortest journal that tells the same.
func (l *ledger) lines() []byte {
	version := current
	if l.lacks {
		version = lacking
	}
	text := headingOf(version)
	for _, e := range l.departed.entries() {
		text = append(text, e.line()...)
	}
	var starts, ends []*entry
	of := make(map[*Origin]*entry)
	for _, has := range l.sandboxes() {
		if of[has.Origin] == nil {
			of[has.Origin] = &entry{Event: began, Origin: *has.Origin}
			starts = append(starts, of[has.Origin])
		}
		of[has.Origin].IDs = append(of[has.Origin].IDs, has.ID)
		if has.State != "" {
			ends = append(ends, &entry{Event: ended, IDs: []string{has.ID}, State: has.State, Reason: has.Reason})
		}
	}
	for _, e := range append(starts, ends...) {
		text = append(text, e.line()...)
	}
	return text
}

// readLedger reads a journal; most is how many sandboxes there can be. What is no line of this version is left out;
// the error tells of the first, and how many there are. One that has lost its heading may be of this version.
func readLedger(text []byte, most int) (l *ledger, err error) {
	l = newLedger(most)
	defer func() { l.lacks = err != nil }()
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	var h heading
	_ = json.Unmarshal(first, &h) // what is none has no version
	switch {
	case h.Journal == nil:
		err, rest = errors.New("it does not begin as one"), text
	case *h.Journal == lacking:
		err = errors.New("an earlier daemon did not know all, or could not write it")
	case *h.Journal != current:
		return l, fmt.Errorf("version %d, this forkd reads version %d", *h.Journal, current)
	}
	bad, why := 0, error(nil)
	for line := range bytes.Lines(rest) {
		if wrong := l.read(line); wrong != nil {
			bad++
			why = cmp.Or(why, wrong)
		}
	}
	if bad > 0 {
		err = errors.Join(err, fmt.Errorf("%d lines are not understood, the first one because: %w", bad, why))
	}
	return l, err
}

// read takes note of a line.
func (l *ledger) read(line []byte) error {
	var e entry
	if err := json.Unmarshal(line, &e); err != nil {
		return err
	}
	if err := e.check(); err != nil {
		return err
	}
	if e.Event == began && len(l.listed)+len(e.IDs) > l.most {
		return fmt.Errorf("more than %d sandboxes", l.most)
	}
	l.add(&e)
	return nil
}
