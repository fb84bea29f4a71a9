//go:build linux && amd64

package kvm

// Requests returns the numbers of the requests that machines make of the kernel, the most
// frequent first, for a jail that allows no others.
func Requests() []uint32 {
	all := []request{
		run, irqLine, getClock, setClock,
		getAPIVersion, createVM, getMSRIndexList, checkExtension, getVCPUMmapSize, getCPUID,
		createVCPU, setMemoryRegion, setTSSAddr, setIdentityMap, createIRQChip, getIRQChip, setIRQChip,
		createPIT, getPIT, setPIT, getRegs, setRegs, getSRegs, setSRegs, getMSRs, setMSRs, getLAPIC, setLAPIC,
		setCPUID, getMPState, setMPState, getVCPUEvents, setVCPUEvents, getDebugRegs, setDebugRegs, getTSCKHz,
		getXSave, setXSave, getXCRs, setXCRs,
	}
	numbers := make([]uint32, len(all))
	for i, r := range all {
		numbers[i] = uint32(r)
	}
	return numbers
}
