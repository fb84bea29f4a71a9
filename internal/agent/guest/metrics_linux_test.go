package guest

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

const (
	stat = `cpu  10 1 20 300 4 2 3 5 6 7
cpu0 5 1 10 150 2 1 1 5 3 3
cpu1 5 0 10 150 2 1 2 0 3 4
intr 1 2 3
ctxt 9
`
	meminfo = `MemTotal:         460 kB
MemFree:          100 kB
MemAvailable:     300 kB
Buffers:           10 kB
Cached:           200 kB
Shmem:             50 kB
SReclaimable:      20 kB
HugePages_Total:     0
`
)

func TestMetrics(t *testing.T) {
	var m wire.Metrics
	parseStat([]byte(stat), &m)
	parseMeminfo([]byte(meminfo), &m)
	want := wire.Metrics{CPUs: 2, CPUBusyNS: 41 * tick, CPUTotalNS: 345 * tick, MemoryTotal: 460 << 10, MemoryUsed: 180 << 10, MemoryCache: 180 << 10}
	if m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}

// FuzzMetrics reads any files: what comes out must be sound.
func FuzzMetrics(f *testing.F) {
	f.Add([]byte(stat), []byte(meminfo))
	f.Add([]byte("cpu  1 2"), []byte("MemTotal:\nCached: -5 kB\n"))
	f.Fuzz(func(t *testing.T, stat, meminfo []byte) {
		var m wire.Metrics
		parseStat(stat, &m)
		parseMeminfo(meminfo, &m)
		if m.MemoryUsed < 0 || m.MemoryTotal >= 0 && (m.MemoryCache < 0 || m.MemoryCache > m.MemoryTotal) {
			t.Errorf("%+v", m)
		}
	})
}
