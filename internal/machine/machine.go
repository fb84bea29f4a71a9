// Package machine is one virtual machine: engine, board, memory and devices
// joined, and their life from boot or restore to the end.
//
// A machine is made whole by New, from a kernel or from saved state; there is
// no half-restored machine. It runs nothing until Start. Pause returns when no
// vCPU executes and no device touches guest memory; only a machine that is not
// running can be saved. A machine that ended (the guest powered off, the host
// ran out of pages) stays inspectable until Close.
//
// One goroutine drives each vCPU while the machine runs; there are no others.
// A vCPU that waits for an interrupt blocks its goroutine without a thread.
//
// Lock order: Machine.mu is held while goroutines start and stop, and never
// while the engine or a device runs.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/device/power"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/vsock"
)

// ErrEnded reports that the machine runs no more.
var ErrEnded = errors.New("machine has ended")

// Config is what a machine is made of. Exactly one of Boot and State is set.
type Config struct {
	Engine engine.Engine
	VCPUs  int
	// Memory, Root and Scratch are the machine's RAM and disks. New takes over
	// Memory and Scratch, also when it fails; it retains Root.
	Memory  page.Top // from the engine's NewMemory
	Root    *page.Stack
	Scratch *page.Overlay
	Limits  Limits
	// GenerationID is the VM generation ID; a fork has another than its source.
	GenerationID [16]byte
	// Entropy feeds the guest's random number device, and its CPU's.
	Entropy io.Reader
	// Console takes what the guest prints.
	Console io.Writer
	// OnEnd is called, on a goroutine of its own, when the machine ends by
	// itself; it may close the machine.
	OnEnd func()

	Boot  *Boot
	State []byte // as Save returned it
}

// Boot is a kernel to start.
type Boot struct {
	Kernel      []byte
	Initrd      []byte
	CommandLine string
	Seed        []byte // for the kernel's random number generator
}

// Ending is why a machine ended: Err if the host could not go on, else Exit.
type Ending struct {
	Exit engine.Exit
	Err  error
}

func (e Ending) String() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return map[engine.Exit]string{
		engine.Off:    "the guest powered off",
		engine.Reset:  "the guest rebooted",
		engine.Failed: "the guest failed and powered off",
	}[e.Exit]
}

// Machine is one virtual machine. Its methods may be called from any
// goroutine unless they say otherwise.
type Machine struct {
	space   *memory.Space
	board   *board.Map
	overlay page.Top // RAM
	scratch *page.Overlay
	root    *page.Stack
	vm      engine.VM
	devices *devices
	clock   clock
	looks   looks

	stop  atomic.Bool // asks vCPU goroutines to return
	done  chan struct{}
	onEnd func()
	power atomic.Int32 // 1 + engine.Exit that the guest asked for, or 0

	mu      sync.Mutex
	vcpus   sync.WaitGroup // goroutines in Run; added to under mu
	running bool           // guarded by mu
	closed  bool           // guarded by mu
	endOnce sync.Once
	ending  Ending // written before done is closed
}

// New makes a machine that is ready to Start.
func New(cfg Config) (_ *Machine, err error) {
	m := &Machine{
		overlay: cfg.Memory,
		scratch: cfg.Scratch,
		root:    cfg.Root.Retain(),
		done:    make(chan struct{}),
		onEnd:   cfg.OnEnd,
	}
	m.looks.look = m.Look
	made := false
	defer func() {
		if !made { // not by an error only: a page that cannot be read is a panic
			m.release()
		}
	}()
	if err := cfg.Limits.Check(); err != nil {
		return nil, err
	}
	if n := cfg.Limits.diskPages(); n > 0 {
		m.scratch.SetQuota(n)
	}
	if m.board, err = board.For(string(cfg.Engine.ISA())); err != nil {
		return nil, err
	}
	if m.space, err = memory.NewSpace(slots(m.board, cfg.Memory)...); err != nil {
		return nil, err
	}
	ec := engine.Config{
		Memory:    m.space,
		Bus:       new(bus.Bus),
		VCPUs:     cfg.VCPUs,
		Clock:     m.clock.now,
		CPU:       cfg.Limits.CPU,
		CPUWeight: cfg.Limits.CPUWeight,
		Console:   cfg.Console,
		Entropy:   cfg.Entropy,
	}
	if cfg.Boot != nil {
		ec.Boot, err = load(m.board, m.space, cfg)
	} else {
		ec.State, err = m.parse(cfg.State)
	}
	if err != nil {
		return nil, err
	}
	if err := m.wire(cfg, ec); err != nil {
		return nil, err
	}
	if ec.State != nil {
		if err := ec.State.Done(); err != nil {
			return nil, err
		}
	}
	made = true
	return m, nil
}

// slots returns where a board has memory.
func slots(m *board.Map, pages page.Top) (slots []memory.Slot) {
	for _, r := range m.RAM(uint64(pages.Limit()) << page.Shift) {
		slots = append(slots, memory.Slot{
			Base: r.GPA, Pages: pages, First: page.Number(r.Offset >> page.Shift), Count: page.Number(r.Size >> page.Shift),
		})
	}
	return slots
}

