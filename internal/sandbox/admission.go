package sandbox

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/host"
)

// Host tells what the host has left to give. What it does not know is not limited.
type Host interface {
	Memory() (host.Memory, error)
	Files() (host.Files, error)
	Disk(path string) (int64, error)
}

// What is kept back of the host, so that sandboxes that run have room, and what
// the daemon does for them.
const (
	minReserve  = 64 << 20 // of memory, in bytes
	maxReserve  = 512 << 20
	reservePart = 16 // of all memory
	diskReserve = 64 << 20
	fileReserve = 256 // descriptors: for connections, and for layers
)

// The host is looked at again after readingLife, and before a refusal. Looking takes
// about as long as a fork.
const readingLife = 100 * time.Millisecond

// retryLater is when it makes sense to ask again for what the host lacked.
const retryLater = 5 * time.Second

// Resource is something that a host can be short of.
type Resource string

// The resources.
const (
	ResourceMemory      Resource = "memory"      // bytes
	ResourceDisk        Resource = "disk"        // bytes
	ResourceDescriptors Resource = "descriptors" // of the daemon
	ResourceSandboxes   Resource = "sandboxes"
)

// Shortage says what the host lacks for something that was therefore not begun.
type Shortage struct {
	Resource Resource
	Needed   int64 // for it
	Free     int64 // that can be given: less the reserve, and what others are promised
	Held     int64 // by sandboxes, with what they are promised
}

// need is what something takes of the host.
type need struct {
	what   string // for people
	boxes  int    // sandboxes, which have a price
	tag    string // of the boxes
	limits Limits // of the boxes
	memory int64  // besides that of the boxes
	disk   int64
	files  int // besides those of the boxes
}

func (n *need) add(o need) {
	n.boxes += o.boxes
	n.memory += o.memory
	n.disk += o.disk
	n.files += o.files
}

// promise is a need that was granted.
type promise struct {
	need
	kept time.Time // when it had come true, or to nothing; zero: not yet
}

// reading is what was found when the host was looked at.
type reading struct {
	at     time.Time
	memory *host.Memory // nil: unknown
	files  *host.Files  // nil: unknown
	disk   *int64       // nil: unknown
	debts
}

// admission decides what is begun. The host never overcommits into its own death:
// what it has left, less a reserve, less what was promised before, has to be enough,
// or else nothing of it is begun. What runs is left alone, however short memory gets.
//
// Lock order: mu is before Manager.mu.
type admission struct {
	host Host

	mu       sync.Mutex
	last     reading    // guarded by mu
	promises []*promise // that last does not show in full; guarded by mu
}

// admit refuses what the host cannot bear. The caller begins it then, and calls
// done when it is there to be seen, or has failed.
func (m *Manager) admit(n need) (done func(), err error) {
	for look := m.admission.outdated(); ; look = true {
		if look {
			m.cells.Refresh() // which may take its time, so nobody else waits for it
		}
		if done, err = m.decide(n, look); err == nil || look {
			return done, err
		}
	}
}

// outdated reports whether the host has to be looked at again.
func (a *admission) outdated() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Since(a.last.at) > readingLife
}

// decide is admit by the last reading or, with look, by another one.
func (m *Manager) decide(n need, look bool) (done func(), err error) {
	a := &m.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.closing() {
		return nil, errShutdown()
	}
	if look {
		m.survey()
	}
	p := &promise{need: m.priced(n)}
	if err := a.refuse(p.need); err != nil {
		return nil, err
	}
	a.promises = append(a.promises, p)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		p.kept = time.Now()
	}, nil
}

// closing reports whether the manager ends.
func (m *Manager) closing() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// survey looks at the host and at all sandboxes, which have figures. The caller holds admission.mu.
func (m *Manager) survey() {
	a := &m.admission
	r := reading{at: time.Now(), debts: m.debts()}
	if memory, err := a.host.Memory(); err == nil {
		r.memory = &memory
	}
	if files, err := a.host.Files(); err == nil {
		r.files = &files
	}
	if disk, err := a.host.Disk(m.opts.Home); err == nil {
		r.disk = &disk
	}
	a.last = r
	a.promises = slices.DeleteFunc(a.promises, func(p *promise) bool { return !p.kept.IsZero() && p.kept.Before(r.at) })
}

// refuse returns why the host cannot bear something, by the last reading; nil if it
// can. The caller holds mu.
func (a *admission) refuse(n need) error {
	promised := need{}
	for _, p := range a.promises {
		promised.add(p.need)
	}
	r := &a.last
	if s := (Shortage{ResourceSandboxes, int64(n.boxes), int64(maxBoxes - r.boxes - promised.boxes), int64(r.boxes + promised.boxes)}); n.boxes > 0 && s.lacks() {
		return s.refusal(n, "end some with `forkd kill`", "sandboxes")
	}
	if r.memory != nil && n.memory > 0 {
		reserve := min(maxReserve, max(minReserve, r.memory.Total/reservePart))
		s := Shortage{ResourceMemory, n.memory, r.memory.Available - reserve - r.owed - promised.memory, r.held + r.owed + promised.memory}
		if s.lacks() {
			return s.refusal(n, "end or pause some sandboxes, or ask for less", "of memory")
		}
	}
	if r.files != nil && n.files > 0 {
		s := Shortage{ResourceDescriptors, int64(n.files), int64(r.files.Limit - r.files.Open - fileReserve - promised.files), int64(r.files.Open + promised.files)}
		if s.lacks() {
			return s.refusal(n, "end some sandboxes, or raise the daemon's limit of open files", "file descriptors")
		}
	}
	if r.disk != nil && n.disk > 0 {
		s := Shortage{ResourceDisk, n.disk, *r.disk - diskReserve - promised.disk, promised.disk}
		if s.lacks() {
			return s.refusal(n, "free some disk space, or set FORKD_HOME to another disk", "of disk")
		}
	}
	return nil
}

func (s *Shortage) lacks() bool {
	s.Free = max(0, s.Free)
	return s.Needed > s.Free
}

// refusal is the error for what is not begun. units are those of the resource, in
// words.
func (s Shortage) refusal(n need, hint, units string) *Error {
	e := fail(CapacityExceeded, hint, "%s needs %s %s, and %s can be given; sandboxes hold or are promised %s",
		n.what, s.amount(s.Needed), units, s.amount(s.Free), s.amount(s.Held))
	if s.Resource == ResourceDisk {
		e.Code = NoSpace
	}
	e.Shortage, e.Retry = &s, retryLater
	return e
}

// amount writes a number of the resource for people.
func (s *Shortage) amount(n int64) string {
	if s.Resource != ResourceMemory && s.Resource != ResourceDisk {
		return fmt.Sprint(n)
	}
	if n >= 10<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
