// Package soft is the engine that emulates: riscv64 guests on an interpreter in
// Go and, on hosts that package jit knows, on native code made from theirs. It
// needs nothing from the host but memory.
//
// An Engine shares decoded and translated code among the machines that it makes,
// page by page: whatever snapshots, branches and branches of branches have in
// common is decoded once. What it knows of a layer goes with the layer.
//
// The vCPUs of a machine execute in parallel, in slices. A slice holds the
// machine's world for reading; whoever needs all of them to stand still (to move a
// page that another may hold, to make a remote fence take effect) takes the world
// for itself and has the others end their slices early. What a vCPU has to notice
// then, stale caches and fences, it takes in at the start of its next slice.
//
// A vCPU leaves the world for everything else that it does: accesses to devices,
// calls of the firmware, and posted functions, which all take place one at a time
// in a machine, and to wait. So a vCPU that waits for whatever reason holds nobody
// up. A hart is touched by the goroutine in its Run only; interrupts and requests
// to start come to it through atomics.
//
// A vCPU executes with a permit, of which there are as many as processors; package
// sched says who gets them, and keeps machines to their limits. A vCPU that waits for an
// interrupt or a permit is a goroutine blocked in a channel receive. It holds no
// execution context (caches of some 400 KiB): those belong to the Engine, are few, and
// are lent while guest code executes.
//
// Lock order: vm.devices, then vm.world for writing, then the locks of devices,
// decoded code and memory, then vm.later.mu, then those of vm.posts, vcpu.fenceMu, pool.mu and the
// scheduler, which are leaves. Nobody who holds the world for reading waits for
// vm.devices, and nobody who holds either waits for a permit.
package soft

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/device/plic"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft/sched"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
)

// PLICBase is the GPA of the interrupt controller, which the engine maps.
const PLICBase = 0x0c00_0000

// maxVCPUs bounds the vCPUs of a machine.
const maxVCPUs = 8

// DefaultCodePages is the bound on decoded pages that machines share, in pages
// of 18 KiB.
const DefaultCodePages = 8192

// nativeBytes bounds the native code that machines share. What is not used takes
// no memory.
const nativeBytes = 64 << 20

// Engine makes machines that share decoded code.
type Engine struct {
	code       *interp.Cache
	pool       pool
	processors *sched.Scheduler
}

// processors are those of the process, which all its engines share.
var processors = sched.New(func() int { return runtime.GOMAXPROCS(0) })

// What an Engine executes guest code with.
const (
	NativeCode  = "native code"
	Interpreter = "interpreter"
)

// Executor returns what engines that New makes execute guest code with:
// NativeCode where the host is one that package jit knows, unless FORKD_JIT says
// off. The error is of a FORKD_JIT that says anything else than on or off.
func Executor() (string, error) {
	switch setting := os.Getenv("FORKD_JIT"); setting {
	case "", "on":
	case "off":
		return Interpreter, nil
	default:
		return "", fmt.Errorf("FORKD_JIT=%s: want on or off", setting)
	}
	if !jit.Supported() {
		return Interpreter, nil
	}
	return NativeCode, nil
}

// New returns an engine that keeps at most codePages decoded pages for sharing;
// zero means DefaultCodePages. It translates what is executed if Executor says so.
func New(codePages int) *Engine {
	if codePages <= 0 {
		codePages = DefaultCodePages
	}
	var native *jit.Cache
	if executor, _ := Executor(); executor == NativeCode {
		native = jit.NewCache(nativeBytes)
	}
	return &Engine{code: interp.NewCache(codePages, native), processors: processors}
}

// Name returns "soft".
func (e *Engine) Name() string { return "soft" }

// ISA returns engine.RISCV64.
func (e *Engine) ISA() engine.ISA { return engine.RISCV64 }

// Features returns the extensions that the board's device tree lists.
func (e *Engine) Features() []string { return board.Extensions() }

// NewArena implements engine.Engine.
func (e *Engine) NewArena() (*page.Arena, error) { return page.NewArena(), nil }

// NewMemory implements engine.Engine.
func (e *Engine) NewMemory(base *page.Stack, arena *page.Arena, quota int) (page.Top, error) {
	o := page.NewOverlay(base, arena, quota)
	o.CountKept()
	return o, nil
}

// NewVM makes a machine from cfg.
func (e *Engine) NewVM(cfg engine.Config) (engine.VM, error) {
	switch {
	case cfg.Memory == nil || cfg.Bus == nil || cfg.Clock == nil:
		return nil, errors.New("making a soft machine: memory, bus and clock are required")
	case cfg.VCPUs < 1 || cfg.VCPUs > maxVCPUs:
		return nil, fmt.Errorf("making a soft machine: %d vCPUs, want 1 to %d", cfg.VCPUs, maxVCPUs)
	case cfg.VCPUs > 1 && !interp.Parallel:
		return nil, fmt.Errorf("making a soft machine: %d vCPUs, but only one is possible on hosts of this architecture", cfg.VCPUs)
	case (cfg.Boot == nil) == (cfg.State == nil):
		return nil, errors.New("making a soft machine: give either a kernel to boot or a state to restore")
	}
	vm, err := newVM(e, cfg)
	if err != nil {
		return nil, fmt.Errorf("making a soft machine: %w", err)
	}
	if err := cfg.Bus.Map(PLICBase, plic.Size, vm.plic); err != nil {
		return nil, fmt.Errorf("making a soft machine: %w", err)
	}
	return vm, nil
}
