package interp

import (
	"os"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/jit"
)

// useNative tells whether tests have code translated, in a cache that is soon
// full.
var useNative = jit.Supported()

func testNative() *jit.Cache {
	if !useNative {
		return nil
	}
	return jit.NewCache(1 << 20)
}

// TestMain runs everything with native code and without.
func TestMain(m *testing.M) {
	code := m.Run()
	if useNative && code == 0 {
		useNative = false
		code = m.Run()
	}
	os.Exit(code)
}
