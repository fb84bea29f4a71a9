package kvm

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
)

// ErrSlow reports a host that has KVM but whose processor does not run guests.
var ErrSlow = errors.New("the processor does not virtualize (neither vmx nor svm is among its flags in /proc/cpuinfo)")

// Virtualizes reports, by ErrSlow, a processor that does not run guests itself. A host
// of such processors can have KVM all the same, when it is a virtual machine whose own
// host emulates it; guests are about a hundred times slower there.
func Virtualizes() error {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	return virtualizes(f)
}

func virtualizes(cpuinfo io.Reader) error {
	lines := bufio.NewScanner(cpuinfo)
	for lines.Scan() {
		name, flags, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(name) != "flags" {
			continue
		}
		for flag := range strings.FieldsSeq(flags) {
			if flag == "vmx" || flag == "svm" {
				return nil
			}
		}
		return ErrSlow // all processors of a host are alike
	}
	return errors.Join(ErrSlow, lines.Err())
}
