package sandbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// journalVersion is the version of the journal's lines, and lacking stands in its place if something that has
// happened is known to be missing among them. They are as long as each other, so that one can be written over the
// other where there is no room for more.
const (
	journalVersion = 1
	lacking        = 0
)

// heading is the first line of a journal.
type heading struct {
	Journal *int `json:"journal"` // journalVersion or lacking
}

// headingOf returns the heading of a version as it is written.
func headingOf(version int) []byte {
	text, _ := json.Marshal(heading{&version}) // a number does not fail
	return append(text, '\n')
}

// What a line of the journal tells of sandboxes.
type event string

const (
	began event = "began" // they are there
	ended event = "ended" // by themselves; they are listed
	gone  event = "gone"  // they are listed no more; without a reason nobody will ask why
)

// entry is a line of the journal: what has become of some sandboxes. Children of one fork
// have one, so that a hundred of them cost hardly more than one.
type entry struct {
	Event event    `json:"event"`
	IDs   []string `json:"ids"`
	origin
	State  State  `json:"state,omitempty"`  // that they ended in
	Reason string `json:"reason,omitempty"` // why they have ended, or are gone
}

// origin is what is told of sandboxes of which nothing else is left.
type origin struct {
	Tag       string    `json:"tag,omitempty"`
	Runs      string    `json:"runs,omitempty"`   // the snapshot that they run from, if that is another one
	Source    string    `json:"source,omitempty"` // id of the sandbox that they were branched from
	Workspace string    `json:"workspace,omitempty"`
	Cell      string    `json:"cell,omitempty"`
	PID       int       `json:"pid,omitempty"`
	VCPUs     int       `json:"vcpus,omitempty"`
	MemoryMiB int       `json:"memory_mib,omitempty"`
	DiskMiB   int       `json:"disk_mib,omitempty"`
	Created   time.Time `json:"created,omitzero"`  // the first of them
	Restored  time.Time `json:"restored,omitzero"` // the machine of the first of them was made
}

// maxReason bounds a reason, in bytes: guests and cells have a part in some.
const maxReason = 1 << 10

// check refuses what no forkd of this version writes.
func (e *entry) check() error {
	for _, id := range e.IDs {
		if !idPattern.MatchString(id) {
			return fmt.Errorf("bad id %.20q", id)
		}
	}
	if len(e.Reason) > maxReason {
		return fmt.Errorf("a reason of %d bytes", len(e.Reason))
	}
	switch e.Event {
	case began:
		if len(e.IDs) == 0 || e.State != "" || e.Reason != "" {
			return fmt.Errorf("the beginning of %.20q makes no sense", e.IDs)
		}
		return e.origin.check()
	case ended:
		if e.State != Crashed && e.State != Exited {
			return fmt.Errorf("bad state %.20q", e.State)
		}
	case gone:
		return e.origin.checkNames()
	default:
		return fmt.Errorf("unknown event %.20q", e.Event)
	}
	return nil
}

// runs returns the tag of the snapshot that they run from.
func (o *origin) runs() string { return cmp.Or(o.Runs, o.Tag) }

// maxDiskMiB is the largest disk that a snapshot can have, wherever it was made.
const maxDiskMiB = page.MaxLimit >> (20 - page.Shift)

func (o *origin) check() error {
	if !snapshot.ValidTag(o.Tag) {
		return fmt.Errorf("bad tag %.20q", o.Tag)
	}
	if err := o.checkNames(); err != nil {
		return err
	}
	if o.PID < 0 || o.VCPUs < 0 || o.MemoryMiB < 0 || o.DiskMiB < 0 || o.DiskMiB > maxDiskMiB {
		return fmt.Errorf("a machine of %d MiB with %d vCPUs and a disk of %d MiB in process %d", o.MemoryMiB, o.VCPUs, o.DiskMiB, o.PID)
	}
	return nil
}

func (o *origin) checkNames() error {
	for _, name := range []string{o.Runs, o.Source, o.Workspace, o.Cell} {
		if name != "" && !snapshot.ValidTag(name) {
			return fmt.Errorf("bad name %.20q", name)
		}
	}
	return nil
}

