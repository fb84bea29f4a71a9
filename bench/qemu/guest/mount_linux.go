package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const newRoot = "/newroot"

// prepare makes a root file system out of an initramfs and enters it. It
// returns the console, also when something fails after that was opened.
func prepare() (console *os.File, err error) {
	if err := mountAll([]mount{
		{"devtmpfs", "/dev", "devtmpfs", 0, ""},
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"tmpfs", "/run", "tmpfs", 0, ""},
	}); err != nil {
		return nil, err
	}
	if err := loadModules(); err != nil {
		return nil, err
	}
	if console, err = openConsole(); err != nil {
		return nil, err
	}
	return console, enterRoot()
}

type mount struct {
	source, target, fstype string
	flags                  uintptr
	options                string
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.options); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", m.source, m.target, err)
		}
	}
	return nil
}

// loadModules loads what /etc/modules.load lists, in that order.
func loadModules() error {
	list, err := os.ReadFile("/etc/modules.load")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		if err := loadModule(filepath.Join("/lib/modules", name)); err != nil {
			return fmt.Errorf("loading module %s: %w", name, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil // the kernel has it built in
	}
	return err
}

// openConsole waits for the console's device node, which a kernel thread makes
// after the driver has found the device.
func openConsole() (*os.File, error) {
	for range 1000 {
		f, err := os.OpenFile("/dev/hvc0", os.O_RDWR|unix.O_NOCTTY, 0)
		if err == nil {
			return f, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, errors.New("no virtio console appeared")
}

// enterRoot mounts the root file system with the scratch disk over it, and
// makes that the root of this process.
func enterRoot() error {
	root, err := disk("rootfs")
	if err != nil {
		return err
	}
	scratch, err := disk("scratch")
	if err != nil {
		return err
	}
	if err := mountAll([]mount{
		{root, "/run/lower", "erofs", unix.MS_RDONLY, ""},
		{scratch, "/run/scratch", "ext4", unix.MS_NOATIME, ""},
	}); err != nil {
		return err
	}
	for _, dir := range []string{"/run/scratch/upper", "/run/scratch/work"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mountAll([]mount{
		{"overlay", newRoot, "overlay", 0, "lowerdir=/run/lower,upperdir=/run/scratch/upper,workdir=/run/scratch/work"},
		{"/dev", newRoot + "/dev", "", unix.MS_BIND, ""},
		{"/proc", newRoot + "/proc", "", unix.MS_BIND, ""},
		{"/sys", newRoot + "/sys", "", unix.MS_BIND, ""},
	}); err != nil {
		return err
	}
	if err := unix.Chroot(newRoot); err != nil {
		return fmt.Errorf("entering the root file system: %w", err)
	}
	return os.Chdir("/")
}

// disk returns the device node of the disk with that serial number. The order
// in which the kernel finds the disks differs between machines.
func disk(serial string) (string, error) {
	paths, err := filepath.Glob("/sys/block/*/serial")
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err == nil && string(bytes.TrimSpace(text)) == serial {
			return "/dev/" + filepath.Base(filepath.Dir(path)), nil
		}
	}
	return "", fmt.Errorf("no disk has the serial number %q", serial)
}
