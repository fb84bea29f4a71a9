// Package soft is the engine that emulates: riscv64 guests on an interpreter in
// Go. It needs nothing from the host but memory.
//
// An Engine shares decoded code among the machines it makes, keyed by the host
// address of the page it was decoded from. All machines of an Engine must
// therefore be over layers that live as long as the Engine: make one Engine per
// snapshot, and one for a machine that boots by itself.
//
// The vCPUs of a machine take turns: whoever executes guest code, runs posted
// functions or answers the firmware interface holds the machine's turn. That
// makes guest memory accesses atomic and the harts' state race-free. A vCPU runs
// in slices and offers the turn between them.
//
// A vCPU that waits for an interrupt is a goroutine blocked in a channel
// receive. It holds no execution context (caches of some 100 KiB): those belong
// to the Engine, are few, and are lent while guest code executes.
//
// Lock order: vm.turn, then the locks of devices, then vm.postMu and pool.mu,
// which are leaves.
package soft

import (
	"errors"
	"fmt"

	"github.com/forkd-dev/forkd/internal/device/plic"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
)

// PLICBase is the GPA of the interrupt controller, which the engine maps.
const PLICBase = 0x0c00_0000

// maxVCPUs bounds the vCPUs of a machine.
const maxVCPUs = 16

// DefaultCodePages is the bound on decoded pages that machines share, in pages
// of 18 KiB.
const DefaultCodePages = 8192

// Engine makes machines that share decoded code.
type Engine struct {
	code *interp.Cache
	pool pool
}

// New returns an engine that keeps at most codePages decoded pages for sharing;
// zero means DefaultCodePages.
func New(codePages int) *Engine {
	if codePages <= 0 {
		codePages = DefaultCodePages
	}
	return &Engine{code: interp.NewCache(codePages)}
}

// Name returns "soft".
func (e *Engine) Name() string { return "soft" }

// ISA returns engine.RISCV64.
func (e *Engine) ISA() engine.ISA { return engine.RISCV64 }

// NewVM makes a machine from cfg.
func (e *Engine) NewVM(cfg engine.Config) (engine.VM, error) {
	switch {
	case cfg.Memory == nil || cfg.Bus == nil || cfg.Clock == nil:
		return nil, errors.New("making a soft machine: memory, bus and clock are required")
	case cfg.VCPUs < 1 || cfg.VCPUs > maxVCPUs:
		return nil, fmt.Errorf("making a soft machine: %d vCPUs, want 1 to %d", cfg.VCPUs, maxVCPUs)
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
