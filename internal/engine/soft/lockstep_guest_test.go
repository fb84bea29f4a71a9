package soft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/device/plic"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/sbi"
	"github.com/forkd-dev/forkd/internal/state"
)

const lockstepMemory = 256 << 20

// guest is one of two whole machines: an engine with one VM that executes only
// when it is told to.
type guest struct {
	*side
	*machine.Machine
	begin    func(engine.Config) *side // makes the side
	sbi      sbi.SBI
	plic     *plic.PLIC
	external bool
	console  bytes.Buffer

	mu    sync.Mutex
	posts []func()      // guarded by mu
	kicks chan struct{} // tells of posts
}

// newGuest makes a machine from cfg, whose own parts it fills in.
func newGuest(t testing.TB, cfg machine.Config, begin func(engine.Config) *side) *guest {
	g := &guest{begin: begin, kicks: make(chan struct{}, 64)}
	cfg.Engine, cfg.Console, cfg.VCPUs = g, &g.console, 1
	m, err := machine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	g.Machine = m
	return g
}

func (g *guest) Name() string    { return "lockstep" }
func (g *guest) ISA() engine.ISA { return engine.RISCV64 }

// Features, NewArena and NewMemory implement engine.Engine.
func (g *guest) Features() []string             { return nil }
func (g *guest) NewArena() (*page.Arena, error) { return page.NewArena(), nil }
func (g *guest) NewMemory(base *page.Stack, arena *page.Arena, quota int) (page.Top, error) {
	return page.NewOverlay(base, arena, quota), nil
}

// NewVM implements engine.Engine. The guest reaches its devices by way of taps,
// but for the clock: that one follows the host's.
func (g *guest) NewVM(cfg engine.Config) (engine.VM, error) {
	g.side = g.begin(cfg)
	g.hart.Start(cfg.Boot.Entry, cfg.Boot.Params)
	g.plic = plic.New(1, func(_ int, level bool) { g.external = level })
	g.sbi = sbi.SBI{Memory: cfg.Memory, Console: cfg.Console, Host: g, Stopped: make([]bool, 1)}
	err := g.tap(board.PLICBase, board.PLICSize, g.plic)
	for _, base := range []uint64{board.PowerBase, board.VMGenBase} {
		err = errors.Join(err, g.tap(base, board.DeviceSize, behind{cfg, base}))
	}
	for i := range board.Slots {
		err = errors.Join(err, g.tap(board.VirtioBase(i), board.DeviceSize, behind{cfg, board.VirtioBase(i)}))
	}
	return g, errors.Join(err, g.tap(board.RTCBase, board.DeviceSize, stoppedClock{}))
}

// behind is the device at an address of a machine's bus.
type behind struct {
	cfg  engine.Config
	base uint64
}

func (b behind) Read(offset uint64, width int) uint64 {
	v, _ := b.cfg.Bus.Read(b.base+offset, width)
	return v
}

func (b behind) Write(offset uint64, width int, v uint64) { b.cfg.Bus.Write(b.base+offset, width, v) }

// stoppedClock is a real-time clock that stands at the same time for ever.
type stoppedClock struct{}

func (stoppedClock) Read(offset uint64, width int) uint64 {
	const nanoseconds = 1_704_067_200_000_000_000
	switch offset {
	case 0:
		return nanoseconds & (1<<32 - 1)
	case 4:
		return nanoseconds >> 32
	}
	return 0
}

func (stoppedClock) Write(uint64, int, uint64) {}

// The rest of engine.VM.

func (g *guest) VCPUs() []engine.VCPU { return nil }
func (g *guest) Line(n int) irq.Line  { return g.plic.Line(n) }
func (g *guest) Save(*state.Writer)   {}
func (g *guest) Drain()               {}
func (g *guest) CodeBytes() int       { return 0 }
func (g *guest) Halted() bool         { return false }
func (g *guest) Busy() bool           { return false }
func (g *guest) Time() time.Duration  { return 0 } // nothing is saved
func (g *guest) Close() error         { return nil }

func (g *guest) Continue(fn func()) { g.Post(fn) }

func (g *guest) Post(fn func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.posts = append(g.posts, fn)
	select {
	case g.kicks <- struct{}{}:
	default:
	}
}

// The methods of sbi.Host, for the only hart.

func (g *guest) Interrupt(int)             { g.hart.SetSoftware(true) }
func (g *guest) Start(int, uint64, uint64) {}

func (g *guest) Fence(uint64, sbi.Fence) {
	g.cpu.FlushAll()
	g.cpu.FlushCode()
}

// refresh brings the hart's interrupts up to date, after whatever was posted has
// run.
func (g *guest) refresh() {
	g.mu.Lock()
	posts := g.posts
	g.posts = nil
	g.mu.Unlock()
	for _, fn := range posts {
		fn()
	}
	if len(posts) > 0 {
		g.hart.ClearReservation()
	}
	g.cpu.Sync()
	g.hart.SetExternal(g.external)
	if g.hart.TimerArmed() {
		g.hart.UpdateTimer(g.hart.Time())
	}
	if g.hart.Power == hart.Waiting && g.hart.Wake() {
		g.hart.Power = hart.Started
	}
}

// pair is two guests in lockstep.
type pair struct {
	*lockstep
	guests [2]*guest
}