const (
	clockSection = "clock"
	clockVersion = 1
)

// parse opens saved state and takes the machine's own section from it.
func (m *Machine) parse(saved []byte) (*state.Reader, error) {
	r, err := state.Parse(saved)
	if err != nil {
		return nil, err
	}
	d, err := r.Take(clockSection, clockVersion)
	if err != nil {
		return nil, err
	}
	m.clock.base = time.Duration(d.U64())
	if m.clock.base < 0 {
		d.Fail("guest clock is negative")
	}
	return r, d.Done()
}

// clock is the guest's monotonic time: it stands still until the machine is
// started for the first time, then follows the host's.
type clock struct {
	base    time.Duration
	started atomic.Pointer[time.Time]
}

// start has the clock go on as of then, if it has not been started. An instant that is
// to come is now.
func (c *clock) start(then time.Time) {
	now := time.Now()
	// With the reading of the monotonic clock, which then may lack.
	t := now.Add(min(0, then.Sub(now)))
	c.started.CompareAndSwap(nil, &t)
}

func (c *clock) now() time.Duration {
	if t := c.started.Load(); t != nil {
		return c.base + time.Since(*t)
	}
	return c.base
}

// zero returns the host's wall clock at the instant at which the guest's time was
// or would have been zero. One reading of the host's clocks decides it, so it does
// not matter how busy the host is.
func (c *clock) zero() time.Time {
	now := time.Now()
	if t := c.started.Load(); t != nil {
		return now.Add(-c.base - now.Sub(*t))
	}
	return now.Add(-c.base)
}

// Age returns the guest's time counter, which stands still until the machine is started.
func (m *Machine) Age() time.Duration { return m.clock.now() }

// ClockZero returns the host's wall clock at the instant at which the guest's time
// counter was zero: the guest's present is ClockZero plus its counter, whenever
// the guest comes to look at it. The machine must have been started.
func (m *Machine) ClockZero() time.Time { return m.clock.zero() }

// Start runs the vCPUs. It does nothing if they run already, and returns
// ErrEnded if the machine has ended.
func (m *Machine) Start() error { return m.StartAsOf(time.Now()) }

// StartAsOf is Start for a machine whose time, if it has never run, is to go on as of
// then, which is not to come.
func (m *Machine) StartAsOf(then time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.ended() {
		return ErrEnded
	}
	if m.running {
		return nil
	}
	m.clock.start(then)
	m.start()
	return nil
}

// start sends the vCPUs off. The caller holds m.mu.
func (m *Machine) start() {
	m.running = true
	m.stop.Store(false)
	for _, v := range m.vm.VCPUs() {
		m.vcpus.Go(func() { m.run(v) })
	}
}

// run drives one vCPU until it is told to stop or the machine ends.
//
// Pages are mapped from snapshot files. Should somebody truncate one, reading
// it faults, and that ends this machine instead of the process.
func (m *Machine) run(v engine.VCPU) {
	err := page.Guard(func() error {
		m.execute(v)
		return nil
	})
	if err != nil {
		m.endUnread(err)
	}
}

// endUnread ends the machine for a page that it needs and that could not be read.
func (m *Machine) endUnread(err error) {
	m.end(Ending{Err: fmt.Errorf("reading the snapshot's pages: %w", err)})
}

func (m *Machine) execute(v engine.VCPU) {
	for !m.stop.Load() {
		exit, err := v.Run()
		switch asked := m.power.Load(); {
		case err != nil:
			m.end(Ending{Err: err})
		case asked != 0:
			m.end(Ending{Exit: engine.Exit(asked - 1)})
		case exit != engine.Kicked:
			m.end(Ending{Exit: exit})
		}
	}
}

// end records why the machine ended and stops the other vCPUs. Host
// connections into the guest fail from now on.
func (m *Machine) end(e Ending) {
	m.endOnce.Do(func() {
		m.ending = e
		close(m.done)
		m.devices.close()
		if m.onEnd != nil {
			go m.onEnd()
		}
	})
	m.kick()
}

func (m *Machine) kick() {
	m.stop.Store(true)
	for _, v := range m.vm.VCPUs() {
		v.Kick()
	}
}

// powerRequest is called by the power device, on a vCPU's goroutine.
func (m *Machine) powerRequest(a power.Action, _ uint16) {
	exit := map[power.Action]engine.Exit{power.Off: engine.Off, power.Reset: engine.Reset, power.Failed: engine.Failed}[a]
	m.power.CompareAndSwap(0, 1+int32(exit))
	for _, v := range m.vm.VCPUs() {
		v.Kick()
	}
}

// Pause stops the vCPUs and returns when none executes. A later Start goes on.
func (m *Machine) Pause() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pause()
}

func (m *Machine) pause() {
	if !m.running {
		return
	}
	m.kick()
	m.vcpus.Wait()
	m.running = false
}

