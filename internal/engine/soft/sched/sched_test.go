package sched

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slice is how long the vCPUs of these tests execute between looks.
const slice = 100 * time.Microsecond

// machine is a group in a simulation, in which the clock is fake: a vCPU that executes
// sleeps.
type machine struct {
	weight int
	cpu    float64
	vcpus  int
}

// sim is vCPUs that execute until stopped.
type sim struct {
	s    *Scheduler
	stop atomic.Bool
	wg   sync.WaitGroup
	all  []*member
}

// member is a vCPU with what belongs to one.
type member struct {
	*VCPU
	sim      *sim
	wake     chan struct{}
	used     atomic.Int64 // nanoseconds
	attended atomic.Int64
}

func newSim(processors int) *sim {
	return &sim{s: New(func() int { return processors })}
}

func (s *sim) add(g *Group) *member {
	m := &member{VCPU: g.VCPU(), sim: s, wake: make(chan struct{}, 1)}
	s.all = append(s.all, m)
	return m
}

func (m *member) kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *member) attend() bool {
	m.attended.Add(1)
	return m.sim.stop.Load()
}

// execute uses so much time, or up to the end.
func (m *member) execute(d time.Duration) {
	for used := time.Duration(0); used < d && !m.sim.stop.Load(); {
		if !m.Enter(m.wake, m.attend) {
			return
		}
		for used < d && !m.sim.stop.Load() {
			time.Sleep(slice)
			used += slice
			m.used.Add(int64(slice))
			if m.Over(false) {
				break
			}
		}
		m.Leave()
	}
}

// busy has vCPUs execute all the time, and returns them.
func (s *sim) busy(machines ...machine) (groups []*Group) {
	for _, c := range machines {
		g := s.s.Group(c.weight, c.cpu)
		groups = append(groups, g)
		for range max(c.vcpus, 1) {
			m := s.add(g)
			s.wg.Go(func() { m.execute(math.MaxInt64) })
		}
	}
	return groups
}

// end stops all and returns what each group has used.
func (s *sim) end() map[*Group]time.Duration {
	s.stop.Store(true)
	used := make(map[*Group]time.Duration)
	for _, m := range s.all {
		m.kick()
	}
	s.wg.Wait()
	for _, m := range s.all {
		used[m.group] += time.Duration(m.used.Load())
		m.group.Close()
	}
	return used
}

func TestShares(t *testing.T) {
	const d = 4 * time.Second
	for name, c := range map[string]struct {
		processors int
		machines   []machine
		want       []float64 // processors for each
	}{
		"alone":                             {2, []machine{{}}, []float64{1}},
		"as many as there are processors":   {2, []machine{{}, {}}, []float64{1, 1}},
		"more than processors":              {2, []machine{{}, {}, {}, {}}, []float64{.5, .5, .5, .5}},
		"three on two":                      {2, []machine{{}, {}, {}}, []float64{.667, .667, .667}},
		"weights":                           {1, []machine{{weight: 100}, {weight: 200}, {weight: 300}}, []float64{1. / 6, 2. / 6, 3. / 6}},
		"the extremes of weight":            {1, []machine{{weight: 1}, {weight: 10000}}, []float64{0, 1}},
		"zero is the usual weight":          {1, []machine{{}, {weight: UsualWeight}}, []float64{.5, .5}},
		"eight vCPUs are one machine":       {2, []machine{{vcpus: 8}, {}}, []float64{1, 1}},
		"eight vCPUs on one processor":      {1, []machine{{vcpus: 8}, {}, {}}, []float64{.333, .333, .333}},
		"half a processor":                  {2, []machine{{cpu: .5}}, []float64{.5}},
		"half a processor, four vCPUs":      {2, []machine{{cpu: .5, vcpus: 4}}, []float64{.5}},
		"one and a half":                    {2, []machine{{cpu: 1.5, vcpus: 2}}, []float64{1.5}},
		"a hundredth":                       {2, []machine{{cpu: .01}}, []float64{.01}},
		"what one may not have others get":  {1, []machine{{cpu: .2}, {}, {}}, []float64{.2, .4, .4}},
		"a bound above one's share is none": {1, []machine{{cpu: .9}, {}, {}}, []float64{.333, .333, .333}},
		"bounds leave a processor unused":   {2, []machine{{cpu: .5}, {cpu: .25}}, []float64{.5, .25}},
		"a weight does not lift a bound":    {1, []machine{{cpu: .1, weight: 10000}, {}}, []float64{.1, .9}},
		"many on few":                       {3, many(30), repeat(30, .1)},
		"bounds of many vCPUs":              {2, []machine{{cpu: .3, vcpus: 8}, {cpu: .7, vcpus: 8}}, []float64{.3, .7}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(c.processors)
				groups := s.busy(c.machines...)
				time.Sleep(d)
				used := s.end()
				s.siblings(t)
				for i, g := range groups {
					got := used[g].Seconds() / d.Seconds()
					if math.Abs(got-c.want[i]) > .02+.05*c.want[i] {
						t.Errorf("machine %d has used %.3f processors, want %.3f", i, got, c.want[i])
					}
				}
			})
		})
	}
}

