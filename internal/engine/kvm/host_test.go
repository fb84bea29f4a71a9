package kvm

import (
	"errors"
	"strings"
	"testing"
)

func TestVirtualizes(t *testing.T) {
	for name, c := range map[string]struct {
		cpuinfo string
		want    error
	}{
		"Intel":         {"processor\t: 0\nflags\t\t: fpu vmx sse\nflags\t\t: fpu\n", nil},
		"AMD":           {"flags\t\t: fpu sse svm\n", nil},
		"neither":       {"processor\t: 0\nflags\t\t: fpu sse svm_lock vmxnot\nprocessor\t: 1\n", ErrSlow},
		"another field": {"vmx flags\t: vmx ept\nflags\t\t: fpu\n", ErrSlow},
		"nothing":       {"", ErrSlow},
	} {
		if err := virtualizes(strings.NewReader(c.cpuinfo)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
