package wire

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/conn"
)

// creditStep is after how many consumed bytes the cell is told so.
const creditStep = 32 << 10

// Guests is the daemon's end of a link: connections into the guests of a cell.
//
// Lock order: Stream.mu, Guests.mu, Link.mu.
type Guests struct {
	link *Link

	mu      sync.Mutex
	streams map[uint32]*Stream // that have not ended; nil: the link is broken; guarded by mu
	last    uint32             // number that was given to one; guarded by mu
	err     error              // why it is broken; guarded by mu
}

// NewGuests returns the daemon's end of a link, which Serve runs.
func NewGuests(l *Link) *Guests {
	return &Guests{link: l, streams: make(map[uint32]*Stream)}
}

// Serve takes what the cell sends until the link breaks, and all streams with it. The caller
// closes it then.
func (g *Guests) Serve() error {
	err := g.link.Receive(g.take)
	g.mu.Lock()
	streams := g.streams
	g.streams, g.err = nil, &net.OpError{Op: "read", Net: "cell", Err: net.ErrClosed}
	g.mu.Unlock()
	for _, s := range streams {
		s.end(net.ErrClosed)
	}
	return err
}

// Close breaks the link.
func (g *Guests) Close() error { return g.link.Close() }

// take takes a frame. One of a stream that is closed has crossed the news of that.
func (g *Guests) take(f Frame) error {
	g.mu.Lock()
	s := g.streams[f.Stream]
	if f.Type == TypeReset {
		delete(g.streams, f.Stream)
	}
	g.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.take(f)
}

func (g *Guests) forget(s *Stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.streams, s.number)
}

// Stream is a connection into a guest (net.Conn).
type Stream struct {
	guests *Guests
	number uint32

	mu                          sync.Mutex
	readable, writable          sync.Cond
	readDeadline, writeDeadline conn.Deadline // guarded by mu
	open                        []byte        // payload of the frame that opens it, to be sent ahead of the first other; guarded by mu
	opened                      bool          // the guest has taken the connection; guarded by mu
	in                          conn.Buffer   // what has come and was not read yet; guarded by mu
	untold                      int           // bytes that were read and not given credit for; guarded by mu
	credit                      int           // bytes that may be sent; guarded by mu
	eof                         bool          // no more comes; guarded by mu
	shut, closed                bool          // CloseWrite, Close was called; guarded by mu
	err                         error         // why it has ended; guarded by mu
}

// Open returns a new stream. Nothing is sent before its first Write or Flush. The error wraps
// ErrBehind if the cell does not take up what it is sent.
func (g *Guests) Open(o Open) (*Stream, error) {
	if err := g.link.behind(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streams == nil {
		return nil, g.err
	}
	for taken := true; taken; {
		g.last++
		_, taken = g.streams[g.last]
	}
	s := &Stream{guests: g, number: g.last, open: o.Encode(), credit: WindowIn}
	s.readable.L, s.writable.L = &s.mu, &s.mu
	g.streams[s.number] = s
	return s, nil
}

// take takes a frame of the stream.
func (s *Stream) take(f Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.Type {
	case TypeOpened:
		s.opened = true
		s.readable.Broadcast()
	case TypeData:
		if len(f.Payload) > WindowOut-s.in.Len()-s.untold || s.eof {
			return fmt.Errorf("%w: data beyond the window, or the end", ErrMalformed)
		}
		if !s.closed {
			s.in.Write(f.Payload)
			s.readable.Broadcast()
		}
	case TypeCredit:
		n, err := ParseCredit(f.Payload)
		if err != nil || n > WindowIn-s.credit {
			return fmt.Errorf("%w: credit for what was not sent", ErrMalformed)
		}
		s.credit += n
		s.writable.Broadcast()
	case TypeEnd:
		s.eof = true
		s.readable.Broadcast()
	case TypeReset:
		s.endLocked(parseError(f.Payload))
	default:
		return fmt.Errorf("%w: a frame of type %d from a cell", ErrMalformed, f.Type)
	}
	return nil
}

func (s *Stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(err)
}

func (s *Stream) endLocked(err error) {
	if s.err == nil {
		s.err = err
	}
	s.readable.Broadcast()
	s.writable.Broadcast()
}

func (s *Stream) failure(op string, err error) error {
	if _, ok := err.(*Error); ok {
		return err
	}
	return &net.OpError{Op: op, Net: "cell", Err: err}
}

// Read reads what the guest has sent. After its end it returns io.EOF, after a reset an
// *Error, and if the cell is gone net.ErrClosed.
func (s *Stream) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, s.failure("read", net.ErrClosed)
		case s.readDeadline.Passed():
			return 0, s.failure("read", os.ErrDeadlineExceeded)
		case s.in.Len() > 0 || len(b) == 0:
			n := s.in.Read(b)
			s.consumed(n)
			return n, nil
		case s.eof:
			return 0, io.EOF
		case s.err != nil:
			return 0, s.failure("read", s.err)
		}
		s.readable.Wait()
	}
}

