package hosttest

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// programsAt is where the emulated host has the system that its programs are of.
const programsAt = "/programs"

// mountPrograms gives the emulated host the programs and libraries of a Debian system in
// a file. What the host has itself stays: its configuration, and what was packed for the
// tests.
func mountPrograms(file string) error {
	device, err := loopDevice(file)
	if err != nil {
		return fmt.Errorf("making a disk of %s: %w", file, err)
	}
	if err := os.MkdirAll(programsAt, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, programsAt, "erofs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", file, err)
	}
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64"} {
		from, err := filepath.EvalSymlinks(programsAt + dir)
		if err != nil {
			continue // not every system has all of them
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", dir, err)
		}
	}
	return nil
}

// loopDevice returns a block device that has what a file has, and cannot be written.
func loopDevice(file string) (string, error) {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(control)
	n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return "", err
	}
	data, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(data)
	name := fmt.Sprintf("/dev/loop%d", n)
	device, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(device)
	return name, unix.IoctlLoopConfigure(device, &unix.LoopConfig{
		Fd: uint32(data), Size: 4096, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY},
	})
}
