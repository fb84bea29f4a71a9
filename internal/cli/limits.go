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
	memory, weight, pids, disk int
	cpus                       float64
	diskRate, netRate          rate
	idle                       duration
}

func (l *limitFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&l.memory, "memory-limit-mib", 0, "private memory that it may use, in `MiB`; its whole RAM by default")
	flags.Float64Var(&l.cpus, "cpus", 0, "`processors`' worth of time that it gets at most, such as 0.5")
	flags.IntVar(&l.weight, "cpu-weight", 0, "its `share` of the processors where sandboxes compete, 1 to 10000; 100 by default")
	flags.IntVar(&l.pids, "pids-limit", 0, "`number` of processes and threads that it may have")
	flags.IntVar(&l.disk, "disk-limit-mib", 0, "what it may write to its disk, in `MiB`")
	flags.Var(&l.diskRate, "disk-rate", "what it may read from and write to its disk, in `bytes` per second, such as 10MiB")
	flags.Var(&l.netRate, "net-rate", "what it may send and receive, in `bytes` per second")
	flags.Var(&l.idle, "idle-timeout", "`time` after which its lifetime is over if nobody uses it")
}

// apply puts the flags into a request.
func (l *limitFlags) apply(req *client.ForkRequest) {
	req.MemoryLimitMiB, req.CPUWeight, req.PIDsLimit, req.DiskLimitMiB = orNil(l.memory), orNil(l.weight), orNil(l.pids), orNil(l.disk)
	req.CPUs, req.DiskBytesPerSec, req.NetBytesPerSec = orNil(l.cpus), orNil(int64(l.diskRate)), orNil(int64(l.netRate))
	req.IdleTimeoutSecs = l.idle.secs()
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
