package quiet

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// DialLoopback connects to a TCP port of the loopback interface, first that of IPv4, then of IPv6. The error is that of the
// first, unless only the second was worse than a refusal.
func DialLoopback(port uint16, patience time.Duration) (*Conn, error) {
	conn, err := dial(unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}, patience)
	if !errors.Is(err, unix.ECONNREFUSED) {
		return conn, err
	}
	conn, err6 := dial(unix.AF_INET6, &unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}}, patience)
	switch {
	case err6 == nil:
		return conn, nil
	case errors.Is(err6, unix.EAFNOSUPPORT), errors.Is(err6, unix.EADDRNOTAVAIL):
		return nil, err // there is no IPv6 here
	}
	return nil, err6
}

func dial(family int, address unix.Sockaddr, patience time.Duration) (*Conn, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Whoever speaks through this has done what there is to gather.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	pending := unix.Connect(fd, address)
	c, err := wrap(fd, "loopback")
	if err != nil {
		return nil, err
	}
	if pending == unix.EINPROGRESS || pending == unix.EINTR {
		pending = c.connected(patience)
	}
	if pending != nil {
		c.Close()
		return nil, os.NewSyscallError("connect", pending)
	}
	return c, nil
}

// connected waits for a connection that is being made.
func (c *Conn) connected(patience time.Duration) error {
	if err := c.file.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var result error
	err := c.raw.Write(func(fd uintptr) bool {
		n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			result = err
		case unix.Errno(n) == unix.ECONNRESET:
			c.broken.Store(true) // it was accepted and has been hung up already, which is for whoever reads to find out
		case n != 0:
			result = unix.Errno(n)
		default:
			_, err = unix.Getpeername(int(fd))
			return err == nil
		}
		return true
	})
	if err != nil {
		return ended(err)
	}
	_ = c.file.SetWriteDeadline(time.Time{})
	return result
}

// relayBuffer is how much a relay takes at once. It is held only while there is something to pass on, so that idle
// connections cost nothing of it.
const relayBuffer = 64 << 10

var relayBuffers = sync.Pool{New: func() any { return new([relayBuffer]byte) }}

// Relay passes on to dst what c has to say, until its end, which it passes on, too, or until dst does not listen any more, of
// which it lets c's peer know. That c has broken dst's peer learns by the order in which the two directions end: first that
// nobody listens, and only then that no more comes. Vsock has no other way to say so, as a program cannot send a reset.
func (c *Conn) Relay(dst *Conn) {
	for {
		buf, n, err := c.take()
		if err == nil {
			_, err = dst.Write(buf[:n])
			relayBuffers.Put(buf)
			if err != nil {
				dst.broken.Store(true)
				_ = c.half(unix.SHUT_RD)
				return
			}
			continue
		}
		if err != io.EOF || c.broken.Load() {
			_ = dst.half(unix.SHUT_RD)
			_ = dst.Shutdown()
		} else if c.PeerGone() || c.peerDeaf() {
			_ = dst.Shutdown()
		}
		_ = dst.half(unix.SHUT_WR)
		return
	}
}

// take waits for something to read and reads it into a buffer from the pool.
func (c *Conn) take() (buf *[relayBuffer]byte, n int, err error) {
	var errno unix.Errno
	err = c.raw.Read(func(fd uintptr) bool {
		buf = relayBuffers.Get().(*[relayBuffer]byte)
		n, errno = retry(func() (int, unix.Errno) { return read(fd, buf[:]) })
		if errno == unix.EAGAIN {
			relayBuffers.Put(buf)
		}
		return errno != unix.EAGAIN
	})
	switch {
	case err != nil:
		return nil, 0, ended(err) // no buffer is held while it waits
	case errno == 0 && n > 0:
		return buf, n, nil
	}
	relayBuffers.Put(buf)
	if errno != 0 {
		return nil, 0, os.NewSyscallError("read", errno)
	}
	return nil, 0, io.EOF
}

// peerDeaf reports whether nothing can be sent any more. Vsock does not say that its peer is gone, but then refuses to send
// even nothing.
func (c *Conn) peerDeaf() bool {
	var err error
	if e := c.raw.Control(func(fd uintptr) {
		_, err = unix.SendmsgN(int(fd), nil, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}); e != nil {
		return true
	}
	return err != nil && err != unix.EAGAIN
}

// half ends one direction.
func (c *Conn) half(how int) error {
	var err error
	if e := c.raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), how) }); e != nil {
		return e
	}
	return err
}
