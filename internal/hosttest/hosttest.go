// Package hosttest gives the tests of a package a host with /dev/kvm where there
// is none.
//
// A package that needs KVM has its TestMain call Main. Where /dev/kvm opens and the
// processor can virtualize, the tests run as ever. Elsewhere the same test program is started again inside an
// emulated host: a Debian kernel under QEMU, whose emulation of AMD's SVM is
// enough for KVM. The program is that host's first process, too; so a whole run is
// one file, the kernel's modules, and what the tests ask for in Files. Output and
// exit status are those of the tests inside.
//
// The emulated host has one CPU: with more, Debian's kernel does not survive the
// patching of its own code under multi-threaded emulation. It says little about
// time.
package hosttest

import (
	"context"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/engine/kvm"
)

// Files names what the tests need besides their own program.
type Files struct {
	// Paths are files and directories of this host, which are in the same places
	// in the emulated one. Relative ones are relative to the package.
	Paths []string
	// Prepare, if not nil, is called on this host before the tests run anywhere, and
	// may add to what there is here.
	Prepare func(ctx context.Context, f *Files) error
	// Programs, if not empty, is one of Paths that is a Debian system in EROFS, whose
	// programs the emulated host gets.
	Programs string
	// Unless names an environment variable without which the tests run on this host,
	// where they have to skip what needs KVM.
	Unless string
	// MemoryMiB is the emulated host's memory; default 2048.
	MemoryMiB int
	// Guest, if not nil, is what the test program does as the first process of a
	// guest of the tests, with the file systems of a kernel mounted. The guest is
	// switched off when it returns. See Kernel.
	Guest func()
}

const device = "/dev/kvm"

// forceEnv is the environment variable that asks for an emulated host even where
// there is a real one.
const forceEnv = "FORKD_TEST_EMULATE"

// missing is why there is no host with KVM, or nil.
var missing error

// Runner runs tests, as a testing.M does.
type Runner interface{ Run() (status int) }

// Inside tells whether the tests run in an emulated host.
func Inside() bool { return os.Getenv(insideEnv) != "" }

// Main runs the tests of a package; its TestMain does nothing else.
func Main(m Runner, files Files) {
	if os.Getpid() == 1 && (files.Guest != nil || hasErrand()) {
		initialize(files.Guest)
	}
	flag.Parse()
	if listing() || Inside() || files.Unless != "" && os.Getenv(files.Unless) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	status, err := start(ctx, m, files)
	if errors.Is(err, errBroken) {
		fmt.Fprintln(os.Stderr, "hosttest:", err)
		os.Exit(1)
	}
	if err != nil && os.Getenv(forceEnv) != "" {
		fmt.Fprintln(os.Stderr, "hosttest: no host can be emulated, as", forceEnv, "asks for:", err)
		os.Exit(1)
	}
	if err != nil {
		// The tests that need KVM say why they are skipped; others run.
		missing = err
		status = m.Run()
	}
	os.Exit(status)
}

// start prepares the tests and runs them here or inside. An error means that they
// cannot run.
func start(ctx context.Context, m Runner, files Files) (status int, err error) {
	real := opens() && kvm.Virtualizes() == nil && os.Getenv(forceEnv) == ""
	if !real {
		if _, err := exec.LookPath(emulator); err != nil {
			return 0, errNoEmulator
		}
		if err := standsAlone(); err != nil {
			return 0, err
		}
	}
	if files.Prepare != nil {
		if err := files.Prepare(ctx, &files); err != nil {
			return 0, err
		}
	}
	if real {
		return m.Run(), nil
	}
	// The tests inside have the same limit, and tell more of what they were doing.
	if limit, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String()); err == nil && limit > 0 {
		const more = 30 * time.Second
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, limit+more, fmt.Errorf("the emulated host has not ended after %v", limit+more))
		defer cancel()
	}
	return emulate(ctx, files)
}

// Need skips a test on a host without KVM that cannot emulate one either.
func Need(t testing.TB) {
	t.Helper()
	if missing != nil {
		t.Skipf("no %s here, and no host with one could be emulated: %v", device, missing)
	}
}

func opens() bool {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// listing tells that go test only wants to know what there is.
func listing() bool { return flag.Lookup("test.list").Value.String() != "" }

// standsAlone reports a test program that needs libraries: there are none inside.
func standsAlone() error {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("the test program needs the C library: set CGO_ENABLED=0")
	}
	return nil
}

const emulator = "qemu-system-x86_64"

var errNoEmulator = errors.New(emulator + " is not installed")

// emulate runs the tests inside.
func emulate(ctx context.Context, files Files) (status int, err error) {
	cache, err := cacheDir()
	if err != nil {
		return 0, err
	}
	h, err := fetch(ctx, cache)
	if err != nil {
		return 0, fmt.Errorf("getting a kernel for it: %w", err)
	}
	work, err := os.MkdirTemp("", "hosttest-*")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	initrd := filepath.Join(work, "initrd")
	if err := writeInitrd(initrd, h, files); err != nil {
		return 0, fmt.Errorf("packing the tests: %w", err)
	}
	return run(ctx, h, initrd, work, files)
}

// cacheDir is where kernels are kept.
func cacheDir() (string, error) {
	if home := os.Getenv("FORKD_TEST_HOME"); home != "" {
		return filepath.Join(home, "cache"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "forkd-test"), nil
}

// outsideFlags are flags of the test program that name files of the outer host, or
// are meant for it.
var outsideFlags = []string{
	"test.testlogfile", "test.coverprofile", "test.cpuprofile", "test.memprofile", "test.blockprofile",
	"test.mutexprofile", "test.trace", "test.outputdir", "test.gocoverdir", "test.fuzzcachedir",
}

// arguments returns the flags for the tests inside.
func arguments() (args []string) {
	flag.Visit(func(f *flag.Flag) {
		for _, outside := range outsideFlags {
			if f.Name == outside {
				return
			}
		}
		args = append(args, "-"+f.Name+"="+f.Value.String())
	})
	return append(args, flag.Args()...)
}

// insideEnv tells the tests that they run where they should.
const insideEnv = "FORKD_TEST_INSIDE"

// environment returns the variables that the tests inside get.
func environment() (env []string) {
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "FORKD_") && !strings.HasPrefix(kv, forceEnv+"=") || strings.HasPrefix(kv, "GODEBUG=") {
			env = append(env, kv)
		}
	}
	return append(env, insideEnv+"=1", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TMPDIR=/tmp")
}
