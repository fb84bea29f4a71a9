package sandbox

import (
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// TestUsage: what processors do is told of the time since the last look.
func TestUsage(t *testing.T) {
	const ms = time.Millisecond
	fork := time.Now()
	u := usage{at: fork}
	for _, c := range []struct {
		busy, at time.Duration
		want     float64
	}{
		{0, 1 * ms, 0},
		{250 * ms, 1001 * ms, 25},
		{250 * ms, 2001 * ms, 0},
		{1250 * ms, 3001 * ms, 100},
		{1251 * ms, 3500 * ms, 100}, // too soon after the last one
		{1249 * ms, 3600 * ms, 100}, // what a process says that is not to be trusted
		{9999 * ms, 4001 * ms, 200}, // so, too: there are two processors
	} {
		if got := u.look(c.busy, fork.Add(c.at), 2); got != c.want {
			t.Errorf("%v of %v: %v%%, not %v%%", c.busy, c.at, got, c.want)
		}
	}
}

// TestMeasuringIsNoUse: who asks what a sandbox uses does not have it begin to use anything; and what its guest
// does to answer is not in the answer.
func TestMeasuringIsNoUse(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	b := forkBare(t, m, "x")
	in, err := m.Metrics(t.Context(), b.id)
	if err != nil || in.CPU != 0 || in.VCPUs != 1 || in.MemTotal != int64(b.manifest.MemoryMiB)<<20 || in.MemUsed != 0 || in.Time.IsZero() {
		t.Errorf("%+v, %v", in, err)
	}
	if b.machine.Started() || b.isAwake() {
		t.Error("asking has started it")
	}
	asked := 0
	actor{wire.OpMetrics: func(_ *wire.Reader, out *wire.Writer) {
		asked++
		out.JSON(wire.TypeOK, wire.Metrics{CPUs: 1, CPUBusyNS: int64(time.Hour), CPUTotalNS: int64(time.Hour), MemoryTotal: 2, MemoryUsed: 1})
	}}.play(t, b)
	b.machine.StartByOpen()
	if in, err := m.Metrics(t.Context(), b.id); err != nil || in.CPU != 0 || in.MemUsed != 1 || asked != 1 {
		t.Errorf("%+v after %d questions, %v", in, asked, err)
	}
}
