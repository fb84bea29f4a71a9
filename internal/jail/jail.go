// Package jail keeps a process from everything that it was not given: files,
// networks, other processes, and most of the host's kernel. It is for cells, the
// processes in which machines live. What a guest can do to the program that runs it
// ends there.
//
// The jail has several walls, each of which would do for most of what an attacker
// might try. Some are built by the process that starts the jailed one ([Jailer.Start]:
// namespaces, a user of its own, a cgroup), the others from inside ([Enter]), after
// the process has opened what it needs and before it has looked at anything that a
// guest had a hand in. A wall that the host does not offer is not built, and the
// [Report] says so; [Spec.Require] names those without which there must be no process.
//
// After Enter nothing opens. A jailed process works on the descriptors it was
// started with, and on those that come over its sockets. It cannot execute programs
// or make processes; threads it can make. Memory is never writable and executable at
// once.
//
// A jailed process outlives the one that started it; it is found again by what
// [Process] holds.
package jail

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Wall is one of the things that a jail is made of.
type Wall string

// The walls, in the order in which they are built.
const (
	UserNamespace   Wall = "user namespace"
	PIDNamespace    Wall = "pid namespace"
	MountNamespace  Wall = "mount namespace"
	NetNamespace    Wall = "net namespace"
	IPCNamespace    Wall = "ipc namespace"
	UTSNamespace    Wall = "uts namespace"
	CgroupNamespace Wall = "cgroup namespace"
	OwnUser         Wall = "own user"          // a user id that no other process has
	Cgroup          Wall = "cgroup"            // limits on memory, CPU and processes
	Descriptors     Wall = "descriptors"       // none but those that were passed
	ResourceLimits  Wall = "resource limits"   // rlimits
	OOMScore        Wall = "oom score"         // dies before the process that started it
	EmptyRoot       Wall = "empty root"        // there are no files
	Capabilities    Wall = "no capabilities"   // nor ways to get any
	NoNewPrivileges Wall = "no new privileges" // no_new_privs
	Undumpable      Wall = "not dumpable"      // neither traced nor dumped
	Landlock        Wall = "landlock"
	Seccomp         Wall = "seccomp"
)

// Walls are all walls, in the order in which they are built.
var Walls = []Wall{
	UserNamespace, PIDNamespace, MountNamespace, NetNamespace, IPCNamespace, UTSNamespace, CgroupNamespace,
	OwnUser, Cgroup, Descriptors, ResourceLimits, OOMScore, EmptyRoot, Capabilities, NoNewPrivileges, Undumpable,
	Landlock, Seccomp,
}

// State tells whether a wall stands.
type State string

const (
	Stands  State = "stands"
	Partial State = "partial" // it stands with a gap
	Missing State = "missing"
)

// Finding is what became of one wall.
type Finding struct {
	Wall  Wall  `json:"wall"`
	State State `json:"state"`
	// Detail says what exactly stands, or why something does not.
	Detail string `json:"detail,omitempty"`
	// Fix says what the host's owner can do about it, if anything.
	Fix string `json:"fix,omitempty"`
}

// Report tells of each wall once.
type Report []Finding

// Find returns what the report says about a wall; one that it does not mention is
// missing.
func (r Report) Find(w Wall) Finding {
	for _, f := range r {
		if f.Wall == w {
			return f
		}
	}
	return Finding{Wall: w, State: Missing, Detail: "was not asked for"}
}

// Gaps returns the findings about walls that do not stand as they should.
func (r Report) Gaps() (gaps Report) {
	for _, f := range r {
		if f.State != Stands {
			gaps = append(gaps, f)
		}
	}
	return gaps
}

// set replaces what the report says about a wall.
func (r *Report) set(f Finding) {
	for i := range *r {
		if (*r)[i].Wall == f.Wall {
			(*r)[i] = f
			return
		}
	}
	*r = append(*r, f)
}

// require returns an error that wraps ErrRequired if one of the walls does not stand.
func (r Report) require(walls []Wall) error {
	var lacking []string
	for _, w := range walls {
		if f := r.Find(w); f.State != Stands {
			lacking = append(lacking, fmt.Sprintf("%s: %s", f.Wall, f.Detail))
		}
	}
	if lacking != nil {
		return fmt.Errorf("%w: %s", ErrRequired, strings.Join(lacking, "; "))
	}
	return nil
}

