// Package sched decides which vCPUs execute, where more could than there are
// processors.
//
// A vCPU executes while it has a permit, of which there are as many as processors. The
// vCPUs of a machine are a Group. Each group has a virtual time, which grows with the
// time that its vCPUs have permits, the slower the more weight the group has. Who is
// earliest is next; so machines get processors by their weights, however many vCPUs
// they have. A vCPU that has a permit asks between slices whether its time is Over,
// which it is when somebody waits who is earlier by more than a grain.
//
// A group that comes back from a rest comes back a little earlier than those that did
// not rest, so that it goes first for what is soon done, but no earlier, however long it
// has rested.
//
// A group can have a bound besides: a bucket that fills with the time that it may use,
// and from which it takes what it uses. While that is empty the group's vCPUs do not
// get permits; they are blocked goroutines, and one timer lets them go on.
//
// Groups can take turns, slice by slice, while they do the same: the host's caches then
// serve one with what they hold because of another one. They do not if more wait than
// there are processors, as the caches do not hold what that many need.
//
// Time is the host's monotonic clock. The clock of the thread's own processor time costs
// twenty times as much to read. So where the host takes processors away, what it takes
// counts as used.
//
// Goroutines that talk to guests and to their users have no permits and need none, but
// they need a processor. Guest code cannot be preempted, and Go looks at the network only
// when a processor has nothing else to do, or every ten milliseconds. So vCPUs that take
// all processors give way to them, and to other processes, several times a millisecond;
// see usher.
//
// Where permits are free, all this costs an uncontended lock whenever a vCPU begins or
// ends to execute, and an atomic load for each slice.
//
// Scheduler.mu guards everything, is held for moments, and is a leaf.
package sched

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/rate"
)

const (
	// grain is by how much somebody who waits must be earlier for a vCPU to lose its
	// permit, in virtual time: small enough that a rotation of some machines is a
	// matter of milliseconds, large enough that what a processor has in its caches is
	// worth something.
	grain = 2 * time.Millisecond
	// stint is for how long a vCPU keeps a permit that another one of its machine could
	// use. It is short, as that one may hold what the others wait for.
	stint = time.Millisecond
	// credit is how much earlier than the others a group comes back from a rest. It
	// must be more than a grain, or it would wait for those that execute; what most
	// evaluations need is done within it.
	credit = 12 * time.Millisecond
	// look is how often a vCPU looks at what is going on while that matters, and
	// sparing at every how many slices it reads the clock for that.
	look    = 200 * time.Microsecond
	sparing = 4

	// period is the time over which a bound holds: a group that has not used its
	// bound for as long can use all of it at once.
	period = 20 * time.Millisecond
	// pause is for how long a group that has used up its bound rests, or longer if
	// it has used more.
	pause = period / 2

	// UsualWeight is the weight of a group that has not been given one.
	UsualWeight = 100
)

// Scheduler hands out permits.
type Scheduler struct {
	processors func() int // immutable
	began      time.Time  // immutable

	crowded atomic.Bool // the queue is not empty
	full    atomic.Bool // no permit is free
	inTurn  atomic.Bool // who takes turns gives its permit back with each slice
	usher   usher

	mu      sync.Mutex
	running []*VCPU       // those that have permits
	queue   queue         // groups with vCPUs that wait, and nothing else to wait for
	floor   time.Duration // virtual time: the earliest of those that execute or wait; never goes back
	settled time.Duration // when those that execute were charged last
	tickets uint64        // drawn in the queue
	turning int           // groups in the queue that take turns
}

// New returns a scheduler of as many permits as processors says, which may change.
func New(processors func() int) *Scheduler {
	return &Scheduler{processors: processors, began: time.Now()}
}

func (s *Scheduler) now() time.Duration { return time.Since(s.began) }

// Group is the vCPUs of a machine. What follows its first fields is guarded by the
// scheduler's mu.
type Group struct {
	s      *Scheduler // immutable
	slower float64    // immutable; virtual time by real time
	bound  bool       // immutable

	used    time.Duration // processor time
	virtual time.Duration
	waiters []*VCPU // first come first
	running int
	at      int    // in the queue, or -1
	ticket  uint64 // when it came there
	turns   bool   // it takes turns; read by its vCPU without mu

	allowance rate.Bucket // nanoseconds of processor time
	enough    float64     // immutable; of them, to go on after a rest
	dry       bool        // the allowance is used up, and timer is set
	timer     *time.Timer
}

// Group makes a group of the given weight, the usual one if zero, whose vCPUs together
// get at most so many processors' time; zero is no bound.
func (s *Scheduler) Group(weight int, processors float64) *Group {
	if weight <= 0 {
		weight = UsualWeight
	}
	g := &Group{s: s, slower: float64(UsualWeight) / float64(weight), bound: processors > 0, at: -1}
	if g.bound {
		g.allowance = rate.NewBucket(processors*float64(time.Second), processors*float64(period), s.now())
		g.enough = processors * float64(pause)
	}
	return g
}

// Close stops the group's timer.
//
// Preconditions: no vCPU of the group has a permit or waits for one.
func (g *Group) Close() {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
	}
}

// VCPU is what has a permit or waits for one. Its methods are called by one goroutine.
type VCPU struct {
	group   *Group        // immutable
	granted chan struct{} // has an element when a permit has come for one that waits
	over    atomic.Bool   // give the permit back
	slices  uint          // of the goroutine
	looked  time.Duration // of the goroutine

	// Guarded by the scheduler's mu.
	since   time.Duration // when it got its permit
	charged time.Duration // up to when its time is accounted for
}

// VCPU makes a vCPU of the group.
func (g *Group) VCPU() *VCPU { return &VCPU{group: g, granted: make(chan struct{}, 1)} }

// TakeTurns has the vCPU, the only one of its group, be over with each slice while a few
// others wait that take turns too, and come back behind them; or no longer.
func (v *VCPU) TakeTurns(yes bool) {
	s := v.group.s
	s.mu.Lock()
	defer s.mu.Unlock()
	v.group.turns = yes
}

// Enter waits for a permit. Whenever wake has something meanwhile it calls attend, and
// gives up, returning false, if that says so.
func (v *VCPU) Enter(wake <-chan struct{}, attend func() (giveUp bool)) bool {
	v.looked = 0
	if v.group.s.enter(v) {
		return true
	}
	for {
		select {
		case <-v.granted:
			return true
		case <-wake:
			if attend() && v.group.s.cancel(v) {
				return false
			}
		}
	}
}

// Leave gives the permit back.
func (v *VCPU) Leave() { v.group.s.leave(v) }

// Over tells whether the vCPU should Leave, for others or because it has had its time.
// idle says that it has nothing better to do than to wait for another vCPU. It is called
// between slices, and lets whoever talks to guests have the processor first if all are
// taken.
func (v *VCPU) Over(idle bool) bool {
	s := v.group.s
	switch {
	case !s.full.Load() && !v.group.bound:
		return false
	case v.over.Load(), idle && s.crowded.Load(), v.group.turns && s.inTurn.Load():
		return true
	}
	if v.slices++; v.slices%sparing != 0 {
		return false
	}
	now := s.now()
	if now-v.looked < look {
		return false
	}
	v.looked = now
	if s.look(v, now) {
		return true
	}
	if s.full.Load() {
		s.usher.giveWay(s.now)
	}
	return false
}
