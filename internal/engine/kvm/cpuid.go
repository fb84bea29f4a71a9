//go:build linux && amd64

package kvm

import (
	"fmt"
	"math/bits"
	"slices"
)

// Leaves and bits of CPUID (AMD64 APM volume 3 appendix E; for 0x4000_0000 and on
// the kernel's Documentation/virt/kvm/x86/cpuid).
const (
	leafFeatures   = 0x1
	leafTopology   = 0xb
	leafV2         = 0x1f
	leafHypervisor = 0x4000_0000
	leafKVM        = 0x4000_0001
	leafTiming     = 0x4000_0010 // eax: kHz of the time stamp counter
	leafAMDNode    = 0x8000_001e

	featureTSCDeadline = 1 << 24 // ecx of leafFeatures
	featureHypervisor  = 1 << 31 // ecx of leafFeatures
	kvmAsyncPF         = 1 << 4  // eax of leafKVM
	kvmAsyncPFVMExit   = 1 << 10
	kvmAsyncPFInt      = 1 << 14
)

// supportedCPUID returns what the kernel can offer guests, without what machines
// here do not have.
func supportedCPUID(fd int, tscKHz uint64) ([]cpuidEntry, error) {
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
		case leafHypervisor:
			e.eax = max(e.eax, leafTiming)
		case leafKVM:
			// The host reads pages of memory itself and does not tell.
			e.eax &^= kvmAsyncPF | kvmAsyncPFVMExit | kvmAsyncPFInt
		}
	}
	list = slices.DeleteFunc(list, func(e cpuidEntry) bool { return e.function == leafTiming })
	return append(list, cpuidEntry{function: leafTiming, eax: uint32(tscKHz)}), nil
}

// features names the bits of the leaves that stand for what code may use.
func features(list []cpuidEntry) (names []string) {
	for _, e := range list {
		for _, r := range featureRegisters {
			if e.function != r.function || e.index != r.index {
				continue
			}
			for name, value := range map[string]uint32{"eax": e.eax & r.eax, "ebx": e.ebx & r.ebx, "ecx": e.ecx & r.ecx, "edx": e.edx & r.edx} {
				for ; value != 0; value &= value - 1 {
					names = append(names, fmt.Sprintf("cpuid.%x.%x.%s.%d", e.function, e.index, name, bits.TrailingZeros32(value)))
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// featureRegisters are the registers of CPUID that list features, with the bits that
// do.
var featureRegisters = []cpuidEntry{
	{function: leafFeatures, ecx: all &^ featureHypervisor, edx: all},
	{function: 0x7, index: 0, ebx: all, ecx: all, edx: all},
	{function: 0x7, index: 1, eax: all, edx: all},
	{function: 0xd, index: 0, eax: all},
	{function: 0xd, index: 1, eax: all},
	{function: 0x8000_0001, ecx: all, edx: all},
	{function: 0x8000_0008, ebx: all},
}

const all = 1<<32 - 1

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
