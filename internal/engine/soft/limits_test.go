package soft

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft/sched"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// busyAll is busy on four vCPUs.
func busyAll(a *isa.Asm) {
	const a0, a1, a2, a6, a7 = 10, 11, 12, 16, 17
	for id := range uint64(3) {
		a.LI(a0, id+1)
		a.LA(a1, "start")
		a.LI(a2, 0)
		a.LI(a7, 0x48534d) // hart state management: start
		a.LI(a6, 0)
		a.Op(isa.ECALL)
	}
	busy(a)
}

// rival is a machine that competes with others.
type rival struct {
	program func(*isa.Asm)
	cfg     engine.Config
	want    float64 // instructions, by those of the first
}

// What vCPUs get is what their machine's limits say, by the instructions that they have
// executed. The host may be busy with something else, so there is much tolerance, and
// more than one attempt; and what it takes away from a machine with a bound counts as
// used, so there only too much is wrong.
func TestLimitsOfProcessorTime(t *testing.T) {
	one := engine.Config{VCPUs: 1}
	with := func(cpu float64, weight int) engine.Config {
		return engine.Config{VCPUs: 1, CPU: cpu, CPUWeight: weight}
	}
	for name, c := range map[string]struct {
		processors int
		rivals     []rival
	}{
		"alike":           {1, []rival{{busy, one, 1}, {busy, one, 1}, {busy, one, 1}}},
		"weights":         {1, []rival{{busy, with(0, 300), 1}, {busy, with(0, 100), 1. / 3}}},
		"a bound":         {2, []rival{{busy, one, 1}, {busy, with(.2, 0), .2}}},
		"a bound, shared": {1, []rival{{busy, one, 1}, {busy, with(.2, 0), .25}}},
		"four vCPUs":      {1, []rival{{busy, one, 1}, {busyAll, engine.Config{VCPUs: 4}, 1}}},
		"four vCPUs, a bound": {2, []rival{
			{busy, one, 1}, {busyAll, engine.Config{VCPUs: 4, CPU: .25}, .25},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			const attempts = 4
			for n := 1; ; n++ {
				wrong := disagreements(c.rivals, compete(t, c.processors, c.rivals))
				if len(wrong) == 0 {
					return
				}
				if n == attempts {
					t.Fatal(strings.Join(wrong, "; "))
				}
			}
		})
	}
}

// disagreements tells which machines have not executed what they should have.
func disagreements(rivals []rival, executed []float64) (wrong []string) {
	for i, r := range rivals {
		share, least := executed[i]/executed[0], r.want/2
		if r.cfg.CPU > 0 {
			least = r.want / 10
		}
		if share < least || share > r.want*2 {
			wrong = append(wrong, fmt.Sprintf("machine %d has executed %.2f times what the first has, want %.2f", i, share, r.want))
		}
	}
	return wrong
}

// compete runs machines for a while and returns how many instructions each has
// executed.
func compete(t *testing.T, processors int, rivals []rival) (executed []float64) {
	var running sync.WaitGroup
	var vms []*vm
	scheduler := sched.New(func() int { return processors })
	for _, r := range rivals {
		e := New(64)
		e.processors = scheduler
		m := newLimitedGuest(t, e, r.program, r.cfg)
		vms = append(vms, m)
		for _, v := range m.vcpus {
			running.Go(func() {
				if exit, err := v.Run(); exit != engine.Kicked || err != nil {
					t.Errorf("Run returned %v, %v", exit, err)
				}
			})
		}
	}
	time.Sleep(500 * time.Millisecond)
	for _, m := range vms {
		sum := uint64(0)
		for _, v := range m.vcpus {
			sum += v.Counters().Instructions
		}
		executed = append(executed, float64(sum))
	}
	for _, m := range vms {
		for _, v := range m.vcpus {
			v.Kick()
		}
	}
	running.Wait()
	return executed
}

// A vCPU that has used up its time, and has to rest for long, obeys a kick and runs
// posted functions all the same.
func TestRestIsInterruptible(t *testing.T) {
	m := newLimitedGuest(t, New(64), busy, engine.Config{VCPUs: 1, CPU: 1e-6})
	v := m.vcpus[0]
	done := make(chan engine.Exit)
	go func() {
		exit, _ := v.Run()
		done <- exit
	}()
	for before := uint64(1); ; time.Sleep(5 * time.Millisecond) {
		now := v.Counters().Instructions
		if now == before {
			break // it rests, for minutes
		}
		before = now
	}
	for range 100 {
		ran := make(chan struct{})
		m.Post(func() { close(ran) })
		<-ran
	}
	v.Kick()
	if exit := <-done; exit != engine.Kicked {
		t.Errorf("Run returned %v", exit)
	}
}
