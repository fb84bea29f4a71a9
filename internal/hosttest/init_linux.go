package hosttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errand is what the first process of the emulated host is told.
type errand struct {
	Args     []string
	Env      []string
	Dir      string
	Programs string // see Files
}

const errandPath = "/errand.json"

// hasErrand tells the emulated host from others.
func hasErrand() bool {
	_, err := os.Stat(errandPath)
	return err == nil
}

// initialize is the first process of the emulated host, or of a guest of the tests.
// It does not return.
func initialize(guest func()) {
	if hasErrand() {
		status, err := runInside()
		report(status, err)
	} else if err := mountAll(); err == nil && guest != nil {
		guest()
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func runInside() (status int, err error) {
	if err := mountAll(); err != nil {
		return 0, err
	}
	if err := loadModules(); err != nil {
		return 0, err
	}
	if err := loopback(); err != nil {
		return 0, err
	}
	var e errand
	b, err := os.ReadFile(errandPath)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil {
		return 0, err
	}
	if e.Programs != "" {
		if err := mountPrograms(e.Programs); err != nil {
			return 0, err
		}
	}
	out, err := output()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("/init", e.Args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = e.Env, e.Dir, out, out
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if code := exit.ExitCode(); code >= 0 {
			return code, nil
		}
	}
	return 0, err
}

// mountAll mounts what programs expect. The root is the initramfs and stays it, so
// that what was packed for the tests is seen wherever it lies.
func mountAll() error {
	if err := os.MkdirAll("/tmp", 0o1777); err != nil {
		return err
	}
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", ""}, {"tmpfs", "/run", ""}, {"tmpfs", "/dev/shm", ""}, {"cgroup2", "/sys/fs/cgroup", ""},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mounting %s: %w", m.at, err)
		}
	}
	return nil
}

// loadModules loads the modules in order. KVM bases its clock on what it takes the
// TSC's frequency for, so it must not come before the kernel has made up its mind.
func loadModules() error {
	order, err := os.ReadFile("/etc/modules.load")
	if err != nil {
		return err
	}
	awaitTSC()
	for name := range strings.FieldsSeq(string(order)) {
		f, err := os.Open(filepath.Join("/lib/modules", name))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("loading %s: %w", name, err)
		}
	}
	return nil
}

// loopback has the host reach itself over the network.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("switching the loopback interface on: %w", err)
	}
	return nil
}

func awaitTSC() {
	for range 100 {
		b, _ := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
		if strings.TrimSpace(string(b)) == "tsc" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

const outputDevice = "/dev/ttyS1"

// output returns the second serial port, which changes no byte.
func output() (*os.File, error) {
	f, err := os.OpenFile(outputDevice, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON
	return f, unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

// report tells the outer host how it went. If that does not work either, what it
// sees is the console.
func report(status int, failed error) {
	fmt.Fprintln(os.Stderr, "hosttest: status", status, failed)
	f, err := output()
	if err != nil {
		return
	}
	if failed != nil {
		fmt.Fprintln(f, "the emulated host:", failed)
		status = max(status, 1)
	}
	fmt.Fprintf(f, "%s%d\n", statusLine, status)
	unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) // wait until it is out
	f.Close()
}