// consumed gives credit for bytes that were read. The caller holds s.mu.
func (s *Stream) consumed(n int) {
	if s.untold += n; s.untold >= creditStep && s.err == nil && !s.eof {
		n, s.untold = s.untold, 0
		_ = s.guests.link.Send(Credit(s.number, n)) // a cell that is gone sends no more
	}
}

// Write sends b. It returns when all of it is on its way. When the guest has ended the
// connection after its last words, what is written is lost.
func (s *Stream) Write(b []byte) (written int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed || s.shut:
			return written, s.failure("write", net.ErrClosed)
		case s.writeDeadline.Passed():
			return written, s.failure("write", os.ErrDeadlineExceeded)
		case s.err != nil && s.eof:
			return len(b), nil
		case s.err != nil:
			return written, s.failure("write", s.err)
		case s.credit > 0 || written == len(b):
			n := min(len(b)-written, s.credit, maxFrame)
			if n > 0 {
				err = s.sendLocked(Frame{TypeData, s.number, b[written : written+n]})
			}
			s.credit -= n
			if written += n; err != nil || written == len(b) {
				return written, err
			}
		default:
			s.writable.Wait()
		}
	}
}

// sendLocked sends frames of the stream, behind the one that opens it. The caller holds
// s.mu.
func (s *Stream) sendLocked(frames ...Frame) error {
	if s.open != nil {
		frames = append([]Frame{{TypeOpen, s.number, s.open}}, frames...)
		s.open = nil
	}
	return s.guests.link.Send(frames...)
}

// Flush has the connection made if nothing has been written yet.
func (s *Stream) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sendLocked()
}

// Opened waits until the guest has taken the connection; the error is an *Error if it
// has not.
func (s *Stream) Opened() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.opened && s.err == nil && !s.closed {
		s.readable.Wait()
	}
	switch {
	case s.opened:
		return nil
	case s.closed:
		return s.failure("dial", net.ErrClosed)
	}
	return s.failure("dial", s.err)
}

// CloseWrite tells the guest that no more comes. What it sends can still be read.
func (s *Stream) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.shut {
		return s.failure("close", net.ErrClosed)
	}
	s.shut = true
	s.writable.Broadcast()
	if s.err != nil {
		return nil
	}
	return s.sendLocked(Frame{TypeEnd, s.number, nil})
}

// Close ends the connection. What was written before still arrives.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.failure("close", net.ErrClosed)
	}
	s.closed = true
	s.in.Drop()
	s.readDeadline.Stop()
	s.writeDeadline.Stop()
	s.readable.Broadcast()
	s.writable.Broadcast()
	if s.err == nil && s.open == nil {
		_ = s.guests.link.Send(Frame{TypeClose, s.number, nil}) // a cell that is gone has closed it
	}
	s.guests.forget(s)
	return nil
}

// LocalAddr and RemoteAddr return the addresses of the link.
func (s *Stream) LocalAddr() net.Addr  { return s.guests.link.unix.LocalAddr() }
func (s *Stream) RemoteAddr() net.Addr { return s.guests.link.unix.RemoteAddr() }

// SetDeadline bounds both reading and writing.
func (s *Stream) SetDeadline(t time.Time) error { return s.setDeadlines(t, true, true) }

// SetReadDeadline bounds Read, also those in progress.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.setDeadlines(t, true, false) }

// SetWriteDeadline bounds Write, also those in progress.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.setDeadlines(t, false, true) }

func (s *Stream) setDeadlines(t time.Time, read, write bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.failure("set", net.ErrClosed)
	}
	if read {
		s.readDeadline.Set(t, &s.readable)
	}
	if write {
		s.writeDeadline.Set(t, &s.writable)
	}
	return nil
}
