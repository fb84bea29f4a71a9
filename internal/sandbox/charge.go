package sandbox

import (
	"maps"
	"sync"
)

// Cost is what a child takes of its host at least.
type Cost struct {
	Memory int64 // bytes
	Files  int   // descriptors
}

// usualCost is that of an engine in whose process its machines live and that finds
// memory for the pages they write only: an evaluation in a child leaves it 0.1 to
// 0.4 MiB of its own, as `forkd bench` measures.
var usualCost = Cost{Memory: 1 << 20}

// buildCost is what a parent and its host take while a snapshot of it is made: a
// parent with 512 MiB of RAM has touched 160 of them when it is frozen, and kernel,
// initramfs and packages are in memory for a while.
func buildCost(memoryMiB int) int64 { return int64(memoryMiB)<<20/2 + 64<<20 }

// debts are what the sandboxes that exist have of the host's memory, in bytes.
type debts struct {
	boxes  int              // that exist
	held   int64            // memory that they have for themselves
	owed   int64            // that they have not taken yet of their prices
	prices map[string]int64 // of a child, by tag, if there are any
}

// debts looks at all sandboxes, by their last figures. A child that was used tells what its siblings will
// need; one that was not has not taken anything yet.
func (m *Manager) debts() debts {
	m.mu.Lock()
	boxes := maps.Clone(m.boxes)
	m.mu.Unlock()
	d := debts{boxes: len(boxes), prices: make(map[string]int64)}
	private, used := make(map[*box]int64, len(boxes)), make(map[string]*average)
	for _, b := range boxes {
		if b.state() != Running {
			continue
		}
		private[b] = b.machine.MemoryBytes()
		d.held += private[b]
		if !b.isAwake() {
			continue
		}
		if used[b.tag] == nil {
			used[b.tag] = m.spent.of(b.tag)
		}
		used[b.tag].add(float64(private[b]), len(boxes)+averageWeight)
	}
	for tag, a := range used {
		d.prices[tag] = int64(a.mean)
	}
	for b, has := range private {
		d.owed += max(0, m.price(b.tag, b.limits, d.prices)-has)
	}
	return d
}

// price is what a child is charged: what its siblings need on average, at least what
// any does, and at most what it may have.
func (m *Manager) price(tag string, l Limits, prices map[string]int64) int64 {
	p, known := prices[tag]
	if !known {
		p = int64(m.spent.of(tag).mean)
	}
	p = max(p, m.opts.Child.Memory)
	if l.MemoryMiB > 0 {
		p = min(p, int64(l.MemoryMiB)<<20)
	}
	return p
}

// priced adds what its sandboxes cost to a need. The caller holds admission.mu.
func (m *Manager) priced(n need) need {
	n.memory += int64(n.boxes) * m.price(n.tag, n.limits, m.admission.last.prices)
	n.files += n.boxes * m.opts.Child.Files
	return n
}

// A mean of children that have ended counts as much as averageWeight children that
// run, and is kept of so many tags.
const (
	averageWeight = 8
	maxAverages   = 4096
)

// average is a mean of the last values.
type average struct {
	mean float64
	n    int // how much it counts
}

// add adds a value; the mean counts for at most as much as most values.
func (a *average) add(v float64, most int) {
	a.n = min(a.n+1, most)
	a.mean += (v - a.mean) / float64(a.n)
}

// A value counts for no more than so many times the mean, and something: that one child
// was a hog does not mean that all others will be.
const (
	outlier = 4
	modest  = 4 << 20 // bytes
)

// learn is add for a value that may be far off.
func (a *average) learn(v float64, most int) { a.add(min(v, outlier*a.mean+modest), most) }

// averages are what children had for themselves when they ended, by tag.
type averages struct {
	mu  sync.Mutex
	all map[string]average // guarded by mu
}

// of returns a copy of the average of a tag.
func (a *averages) of(tag string) *average {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.all[tag]
	return &v
}

// learn notes what a child had that has ended.
func (a *averages) learn(b *box) {
	if !b.isAwake() || b.relic != "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil || len(a.all) >= maxAverages {
		a.all = make(map[string]average)
	}
	v := a.all[b.tag]
	v.learn(float64(b.machine.MemoryBytes()), averageWeight)
	a.all[b.tag] = v
}

// need is what a sandbox takes of the host that is made again.
func (c *birth) need(what string) need {
	return need{what: what, boxes: 1, tag: c.tag, limits: c.limits}
}

// branchNeed is what a branch takes of the host that is made of a snapshot alone.
func (m *Manager) branchNeed(id, tag string, spec BranchSpec) need {
	n := need{what: "branching sandbox " + id}
	if spec.Mode != BranchFull {
		return n
	}
	if man := m.store.Inspect(tag).Manifest; man != nil {
		n.disk = man.Memory.Bytes() + man.Scratch.Bytes()
	}
	return n
}

// needOf is branchNeed for a sandbox that runs: what it has for itself is written, and
// it writes its pages anew.
func (m *Manager) needOf(b *box, spec BranchSpec) need {
	n := m.branchNeed(b.id, b.tag, spec)
	b.machine.Refresh()
	n.memory = m.price(b.tag, b.limits, nil)
	n.disk += b.machine.PageBytes()
	return n
}
