//go:build linux && amd64

package kvm_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/kvm"
	"github.com/forkd-dev/forkd/internal/hosttest"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
)

// guest tells what it finds, in the kernel's log.
func guest() {
	log, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		return
	}
	cpus, _ := os.ReadFile("/sys/devices/system/cpu/online")
	clock, _ := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	devices, _ := os.ReadDir("/sys/bus/acpi/devices")
	var names []string
	for _, d := range devices {
		names = append(names, d.Name())
	}
	memory, _ := os.ReadFile("/proc/meminfo")
	fields := strings.Fields(string(memory)) // MemTotal: n kB
	kib, _ := strconv.Atoi(fields[1])
	fmt.Fprintf(log, "guest: %d MiB, cpus %s, clock %s, devices %s\n",
		kib>>10, strings.TrimSpace(string(cpus)), strings.TrimSpace(string(clock)), strings.Join(names, " "))
	line, _ := os.ReadFile("/proc/cmdline")
	for name, end := range ends {
		if strings.Contains(string(line), endParameter+name) {
			end.do()
		}
	}
}

// ends are the ways in which a guest can end, by the value of a parameter of its kernel.
var ends = map[string]struct {
	do   func()
	exit engine.Exit
}{
	"off":    {func() {}, engine.Off}, // which the first process does anyway
	"reboot": {func() { unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) }, engine.Reset},
	"halt":   {func() { unix.Reboot(unix.LINUX_REBOOT_CMD_HALT) }, engine.Off},
	"panic":  {func() { os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0) }, engine.Reset},
}

const endParameter = "guest.end="

// screen is a console that can be read meanwhile.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestLinux boots Debian's kernel to its first process, which finds its processors,
// its clock, the board's devices and its memory, and ends the machine in one way or another.
func TestLinux(t *testing.T) {
	if os.Getenv("FORKD_TEST_KVM") == "" {
		t.Skip("set FORKD_TEST_KVM=1: on a busy machine an emulated host takes minutes for it")
	}
	hosttest.Need(t)
	kernel, initrd, err := hosttest.Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e, err := kvm.New()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, c := range []struct {
		vcpus, mib int
		end        string
	}{{1, 512, "off"}, {2, 512, "reboot"}, {2, 5 << 10, "panic"}, {16, 512, "halt"}} {
		t.Run(fmt.Sprintf("%d-%dMiB-%s", c.vcpus, c.mib, c.end), func(t *testing.T) {
			console := bootLinux(t, e, kernel, initrd, c.vcpus, c.mib, c.end)
			checkFound(t, console, c.vcpus, c.mib)
		})
	}
}

// bootLinux boots a guest until it ends, and returns what it has printed.
func bootLinux(t *testing.T, e engine.Engine, kernel, initrd []byte, vcpus, mib int, end string) string {
	t.Helper()
	var console screen
	m, err := machine.New(machine.Config{
		Engine: e, VCPUs: vcpus, Memory: newMemory(t, e, mib<<20), Root: page.NewStack(1),
		Scratch: page.NewOverlay(page.NewStack(1), page.NewArena(), 0), Console: &console, Entropy: zeros{},
		Boot: &machine.Boot{Kernel: kernel, Initrd: initrd, CommandLine: "earlyprintk=ttyS0,keep panic=-1 mitigations=off random.trust_cpu=on reboot=acpi " + endParameter + end},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(3 * time.Minute); m.Look(); time.Sleep(time.Second) {
		if time.Now().After(deadline) {
			t.Fatalf("the guest does not end; its console:\n%s", console.String())
		}
	}
	<-m.Done()
	if got, want := m.Ending(), ends[end].exit; got.Err != nil || got.Exit != want {
		t.Fatalf("the guest ended: %v, want %v; its console:\n%s", got, want, console.String())
	}
	return console.String()
}

// checkFound looks at what a guest has found in its machine.
func checkFound(t *testing.T, console string, vcpus, mib int) {
	t.Helper()
	cpus := "0"
	if vcpus > 1 {
		cpus = fmt.Sprintf("0-%d", vcpus-1)
	}
	want := ", cpus " + cpus + ", clock kvm-clock, devices ACPI0013:00 FORK0001:00 LNRO0005:00 LNRO0005:01 LNRO0005:02 LNRO0005:03 LNRO0005:04 "
	if !strings.Contains(console, want) {
		t.Errorf("the guest did not find what the board has; its console:\n%s", console)
	}
	var has int
	_, told, _ := strings.Cut(console, "] guest: ")
	if _, err := fmt.Sscanf(told, "%d MiB", &has); err != nil || has > mib || has < mib*4/5 {
		t.Errorf("the guest has %d MiB of memory, want nearly %d (%v); its console:\n%s", has, mib, err, console)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func newMemory(t *testing.T, e engine.Engine, size int) page.Top {
	t.Helper()
	arena, err := e.NewArena()
	if err != nil {
		t.Fatal(err)
	}
	empty := page.NewStack(page.Number(size / page.Size))
	defer empty.Release()
	m, err := e.NewMemory(empty, arena, 0)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
