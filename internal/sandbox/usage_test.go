package sandbox

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// TestUsage: what the guest's processors did before anybody looked, as in its parent, is
// nobody's use.
func TestUsage(t *testing.T) {
	const second = 1e9
	b := new(box)
	boot := wire.Metrics{CPUs: 2, CPUBusyNS: 9 * second, CPUTotalNS: 10 * second}
	if !b.firstLook(boot) || b.firstLook(boot) {
		t.Error("the first look is the first one")
	}
	for _, c := range []struct {
		busy, total int64
		want        float64
	}{
		{9 * second, 10 * second, 0},
		{10 * second, 12 * second, 100},
		{10 * second, 12*second + 1, 100}, // too soon after the last one
		{10 * second, 14 * second, 0},
	} {
		if got := b.load(wire.Metrics{CPUs: 2, CPUBusyNS: c.busy, CPUTotalNS: c.total}); got != c.want {
			t.Errorf("%d of %d: %v%%, not %v%%", c.busy, c.total, got, c.want)
		}
	}
}
