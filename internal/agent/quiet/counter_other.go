//go:build linux && !riscv64 && !amd64

package quiet

import (
	"errors"
	"runtime"
)

// counterNS returns how long the machine's time counter has counted.
func counterNS() (int64, error) {
	return 0, errors.New("there is no machine whose time counter can be read on " + runtime.GOARCH)
}
