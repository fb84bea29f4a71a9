package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/image"
	"github.com/forkd-dev/forkd/internal/image/debian"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// The runtimes that a snapshot may have.
const (
	runtimePython = "python"
	runtimeNone   = "none"
)

// codeHome is where warm runtimes stand: the home of the ordinary account, where
// clients of code interpreters look for files.
const codeHome = "/home/user"

// codeUser is that account.
const codeUser = "user"

// commandLine has the kernel parameters of every guest. A forked guest should
// touch few pages and wake up rarely: no huge pages that would be copied
// whole, no clearing of pages that are cleared anyway, no watchdogs, and no
// alarm when a child was frozen for a year.
//
// Pressure accounting, the memory controller and automatic task groups tax
// every context switch and allocation, and the first two have timers that fire
// every two seconds; in a guest whose memory the host limits, nobody looks at
// what they yield. A kernel stack at random offsets protects the kernel from a
// guest's user, who is its administrator anyway, at the price of random numbers
// for every system call.
var commandLine = strings.Join([]string{
	"console=hvc0", "quiet", "loglevel=4", "panic=-1",
	"transparent_hugepage=never", "init_on_alloc=0",
	"nowatchdog", "nmi_watchdog=0", "rcupdate.rcu_cpu_stall_suppress=1",
	"workqueue.power_efficient=1", "audit=0",
	"psi=0", "cgroup_disable=memory", "noautogroup", "randomize_kstack_offset=off",
}, " ")

// boardParameters say where messages go from before the guest's console is there, what
// the processor is trusted with, and how to reset it: kernels for amd64 that find no
// other PC hardware take it that there is EFI.
var boardParameters = map[engine.ISA]string{
	engine.RISCV64: " earlycon=sbi", engine.AMD64: " earlyprintk=ttyS0 mitigations=off random.trust_cpu=on reboot=acpi",
}

// build makes a snapshot from nothing but packages.
func (m *Manager) build(ctx context.Context, spec SnapshotSpec, progress func(Progress)) error {
	m.images.RLock()
	defer m.images.RUnlock()
	isa := m.opts.Engine.ISA
	program, err := m.opts.Agent(isa)
	if err != nil {
		return wrap(err, "finding the agent for %s guests", isa)
	}
	img, err := image.Build(ctx, image.Options{
		Home: m.opts.Home, Mirror: spec.Mirror, Packages: spec.Packages, Arch: string(isa), Agent: program,
		Progress: func(p image.Progress) {
			step := stepImage
			if p.Step == "index" || p.Step == "download" {
				step = stepPackages
			}
			progress(Progress{Step: step, Message: strings.TrimSpace(p.Step + " " + p.Detail), Done: p.Done, Total: p.Total})
		},
	})
	if err != nil {
		return imageError(err)
	}
	progress(Progress{Step: stepBoot, Message: "booting Linux"})
	p, err := m.boot(ctx, spec, img)
	if err != nil {
		return err
	}
	defer func() {
		p.close()
		debug.FreeOSMemory() // what unpacking left
	}()
	ctx, cancel := p.alive(ctx)
	defer cancel()
	return p.explain(p.freeze(ctx, m, progress))
}

// imageError classifies why an image could not be built, and keeps the advice
// that comes with it.
func imageError(err error) error {
	e := wrap(err, "building the image")
	switch {
	case errors.Is(err, debian.ErrUnreachable):
		e.Code = Unavailable
	case errors.Is(err, debian.ErrNoMirror), errors.Is(err, debian.ErrUnresolved):
		e.Code = InvalidArgument
	}
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		e.Hint = h.Hint()
	}
	return e
}

// parent is a machine that is being made into a snapshot.
type parent struct {
	spec    SnapshotSpec
	img     *image.Image
	cell    *cell.Cell
	machine *cell.VM
	agent   *agent.Client
	console tail
}

