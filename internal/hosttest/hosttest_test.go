package hosttest_test

import (
	"os"
	"testing"

	"github.com/forkd-dev/forkd/internal/hosttest"
)

func TestMain(m *testing.M) {
	hosttest.Main(m, hosttest.Files{Paths: []string{"hosttest.go"}, MemoryMiB: 512})
}

// TestHost: there is a /dev/kvm, and files are where they were.
func TestHost(t *testing.T) {
	hosttest.Need(t)
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if b, err := os.ReadFile("hosttest.go"); err != nil || len(b) == 0 {
		t.Errorf("read %d bytes: %v", len(b), err)
	}
}