// siblings checks that the vCPUs of a machine have shared what it got, more or less.
func (s *sim) siblings(t *testing.T) {
	t.Helper()
	first := make(map[*Group]float64)
	for i, m := range s.all {
		used := time.Duration(m.used.Load()).Seconds()
		if _, ok := first[m.group]; !ok {
			first[m.group] = used
		}
		if f := first[m.group]; used > 2*f+.02 || f > 2*used+.02 {
			t.Errorf("vCPU %d has used %.3f s, the first of its machine %.3f", i, used, first[m.group])
		}
	}
}

func many(n int) (all []machine) { return make([]machine, n) }

func repeat(n int, v float64) (all []float64) {
	for range n {
		all = append(all, v)
	}
	return all
}

// Who comes back from a rest waits for no more than a look at the clock, beside however
// many that never rest, and keeps the processor for what is soon done.
func TestWhoRestedGoesFirst(t *testing.T) {
	for _, others := range []int{2, 4, 32} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(2)
			s.busy(many(others)...)
			m := s.add(s.s.Group(0, 0))
			for range 200 {
				// Long enough that it uses no more than its share.
				time.Sleep(time.Duration(others+1) * time.Duration(1500+rand.IntN(3000)) * time.Microsecond)
				began := time.Now()
				m.execute(2 * time.Millisecond)
				if took := time.Since(began); took > 2*time.Millisecond+look+2*sparing*slice {
					t.Errorf("beside %d: 2 ms of work took %v", others, took)
				}
			}
			s.end()
		})
	}
}

// A long rest is worth no more than a short one.
func TestARestIsNotSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1)
		groups := s.busy(machine{}, machine{})
		time.Sleep(time.Minute)
		s.busy(machine{})
		before := make(map[*Group]int64)
		for _, m := range s.all {
			before[m.group] = m.used.Load()
		}
		time.Sleep(300 * time.Millisecond)
		used := s.end()
		for _, g := range groups {
			got := used[g] - time.Duration(before[g])
			if got < 85*time.Millisecond || got > 105*time.Millisecond {
				t.Errorf("one that was there has used %v of 300 ms beside two others", got)
			}
		}
	})
}

// A machine that rested can use its bound at once for a moment: what is soon done is not
// slowed down.
func TestBoundAllowsAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(2)
		m := s.add(s.s.Group(0, .5))
		for range 10 {
			time.Sleep(time.Second)
			began := time.Now()
			m.execute(8 * time.Millisecond)
			if took := time.Since(began); took != 8*time.Millisecond {
				t.Errorf("8 ms of work after a rest took %v", took)
			}
		}
		began := time.Now()
		m.execute(time.Second)
		if took := time.Since(began); took < 1950*time.Millisecond || took > 2050*time.Millisecond {
			t.Errorf("a second's work at half speed took %v", took)
		}
		s.end()
	})
}

// A bound is kept over any stretch of time, but for what a rest allows.
func TestBoundIsSmooth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(2)
		s.busy(machine{cpu: .25, vcpus: 2})
		last := int64(0)
		for i := range 100 {
			time.Sleep(40 * time.Millisecond)
			now := s.all[0].used.Load() + s.all[1].used.Load()
			if used := time.Duration(now - last); i > 0 && (used < 4*time.Millisecond || used > 16*time.Millisecond) {
				t.Errorf("%v of 40 ms used at a quarter", used)
			}
			last = now
		}
		s.end()
	})
}