// boot starts a machine from an image and waits until its agent answers.
func (m *Manager) boot(ctx context.Context, spec SnapshotSpec, img *image.Image) (*parent, error) {
	kernel, err := os.Open(img.KernelPath())
	if err != nil {
		return nil, wrap(err, "opening the kernel")
	}
	defer kernel.Close()
	initrd, err := os.Open(img.InitramfsPath())
	if err != nil {
		return nil, wrap(err, "opening the initramfs")
	}
	defer initrd.Close()
	root, err := snapshot.OpenRoot(img.RootfsPath())
	if err != nil {
		return nil, wrap(err, "opening the root image")
	}
	defer root.Release()
	p := &parent{spec: spec, img: img}
	if p.cell, err = m.cells.Fresh(); err != nil {
		return nil, wrap(err, "finding a process for the parent machine")
	}
	if p.machine, err = p.cell.Boot(ctx, cell.BootSpec{
		VCPUs: spec.VCPUs, Memory: page.Number(spec.MemoryMiB << (20 - page.Shift)), Scratch: page.Number(spec.DiskMiB << (20 - page.Shift)),
		Root: root, Kernel: kernel, Initrd: initrd, CommandLine: commandLine + boardParameters[m.opts.Engine.ISA], Console: &p.console,
	}); err != nil {
		p.cell.Quit()
		return nil, wrap(err, "making the parent machine")
	}
	p.agent = agent.NewClient(p.machine.Dial).Lines(p.machine.DialLine)
	if err := p.start(ctx); err != nil {
		p.close()
		return nil, p.explain(err)
	}
	return p, nil
}

