package pid1

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
)

// reseedsItself reports whether the kernel derives a new key for its generator from fresh entropy in every machine that is
// restored, before any process executes an instruction there. That takes three things. The kernel's driver must have the
// device whose interrupt tells of a new generation, and reseed in that interrupt's handler, which it does for those of a
// device tree. The CPU must have a source of entropy (Zkr), of which a reseed takes 32 bytes, so that nobody who knows all of
// the snapshot can tell the key. And there must be one CPU: with several, another might go on ahead of the one that has been
// interrupted.
func reseedsItself() bool {
	bound, err := filepath.Glob("/sys/bus/platform/drivers/vmgenid/*/of_node")
	return err == nil && len(bound) > 0 && runtime.NumCPU() == 1 && entropyInCPU("/proc/cpuinfo")
}

// entropyInCPU reports whether a file like /proc/cpuinfo tells of a RISC-V CPU with a source of entropy.
func entropyInCPU(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(bytes.TrimSpace(name)) != "isa" {
			continue
		}
		for extension := range bytes.SplitSeq(bytes.TrimSpace(value), []byte("_")) {
			if string(extension) == "zkr" {
				return true
			}
		}
	}
	return false
}
