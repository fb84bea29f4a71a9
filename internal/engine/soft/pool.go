package soft

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/riscv/interp"
)

// pool lends execution contexts, of which there are some for each processor of
// the host. A context that comes back stays attached to its vCPU until somebody
// else needs it, so that a vCPU which waits for moments finds its caches warm: in a
// burst of children, of which each waits a few times, that saved a tenth of the
// CPU time over one context for each processor. Who finds none waits in line.
type pool struct {
	mu      sync.Mutex
	made    int         // guarded by mu
	idle    []lent      // guarded by mu; least recently used first
	waiters []*waiter   // guarded by mu; first come first
	wanted  atomic.Bool // somebody waits
	full    atomic.Bool // as many are lent as there are processors
}

// perProcessor is how many contexts there are at most for each processor.
const perProcessor = 6

// lent is a context and the vCPU that it is attached to, if any.
type lent struct {
	cpu   *interp.CPU
	owner *vcpu
}

type waiter struct{ got chan lent }

// get returns a context for v, which must attach it if the owner is another.
// It gives up, with ok false, if v is kicked.
func (p *pool) get(v *vcpu) (l lent, ok bool) {
	l, w := p.take(v)
	if w == nil {
		return l, true
	}
	for {
		select {
		case l = <-w.got:
			return l, true
		case <-v.wake:
			if v.kicked.Load() && p.cancel(w) {
				return lent{}, false
			}
		}
	}
}

// take returns a context, or a place in line.
func (p *pool) take(v *vcpu) (lent, *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.count()
	i := slices.IndexFunc(p.idle, func(l lent) bool { return l.owner == v })
	switch {
	case i >= 0:
	case p.made < perProcessor*runtime.GOMAXPROCS(0):
		p.made++
		return lent{cpu: new(interp.CPU)}, nil
	case len(p.idle) > 0:
		i = 0
	default:
		w := &waiter{make(chan lent, 1)}
		p.waiters = append(p.waiters, w)
		p.wanted.Store(true)
		return lent{}, w
	}
	l := p.idle[i]
	p.idle = slices.Delete(p.idle, i, i+1)
	return l, nil
}

// cancel leaves the line, unless a context is on its way already.
func (p *pool) cancel(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiters, w)
	if i < 0 {
		return false
	}
	p.waiters = slices.Delete(p.waiters, i, i+1)
	p.wanted.Store(len(p.waiters) > 0)
	return true
}

// put takes back a context.
func (p *pool) put(l lent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiters) == 0 {
		p.idle = append(p.idle, l)
		p.count()
		return
	}
	p.waiters[0].got <- l
	p.waiters = slices.Delete(p.waiters, 0, 1)
	p.wanted.Store(len(p.waiters) > 0)
}

// count notes whether all processors are taken. The caller holds p.mu.
func (p *pool) count() { p.full.Store(p.made-len(p.idle) >= runtime.GOMAXPROCS(0)) }

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
