package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/sandbox"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Names of engines, and what chooses one.
const (
	engineEnv  = "FORKD_ENGINE"
	engineAuto = "auto"
	engineSoft = "soft"
	engineKVM  = "kvm"
)

// choice is an engine to be used, with what executes guests in words.
type choice struct {
	name, executor string
	open           func() engine.Engine
	child          sandbox.Cost // zero: the usual one
	device         string       // that cells are given, opened; empty: none
	why            string       // it was chosen
}

// engineOfCell returns the engine that this cell was started for, and what it needs of
// the host's kernel.
func engineOfCell() (name string, open func() engine.Engine, needs jail.Profile, err error) {
	switch name = os.Getenv(engineEnv); name {
	case engineSoft:
		return name, func() engine.Engine { return soft.New(0) }, jail.Profile{NativeCode: true}, nil
	case engineKVM:
		open, needs, err = kvmOfCell()
		return name, open, needs, err
	}
	return name, nil, needs, errNoCell
}

// chooseEngine returns the engine that is asked for, or the one that suits this host and
// the home.
func chooseEngine(home string) (*choice, error) {
	name := cmp.Or(os.Getenv(engineEnv), engineAuto)
	why := fmt.Sprintf("%s=%s", engineEnv, name)
	if name == engineAuto {
		isas, err := snapshot.ISAs(home)
		if err != nil {
			return nil, err
		}
		name, why = suits(kvmSuits, isas)
	}
	var c *choice
	var err error
	switch name {
	case engineSoft:
		c, err = chooseSoft()
	case engineKVM:
		c, err = chooseKVM()
	default:
		err = &daemon.Error{
			Message: fmt.Sprintf("%s=%s: there is no such engine", engineEnv, name),
			Hint:    "engines are auto, soft and kvm",
		}
	}
	if err != nil {
		return nil, err
	}
	c.why = why
	return c, nil
}

// doubt tells what speaks against an engine that was asked for by name, by what auto goes by, or returns nil. It is
// used all the same: a host can have a KVM that is emulated.
func (c *choice) doubt(kvm func() error) error {
	if c.name != engineKVM {
		return nil
	}
	if err := kvm(); err != nil {
		return &daemon.Error{
			Message: fmt.Sprintf("%s: guests hardly run here, if at all: %v", c.why, err),
			Hint:    fmt.Sprintf("unset %s, or set it to %s", engineEnv, engineSoft),
		}
	}
	return nil
}

// suits returns the engine for a host, whose KVM kvm tells to be of use, and a home with
// so many snapshots of each instruction set, and why. It is kvm, unless all that there
// is to fork is for the other one.
func suits(kvm func() error, isas map[string]int) (name, why string) {
	other, own := isas[string(engine.RISCV64)], isas[string(engine.AMD64)]
	if other > 0 && own == 0 {
		return engineSoft, fmt.Sprintf("the snapshots in the data directory (%d) are for %s; %s=%s makes new ones for KVM",
			other, engine.RISCV64, engineEnv, engineKVM)
	}
	if err := kvm(); err != nil {
		return engineSoft, "no KVM: " + err.Error()
	}
	if other > 0 {
		return engineKVM, fmt.Sprintf("KVM runs guests here; snapshots for %s (%d) can be forked with %s=%s", engine.RISCV64, other, engineEnv, engineSoft)
	}
	return engineKVM, "KVM runs guests here"
}

// chooseSoft returns the engine that emulates.
func chooseSoft() (*choice, error) {
	executor, err := soft.Executor()
	if err != nil {
		return nil, &daemon.Error{Message: err.Error(), Hint: "unset it, or see `forkd help environment`"}
	}
	return &choice{name: engineSoft, executor: executor, open: func() engine.Engine { return soft.New(0) }}, nil
}
