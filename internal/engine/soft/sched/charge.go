package sched

import "time"

// Devices work for a machine without a permit: they do what is posted, and most of that is bytes
// that somebody waits for. The machine pays for it all the same. What a guest has its devices go
// on with, maybe for ever, has to wait besides until a vCPU of the machine might execute.

// Charge accounts for processor time that the goroutine of one of the group's vCPUs, of which
// there are so many, has used just now. If all of them have permits it is accounted for already.
func (g *Group) Charge(used time.Duration, vcpus int) {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.running >= vcpus {
		return
	}
	now := s.now()
	s.settle(now)
	if g.running == 0 && len(g.waiters) == 0 {
		g.virtual = max(g.virtual, s.floor-credit)
	}
	s.charge(&VCPU{group: g, charged: now - used}, now)
	g.exhaust(now)
}

// Busy reports whether a vCPU of the group has a permit or waits for one.
func (g *Group) Busy() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.running > 0 || len(g.waiters) > 0
}

// Used returns the processor time that the group has had.
func (g *Group) Used() time.Duration {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	now := g.s.now()
	for _, v := range g.s.running {
		if v.group == g {
			g.s.charge(v, now)
		}
	}
	return g.used
}

// Wait returns how long the group is to put off what it does without a permit, zero if it need
// not: as long as it has used up its bound, and for a grain if permits are scarce and others are
// earlier. Who has waited asks again.
func (g *Group) Wait() time.Duration {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.settle(now)
	if g.exhaust(now) {
		return max(look, g.allowance.Until(now, g.enough))
	}
	if len(s.running) >= s.processors() && g.virtual > s.floor+grain {
		return grain
	}
	return 0
}
