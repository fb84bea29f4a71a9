package e2e

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd-dev/forkd/internal/hosttest"
	"github.com/forkd-dev/forkd/internal/image"
)

// Where FORKD_TEST_KVM is set, the tests have a daemon whose engine is kvm; on a host
// without KVM they run in an emulated one. There is no more in it than the program and
// an image, so that is for tests which need nothing else: name them with -run.
var onKVM = hosttest.Files{Prepare: prepareKVM, Unless: "FORKD_TEST_KVM", MemoryMiB: 6 << 10, Patience: 28 * time.Minute}

const kvmHome = "home-kvm"

func usesKVM() bool { return os.Getenv(onKVM.Unless) != "" }

// engineName is the engine of the tests' daemons.
func engineName() string {
	if usesKVM() {
		return "kvm"
	}
	return "soft"
}

// prepareKVM builds the program, and an image, for which there is no network in an
// emulated host. It returns what that host has in the same places.
func prepareKVM(ctx context.Context) ([]string, error) {
	if os.Getenv("FORKD_TEST_HOME") == "" {
		os.Setenv("FORKD_TEST_HOME", filepath.Join(os.TempDir(), "forkd-e2e-kvm"))
	}
	if err := makeBase(); err != nil {
		return nil, err
	}
	if err := build("amd64"); err != nil {
		return nil, err
	}
	key := filepath.Join(suite.base, "agent-key")
	if err := os.WriteFile(key, []byte(suite.agent), 0o600); err != nil {
		return nil, err
	}
	agent, err := os.ReadFile(filepath.Join(suite.base, "forkd-agent.amd64"))
	if err != nil {
		return nil, err
	}
	img, err := image.Build(ctx, image.Options{Home: filepath.Join(suite.base, kvmHome), Arch: "amd64", Agent: agent})
	if err != nil {
		return nil, err
	}
	return []string{suite.bin, key, img.Dir}, nil
}

// useKVM finds what prepareKVM has left.
func useKVM() error {
	if err := makeBase(); err != nil {
		return err
	}
	suite.bin = filepath.Join(suite.base, "forkd")
	key, err := os.ReadFile(filepath.Join(suite.base, "agent-key"))
	if err != nil {
		return err
	}
	suite.agent = string(key)
	// What is copied of a home has it.
	return os.MkdirAll(filepath.Join(suite.base, kvmHome, "cache"), 0o700)
}
