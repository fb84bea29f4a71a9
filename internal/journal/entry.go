package journal

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// current is the version of the journal's lines, and lacking stands in its place if something that has happened is
// known to be missing among them. They are as long as each other, so that one can be written over the
// other where there is no room for more.
const (
	current = 1
	lacking = 0
)

// heading is the first line of a journal.
type heading struct {
	Journal *int `json:"journal"` // current or lacking
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

// State is one that a sandbox has ended in.
type State string

// The states in which sandboxes end by themselves.
const (
	Exited  State = "exited"
	Crashed State = "crashed"
)

// entry is a line of the journal: what has become of some sandboxes.
type entry struct {
	Event event    `json:"event"`
	IDs   []string `json:"ids"`
	Origin
	State  State  `json:"state,omitempty"`  // that they ended in
	Reason string `json:"reason,omitempty"` // why they have ended, or are gone
}

// Origin is what is told of sandboxes of which nothing else is left.
type Origin struct {
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

const (
	// maxReason bounds a reason, in bytes: guests and cells have a part in some.
	maxReason = 1 << 10
	// maxDiskMiB is the largest disk that a snapshot can have, wherever it was made.
	maxDiskMiB = page.MaxLimit >> (20 - page.Shift)
)

// ShortReason makes a reason fit into a line.
func ShortReason(reason string) string {
	return strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
}

var idPattern = regexp.MustCompile(`^sb[0-9a-f]{12}$`)

// ValidID reports whether something can be the id of a sandbox.
func ValidID(id string) bool { return idPattern.MatchString(id) }

// line returns the entry as it is written.
func (e *entry) line() []byte {
	text, _ := json.Marshal(e) // strings, numbers, and times of this era do not fail
	return append(text, '\n')
}

// check refuses what no forkd of this version writes.
func (e *entry) check() error {
	for _, id := range e.IDs {
		if !ValidID(id) {
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
		return e.Origin.check()
	case ended:
		if e.State != Crashed && e.State != Exited {
			return fmt.Errorf("bad state %.20q", e.State)
		}
	case gone:
		return e.checkNames()
	default:
		return fmt.Errorf("unknown event %.20q", e.Event)
	}
	return nil
}

func (o *Origin) check() error {
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

func (o *Origin) checkNames() error {
	for _, name := range []string{o.Runs, o.Source, o.Workspace, o.Cell} {
		if name != "" && !snapshot.ValidTag(name) {
			return fmt.Errorf("bad name %.20q", name)
		}
	}
	return nil
}
