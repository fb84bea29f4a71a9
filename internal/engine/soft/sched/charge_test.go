package sched

import (
	"testing"
	"testing/synctest"
	"time"
)

// labour works for a group without a permit, as devices do that always have something to go
// on with, for so long, and returns what it has used.
func labour(g *Group, vcpus int, long time.Duration) (used time.Duration) {
	for began := time.Now(); time.Since(began) < long; {
		if d := g.Wait(); d > 0 {
			time.Sleep(d)
			continue
		}
		time.Sleep(slice)
		used += slice
		g.Charge(slice, vcpus)
	}
	return used
}

// TestChargeKeepsTheBound: what a machine's devices do and what its vCPUs do come out of one
// allowance.
func TestChargeKeepsTheBound(t *testing.T) {
	const (
		bound = .25
		long  = time.Second
		slack = 10 * time.Millisecond
	)
	most := time.Duration(bound*float64(long+period)) + slack
	for name, busy := range map[string]bool{"idle": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(4)
				g := s.s.Group(0, bound)
				m := s.add(g)
				if busy {
					s.wg.Go(func() { m.execute(time.Hour) })
				}
				devices := labour(g, 2, long)
				s.stop.Store(true)
				m.kick()
				s.wg.Wait()
				guest := time.Duration(m.used.Load())
				if sum := devices + guest; sum > most || sum < most-4*slack {
					t.Errorf("devices used %v and the vCPU %v, want %v together", devices, guest, most-slack)
				}
				if busy && min(devices, guest) < 4*slack {
					t.Errorf("devices used %v and the vCPU %v", devices, guest)
				}
				g.Close()
			})
		})
	}
}

// TestUsed: a group has used what its vCPUs have, also while they execute, and its devices.
func TestUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1)
		m, other := s.add(s.s.Group(0, 0)), s.add(s.s.Group(0, 0))
		check := func(when string, want time.Duration) {
			t.Helper()
			if got := m.group.Used(); got != want {
				t.Errorf("%s it has used %v, want %v", when, got, want)
			}
		}
		check("before it executes", 0)
		m.execute(30 * time.Millisecond)
		other.execute(time.Second)
		check("when another one has", 30*time.Millisecond)
		m.group.Charge(5*time.Millisecond, 1)
		check("with its devices", 35*time.Millisecond)
		s.wg.Go(func() { m.execute(time.Second) })
		time.Sleep(300*time.Millisecond + look/2)
		check("while it executes", 335*time.Millisecond+look/2)
		s.wg.Wait()
		m.group.Close()
		other.group.Close()
	})
}

// TestWaitIsFair: where processors are scarce, a machine whose devices work all the time gets no
// more than its weight gives it, though it needs no permit.
func TestWaitIsFair(t *testing.T) {
	const long = time.Second
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1)
		m := s.add(s.s.Group(400, 0))
		s.wg.Go(func() { m.execute(time.Hour) })
		devices := labour(s.s.Group(100, 0), 1, long)
		s.stop.Store(true)
		s.wg.Wait()
		if devices > long/4+2*credit || devices < long/8 {
			t.Errorf("devices of a machine with a quarter of the weight used %v of %v", devices, long)
		}
	})
}

// TestNothingIsChargedTwice: what a vCPU does for devices while it has a permit is in the time
// that it has that for.
func TestNothingIsChargedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1)
		g := s.s.Group(0, .5)
		m := s.add(g)
		if !m.Enter(m.wake, m.attend) {
			t.Fatal("no permit")
		}
		time.Sleep(4 * time.Millisecond)
		g.Charge(4*time.Millisecond, 1)
		m.Leave()
		if left := time.Duration(g.allowance.Level(s.s.now())); left != 6*time.Millisecond {
			t.Errorf("%v of the allowance are left, want 6ms of 10", left)
		}
		g.Close()
	})
}
