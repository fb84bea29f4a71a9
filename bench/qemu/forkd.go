package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	vmachine "github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// forkd runs machines in this process, on the soft engine.
type forkd struct {
	arena *page.Arena
}

func newForkd() *forkd { return &forkd{page.NewArena()} }

// start implements monitor.
func (f *forkd) start(_ context.Context, s spec, console io.Writer) (machine, error) {
	cpuBefore := cpuTime(os.Getpid())
	kernel, err := os.ReadFile(s.kernel)
	if err != nil {
		return nil, err
	}
	initrd, err := os.ReadFile(s.initrd)
	if err != nil {
		return nil, err
	}
	root, err := snapshot.OpenRoot(s.root)
	if err != nil {
		return nil, err
	}
	defer root.Release()
	scratch, err := snapshot.OpenRoot(s.scratch)
	if err != nil {
		return nil, err
	}
	defer scratch.Release()
	ram := page.NewStack(page.Number(s.memoryMiB << 20 / page.Size))
	defer ram.Release()

	cfg := vmachine.Config{
		Engine:  soft.New(0),
		VCPUs:   1,
		Memory:  page.NewOverlay(ram, f.arena, 0),
		Root:    root,
		Scratch: page.NewOverlay(scratch, f.arena, 0),
		Entropy: rand.Reader,
		Console: console,
		Boot: &vmachine.Boot{
			Kernel:      kernel,
			Initrd:      initrd,
			CommandLine: s.commandLine + s.messages("sbi"),
			Seed:        make([]byte, 64),
		},
	}
	_, _ = rand.Read(cfg.GenerationID[:]) // never fails
	_, _ = rand.Read(cfg.Boot.Seed)
	vm, err := vmachine.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := vm.Start(); err != nil {
		vm.Close()
		return nil, err
	}
	return &softMachine{vm, f.arena, cpuBefore}, nil
}

// softMachine is a machine on forkd's soft engine.
type softMachine struct {
	vm        *vmachine.Machine
	arena     *page.Arena
	cpuBefore time.Duration // of this process, when the machine was started
}

func (m *softMachine) done() <-chan struct{} { return m.vm.Done() }

func (m *softMachine) ending() error {
	e := m.vm.Ending()
	switch {
	case e.Err != nil:
		return e.Err
	case e.Exit != engine.Off:
		return errors.New(e.String())
	}
	return nil
}

func (m *softMachine) used() usage {
	return usage{m.vm.Counters().Instructions, cpuTime(os.Getpid()) - m.cpuBefore}
}

// close also returns the machine's memory to the host, so that the next one
// finds it as cold as a new process would.
func (m *softMachine) close() {
	m.vm.Close()
	m.arena.Trim(0)
}