// Frozen is a machine at one instant. The stacks are references that the
// caller releases.
type Frozen struct {
	State   []byte
	Memory  *page.Stack
	Scratch *page.Stack
}

// Freeze seals RAM and scratch disk and saves vCPUs and devices, all of the
// same instant. The machine must be paused, and can go on afterwards.
func (m *Machine) Freeze() (*Frozen, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running {
		return nil, errors.New("machine must be paused before it is frozen")
	}
	return m.freeze()
}

// Branch is Pause, Freeze and Start in one: the machine stands still only for the
// moment that it takes to seal its overlays, and goes on whatever happens. One
// that does not run is frozen as it is, and does not run afterwards.
//
// What was packed has to be unpacked, which is done here if it was not before;
// see Prepare.
func (m *Machine) Branch() (f *Frozen, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.still(func() { f, err = m.freeze() })
	return f, err
}

// Prepare does ahead what a Branch that should be quick would have to do otherwise; see
// page.Top. The machine may run meanwhile.
func (m *Machine) Prepare() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrEnded
	}
	return page.Guard(m.overlay.Prepare)
}

// freeze is Freeze for a caller that holds m.mu. The machine ends if a device has to stop in
// the middle of what it does.
func (m *Machine) freeze() (f *Frozen, err error) {
	if m.closed || m.ended() {
		return nil, ErrEnded
	}
	err = page.Guard(func() error {
		m.vm.Drain()
		return nil
	})
	if err != nil {
		m.endUnread(err)
		return nil, err
	}
	err = page.Guard(func() error {
		var w state.Writer
		w.Section(clockSection, clockVersion).U64(uint64(m.vm.Time()))
		m.vm.Save(&w)
		m.devices.save(&w)
		f = &Frozen{State: w.Bytes(), Memory: m.overlay.Seal(), Scratch: m.scratch.Seal()}
		return nil
	})
	m.space.Invalidate()
	return f, err
}

// Dial connects to a vsock port of the guest, which must be running.
func (m *Machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	conn, err := m.devices.mux.Dial(ctx, port)
	if err != nil && m.ended() {
		return nil, fmt.Errorf("%w: %s", ErrEnded, m.ending)
	}
	return conn, err
}

// Relay connects to a vsock port of the guest for somebody who carries bytes on; see
// vsock.Mux.Relay.
func (m *Machine) Relay(port uint32, how vsock.RelayOptions, to vsock.Receiver) (*vsock.Relay, error) {
	conn, err := m.devices.mux.Relay(port, how, to)
	if err != nil && m.ended() {
		return nil, fmt.Errorf("%w: %s", ErrEnded, m.ending)
	}
	return conn, err
}

// Done is closed when the machine ends by itself.
func (m *Machine) Done() <-chan struct{} { return m.done }

func (m *Machine) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// Ending tells why the machine ended. It may be called once Done is closed.
func (m *Machine) Ending() Ending { return m.ending }

// Pack shrinks the RAM of a machine that is idle to what distinguishes it from
// its snapshot; see page.Overlay.Pack. Pages come back as the guest touches
// them. The vCPUs stand still meanwhile, well under a millisecond for a child
// that has touched a few hundred pages.
func (m *Machine) Pack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running || m.ended() {
		return
	}
	m.pause()
	if m.ended() { // on the way to the pause
		return
	}
	err := page.Guard(func() error {
		m.overlay.Pack()
		return nil
	})
	if err != nil {
		m.endUnread(err)
		return
	}
	m.space.Invalidate()
	m.start()
}

// Resident returns how many pages of RAM belong to this machine alone and are
// not packed.
func (m *Machine) Resident() int { return m.overlay.Resident() }

// PrivateBytes returns the host memory that this machine's own pages take, those of code
// decoded for it not among them.
func (m *Machine) PrivateBytes() int { return m.overlay.Bytes() + m.scratch.Bytes() }

// MemoryBytes returns the part of PrivateBytes that is RAM.
func (m *Machine) MemoryBytes() int { return m.overlay.Bytes() }

// CodeBytes returns the host memory that is taken to execute code that this machine has for
// itself.
func (m *Machine) CodeBytes() int { return m.vm.CodeBytes() }

// Busy reports whether the guest executes, or would if there was a processor for it; see engine.VM.
func (m *Machine) Busy() bool { return m.vm.Busy() }

// Sleep returns how long the guest will do nothing if nothing comes for it; see engine.VM.
func (m *Machine) Sleep() time.Duration { return m.vm.Sleep() }

// Counters returns what the vCPUs have done, summed.
func (m *Machine) Counters() (sum engine.Counters) {
	for _, v := range m.vm.VCPUs() {
		sum = sum.Add(v.Counters())
	}
	return sum
}

// Close stops the machine and frees what it holds.
func (m *Machine) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.pause()
	m.closed = true
	m.devices.close()
	m.release()
}

// release frees everything that New has acquired so far.
func (m *Machine) release() {
	if m.vm != nil {
		m.vm.Close()
	}
	m.overlay.Close()
	m.scratch.Close()
	m.root.Release()
}
