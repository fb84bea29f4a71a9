package sched

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

// queue is a heap of groups, the earliest first.
type queue []*Group

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.virtual != b.virtual {
		return a.virtual < b.virtual
	}
	return a.ticket < b.ticket
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

func (q *queue) Push(x any) {
	g := x.(*Group)
	g.at = len(*q)
	*q = append(*q, g)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	g := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	g.at = -1
	return g
}

// All below is called with the scheduler's mu held, but for the first line of each
// entry.

// enter gives v a permit at once, or a place among those that wait.
func (s *Scheduler) enter(v *VCPU) (granted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, g := s.now(), v.group
	s.settle(now)
	if g.running == 0 && len(g.waiters) == 0 {
		g.virtual = max(g.virtual, s.floor-credit)
	}
	g.exhaust(now)
	if !g.dry && len(s.queue) == 0 && len(s.running) < s.processors() {
		s.grant(v, now)
		return true
	}
	g.waiters = append(g.waiters, v)
	s.behind(g)
	s.line(g)
	s.prompt(g)
	return false
}

// leave takes v's permit back.
func (s *Scheduler) leave(v *VCPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.charge(v, now)
	s.running = slices.DeleteFunc(s.running, func(r *VCPU) bool { return r == v })
	v.group.running--
	v.group.exhaust(now)
	s.dispatch(now)
}

// cancel takes v out of those that wait, unless a permit is on its way.
func (s *Scheduler) cancel(v *VCPU) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := v.group
	i := slices.Index(g.waiters, v)
	if i < 0 {
		return false
	}
	g.waiters = slices.Delete(g.waiters, i, i+1)
	s.line(g)
	return true
}

// look tells whether v should give its permit back.
func (s *Scheduler) look(v *VCPU, now time.Duration) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charge(v, now)
	v.group.exhaust(now)
	s.settle(now)
	s.dispatch(now) // there may be more processors than there were, or fewer
	g := v.group
	return g.dry || len(s.running) > s.processors() ||
		len(g.waiters) > 0 && now-v.since > stint ||
		len(s.queue) > 0 && g.virtual > s.queue[0].virtual+grain
}

// refilled ends the rest of a group that had used up its allowance.
func (g *Group) refilled() {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if g.dry = false; g.exhaust(now) {
		return // the timer was early
	}
	s.settle(now)
	// A rest that it had to take earns it no credit.
	g.virtual = max(g.virtual, s.floor)
	s.line(g)
	s.dispatch(now)
	s.prompt(g)
}

// grant gives v a permit.
func (s *Scheduler) grant(v *VCPU, now time.Duration) {
	v.since, v.charged = now, now
	v.over.Store(false)
	v.group.running++
	s.running = append(s.running, v)
	s.full.Store(len(s.running) >= s.processors())
}

// dispatch hands out the permits that are free.
func (s *Scheduler) dispatch(now time.Duration) {
	for len(s.queue) > 0 && len(s.running) < s.processors() {
		g := s.queue[0]
		v := g.waiters[0]
		g.waiters = slices.Delete(g.waiters, 0, 1)
		s.line(g)
		s.grant(v, now)
		v.granted <- struct{}{}
	}
	s.full.Store(len(s.running) >= s.processors())
}

// behind puts a group that takes turns behind those that do and wait.
func (s *Scheduler) behind(g *Group) {
	if !g.turns || s.turning == 0 {
		return
	}
	for _, w := range s.queue {
		if w.turns {
			g.virtual = max(g.virtual, w.virtual)
		}
	}
}

// line has the queue agree with what g waits for.
func (s *Scheduler) line(g *Group) {
	waits := len(g.waiters) > 0 && !g.dry
	switch {
	case waits && g.at < 0:
		s.tickets++
		g.ticket = s.tickets
		heap.Push(&s.queue, g)
		s.count(g, 1)
	case waits:
		heap.Fix(&s.queue, g.at)
	case g.at >= 0:
		heap.Remove(&s.queue, g.at)
		s.count(g, -1)
	}
	s.crowded.Store(len(s.queue) > 0)
}

// count follows the arrival or the departure of a group.
func (s *Scheduler) count(g *Group, by int) {
	if g.turns {
		s.turning += by
		s.inTurn.Store(0 < s.turning && s.turning <= s.processors())
	}
}

// prompt has those that execute give their permits back, if g waits and is earlier by
// more than a grain. One of them would do, but it is not known which one will look soonest:
// the host may just have taken the processor away from it.
func (s *Scheduler) prompt(g *Group) {
	if g.at < 0 {
		return
	}
	for _, v := range s.running {
		if v.group.virtual > g.virtual+grain {
			v.over.Store(true)
		}
	}
}

// settle charges those that execute, unless that was done a moment ago.
func (s *Scheduler) settle(now time.Duration) {
	if now-s.settled < look {
		return
	}
	s.settled = now
	earliest := time.Duration(math.MaxInt64)
	for _, v := range s.running {
		s.charge(v, now)
		v.group.exhaust(now)
		earliest = min(earliest, v.group.virtual)
	}
	if len(s.queue) > 0 {
		earliest = min(earliest, s.queue[0].virtual)
	}
	if earliest < math.MaxInt64 {
		s.floor = max(s.floor, earliest)
	}
}

// charge accounts for what v has used.
func (s *Scheduler) charge(v *VCPU, now time.Duration) {
	g, used := v.group, now-v.charged
	v.charged = now
	g.used += used
	g.virtual += time.Duration(float64(used) * g.slower)
	if g.bound {
		g.allowance.Take(now, float64(used))
	}
	if g.at >= 0 {
		heap.Fix(&s.queue, g.at)
	}
}

// exhaust has a group rest that has used up its allowance, and tells whether it does.
func (g *Group) exhaust(now time.Duration) bool {
	if !g.bound || g.dry || g.allowance.Level(now) > 0 {
		return g.dry
	}
	g.dry = true
	g.s.line(g)
	for _, v := range g.s.running {
		if v.group == g {
			v.over.Store(true)
		}
	}
	wait := g.allowance.Until(now, g.enough)
	if g.timer == nil {
		g.timer = time.AfterFunc(wait, g.refilled)
	} else {
		g.timer.Reset(wait)
	}
	return true
}
