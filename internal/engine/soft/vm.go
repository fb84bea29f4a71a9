package soft

import (
	"fmt"
	"io"
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/device/plic"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft/sched"
	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/sbi"
	"github.com/forkd-dev/forkd/internal/state"
)

// tick is the period of the time CSR.
const tick = 100 * time.Nanosecond

// vm is one machine.
type vm struct {
	engine *Engine
	memory *memory.Space
	bus    *bus.Bus
	codes  *interp.Codes
	plic   *plic.PLIC
	group  *sched.Group
	vcpus  []*vcpu // immutable
	clock  func() time.Duration
	seeds  io.Reader // of harts
	chunk  int       // immutable; see slice

	world sync.RWMutex // see the package comment

	devices    sync.Mutex // held by whoever is at the devices, the firmware, or posts
	sbi        sbi.SBI    // guarded by devices
	generation uint64     // guarded by devices; of memory, when a vCPU last began to run

	posts engine.Posts
	later later
}

func newVM(e *Engine, cfg engine.Config) (*vm, error) {
	m := &vm{
		engine: e,
		memory: cfg.Memory,
		bus:    cfg.Bus,
		codes:  interp.NewCodes(cfg.Memory, e.code),
		group:  e.processors.Group(cfg.CPUWeight, bound(cfg)),
		clock:  cfg.Clock,
		seeds:  cfg.Entropy,
		chunk:  slice,
	}
	if cfg.VCPUs > 1 {
		m.chunk = chunk
	}
	cfg.Memory.Share(cfg.VCPUs, m.exclusively)
	m.sbi = sbi.SBI{Memory: cfg.Memory, Console: cfg.Console, Host: m}
	for id := range cfg.VCPUs {
		h, err := m.newHart(id, cfg.State)
		if err != nil {
			return nil, err
		}
		m.vcpus = append(m.vcpus, newVCPU(m, h))
	}
	if cfg.Boot != nil {
		m.plic = plic.New(cfg.VCPUs, m.external)
		m.vcpus[0].hart.Start(cfg.Boot.Entry, cfg.Boot.Params)
	} else {
		var err error
		if m.plic, err = plic.Restore(cfg.State, cfg.VCPUs, m.external); err != nil {
			return nil, err
		}
	}
	for _, v := range m.vcpus {
		m.sbi.Stopped = append(m.sbi.Stopped, v.hart.Power == hart.Stopped)
	}
	return m, nil
}

// bound returns how many processors' time a machine gets at most; zero is no bound.
func bound(cfg engine.Config) float64 {
	if cfg.CPU >= float64(cfg.VCPUs) {
		return 0
	}
	return cfg.CPU
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

// Time implements engine.VM.
func (m *vm) Time() time.Duration { return m.clock() }

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

// exclusively calls fn while no vCPU executes. The caller is not in the world.
func (m *vm) exclusively(fn func()) {
	for _, v := range m.vcpus {
		v.attention.Store(true)
	}
	m.world.Lock()
	defer m.world.Unlock()
	fn()
}

// Interrupt implements sbi.Host.
func (m *vm) Interrupt(id int) {
	v := m.vcpus[id]
	v.software.Store(true)
	v.notify()
}

// Start implements sbi.Host.
func (m *vm) Start(id int, entry, opaque uint64) {
	v := m.vcpus[id]
	v.start.Store(&start{entry, opaque})
	v.notify()
}

// Fence implements sbi.Host.
func (m *vm) Fence(harts uint64, f sbi.Fence) {
	executing := false
	for ; harts != 0; harts &= harts - 1 {
		v := m.vcpus[bits.TrailingZeros64(harts)]
		v.addFence(f)
		executing = executing || v.view.Executing()
	}
	// One that was not executing looks for fences before it does.
	if executing {
		m.exclusively(func() {})
	}
}

// atDevices calls fn, which may use devices, firmware and what was posted, and may
// write to guest memory as devices do. The caller is not in the world.
func (m *vm) atDevices(fn func()) {
	m.devices.Lock()
	defer m.devices.Unlock()
	defer m.memory.Return()
	fn()
}

// Post implements engine.VM.
func (m *vm) Post(fn func()) {
	m.posts.Add(fn)
	for _, v := range m.vcpus {
		v.notify()
	}
}

// Drain implements engine.VM.
func (m *vm) Drain() { m.runPosts() }

// CodeBytes implements engine.VM.
func (m *vm) CodeBytes() int { return m.codes.Bytes() }

// Halted implements engine.VM. A guest halts by asking the firmware to switch it off.
func (m *vm) Halted() bool { return false }

// Busy implements engine.VM.
func (m *vm) Busy() bool { return m.group.Busy() }

// Sleep implements engine.VM.
func (m *vm) Sleep() time.Duration {
	first := uint64(hart.NeverTimer)
	for _, v := range m.vcpus {
		first = min(first, v.asleep.Load())
	}
	now := m.ticks()
	if first <= now {
		return 0
	}
	return span(first - now)
}

// span returns so many ticks as a time.
func span(ticks uint64) time.Duration {
	return time.Duration(min(ticks, math.MaxInt64/uint64(tick))) * tick
}

// runPosts runs what was posted, and has the machine pay for it. The caller is not in the
// world.
func (m *vm) runPosts() {
	m.posts.Run(func(fn func()) {
		m.atDevices(func() {
			began := time.Now()
			fn()
			m.group.Charge(time.Since(began), len(m.vcpus))
		})
	})
}

// begin notices whether pages changed their places while no vCPU ran: memory was
// sealed or packed, and what was decoded from its old pages is of no use.
func (m *vm) begin() {
	m.devices.Lock()
	defer m.devices.Unlock()
	if g := m.memory.Generation(); g != m.generation {
		m.codes.Forget()
		m.generation = g
	}
}

// Save implements engine.VM.
func (m *vm) Save(w *state.Writer) {
	for id, v := range m.vcpus {
		v.restart()
		v.refresh()
		v.hart.Save(w.Section(sectionKind(id), hart.StateVersion))
	}
	m.plic.Save(w)
}

// Close implements engine.VM.
func (m *vm) Close() error {
	for _, v := range m.vcpus {
		v.giveUp()
		m.engine.pool.forget(v)
	}
	m.later.close()
	m.group.Close()
	m.codes.Forget()
	return nil
}
