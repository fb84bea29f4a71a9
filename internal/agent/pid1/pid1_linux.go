// Package pid1 turns the agent's process into a guest's process 1: it loads
// modules, builds the root file system, and hands over to package guest.
//
// The initramfs stays the agent's home in memory only: once the root is built
// the agent moves into it, as every command does, and nothing of the initramfs
// is visible there. So any root file system works unmodified.
//
// A guest that cannot boot says why on its console and switches itself off; it
// never hangs.
package pid1

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/guest"
	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Main boots the guest and serves the host. It does not return.
func Main() {
	// One processor is enough for an agent, and a second would cost every
	// child the pages of its scheduler state.
	runtime.GOMAXPROCS(1)
	// No collection every two minutes, nor at every few megabytes: only when
	// the agent grows towards its limit, so that an idle one never works.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	holdSignals()
	unix.Umask(0o022)
	if err := serve(); err != nil {
		report(err)
	}
	powerOff()
}

// memoryLimit is what the agent's heap and stacks may grow to before garbage
// is collected, in bytes.
const memoryLimit = 24 << 20

// holdSignals keeps user code from ending the guest with a mere kill: process 1
// is spared only signals that it does not handle, and Go handles them all. The
// channel is never read. Children start with the default actions.
func holdSignals() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTERM, unix.SIGPWR, unix.SIGSYS, unix.SIGTRAP,
		unix.SIGILL, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT) // a fault of our own ends us all the same
}

func serve() error {
	quotas, err := boot()
	if err != nil {
		return fmt.Errorf("booting: %w", err)
	}
	server, err := newServer(quotas)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	if err := server.Listen(); err != nil {
		return err
	}
	return server.Serve()
}

// patience is generous because a guest on a busy host can be away for seconds.
const patience = time.Minute

// defaultEnv is what a command finds in its environment besides what belongs
// to its user.
var defaultEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"LANG=C.UTF-8",
}

func newServer(quotas guest.Quotas) (*guest.Server, error) {
	random, err := quiet.OpenRandom(reseedsItself())
	if err != nil {
		return nil, err
	}
	identity, err := guest.OpenIdentity(identityDir)
	if err != nil {
		return nil, err
	}
	if err := bindIdentity(identity); err != nil {
		return nil, err
	}
	return guest.New(guest.Config{
		Root:     "/",
		Cgroups:  cgroupDir,
		Listen:   quiet.ListenVsock,
		Dir:      runtimeDir,
		Capture:  captureDir,
		Env:      defaultEnv,
		Kernel:   kernel{random},
		Identity: identity,
		Quotas:   quotas,
		PowerOff: powerOff,
		Patience: patience,
	})
}

// bindIdentity lays the identity files over the places where programs look.
// /etc may lack some of them: they are made, so that there is something to
// bind over.
func bindIdentity(id *guest.Identity) error {
	if err := initialIdentity(id); err != nil {
		return err
	}
	for _, b := range id.Bindings() {
		f, err := os.OpenFile(b.Target, os.O_RDONLY|os.O_CREATE, 0o644)
		if err != nil {
			return fmt.Errorf("preparing %s: %w", b.Target, err)
		}
		f.Close()
		if err := unix.Mount(b.Source, b.Target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding %s over %s: %w", b.Source, b.Target, err)
		}
	}
	return nil
}

// initialIdentity is that of the parent, which its children replace.
func initialIdentity(id *guest.Identity) error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("reading boot id: %w", err)
	}
	machine := make([]byte, 16)
	if err := quiet.Getrandom(machine); err != nil {
		return fmt.Errorf("making a machine id: %w", err)
	}
	if err := quiet.SetHostname(parentName); err != nil {
		return err
	}
	return id.Write(&wire.Refresh{
		Hostname:  parentName,
		MachineID: fmt.Sprintf("%x", machine),
		BootID:    string(boot[:len(boot)-1]),
	})
}

// parentName is the host name of a guest that no child was made of yet. It is as long as those of children, whose identity
// files then need no other length.
const parentName = "forkd-template"

// kernel implements guest.Kernel.
type kernel struct{ *quiet.Random }

func (kernel) SetClock(zero int64) error     { return quiet.SetClock(zero) }
func (kernel) SetHostname(name string) error { return quiet.SetHostname(name) }

// report prints an error through the kernel's log, which reaches the console
// even before there is a driver for it.
func report(err error) {
	const level = "<2>" // critical: shown with any console log level
	if f, openErr := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0); openErr == nil {
		fmt.Fprintf(f, "%sforkd-agent: %v\n", level, err)
		f.Close()
	}
}

func powerOff() {
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	for {
		unix.Pause() // process 1 must not end, whatever became of the request
	}
}