// line returns the entry as it is written.
func (e *entry) line() []byte {
	text, _ := json.Marshal(e) // strings, numbers, and times of this era do not fail
	return append(text, '\n')
}

// shortReason makes a reason fit into a line.
func shortReason(reason string) string {
	return strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
}

// ledger is what a journal tells, all lines together.
type ledger struct {
	listed   map[string]*listing // sandboxes that began and are not gone, by id
	departed departed
	lacks    bool   // something that it does not tell may have happened
	last     uint64 // number that was given to one
}

// listing is of one sandbox.
type listing struct {
	id string
	*origin
	state  State // that it ended in; empty: it has not
	reason string
	number uint64 // orders them by what became of them last
}

// add takes note of an entry. What of it changes nothing is taken out of it; it reports
// whether anything is left.
func (l *ledger) add(e *entry) bool {
	if l.listed == nil {
		l.listed = make(map[string]*listing)
	}
	e.IDs = slices.DeleteFunc(e.IDs, func(id string) bool { return !l.note(id, e) })
	return len(e.IDs) > 0
}

// note takes note of what an entry tells of one sandbox, and reports whether that changes
// anything.
func (l *ledger) note(id string, e *entry) bool {
	has := l.listed[id]
	switch {
	case e.Event == began:
		has = &listing{id: id, origin: &e.origin}
		l.listed[id] = has
	case has == nil && (e.Event == ended || e.Reason == "" || e.Reason == l.departed.reason(id)):
		return false
	case e.Event == ended:
		has.state, has.reason = e.State, e.Reason
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
func (l *ledger) sandboxes() []listing {
	all := make([]listing, 0, len(l.listed))
	for _, has := range l.listed {
		all = append(all, *has)
	}
	slices.SortFunc(all, func(a, b listing) int {
		if (a.state == "") != (b.state == "") {
			return cmp.Compare(b.state, a.state)
		}
		return cmp.Compare(a.number, b.number)
	})
	return all
}

// lines returns the shortest journal that tells the same.
func (l *ledger) lines() []byte {
	version := journalVersion
	if l.lacks {
		version = lacking
	}
	text := headingOf(version)
	for _, e := range l.departed.entries() {
		text = append(text, e.line()...)
	}
	all := l.sandboxes()
	var starts, ends []*entry
	of := make(map[*origin]*entry)
	for _, has := range all {
		if of[has.origin] == nil {
			of[has.origin] = &entry{Event: began, origin: *has.origin}
			starts = append(starts, of[has.origin])
		}
		of[has.origin].IDs = append(of[has.origin].IDs, has.id)
		if has.state != "" {
			ends = append(ends, &entry{Event: ended, IDs: []string{has.id}, State: has.state, Reason: has.reason})
		}
	}
	for _, e := range append(starts, ends...) {
		text = append(text, e.line()...)
	}
	return text
}

// maxListed is how many sandboxes a journal is believed to tell of. There are never more.
const maxListed = maxBoxes + maxEnded

// readLedger reads a journal. What is no line of this version is left out; the error tells of
// the first, and how many there are. One that has lost its heading may be of this version.
func readLedger(text []byte) (l *ledger, err error) {
	l = new(ledger)
	defer func() { l.lacks = err != nil }()
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	var h heading
	_ = json.Unmarshal(first, &h) // what is none has no version
	switch {
	case h.Journal == nil:
		err, rest = errors.New("it does not begin as one"), text
	case *h.Journal == lacking:
		err = errors.New("an earlier daemon did not know all, or could not write it")
	case *h.Journal != journalVersion:
		return l, fmt.Errorf("version %d, this forkd reads version %d", *h.Journal, journalVersion)
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
	if e.Event == began && len(l.listed)+len(e.IDs) > maxListed {
		return fmt.Errorf("more than %d sandboxes", maxListed)
	}
	l.add(&e)
	return nil
}
