package server

import (
	"encoding/json"
	"errors"
	"math"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// minRate is the least rate that makes sense, in bytes per second.
const minRate = 1 << 10

// readLimits reads what a request says of limits. Everything else in the body has
// been looked at before.
func readLimits(body []byte) (l sandbox.Limits, err error) {
	var req struct {
		api.Limits
		Memory *int `json:"memory_limit_mib"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return l, invalid("", "malformed JSON: %v", err)
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	l.MemoryMiB, err = number("memory_limit_mib", req.Memory, 0, sandbox.MinMemoryLimitMiB, 1<<20)
	note(err)
	l.CPUs, err = processors("cpus", req.CPUs)
	note(err)
	l.CPUWeight, err = number("cpu_weight", req.CPUWeight, 0, 1, 10000)
	note(err)
	l.Processes, err = number("pids_limit", req.PIDsLimit, 0, 1, sandbox.MaxProcesses)
	note(err)
	l.DiskMiB, err = number("disk_limit_mib", req.DiskLimitMiB, 0, 1, sandbox.MaxLimitMiB)
	note(err)
	l.DiskRate, err = number("disk_bytes_per_sec", req.DiskBytesPerSec, 0, minRate, math.MaxInt64)
	note(err)
	l.NetRate, err = number("net_bytes_per_sec", req.NetBytesPerSec, 0, minRate, math.MaxInt64)
	note(err)
	l.Idle, err = seconds("idle_timeout_secs", req.IdleTimeoutSecs)
	note(err)
	return l, errors.Join(errs...)
}

// processors checks a number of processors; nil is no limit.
func processors(field string, n *float64) (float64, error) {
	if n == nil {
		return 0, nil
	}
	if !(*n >= sandbox.MinCPUs && *n <= sandbox.MaxCPUs) {
		return 0, invalid("leave it out for none", "%s: must be %g to %d, not %v", field, sandbox.MinCPUs, sandbox.MaxCPUs, *n)
	}
	return *n, nil
}

// limits describes the limits of a sandbox, but for that of memory.
func limits(in sandbox.Limits) api.Limits {
	return api.Limits{
		CPUs: orNil(in.CPUs), CPUWeight: orNil(in.CPUWeight), PIDsLimit: orNil(in.Processes), DiskLimitMiB: orNil(in.DiskMiB),
		DiskBytesPerSec: orNil(in.DiskRate), NetBytesPerSec: orNil(in.NetRate), IdleTimeoutSecs: orNil(in.Idle.Seconds()),
	}
}
