package soft

import (
	"runtime"
	"sync"

	"github.com/forkd-dev/forkd/internal/riscv/interp"
)

// pool lends execution contexts. A context that comes back stays attached to
// its vCPU for as long as nobody else needs it, so that a vCPU which waits for
// moments finds its caches warm.
type pool struct {
	mu   sync.Mutex
	idle []lent // guarded by mu; least recently used first
}

type lent struct {
	cpu   *interp.CPU
	owner *vcpu
}

// maxIdle is how many contexts are kept.
func maxIdle() int { return 2 * runtime.GOMAXPROCS(0) }

// get returns a context attached to v.
func (p *pool) get(v *vcpu) *interp.CPU {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.idle {
		if l.owner == v {
			p.remove(i)
			return l.cpu
		}
	}
	var cpu *interp.CPU
	if len(p.idle) >= maxIdle() {
		cpu = p.idle[0].cpu
		p.remove(0)
	} else {
		cpu = new(interp.CPU)
	}
	cpu.Attach(&v.vm.machine, v.hart)
	return cpu
}

func (p *pool) remove(i int) { p.idle = append(p.idle[:i], p.idle[i+1:]...) }

// put takes back the context that v used.
func (p *pool) put(v *vcpu, cpu *interp.CPU) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) >= maxIdle() {
		p.remove(0)
	}
	p.idle = append(p.idle, lent{cpu, v})
}

// forget drops the context that is still attached to v.
func (p *pool) forget(v *vcpu) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.idle {
		if l.owner == v {
			p.remove(i)
			return
		}
	}
}
