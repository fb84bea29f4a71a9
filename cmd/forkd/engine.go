package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
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
}

// chooseEngine returns the engine that is asked for, by default the one that emulates.
func chooseEngine() (*choice, error) {
	switch name := cmp.Or(os.Getenv(engineEnv), engineAuto); name {
	case engineSoft, engineAuto:
		executor, err := soft.Executor()
		if err != nil {
			return nil, &daemon.Error{Message: err.Error(), Hint: "unset it, or see `forkd help environment`"}
		}
		return &choice{engineSoft, executor, func() engine.Engine { return soft.New(0) }}, nil
	case engineKVM:
		return chooseKVM()
	default:
		return nil, &daemon.Error{
			Message: fmt.Sprintf("%s=%s: there is no such engine", engineEnv, name),
			Hint:    "engines are auto, soft and kvm",
		}
	}
}
