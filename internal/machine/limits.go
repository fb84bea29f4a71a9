package machine

import (
	"fmt"
	"math"

	"github.com/forkd-dev/forkd/internal/page"
)

// Limits bound what a machine takes of its host, besides memory, which its
// page.Top bounds. A zero field is no limit.
//
// CPU and CPUWeight are the engine's to keep. One whose vCPUs the host schedules does
// not: with kvm, they are a matter of the control group of the process.
type Limits struct {
	// CPU is how many processors' worth of time the vCPUs get together, at most.
	CPU float64 `json:"cpu,omitempty"`
	// CPUWeight is the share that they get where machines compete: one of weight
	// 200 gets twice as much as one of the usual 100. It is 1 to 10000.
	CPUWeight int `json:"cpu_weight,omitempty"`
	// DiskBytes is how much of the scratch disk may be the machine's own, whatever
	// it inherited; writing more is an error of the disk. It is rounded up to pages.
	// What counts, in branches and after discards, is as in page.Overlay.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// DiskRate bounds what is read from and written to disks together, and NetRate
	// what is sent and received on sockets together, in bytes per second. Who is
	// faster waits.
	DiskRate int64 `json:"disk_rate,omitempty"`
	NetRate  int64 `json:"net_rate,omitempty"`
}

// Bounds of Limits.
const (
	MaxCPUWeight = 10000
	minRate      = 1 << 10 // bytes per second: less is no use to a guest
)

// Check refuses what makes no sense.
func (l Limits) Check() error {
	switch {
	case !(l.CPU >= 0 && l.CPU <= 1024):
		return fmt.Errorf("a cpu limit of %g processors: it must be 0 to 1024", l.CPU)
	case l.CPUWeight < 0 || l.CPUWeight > MaxCPUWeight:
		return fmt.Errorf("a cpu weight of %d: it must be 1 to %d", l.CPUWeight, MaxCPUWeight)
	case l.DiskBytes < 0:
		return fmt.Errorf("a disk limit of %d bytes: it must not be negative", l.DiskBytes)
	}
	for _, r := range []struct {
		name string
		rate int64
	}{{"disk", l.DiskRate}, {"network", l.NetRate}} {
		if r.rate < 0 || r.rate > 0 && r.rate < minRate {
			return fmt.Errorf("a %s rate of %d bytes per second: it must be %d or more", r.name, r.rate, minRate)
		}
	}
	return nil
}

// diskPages returns DiskBytes in pages.
func (l Limits) diskPages() int {
	return int(min(l.DiskBytes/page.Size+min(l.DiskBytes%page.Size, 1), math.MaxInt))
}
