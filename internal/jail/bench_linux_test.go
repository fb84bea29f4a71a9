package jail

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkStart compares what a process in jail costs with what processes cost at all:
// "true" is fork, execution and end of a small program, "plain" of this one; "jailed" is
// this one, with a cgroup, which enters, says so, and ends, and "open" the same without any
// wall. How long it takes until it has
// said so is reported apart, and how long it was on its way in; and of all the CPU
// time of both processes, which says more on a busy host.
func BenchmarkStart(b *testing.B) {
	b.Run("true", func(b *testing.B) {
		path, err := exec.LookPath("true")
		if err != nil {
			b.Skip(err)
		}
		before := cpuTime(b)
		for b.Loop() {
			if err := exec.Command(path).Run(); err != nil {
				b.Fatal(err)
			}
		}
		report(b, "cpu", cpuTime(b)-before)
	})
	b.Run("plain", func(b *testing.B) {
		before := cpuTime(b)
		for b.Loop() {
			if err := command("plain").Run(); err != nil {
				b.Fatal(err)
			}
		}
		report(b, "cpu", cpuTime(b)-before)
	})
	j := newJailer(b)
	for name, without := range map[string][]Wall{"jailed": nil, "open": Walls} {
		b.Run(name, func(b *testing.B) {
			var entering, ready time.Duration
			before := cpuTime(b)
			for b.Loop() {
				begin := time.Now()
				p := lock(b, j, Spec{without: without, lax: true}, Profile{})
				ready += time.Since(begin)
				entering += p.Took
				p.free()
			}
			report(b, "cpu", cpuTime(b)-before)
			report(b, "ready", ready)
			report(b, "enter", entering)
		})
	}
}

func report(b *testing.B, what string, total time.Duration) {
	b.ReportMetric(float64(total.Microseconds())/float64(b.N), what+"-µs/op")
}

// cpuTime is what this process and those that it has waited for have used.
func cpuTime(b *testing.B) (total time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}
