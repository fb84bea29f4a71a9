package quiet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a non-blocking socket or pipe.
type Conn struct {
	file  *os.File
	raw   syscall.RawConn
	fresh Fresh // what it was made of

	broken atomic.Bool // somebody has been told so, and the kernel says it only once
}

// NewConn takes over a descriptor, which becomes non-blocking.
func NewConn(fd int, name string) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return wrap(fd, name)
}

// wrap takes over a descriptor that is non-blocking already.
func wrap(fd int, name string) (*Conn, error) {
	file := os.NewFile(uintptr(fd), name)
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &Conn{file: file, raw: raw, fresh: Fresh{uintptr(fd)}}, nil
}

// Read reads what is there, or waits for something.
func (c *Conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	var errno unix.Errno
	err = c.raw.Read(func(fd uintptr) bool {
		n, errno = retry(func() (int, unix.Errno) { return read(fd, p) })
		return errno != unix.EAGAIN
	})
	switch {
	case err != nil:
		return 0, ended(err)
	case errno != 0:
		return 0, os.NewSyscallError("read", errno)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Await waits until there is something to read, or an end, or perhaps not quite as long.
func (c *Conn) Await() {
	looked := false
	_ = c.raw.Read(func(fd uintptr) bool { // what is wrong shows when it is read
		if looked {
			return true // the poller has said so
		}
		looked = true
		return readable(fd, 0)
	})
}

// Fresh is what c was made of. It may be used as long as c is not closed.
func (c *Conn) Fresh() Fresh { return c.fresh }

// Linger waits until there is something to read, at most for d. It waits in the kernel and keeps the processor: the way
// through the poller and back costs more than a short answer.
func (c *Conn) Linger(d time.Duration) {
	_ = c.raw.Control(func(fd uintptr) { readable(fd, d) })
}

// Write writes all of p. A peer that has gone is an error, not a signal.
func (c *Conn) Write(p []byte) (done int, err error) {
	for done < len(p) {
		var n int
		var errno unix.Errno
		err = c.raw.Write(func(fd uintptr) bool {
			n, errno = retry(func() (int, unix.Errno) { return write(fd, p[done:]) })
			return errno != unix.EAGAIN
		})
		if err != nil {
			return done, ended(err)
		}
		if errno != 0 {
			return done, os.NewSyscallError("write", errno)
		}
		done += n
	}
	return done, nil
}

// Accept accepts a connection on a listening socket.
func (c *Conn) Accept() (Fresh, error) {
	var fd int
	var errno unix.Errno
	looked := false
	err := c.raw.Read(func(listener uintptr) bool {
		if !looked {
			// To try, the kernel makes a socket and throws it away again.
			looked = true
			if !readable(listener, 0) {
				return false
			}
		}
		fd, errno = retry(func() (int, unix.Errno) { return accept(listener) })
		return errno != unix.EAGAIN
	})
	if err != nil {
		return Fresh{}, ended(err)
	}
	if errno != 0 {
		return Fresh{}, os.NewSyscallError("accept", errno)
	}
	return Fresh{uintptr(fd)}, nil
}

// Fresh is an accepted connection that the runtime's poller does not know of. Getting to know it is most of what a short
// exchange over it would cost. It is for one goroutine.
type Fresh struct{ fd uintptr }

// FreshOf takes over a descriptor, which must be non-blocking.
func FreshOf(fd int) Fresh { return Fresh{uintptr(fd)} }

// ReadNow reads what is there already, which may be nothing.
func (f Fresh) ReadNow(p []byte) (int, error) { return f.now(p, 0) }

// PeekNow is ReadNow that leaves what it reads where it is. Over vsock, to leave nothing is to send a packet.
func (f Fresh) PeekNow(p []byte) (int, error) { return f.now(p, unix.MSG_PEEK) }

func (f Fresh) now(p []byte, flags int) (int, error) {
	n, errno := retry(func() (int, unix.Errno) { return receive(f.fd, p, unix.MSG_DONTWAIT|flags) })
	switch {
	case errno == unix.EAGAIN:
		return 0, nil
	case errno != 0:
		return 0, os.NewSyscallError("recvfrom", errno)
	}
	return n, nil
}

// WriteNow writes what there is room for.
func (f Fresh) WriteNow(p []byte) (int, error) {
	n, errno := retry(func() (int, unix.Errno) { return write(f.fd, p) })
	if errno != 0 {
		return 0, os.NewSyscallError("write", errno)
	}
	return n, nil
}

// Conn makes a Conn of it, which takes it over.
func (f Fresh) Conn() (*Conn, error) { return wrap(int(f.fd), "connection") }

// Close releases the descriptor. It is an ordinary system call.
func (f Fresh) Close() error { return unix.Close(int(f.fd)) }

// Shutdown ends the connection in both directions without releasing the descriptor.
func (c *Conn) Shutdown() error {
	var errno unix.Errno
	if err := c.raw.Control(func(fd uintptr) { errno = shutdown(fd) }); err != nil {
		return err
	}
	if errno != 0 {
		return os.NewSyscallError("shutdown", errno)
	}
	return nil
}

// PeerGone reports whether the other side of a socket is closed.
func (c *Conn) PeerGone() bool {
	gone := true
	_ = c.raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n == 1 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone
}

// SetReadDeadline makes Read and Accept fail with os.ErrDeadlineExceeded after t; the zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.file.SetReadDeadline(t) }

// Close releases the descriptor. It is an ordinary system call.
func (c *Conn) Close() error { return c.file.Close() }

// ended names the error of a wait in the poller, which the standard library leaves without one: a deadline, or else that
// the descriptor was closed meanwhile.
func ended(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", os.ErrClosed, err)
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, unix.Errno)) (int, unix.Errno) {
	for {
		if n, errno := call(); errno != unix.EINTR {
			return n, errno
		}
	}
}