// Who waits, for others or for its bound, attends to what comes for it at once, and
// gives up at once when it is told to.
func TestWaitingIsInterruptible(t *testing.T) {
	for name, setUp := range map[string]func(*sim) *Group{
		"for a permit": func(s *sim) *Group {
			s.busy(machine{weight: 10000}, machine{weight: 10000})
			return s.s.Group(1, 0)
		},
		"for its bound": func(s *sim) *Group { return s.s.Group(0, .001) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(2)
				m := s.add(setUp(s))
				done := make(chan struct{})
				go func() { m.execute(time.Hour); close(done) }()
				time.Sleep(20*time.Millisecond + slice/3)
				// It waits now. No time passes from here to the end.
				began, used := time.Now(), m.used.Load()
				for i := range int64(10) {
					m.kick()
					if synctest.Wait(); m.attended.Load() != i+1 {
						t.Errorf("attended to %d of %d", m.attended.Load(), i+1)
					}
				}
				s.stop.Store(true)
				m.kick()
				<-done
				if m.used.Load() != used || time.Since(began) != 0 {
					t.Errorf("it executed for %v more, and gave up after %v", time.Duration(m.used.Load()-used), time.Since(began))
				}
				s.end()
			})
		})
	}
}

// Those that take turns go on side by side, slice by slice, wherever they are. If too many
// wait, or one does not take turns, a slice is no reason to be over.
func TestTurns(t *testing.T) {
	for name, c := range map[string]struct {
		processors, takers, others int
		late                       time.Duration // by how much the last one begins later
		aside                      bool
	}{
		"two on one":           {processors: 1, takers: 2, aside: true},
		"four on two":          {processors: 2, takers: 4, aside: true},
		"one is behind":        {processors: 2, takers: 4, late: 1500 * time.Microsecond, aside: true},
		"too many":             {processors: 1, takers: 3},
		"the other takes none": {processors: 1, takers: 1, others: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(c.processors)
				for i := range c.takers + c.others {
					m := s.add(s.s.Group(0, 0))
					m.TakeTurns(i < c.takers)
					if i > 0 && i == c.takers-1 {
						time.Sleep(c.late)
					}
					s.wg.Go(func() { m.execute(math.MaxInt64) })
					synctest.Wait()
				}
				time.Sleep(slice / 2)
				first, last := &s.all[0].used, &s.all[len(s.all)-1].used
				ahead, most := first.Load()-last.Load(), int64(0)
				for range 80 {
					time.Sleep(slice)
					apart := (first.Load() - last.Load() - ahead) / int64(slice)
					most = max(most, apart, -apart)
				}
				s.end()
				if aside := most <= 1; aside != c.aside {
					t.Errorf("they are up to %d slices apart", most)
				}
			})
		})
	}
}

// One that has nothing better to do than to wait for another does not keep a processor
// from it, nor gives it up for nothing.
func TestIdleMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(1)
		g := s.s.Group(0, 0)
		spinner, worker := s.add(g), s.add(g)
		if !spinner.Enter(nil, nil) || spinner.Over(true) {
			t.Fatal("it should go on as nobody waits")
		}
		go func() {
			if worker.Enter(nil, nil) {
				worker.Leave()
			}
		}()
		synctest.Wait()
		if spinner.Over(false) || !spinner.Over(true) {
			t.Error("a vCPU of the same machine waits: whoever works goes on, whoever spins makes room")
		}
		spinner.Leave()
		synctest.Wait()
		if len(s.s.running) != 0 || s.s.full.Load() || s.s.crowded.Load() {
			t.Error("permits are missing")
		}
	})
}

// The number of processors may change under way.
func TestProcessorsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var processors atomic.Int64
		processors.Store(1)
		s := &sim{s: New(func() int { return int(processors.Load()) })}
		s.busy(many(8)...)
		total := func() (sum time.Duration) {
			for _, m := range s.all {
				sum += time.Duration(m.used.Load())
			}
			return sum
		}
		for _, n := range []int64{1, 4, 2, 8, 1} {
			processors.Store(n)
			time.Sleep(50 * time.Millisecond) // to get there
			before := total()
			time.Sleep(time.Second)
			if got := (total() - before).Seconds(); math.Abs(got-float64(n)) > .03*float64(n) {
				t.Errorf("%.2f processors in use of %d", got, n)
			}
		}
		s.end()
	})
}

