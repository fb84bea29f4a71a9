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

// chooseEngine returns the engine that is asked for, by default the one that emulates.
func chooseEngine() (*choice, error) {
	switch name := cmp.Or(os.Getenv(engineEnv), engineAuto); name {
	case engineSoft, engineAuto:
		executor, err := soft.Executor()
		if err != nil {
			return nil, &daemon.Error{Message: err.Error(), Hint: "unset it, or see `forkd help environment`"}
		}
		return &choice{name: engineSoft, executor: executor, open: func() engine.Engine { return soft.New(0) }}, nil
	case engineKVM:
		return chooseKVM()
	default:
		return nil, &daemon.Error{
			Message: fmt.Sprintf("%s=%s: there is no such engine", engineEnv, name),
			Hint:    "engines are auto, soft and kvm",
		}
	}
}