func (p *parent) start(ctx context.Context) error {
	if err := p.machine.Start(); err != nil {
		return err
	}
	ctx, stop := p.alive(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	_, err := p.agent.WaitReady(ctx)
	return err
}

// alive returns a context that also ends when the machine does, so that nobody
// waits for a dead guest.
func (p *parent) alive(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.machine.Done():
			cancel(machine.ErrEnded)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// bootTime bounds a boot; on a slow host under load it takes a minute.
const bootTime = 10 * time.Minute

// freeze warms the parent and writes the snapshot.
func (p *parent) freeze(ctx context.Context, m *Manager, progress func(Progress)) error {
	for _, args := range p.spec.Setup {
		progress(Progress{Step: stepWarm, Message: "running " + strings.Join(args, " ")})
		if err := runSetup(ctx, p.agent, args); err != nil {
			return err
		}
	}
	man := snapshot.Manifest{
		Tag: p.spec.Tag, CreatedAt: time.Now().UTC(), Version: m.opts.Version,
		Engine: m.opts.Engine.Name, ISA: string(m.opts.Engine.ISA), CPUFeatures: m.opts.Engine.Features, VCPUs: p.spec.VCPUs, MemoryMiB: p.spec.MemoryMiB,
		ImageKey: p.img.Key,
	}
	if p.spec.Runtime == runtimePython {
		message := "starting Python"
		if len(p.spec.Modules) > 0 {
			message += " and importing " + strings.Join(p.spec.Modules, ", ")
		}
		progress(Progress{Step: stepWarm, Message: message})
		info, err := p.agent.StartRuntime(ctx, wire.RuntimeStart{
			Name: runtimePython, Imports: p.spec.Modules, Warmup: p.spec.WarmUp, Cwd: codeHome,
		})
		if err != nil {
			return err
		}
		man.Runtime, man.Modules, man.RuntimePort = runtimePython, p.spec.Modules, info.Port
	}
	for _, language := range p.spec.Languages {
		progress(Progress{Step: stepWarm, Message: "starting " + language})
		if _, err := p.agent.WarmContext(ctx, language, codeHome); err != nil {
			return err
		}
	}
	if err := p.tryShell(ctx); err != nil {
		return err
	}
	if man.Runtime != "" {
		if err := p.agent.Connect(ctx, man.Runtime); err != nil {
			return err
		}
	}
	progress(Progress{Step: stepFreeze, Message: "holding user processes"})
	quiet, err := atRest(ctx, p.agent, p.machine)
	if err != nil {
		return err
	}
	man.Held = quiet.Processes
	frozen, err := p.machine.Freeze(ctx)
	if err != nil {
		return err
	}
	defer frozen.Release()
	progress(Progress{Step: stepFreeze, Message: "writing the snapshot"})
	return m.store.Create(ctx, man, snapshot.Contents{State: frozen.State(), Cut: frozen, Root: p.img.RootfsPath()})
}

// tryShell runs what the first command of most sandboxes starts, a login shell of the
// ordinary account. So its files are in the snapshot's memory, and what a child
// translates of them serves all others.
func (p *parent) tryShell(ctx context.Context) error {
	shell := Command{Args: []string{"/bin/bash", "-l", "-c", "echo $(uname) | cat && ls / && sleep 0"}, User: codeUser}
	for range 6 { // until the kernel has found the places of what it needs for that
		if _, err := p.agent.Run(ctx, shell.request(), agent.Streams{}); err != nil {
			return fmt.Errorf("trying a shell: %w", err)
		}
	}
	return nil
}

// settle waits until the guest has come to rest. What is still under way after
// it was quiesced would be finished in every child: reclaim in the kernel, and
// above all the monitor thread of the agent's runtime, which takes some
// milliseconds of idleness to fall asleep. And what a timer has the kernel do soon
// it would do in every child just when that is busy with what it was forked for.
func settle(v *cell.VM) {
	const (
		look = 50 * time.Millisecond
		most = 80
	)
	v.Refresh()
	s := stillness{executed: v.Counters().Instructions}
	for range most {
		time.Sleep(look)
		v.Refresh()
		if s.rests(v.Counters().Instructions, v.Sleep()) {
			return
		}
	}
}

const (
	longSleep = 900 * time.Millisecond // until the next timer, where that is known
	calm      = 5                      // looks without an instruction, where it is not
)

// stillness is what looks at a guest have shown.
type stillness struct {
	executed uint64 // instructions
	calm     int    // the last looks without another one
}

// rests takes a look: how many instructions there were, and how long the guest will sleep, zero if that is
// not known. It reports whether the guest has come to rest.
func (s *stillness) rests(executed uint64, sleep time.Duration) bool {
	if s.calm++; executed != s.executed {
		s.executed, s.calm = executed, 0
	}
	if sleep > 0 {
		return sleep >= longSleep
	}
	return s.calm >= calm
}

// runSetup runs one command that must succeed.
func runSetup(ctx context.Context, a *agent.Client, args []string) error {
	var out bytes.Buffer
	cmd := Command{Args: args, OutputLimit: 1 << 20}
	exit, err := a.Run(ctx, cmd.request(), agent.Streams{Stdout: &out, Stderr: &out})
	if err == nil && exit.Code != 0 {
		err = commandError(args, exit.Code, out.String())
	}
	return err
}

// commandError tells of a command that had to succeed, and what it printed last.
func commandError(args []string, exitCode int, output string) *Error {
	e := fail(CommandFailed, "run it in a sandbox to see what is wrong", "command %q exited with %d", strings.Join(args, " "), exitCode)
	if last := strings.TrimSpace(output[max(0, len(output)-2000):]); last != "" {
		e.Message += ": " + last
	}
	return e
}

// explain adds what the console said to the failure of a machine that died.
func (p *parent) explain(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-p.machine.Done():
		return &Error{Code: Internal, Message: fmt.Sprintf("the parent machine died: %s", p.machine.Ending()), Err: err,
			Hint: "its console ended with:\n" + p.console.String()}
	default:
		return err
	}
}

func (p *parent) close() {
	p.agent.Close()
	p.machine.Close()
	p.cell.Quit()
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > 2*tailSize {
		t.b = append(t.b[:0], t.b[len(t.b)-tailSize:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b[max(0, len(t.b)-tailSize):])
}
