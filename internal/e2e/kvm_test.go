package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/hosttest"
	"github.com/forkd-dev/forkd/internal/image"
)

// Where FORKD_TEST_KVM is set, the tests have a daemon whose engine is kvm; on a host
// without KVM they run in an emulated one. That has no network, and no programs but those
// of the image that the guests have, too. What tests need besides is made ahead.
var onKVM = hosttest.Files{Prepare: prepareKVM, Unless: kvmVariable, MemoryMiB: 6 << 10}

const (
	kvmVariable = "FORKD_TEST_KVM"
	kvmHome     = "home-kvm"
)

func usesKVM() bool { return os.Getenv(kvmVariable) != "" }

// engineName is the engine of the tests' daemons.
func engineName() string {
	if usesKVM() {
		return "kvm"
	}
	return "soft"
}

// guestArch is what Go calls the instruction set of guests.
func guestArch() string {
	if usesKVM() {
		return "amd64"
	}
	return "riscv64"
}

// notOnKVM skips what says nothing about the engine kvm, for a reason.
func notOnKVM(t *testing.T, reason string) {
	t.Helper()
	if usesKVM() {
		t.Skip("not for the engine kvm: " + reason)
	}
}

// slowness is how much slower processors are here than elsewhere, roughly. All that the
// tests do otherwise in an emulated host follows from it.
var slowness = slownessHere()

func slownessHere() time.Duration {
	const emulated = 10
	if hosttest.Inside() {
		return emulated
	}
	return 1
}

// patience bounds everything that should be quick; the host may be busy.
var patience = min(2*time.Minute*slowness, 5*time.Minute)

// fewer is how many there are of what only takes its time by being many.
func fewer(usual int) int { return max(2, usual/int(slowness)) }

// ownMiB is how much a sandbox may have to itself that needs so much memory at a time. On kvm what it
// has written once stays its own, also if it is in a branch's file.
func ownMiB(needs int64) int64 {
	if usesKVM() {
		return 2 * needs
	}
	return needs
}

// nap is what a job of a guest does, again and again, to leave others time.
func nap(usual time.Duration) string { return fmt.Sprintf("sleep %v", (usual * slowness).Seconds()) }

// inTheMiddle sleeps until what takes a while is half done, somewhere else in each round.
func inTheMiddle(usual time.Duration) { time.Sleep(usual * slowness) }

// prepareKVM builds the programs, and an image, which an emulated host then has in the
// same places.
func prepareKVM(ctx context.Context, f *hosttest.Files) error {
	if os.Getenv("FORKD_TEST_HOME") == "" {
		os.Setenv("FORKD_TEST_HOME", filepath.Join(os.TempDir(), "forkd-e2e-kvm"))
	}
	if err := makeBase(); err != nil {
		return err
	}
	if err := build(guestArch()); err != nil {
		return err
	}
	key := filepath.Join(suite.base, "agent-key")
	if err := os.WriteFile(key, []byte(suite.agent), 0o600); err != nil {
		return err
	}
	agent, err := os.ReadFile(filepath.Join(suite.base, "forkd-agent.amd64"))
	if err != nil {
		return err
	}
	options := image.Options{Home: filepath.Join(suite.base, kvmHome), Arch: "amd64", Agent: agent}
	img, err := image.Build(ctx, options)
	if err != nil {
		return err
	}
	if err := buildHammer(ctx); err != nil {
		return err
	}
	lock := filepath.Join(filepath.Dir(img.Dir), ".lock") // a home that has an image has it, too
	f.Paths = []string{suite.bin, key, img.Dir, lock, hammerProgram(), pythonSDK, typeScriptSDK, conformance, "../../README.md", "../../examples"}
	f.Programs = img.RootfsPath()
	if !selected(withNode) {
		return nil
	}
	err = prepareNode(ctx, f, options)
	if errors.Is(err, errNoNPM) {
		return nil // the tests will skip
	}
	return err
}

// withNode are tests of programs for Node.js, which are large and take long to get.
var withNode = []string{"TestE2BPackages", "TestSDKConformance"}

// selected reports whether one of some tests is to be run.
func selected(tests []string) bool {
	pattern, _, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	re, err := regexp.Compile(pattern)
	return err == nil && slices.ContainsFunc(tests, re.MatchString)
}

// prepareNode installs what the tests of programs for Node.js need. The image of E2B's
// templates has it.
func prepareNode(ctx context.Context, f *hosttest.Files, o image.Options) error {
	sdk, err := buildTypeScript(ctx, suite.base)
	if err != nil {
		return err
	}
	f.Paths = append(f.Paths, sdk, e2bSuite, "../../docs/e2b.md")
	for _, generation := range e2bGenerations {
		dir, err := installE2B(ctx, suite.base, generation)
		if err != nil {
			return err
		}
		f.Paths = append(f.Paths, dir)
	}
	o.Packages = e2bRequest.Packages
	img, err := image.Build(ctx, o)
	if err != nil {
		return err
	}
	f.Paths, f.Programs = append(f.Paths, img.Dir), img.RootfsPath()
	return nil
}

// hammerProgram is where the program of TestSeveralVCPUs is made ahead.
func hammerProgram() string { return filepath.Join(suite.base, "hammer") }

func buildHammer(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", hammerProgram(), "./hammer")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+guestArch(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return nil
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
	return nil
}
