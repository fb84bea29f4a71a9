package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Sleeps in a guest last as long as they say, also the short ones and those that
// end while nobody talks to the guest (field case 168).
func TestTimersFireInIdleGuests(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	took := value[[]float64](t, d, id, `
import time
def nap():
    t = time.monotonic(); time.sleep(0.01); return time.monotonic() - t
sorted(nap() for i in range(100))`)
	if took[0] < 0.01 {
		t.Errorf("a sleep of 10 ms took %v s", took[0])
	}
	if median := took[len(took)/2]; median > 0.1 { // on a busy host too
		t.Errorf("half of 100 sleeps of 10 ms took over %v s", median)
	}
	// A timer that fires when the sandbox has been at rest for long.
	d.sh(t, id, "(sleep 3; date +%s%N > /root/fired) > /dev/null 2>&1 &")
	start := time.Now()
	time.Sleep(5 * time.Second)
	var ns int64
	fmt.Sscan(d.sh(t, id, "cat /root/fired"), &ns)
	if late := time.Unix(0, ns).Sub(start.Add(3 * time.Second)); late < -time.Second || late > 2*time.Second {
		t.Errorf("it fired %s late", late)
	}
	// The guest's clock keeps the host's pace meanwhile.
	a, hostA := value[float64](t, d, id, "time.monotonic()"), time.Now()
	time.Sleep(2 * time.Second)
	b, hostB := value[float64](t, d, id, "time.monotonic()"), time.Now()
	if drift := time.Duration((b-a)*1e9) - hostB.Sub(hostA); drift.Abs() > 500*time.Millisecond {
		t.Errorf("the guest's clock went %s astray in %s", drift, hostB.Sub(hostA))
	}
}

// Idle children take next to nothing of the host's CPUs: those that were never
// used none, those that were used what their kernels' timers need.
func TestIdleChildrenUseNoCPU(t *testing.T) {
	d := shared(t)
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skipf("looking at the daemon's CPU time needs Linux: %v", err)
	}
	idle, used := d.fork(t, fewer(500)), d.fork(t, fewer(20))
	each(used, func(i int, id string) { d.eval(t, id, "1") })
	time.Sleep(2 * time.Second) // they are packed, which takes a moment
	before := d.cpuTicks(t)
	const pause = 4 * time.Second
	time.Sleep(pause)
	if percent := float64(d.cpuTicks(t)-before) / pause.Seconds(); percent > 20 { // a tick is 10 ms
		t.Errorf("%d idle children use %.1f %% of a CPU", len(idle)+len(used), percent)
	}
}

// cpuTicks returns the CPU time of the daemon and of the processes of its machines, in
// clock ticks.
func (d *daemon) cpuTicks(t *testing.T) (ticks int) {
	t.Helper()
	for _, pid := range append(slices.Collect(maps.Values(d.cells())), d.cmd.Process.Pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		var user, system int
		fmt.Sscan(fields[11], &user)
		fmt.Sscan(fields[12], &system)
		ticks += user + system
	}
	return ticks
}

// What a child leaves running in the background goes on between requests.
func TestBackgroundWorkGoesOnBetweenRequests(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.sh(t, id, "(while :; do echo >> /root/ticks; sleep 0.05; done) > /dev/null 2>&1 &")
	var last int
	for range 3 {
		time.Sleep(time.Second)
		var now int
		fmt.Sscan(d.sh(t, id, "wc -l < /root/ticks"), &now)
		if now < last+3 {
			t.Errorf("it went on from %d to %d in a second", last, now)
		}
		last = now
	}
	if _, err := d.Ping(t.Context(), id); err != nil {
		t.Error(err)
	}
	info, err := d.Sandbox(t.Context(), id)
	if err != nil || info.State != "running" {
		t.Errorf("%+v, %v", info, err)
	}
}