var (
	// ErrRequired is wrapped by errors about walls that have to stand and cannot.
	ErrRequired = errors.New("the jail lacks what it must have")
	// ErrUnsupported is wrapped by what every function returns where there is no jail
	// at all.
	ErrUnsupported = errors.New("the jail is for Linux only")
)

// Always are the walls without which there never is a jailed process. Every Linux
// that forkd runs on can build them.
var Always = []Wall{NoNewPrivileges, Seccomp}

// Spec says what a jailed process is to be like.
type Spec struct {
	// Name is that of the process's cgroup, [A-Za-z0-9_-]{1,64}; no two processes of a
	// Jailer may have the same one at a time.
	Name string
	// Limits are those of its cgroup. They do nothing where that wall is missing.
	Limits Limits
	// Files bounds the descriptors that it may have; default 16384, or what the host
	// allows if that is less.
	Files uint64
	// Threads bounds its threads; default 4096.
	Threads uint64
	// FileBytes bounds the size of any file it makes or extends, shared memory
	// included; 0 is no bound.
	FileBytes uint64
	// Require are walls that have to stand, besides Always.
	Require []Wall

	// without are walls that are left out, so that tests see what the others do; lax is
	// set if these may be among Always.
	without []Wall
	lax     bool
}

const (
	defaultFiles   = 16 << 10
	defaultThreads = 4 << 10
)

// Limits are what a cgroup enforces. Zeros are no limits.
type Limits struct {
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// CPUWeight is the share of the CPUs under contention, 1 to 10000; others have 100.
	CPUWeight int `json:"cpu_weight,omitempty"`
	// CPUMilli caps CPU time, in thousandths of a CPU.
	CPUMilli int `json:"cpu_milli,omitempty"`
}

func (l Limits) validate() error {
	switch {
	case l.MemoryBytes < 0:
		return fmt.Errorf("a memory limit of %d bytes", l.MemoryBytes)
	case l.CPUWeight < 0 || l.CPUWeight > 10000:
		return fmt.Errorf("a CPU weight of %d, want 1 to 10000", l.CPUWeight)
	case l.CPUMilli < 0 || l.CPUMilli != 0 && l.CPUMilli < 10:
		return fmt.Errorf("a cap of %d thousandths of a CPU, want 10 or more", l.CPUMilli)
	}
	return nil
}

// Usage is what a cgroup has used.
type Usage struct {
	MemoryBytes int64 `json:"memory_bytes"`
	CPUMicros   int64 `json:"cpu_micros"` // since it was made
	Threads     int64 `json:"threads"`
	// OOMKills is how many times the kernel has killed for want of memory under the
	// limit; when it is the host that has no more, that does not count.
	OOMKills int64 `json:"oom_kills"`
}

// Profile is what the program that is jailed needs of the kernel, besides what
// every Go program does.
type Profile struct {
	// NativeCode is set if it executes code that it has written: it may map shared
	// memory for execution, though never where it is mapped for writing.
	NativeCode bool
	// Requests are the numbers of ioctl requests that it makes.
	Requests []uint32
}

// Config is what a Jailer has to be told.
type Config struct {
	// Group names the cgroup in which those of its processes lie,
	// [A-Za-z0-9_-]{1,64}. Jailers at work at the same time have different ones;
	// the next one in the same place has the same.
	Group string
	// CgroupParent is the directory of the cgroup in which to make the group; empty
	// is the one that this process is in.
	CgroupParent string
	// Look is for who only wants to know what the host offers: New changes nothing, and
	// processes get no cgroup.
	Look bool
	// FirstUser and Users are the user ids that processes get where the Jailer can
	// give them some, which root can. 0, 0 is a range that no distribution uses.
	FirstUser, Users uint32
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (s *Spec) validate() error {
	if !validName.MatchString(s.Name) {
		return fmt.Errorf("jail: %q is no name for a process: want %s", s.Name, validName)
	}
	if err := s.Limits.validate(); err != nil {
		return fmt.Errorf("jail: limits of %s: %w", s.Name, err)
	}
	return nil
}
