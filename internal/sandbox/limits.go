package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/image/ext4"
	"github.com/forkd-dev/forkd/internal/machine"
)

// Limits bound what a sandbox takes of its host. A zero field is no limit. What
// happens at each is in docs/limits.md.
type Limits struct {
	MemoryMiB int           `json:"memory_limit_mib,omitempty"` // of private memory; zero: the guest's whole RAM
	CPUs      float64       `json:"cpus,omitempty"`             // processors' worth of time, for all vCPUs together
	CPUWeight int           `json:"cpu_weight,omitempty"`       // its share where sandboxes compete; zero: 100
	Processes int           `json:"pids_limit,omitempty"`       // processes and threads of user code
	DiskMiB   int           `json:"disk_limit_mib,omitempty"`   // that it may write besides what it has inherited
	DiskRate  int64         `json:"disk_rate,omitempty"`        // bytes per second, read and written together
	NetRate   int64         `json:"net_rate,omitempty"`         // bytes per second, sent and received together
	Idle      time.Duration `json:"idle_ns,omitempty"`          // that nobody uses it, until its lifetime is over
}

// Bounds of Limits.
const (
	MaxLimitMiB = 1 << 24 // of memory, and of disk

	// MinMemoryLimitMiB is the least that a memory limit is to be for a new sandbox: a child of the default snapshot
	// has 2.5 to 2.6 MiB of its own when it has run its first command, which does nothing.
	MinMemoryLimitMiB = 3

	MaxProcesses = 1 << 22 // as many as a Linux kernel can have
	MinCPUs      = 0.01    // a guest with less would not come up in time
	MaxCPUs      = 1024
)

func (l Limits) check() error {
	for _, f := range []struct {
		what      string
		got, most int
	}{{"memory limit", l.MemoryMiB, MaxLimitMiB}, {"disk limit", l.DiskMiB, MaxLimitMiB}, {"limit of processes", l.Processes, MaxProcesses}} {
		if f.got < 0 || f.got > f.most {
			return fail(InvalidArgument, "", "bad %s %d: it must be 0 to %d", f.what, f.got, f.most)
		}
	}
	if l.Idle < 0 || l.Idle > MaxLifetime {
		return fail(InvalidArgument, "", "idle lifetime must be between zero and %s", MaxLifetime)
	}
	if l.CPUs != 0 && !(l.CPUs >= MinCPUs && l.CPUs <= MaxCPUs) {
		return fail(InvalidArgument, "", "a limit of %g processors: it must be %g to %d", l.CPUs, MinCPUs, MaxCPUs)
	}
	if err := l.machine(0).Check(); err != nil {
		return fail(InvalidArgument, "", "%s", err)
	}
	return nil
}

// within returns limits that are no wider than others: who is limited cannot
// fork out of it.
func (l Limits) within(outer Limits) Limits {
	return Limits{
		MemoryMiB: tighter(l.MemoryMiB, outer.MemoryMiB),
		CPUs:      tighter(l.CPUs, outer.CPUs),
		CPUWeight: tighter(l.CPUWeight, outer.CPUWeight),
		Processes: tighter(l.Processes, outer.Processes),
		DiskMiB:   tighter(l.DiskMiB, outer.DiskMiB),
		DiskRate:  tighter(l.DiskRate, outer.DiskRate),
		NetRate:   tighter(l.NetRate, outer.NetRate),
		Idle:      tighter(l.Idle, outer.Idle),
	}
}

// tighter returns the smaller of two limits, of which zero is none.
func tighter[T cmp.Ordered](a, b T) T {
	var none T
	if a == none || b == none {
		return max(a, b)
	}
	return min(a, b)
}

// machine returns the part of the limits that the host enforces, for a scratch disk of
// so many bytes. Of the disk that is the backstop behind the guest's own limit: what
// the guest may take, and what its file system needs for itself. The cell adds what may
// be written anew of what was inherited. Whoever keeps to the former never meets it.
func (l Limits) machine(size int64) machine.Limits {
	m := machine.Limits{CPU: l.CPUs, CPUWeight: l.CPUWeight, DiskRate: l.DiskRate, NetRate: l.NetRate}
	if l.DiskMiB > 0 {
		m.DiskBytes = int64(l.DiskMiB)<<20 + ext4.Overhead(size)
	}
	return m
}

// guestLimits is what the guest of a sandbox has to keep to. A sandbox that is
// resumed goes on with what it had left: of a workspace the name stays, of any
// other the id.
func (b *box) guestLimits() wire.Limits {
	l := wire.Limits{Processes: uint32(b.limits.Processes), DiskBytes: uint64(b.limits.DiskMiB) << 20}
	if !l.Any() {
		return wire.Limits{}
	}
	l.Owner = b.id
	if b.workspace != "" {
		l.Owner = "workspace/" + b.workspace
	}
	return l
}

// refreshFailure words why a guest has not been refreshed.
func (b *box) refreshFailure(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeUnsupportedVersion && b.guestLimits().Any() {
		return fmt.Sprintf("its snapshot %q is older than limits of processes and of disk: make it anew, or fork without these", b.base)
	}
	return err.Error()
}

// atLimit tells what to do about a guest that has run out of something, if that is
// the sandbox's limit.
func (b *box) atLimit(code wire.Code) (hint string) {
	switch {
	case code == wire.CodeExhausted && b.limits.Processes > 0:
		return fmt.Sprintf("it may have %d processes and threads: end some, or kill it", b.limits.Processes)
	case code == wire.CodeNoSpace && b.limits.DiskMiB > 0:
		return fmt.Sprintf("it may write %d MiB: remove some files", b.limits.DiskMiB)
	}
	return ""
}
