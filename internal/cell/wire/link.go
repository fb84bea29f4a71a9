package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Link carries the frames of all streams between a daemon and a cell over one connection,
// so that who is busy is not woken up for each. One goroutine may receive; any may send.
//
// Send never waits, neither for the socket nor for others who send: what the socket does not
// take at once is kept, in order, and sent by a goroutine that there is only then, and what
// comes while somebody gives it something goes with what he gives it next. What may be kept is
// bounded by the windows of the streams, and by opening no more of them while there is much
// (behind).
type Link struct {
	unix *net.UnixConn
	raw  syscall.RawConn

	in *chunk // what has come and was not parsed yet, or nil; of who receives

	mu      sync.Mutex // a leaf
	out     []byte     // what was not given to the socket yet; guarded by mu
	free    []byte     // a buffer that nobody needs; guarded by mu
	rest    int        // bytes that are being sent; guarded by mu
	sending bool       // somebody sends them, and gives the socket what is added; guarded by mu
	err     error      // why nothing is sent any more; guarded by mu
}

// chunk is a buffer for what has come. An idle link has none.
type chunk struct {
	data [frameHeader + maxFrame]byte
	fill int
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// NewLink returns a link over a connection on which the opening has been sent and
// received.
func NewLink(c *net.UnixConn) (*Link, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Link{unix: c, raw: raw}, nil
}

// Close closes the connection. Who receives gets an error.
func (l *Link) Close() error { return l.unix.Close() }

// maxKept is how large a buffer is kept for what is sent next.
const maxKept = 16 << 10

// maxTurns is how often who sends gives the socket what others have added meanwhile. A vCPU that
// has had little to say is not to spend its time on those that have much.
const maxTurns = 4

// Send sends frames, one right after the other. The error is about those before.
func (l *Link) Send(frames ...Frame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	for i := range frames {
		l.out = frames[i].append(l.out)
	}
	if !l.sending {
		l.sendLocked()
	}
	return nil
}

// sendLocked gives the socket what it takes, also of what others add meanwhile, and has the
// rest sent later. The caller holds l.mu, which is free while the system is called.
func (l *Link) sendLocked() {
	l.sending = true
	for turn := 0; len(l.out) > 0; turn++ {
		b := l.out
		l.out, l.free, l.rest = l.free[:0], nil, len(b)
		var n int
		var err error
		if turn < maxTurns {
			l.mu.Unlock()
			n, err = l.write(b)
			l.mu.Lock()
		}
		switch {
		case err != nil && !errors.Is(err, unix.EAGAIN):
			l.failLocked(err)
		case n < len(b):
			l.rest = len(b) - n
			go l.drain(b[n:])
			return
		case cap(b) <= maxKept:
			l.free = b
		}
	}
	l.rest, l.sending = 0, false
}

// write is write(2) that does not wait.
func (l *Link) write(b []byte) (n int, err error) {
	waitErr := l.raw.Write(func(fd uintptr) bool {
		for {
			if n, err = writeNow(fd, b); err != unix.EINTR {
				return true
			}
		}
	})
	return max(n, 0), errors.Join(waitErr, err)
}

// drain sends what the socket has not taken, and what has been added meanwhile.
func (l *Link) drain(rest []byte) {
	for len(rest) > 0 {
		_, err := l.unix.Write(rest)
		l.mu.Lock()
		if rest, l.out = l.out, nil; err != nil {
			l.failLocked(err)
			rest = nil
		}
		l.rest, l.sending = len(rest), len(rest) > 0
		l.mu.Unlock()
	}
}

// behind returns an error that wraps ErrBehind if the other side has not taken up so much that
// it is better to begin nothing new.
func (l *Link) behind() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kept := l.rest + len(l.out); kept > maxAsked {
		return fmt.Errorf("%w: %d bytes of it", ErrBehind, kept)
	}
	return nil
}

func (l *Link) failLocked(err error) {
	l.err, l.out = &net.OpError{Op: "write", Net: "cell", Err: err}, nil
}

// Receive has each frame taken that comes, whose payload take may not keep, until the
// connection ends or take returns an error. The error is io.EOF if the other side has
// closed it, and wraps ErrMalformed for what no peer of this version sends.
func (l *Link) Receive(take func(Frame) error) error {
	for {
		if err := l.fill(); err != nil {
			return err
		}
		rest := l.in.data[:l.in.fill]
		for {
			f, size, err := parseFrame(rest)
			if err == nil && size > 0 {
				err = take(f)
			}
			if err != nil {
				return err
			}
			if size == 0 {
				break
			}
			rest = rest[size:]
		}
		if l.in.fill = copy(l.in.data[:], rest); l.in.fill == 0 {
			chunks.Put(l.in)
			l.in = nil
		}
	}
}

// fill waits for bytes. Only once there are some is there a buffer for them.
func (l *Link) fill() error {
	var n int
	var err error
	waitErr := l.raw.Read(func(fd uintptr) bool {
		c := l.in
		if c == nil {
			c = chunks.Get().(*chunk)
			c.fill = 0
		}
		for {
			if n, err = readNow(fd, c.data[c.fill:]); err != unix.EINTR {
				break
			}
		}
		if n > 0 {
			c.fill += n
			l.in = c
		} else if l.in == nil {
			chunks.Put(c)
		}
		return err != unix.EAGAIN
	})
	switch {
	case waitErr != nil:
		return waitErr
	case err != nil:
		return &net.OpError{Op: "read", Net: "cell", Err: err}
	case n == 0:
		return io.EOF
	}
	return nil
}
