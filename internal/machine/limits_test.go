package machine_test

import (
	"math"
	"testing"

	"github.com/forkd-dev/forkd/internal/machine"
)

func TestLimitsCheck(t *testing.T) {
	for _, c := range []struct {
		limits machine.Limits
		ok     bool
	}{
		{machine.Limits{}, true},
		{machine.Limits{CPU: 0.5, CPUWeight: 200, DiskBytes: 1 << 20, DiskRate: 1 << 20, NetRate: 1 << 10}, true},
		{machine.Limits{CPU: -1}, false},
		{machine.Limits{CPU: math.NaN()}, false},
		{machine.Limits{CPU: math.Inf(1)}, false},
		{machine.Limits{CPUWeight: 10001}, false},
		{machine.Limits{CPUWeight: -1}, false},
		{machine.Limits{DiskBytes: -1}, false},
		{machine.Limits{DiskRate: 1}, false},
		{machine.Limits{NetRate: -1 << 20}, false},
	} {
		if err := c.limits.Check(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.limits, err)
		}
	}
}
