//go:build linux && amd64

package main

import (
	"slices"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/kvm"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// kvmCost allows for what the kernel keeps of a virtual machine, page tables above
// all, and for the descriptors of machine and vCPUs.
var kvmCost = sandbox.Cost{Memory: 8 << 20, Files: 8}

// chooseKVM opens the engine that runs guests on the host's processor.
func chooseKVM() (*choice, error) {
	e, err := kvm.New()
	if err != nil {
		return nil, &daemon.Error{
			Message: err.Error(),
			Hint:    "load the kernel's modules kvm and kvm_intel or kvm_amd, and see to it that you may open " + kvm.Device + "; or use the engine soft",
		}
	}
	return &choice{name: engineKVM, executor: "KVM", open: func() engine.Engine { return e }, child: kvmCost, device: kvm.Device}, nil
}

// kvmSuits tells why guests had better not be run by KVM on this host, or nil.
func kvmSuits() error {
	if err := kvm.Virtualizes(); err != nil {
		return err
	}
	e, err := kvm.New()
	if err != nil {
		return err
	}
	return e.Close()
}

// kvmOfCell makes the engine of a cell, which was given the device.
func kvmOfCell() (func() engine.Engine, jail.Profile, error) {
	e, err := kvm.Use(cell.DeviceFD)
	if err != nil {
		return nil, jail.Profile{}, err
	}
	return func() engine.Engine { return e }, jail.Profile{Requests: slices.Concat(kvm.Requests(), page.Requests())}, nil
}
