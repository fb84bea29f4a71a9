package jail

import (
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// BenchmarkStart compares what a process in jail costs, until it is ready, with what
// processes cost at all. "true" is fork, execution and end of a small program, "plain" of
// this one; "jailed" is until the process has entered and said so, and its end. The time
// that it was on its way in is reported, too.
func BenchmarkStart(b *testing.B) {
	b.Run("true", func(b *testing.B) {
		path, err := exec.LookPath("true")
		if err != nil {
			b.Skip(err)
		}
		for b.Loop() {
			if err := exec.Command(path).Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			if err := command("plain").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	j := newJailer(b)
	for _, without := range [][]Wall{nil, {NetNamespace}, {MountNamespace, EmptyRoot}, {Cgroup}, {Landlock}, {Capabilities}, {Seccomp}} {
		name := "jailed"
		if without != nil {
			name = fmt.Sprint("without ", without[0])
		}
		b.Run(name, func(b *testing.B) {
			var entering time.Duration
			for b.Loop() {
				p := lock(b, j, Spec{without: without, lax: true}, Profile{})
				entering += p.Took
				p.free()
			}
			b.ReportMetric(float64(entering.Microseconds())/float64(b.N), "enter-µs/op")
		})
	}
}
