//go:build linux && amd64

package main

import (
	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/kvm"
)

// chooseKVM opens the engine that runs guests on the host's processor.
func chooseKVM() (*choice, error) {
	e, err := kvm.New()
	if err != nil {
		return nil, &daemon.Error{
			Message: err.Error(),
			Hint:    "load the kernel's modules kvm and kvm_intel or kvm_amd, and see to it that you may open " + kvm.Device + "; or use the engine soft",
		}
	}
	return &choice{engineKVM, "KVM", func() engine.Engine { return e }}, nil
}
