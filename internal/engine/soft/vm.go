package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/device/plic"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/sbi"
	"github.com/forkd-dev/forkd/internal/state"
)

// tick is the period of the time CSR.
const tick = 100 * time.Nanosecond

// vm is one machine.
type vm struct {
	engine  *Engine
	machine interp.Machine
	plic    *plic.PLIC
	sbi     sbi.SBI
	vcpus   []*vcpu // immutable
	clock   func() time.Duration

	turn  sync.Mutex
	last  *vcpu  // guarded by turn; who executed last
	inRun int    // guarded by turn; vCPUs in Run
	moves uint64 // guarded by turn; of memory, when the last vCPU left Run

	postMu sync.Mutex
	posts  []func()    // guarded by postMu
	posted atomic.Bool // posts is not empty
}

func newVM(e *Engine, cfg engine.Config) (*vm, error) {
	m := &vm{
		engine: e,
		machine: interp.Machine{
			Memory: cfg.Memory,
			Bus:    cfg.Bus,
			Codes:  interp.NewCodes(cfg.Memory, e.code),
		},
		clock: cfg.Clock,
	}
	for id := range cfg.VCPUs {
		h, err := m.newHart(id, cfg.State)
		if err != nil {
			return nil, err
		}
		m.vcpus = append(m.vcpus, &vcpu{vm: m, hart: h, wake: make(chan struct{}, 1)})
		m.sbi.Harts = append(m.sbi.Harts, h)
	}
	m.sbi.Memory, m.sbi.Console, m.sbi.Host = cfg.Memory, cfg.Console, m
	if cfg.Boot != nil {
		m.plic = plic.New(cfg.VCPUs, m.external)
		m.vcpus[0].hart.Start(cfg.Boot.Entry, cfg.Boot.DTB)
		return m, nil
	}
	var err error
	m.plic, err = plic.Restore(cfg.State, cfg.VCPUs, m.external)
	return m, err
}

func (m *vm) newHart(id int, r *state.Reader) (*hart.Hart, error) {
	if r == nil {
		return hart.New(id, m.ticks), nil
	}
	d, err := r.Take(sectionKind(id), hart.StateVersion)
	if err != nil {
		return nil, err
	}
	h := hart.Restore(id, m.ticks, d)
	return h, d.Done()
}

func sectionKind(id int) string { return fmt.Sprintf("vcpu/riscv64/%d", id) }

// ticks is the time CSR.
func (m *vm) ticks() uint64 { return uint64(m.clock() / tick) }

// VCPUs implements engine.VM.
func (m *vm) VCPUs() []engine.VCPU {
	vs := make([]engine.VCPU, len(m.vcpus))
	for i, v := range m.vcpus {
		vs[i] = v
	}
	return vs
}

// Line implements engine.VM.
func (m *vm) Line(n int) irq.Line { return m.plic.Line(n) }

// external is what the interrupt controller calls, from any goroutine.
func (m *vm) external(context int, level bool) {
	v := m.vcpus[context]
	v.external.Store(level)
	if level {
		v.notify()
	}
}

// Wake implements sbi.Host.
func (m *vm) Wake(id int) { m.vcpus[id].notify() }

// Fence implements sbi.Host. The caller holds the turn, so that the hart
// executes nothing until it has taken it.
func (m *vm) Fence(id int, f sbi.Fence) {
	v := m.vcpus[id]
	if len(v.fences) >= maxFences {
		v.fences = []sbi.Fence{{}, {Code: true}} // everything
		return
	}
	v.fences = append(v.fences, f)
}

// maxFences bounds what is remembered for a hart that does not run.
const maxFences = 32

// Post implements engine.VM.
func (m *vm) Post(fn func()) {
	m.postMu.Lock()
	m.posts = append(m.posts, fn)
	m.posted.Store(true)
	m.postMu.Unlock()
	for _, v := range m.vcpus {
		v.notify()
	}
}

// Drain implements engine.VM.
func (m *vm) Drain() {
	m.turn.Lock()
	defer m.turn.Unlock()
	m.runPosts()
}

// runPosts runs what was posted, including what that posts. The caller holds
// the turn.
func (m *vm) runPosts() {
	for m.posted.Load() {
		m.postMu.Lock()
		posts := m.posts
		m.posts = nil
		m.posted.Store(false)
		m.postMu.Unlock()
		for _, fn := range posts {
			fn()
		}
	}
}

// Save implements engine.VM.
func (m *vm) Save(w *state.Writer) {
	m.turn.Lock()
	defer m.turn.Unlock()
	for id, v := range m.vcpus {
		v.refresh()
		v.hart.Save(w.Section(sectionKind(id), hart.StateVersion))
	}
	m.plic.Save(w)
}

// Close implements engine.VM.
func (m *vm) Close() error {
	m.turn.Lock()
	defer m.turn.Unlock()
	for _, v := range m.vcpus {
		m.engine.pool.forget(v)
	}
	m.machine.Codes.Forget()
	return nil
}
