package cli

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

// limitFlags are the flags for what a sandbox may take of its host.
type limitFlags struct {
	memory, weight, pids, disk count
	cpus                       processors
	diskRate, netRate          rate
	idle                       duration
}

func (l *limitFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(&l.memory, "memory-limit-mib", "private memory that it may use, in `MiB`, 3 at least; its whole RAM by default")
	flags.Var(&l.cpus, "cpus", "`processors`' worth of time that it gets at most, such as 0.5")
	flags.Var(&l.weight, "cpu-weight", "its `share` of the processors where sandboxes compete, 1 to 10000; 100 by default")
	flags.Var(&l.pids, "pids-limit", "`number` of processes and threads that it may have")
	flags.Var(&l.disk, "disk-limit-mib", "what it may write to its disk, in `MiB`")
	flags.Var(&l.diskRate, "disk-rate", "what it may read from and write to its disk, in `bytes` per second, such as 10MiB")
	flags.Var(&l.netRate, "net-rate", "what it may send and receive, in `bytes` per second")
	flags.Var(&l.idle, "idle-timeout", "lifetime that begins anew with each use, as a `time`"+timeForm)
}

// apply puts the flags into a request.
func (l *limitFlags) apply(req *client.ForkRequest) {
	req.MemoryLimitMiB, req.CPUWeight, req.PIDsLimit, req.DiskLimitMiB = orNil(int(l.memory)), orNil(int(l.weight)), orNil(int(l.pids)), orNil(int(l.disk))
	req.CPUs, req.DiskBytesPerSec, req.NetBytesPerSec = orNil(float64(l.cpus)), orNil(int64(l.diskRate)), orNil(int64(l.netRate))
	req.IdleTimeoutSecs = l.idle.secs()
}

// count is a flag that takes a positive number: there is no limit of nothing.
type count int

func (c *count) String() string {
	if *c == 0 {
		return ""
	}
	return strconv.Itoa(int(*c))
}

func (c *count) Type() string { return "count" }

func (c *count) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return errors.New("give a number above 0, or leave it out for no limit")
	}
	*c = count(n)
	return nil
}

// processors is a flag that takes a positive number of processors.
type processors float64

func (p *processors) String() string {
	if *p == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*p), 'g', -1, 64)
}

func (p *processors) Type() string { return "processors" }

func (p *processors) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0 && n <= math.MaxFloat32) {
		return errors.New("give a number above 0 such as 0.5, or leave it out for no limit")
	}
	*p = processors(n)
	return nil
}

// rate is a flag that takes bytes per second: 1048576, 1MiB, 1M, 1MiB/s.
type rate int64

func (r *rate) String() string {
	if *r == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*r), 10)
}

func (r *rate) Type() string { return "rate" }

var units = map[string]float64{"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20, "G": 1 << 30, "GIB": 1 << 30}

func (r *rate) Set(text string) error {
	number := strings.TrimRight(strings.TrimSuffix(text, "/s"), "BKMGibkmg")
	unit, known := units[strings.ToUpper(strings.TrimSuffix(text[len(number):], "/s"))]
	n, err := strconv.ParseFloat(number, 64)
	if n *= unit; err != nil || !known || !(n >= 1 && n < math.MaxInt64) {
		return errors.New("give a number of bytes per second such as 1048576, 512KiB or 10MiB")
	}
	*r = rate(n)
	return nil
}