// TestHammer has vCPUs of all kinds come, go, give up and be called, and looks that no
// permit is lost, and none too many handed out. It runs by the real clock.
func TestHammer(t *testing.T) {
	const processors = 3
	s := New(func() int { return processors })
	var executing, most atomic.Int64
	var wg sync.WaitGroup
	var stop atomic.Bool
	var wakes []chan struct{}
	var groups []*Group
	for i := range 12 {
		g := s.Group(1+i*40, []float64{0, .1, 1.5}[i%3])
		groups = append(groups, g)
		for range 1 + i%4 {
			v, wake := g.VCPU(), make(chan struct{}, 1)
			wakes = append(wakes, wake)
			rnd := rand.New(rand.NewPCG(uint64(i), uint64(len(wakes))))
			single := i%4 == 0
			wg.Go(func() {
				for !stop.Load() {
					if single {
						v.TakeTurns(rnd.IntN(2) == 0)
					}
					if !v.Enter(wake, func() bool { return stop.Load() || rnd.IntN(3) == 0 }) {
						continue
					}
					now := executing.Add(1)
					for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
					}
					for range rnd.IntN(40) {
						for end := time.Now().Add(time.Duration(rnd.IntN(20)) * time.Microsecond); time.Now().Before(end); {
						}
						if v.Over(rnd.IntN(8) == 0) {
							break
						}
					}
					executing.Add(-1)
					v.Leave()
					if rnd.IntN(4) == 0 {
						time.Sleep(time.Duration(rnd.IntN(300)) * time.Microsecond)
					}
				}
			})
		}
	}
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Microsecond) {
		select {
		case wakes[rand.IntN(len(wakes))] <- struct{}{}:
		default:
		}
	}
	stop.Store(true)
	for _, wake := range wakes {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	wg.Wait()
	for _, g := range groups {
		if g.Close(); g.running != 0 || len(g.waiters) != 0 || g.at >= 0 {
			t.Errorf("a group is left with %d permits and %d that wait", g.running, len(g.waiters))
		}
	}
	if most.Load() > processors || len(s.running) != 0 || len(s.queue) != 0 || s.turning != 0 {
		t.Errorf("%d of %d executed at once; %d permits are missing; %d groups wait", most.Load(), processors, len(s.running), len(s.queue))
	}
}

func BenchmarkPermit(b *testing.B) {
	for _, machines := range []int{1, 100} {
		b.Run(fmt.Sprintf("free/%d", machines), func(b *testing.B) {
			s := New(func() int { return 2 })
			var all []*VCPU
			for range machines {
				all = append(all, s.Group(0, 0).VCPU())
			}
			for i := 0; b.Loop(); i++ {
				v := all[i%machines]
				v.Enter(nil, nil)
				v.Leave()
			}
		})
	}
	b.Run("slice", func(b *testing.B) {
		v := New(func() int { return 2 }).Group(0, 0).VCPU()
		v.Enter(nil, nil)
		defer v.Leave()
		for b.Loop() {
			v.Over(false)
		}
	})
}

// A vCPU that gives way lets a goroutine run that the network wakes, on one processor too.
func TestGiveWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	client, server, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	var answered atomic.Bool
	go func() {
		one := make([]byte, 1)
		if _, err := server.Read(one); err == nil {
			answered.Store(true)
		}
	}()
	v := New(func() int { return 1 }).Group(0, 0).VCPU()
	v.Enter(nil, nil)
	defer v.Leave()
	time.Sleep(time.Millisecond) // the server waits
	if _, err := client.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	rounds := 0
	clock := func() time.Duration { return time.Duration(rounds+1) * look }
	for end := time.Now().Add(10 * time.Second); !answered.Load() && time.Now().Before(end); rounds++ {
		v.group.s.usher.giveWay(clock)
	}
	if rounds > 100 {
		t.Errorf("the server was let run after %d times", rounds)
	}
}

func socketPair() (client, server net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	server, err = l.Accept()
	return client, server, err
}

func BenchmarkGiveWay(b *testing.B) {
	var u usher
	now := time.Duration(0)
	for b.Loop() {
		now += look
		u.giveWay(func() time.Duration { return now })
	}
}
