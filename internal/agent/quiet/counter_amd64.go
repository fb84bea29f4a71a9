package quiet

import (
	"errors"
	"math/bits"
)

// Leaves of CPUID that hypervisors have.
const (
	leafHypervisor = 0x4000_0000 // eax: the last of them
	leafTiming     = 0x4000_0010 // eax: kHz of the time stamp counter
)

// rdtsc reads the time stamp counter, and cpuid eax of a leaf.
func rdtsc() uint64
func cpuid(leaf uint32) (eax uint32)

// counterNS returns how long the machine's time counter has counted.
func counterNS() (int64, error) {
	if last := cpuid(leafHypervisor); last < leafTiming || last > leafTiming+0xff {
		return 0, errNoCounter
	}
	khz := uint64(cpuid(leafTiming))
	if khz == 0 {
		return 0, errNoCounter
	}
	high, low := bits.Mul64(rdtsc(), 1e6)
	if high >= khz {
		return 0, errNoCounter
	}
	ns, _ := bits.Div64(high, low, khz)
	return int64(ns), nil
}

var errNoCounter = errors.New("this machine does not tell how fast its time stamp counter counts")
