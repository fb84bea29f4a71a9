package cli

import "golang.org/x/sys/unix"

// openNameless makes a file without a name in a directory. Links to it are made by way of /proc.
func openNameless(dir string) (fd int, err error) {
	if err := unix.Access("/proc/self/fd", unix.X_OK); err != nil {
		return -1, err
	}
	return unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
}
