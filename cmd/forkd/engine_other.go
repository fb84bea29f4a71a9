//go:build !(linux && amd64)

package main

import (
	"errors"

	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/jail"
)

func kvmOfCell() (func() engine.Engine, jail.Profile, error) { return nil, jail.Profile{}, errNoCell }

func chooseKVM() (*choice, error) {
	return nil, &daemon.Error{Message: "this forkd has no engine kvm: it is for Linux on amd64", Hint: "use the engine soft"}
}

func kvmSuits() error { return errors.New("this forkd has no engine kvm: it is for Linux on amd64") }
