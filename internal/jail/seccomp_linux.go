package jail

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// seccomp has the kernel filter system calls, of all threads.
func (e *entry) seccomp() (string, error) {
	if filterArch == 0 {
		return "", errors.New("there are no rules for " + runtime.GOARCH)
	}
	filter, err := compile(filterArch, lastCall, rules(e.profile, os.Getpid()))
	if err != nil {
		return "", err
	}
	if err := installFilter(filter); err != nil {
		return "", fmt.Errorf("installing a filter of %d instructions: %w", len(filter), err)
	}
	return fmt.Sprintf("%d instructions", len(filter)), nil
}
