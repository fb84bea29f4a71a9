package proc

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// OpenTTY makes a terminal. The program gets the slave, which belongs to the user that it runs as; the master is non-blocking.
func OpenTTY(size wire.TTY, owner Credentials) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("open /dev/ptmx", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, os.NewSyscallError("unlocking the terminal", err)
	}
	if err := setSize(fd, size); err != nil {
		return nil, nil, err
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, os.NewSyscallError("opening the terminal's slave", errno)
	}
	slave = os.NewFile(peer, "terminal")
	if !owner.current() && owner.UID != uint32(os.Geteuid()) {
		if err := unix.Fchown(int(peer), int(owner.UID), -1); err != nil {
			slave.Close()
			return nil, nil, os.NewSyscallError("giving the terminal to its user", err)
		}
	}
	return master, slave, nil
}

// ResizeTTY changes the size of the terminal with this master; the kernel tells the programs in its foreground.
func ResizeTTY(master *os.File, size wire.TTY) error {
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = setSize(int(fd), size) }); err != nil {
		return err
	}
	return failed
}

func setSize(fd int, size wire.TTY) error {
	err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	return os.NewSyscallError("sizing the terminal", err)
}
