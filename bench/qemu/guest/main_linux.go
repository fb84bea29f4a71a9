// Command guest is the first process of a machine whose speed is measured. It
// stands in for the guest agent: it loads the modules of the initramfs, mounts
// the root file system and its scratch disk, and becomes ready. Then it runs
// the workloads that the kernel command line names, reports them line by line
// on the virtio console (package suite), and powers off.
//
// The same program is also a few of the workloads: see tools.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

func main() {
	// The kernel gives words of its command line to init as arguments, so those
	// do not tell a tool from the init program.
	if os.Getpid() != 1 {
		if err := tool(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "guest:", err)
			os.Exit(1)
		}
		return
	}
	reports, err := prepare()
	if err == nil {
		err = os.Setenv("PATH", searchPath) // for looking up commands
	}
	if err == nil {
		err = run(reports)
	}
	if err != nil {
		fail(reports, err)
	}
	unix.Sync()
	// Nothing is left to do if this fails; the kernel then panics because init
	// ends, and with that the machine ends too.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// fail reports why the guest gives up, wherever it can be read.
func fail(reports *os.File, err error) {
	if reports == nil {
		reports = os.Stderr
	}
	report(reports, suite.Line{Event: suite.Fail, Name: "-", Text: err.Error()})
}

// run executes the workloads whose names the command line has.
func run(reports *os.File) error {
	report(reports, suite.Line{Event: suite.Done, Name: suite.Boot})
	names, err := wanted()
	if err != nil {
		return err
	}
	for _, name := range names {
		w, ok := suite.Find(name)
		if !ok {
			return fmt.Errorf("workload %q is not known", name)
		}
		if err := measure(reports, w); err != nil {
			return fmt.Errorf("workload %s: %w", name, err)
		}
	}
	report(reports, suite.Line{Event: suite.End, Name: "-"})
	return nil
}

// wanted reads the kernel command line.
func wanted() ([]string, error) {
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	for _, word := range strings.Fields(string(text)) {
		if list, ok := strings.CutPrefix(word, suite.Parameter); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}

// report writes one line. The host takes the time when the line arrives, so it
// is written with a single call.
func report(to *os.File, l suite.Line) {
	l.Time = uptime()
	// The console is all there is; a line that it loses, the host misses.
	_, _ = to.WriteString(l.String() + "\n")
}

func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
