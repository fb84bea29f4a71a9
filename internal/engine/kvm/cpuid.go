//go:build linux && amd64

package kvm

import "fmt"

// Leaves and bits of CPUID (AMD64 APM volume 3 appendix E; for 0x4000_0000 and on
// the kernel's Documentation/virt/kvm/x86/cpuid).
const (
	leafFeatures = 0x1
	leafTopology = 0xb
	leafV2       = 0x1f
	leafKVM      = 0x4000_0001
	leafAMDNode  = 0x8000_001e

	featureTSCDeadline = 1 << 24 // ecx of leafFeatures
	featureHypervisor  = 1 << 31 // ecx of leafFeatures
	kvmAsyncPF         = 1 << 4  // eax of leafKVM
	kvmAsyncPFVMExit   = 1 << 10
	kvmAsyncPFInt      = 1 << 14
)

// supportedCPUID returns what the kernel can offer guests, without what machines
// here do not have.
func supportedCPUID(fd int) ([]cpuidEntry, error) {
	t := cpuidTable{n: maxCPUID}
	if err := give(fd, getCPUID, &t); err != nil {
		return nil, fmt.Errorf("asking what processors can do: %w", err)
	}
	list := t.entries[:t.n]
	for i := range list {
		switch e := &list[i]; e.function {
		case leafFeatures:
			e.ecx |= featureHypervisor // or guests do not look for KVM's own leaves
			if n, err := call(fd, checkExtension, capTSCDeadline); err == nil && n > 0 {
				e.ecx |= featureTSCDeadline // not listed, since it depends on the interrupt controller
			}
		case leafKVM:
			// The host reads pages of memory itself and does not tell.
			e.eax &^= kvmAsyncPF | kvmAsyncPFVMExit | kvmAsyncPFInt
		}
	}
	return list, nil
}

// setCPUID tells a vCPU what it is, its own number included.
func (v *vcpu) setCPUID(list []cpuidEntry) error {
	var t cpuidTable
	t.n = uint32(copy(t.entries[:], list))
	id := uint32(v.id)
	for i := range t.entries[:t.n] {
		switch e := &t.entries[i]; e.function {
		case leafFeatures:
			e.ebx = e.ebx&0x0000_ffff | 1<<16 | id<<24
		case leafTopology, leafV2:
			e.edx = id
		case leafAMDNode:
			e.eax = id
		}
	}
	if err := give(v.fd, setCPUID, &t); err != nil {
		return fmt.Errorf("telling vCPU %d what it can do: %w", v.id, err)
	}
	return nil
}