// newPair boots the image with an initramfs and a kernel command line.
func newPair(t testing.TB, kernel, initrd []byte, root string, commandLine string) *pair {
	p := &pair{lockstep: newLockstep(1, 20_000)}
	for i := range p.guests {
		ram, root, scratch := page.NewStack(lockstepMemory/page.Size), openRaw(t, root), newScratch(t)
		defer ram.Release()
		defer root.Release()
		defer scratch.Release()
		p.guests[i] = newGuest(t, machine.Config{
			Memory:  page.NewOverlay(ram, lockstepArena, 0),
			Root:    root,
			Scratch: page.NewOverlay(scratch, lockstepArena, 0),
			Entropy: rand.NewChaCha8([32]byte{1}),
			Boot:    &machine.Boot{Kernel: kernel, Initrd: initrd, CommandLine: commandLine, Seed: make([]byte, 64)},
		}, func(cfg engine.Config) *side {
			return newSide(i<<25, cfg.Memory, func() uint64 { return p.ticks })
		})
		p.sides[i] = p.guests[i].side
	}
	p.attach()
	return p
}

// next executes a slice and does what it asks for.
func (p *pair) next() (done bool, err error) {
	for {
		for _, g := range p.guests {
			g.refresh()
		}
		if p.guests[0].hart.Power == hart.Started {
			break
		}
		deadline := p.guests[0].hart.Deadline()
		if deadline == hart.NeverTimer {
			return false, errors.New("the guest sleeps for ever")
		}
		p.idle += max(deadline, p.ticks+1) - p.ticks
		p.ticks = max(deadline, p.ticks+1)
	}
	event, err := p.step()
	if err != nil {
		return false, err
	}
	var outcomes [2]sbi.Outcome
	for i, g := range p.guests {
		switch event {
		case interp.Wait:
			g.hart.Power = hart.Waiting
		case interp.Call:
			outcomes[i] = g.sbi.Call(g.hart)
			if outcomes[i] == sbi.Wait {
				g.hart.Power = hart.Waiting
			}
		}
	}
	if outcomes[0] != outcomes[1] {
		return false, fmt.Errorf("an SBI call has outcome %d, not %d", outcomes[1], outcomes[0])
	}
	return outcomes[0] > sbi.Wait, nil
}

// report explains and reports a failure. start boots the machines anew.
func (p *pair) report(t testing.TB, err error, start func() *pair) {
	t.Helper()
	t.Logf("%v; booting again to look closer", err)
	why := explain(err, false, func() (*lockstep, func() (bool, error)) {
		p := start()
		return p.lockstep, p.next
	})
	t.Fatalf("after %d million instructions: %v\n%s\nthe console:\n%s", p.retired()/1e6, err, why, p.guests[0].console.String())
}

// finish has a last look.
func (p *pair) finish(t testing.TB, start func() *pair) {
	t.Helper()
	if err := p.lookAtPages(); err != nil {
		p.report(t, err, start)
	}
	if !p.translated() {
		t.Error("nothing was translated")
	}
}

// TestLockstepBoot boots the kernel until the agent accepts connections.
func TestLockstepBoot(t *testing.T) {
	needsTranslator(t)
	img := builtImage(t)
	kernel, initrd := readFile(t, img.KernelPath()), initramfs(t, img, agentInit)
	start := func() *pair {
		return newPair(t, kernel, initrd, img.RootfsPath(), "console=hvc0 earlycon=sbi panic=-1 init_on_alloc=0")
	}
	p := start()
	const early, pause = 1000e6, 20e6 // instructions
	answers, again := make(chan error, 2), uint64(early)
	for {
		done, err := p.next()
		if err != nil {
			p.report(t, err, start)
		}
		switch {
		case done:
			t.Fatalf("the guest ended:\n%s", p.guests[0].console.String())
		case again > 0 && p.retired() >= again:
			p.dial(t, answers)
			again = 0
		case len(answers) == cap(answers):
			first, second := <-answers, <-answers
			if first == nil && second == nil {
				p.finish(t, start)
				return
			}
			again = p.retired() + pause
		}
	}
}

// dial connects to the agents of both guests, which hear of it at the same
// instruction. The answers are nil once an agent has accepted.
func (p *pair) dial(t *testing.T, answers chan<- error) {
	for _, g := range p.guests {
		for len(g.kicks) > 0 {
			<-g.kicks
		}
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			// The connection stays open: closing it would be heard of at some
			// instruction or other.
			_, err := g.Dial(ctx, wire.AgentPort)
			answers <- err
		}()
	}
	for _, g := range p.guests {
		select {
		case <-g.kicks:
		case <-time.After(time.Minute):
			t.Fatal("a connection does not reach the guest")
		}
	}
}

// TestLockstepPython runs Python in a guest. FORKD_LOCKSTEP is a regular
// expression for the workloads of the speed comparison to run; it is some short
// ones if it is not set.
func TestLockstepPython(t *testing.T) {
	needsTranslator(t)
	img := builtImage(t)
	pattern := os.Getenv("FORKD_LOCKSTEP")
	if pattern == "" {
		pattern = "^(import-numpy|py-arith)$"
	}
	wanted := regexp.MustCompile(pattern)
	kernel, initrd := readFile(t, img.KernelPath()), initramfs(t, img, benchInit)
	for _, w := range suite.All() {
		if !wanted.MatchString(w.Name) {
			continue
		}
		t.Run(w.Name, func(t *testing.T) {
			start := func() *pair {
				return newPair(t, kernel, initrd, img.RootfsPath(), "console=hvc0 panic=-1 init_on_alloc=0 "+suite.Parameter+w.Name)
			}
			p := start()
			for {
				done, err := p.next()
				if err != nil {
					p.report(t, err, start)
				}
				if done {
					break
				}
			}
			p.finish(t, start)
			if text := p.guests[1].console.String(); !strings.Contains(text, suite.Mark+string(suite.End)) || strings.Contains(text, "exit=1") {
				t.Errorf("the guest did not come to its end:\n%s", text)
			}
		})
	}
}
