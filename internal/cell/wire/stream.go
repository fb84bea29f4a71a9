package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Type is what a frame of a stream is. A frame is its length without this header, and
// its type in the highest byte; 32 bits, little endian.
type Type uint8

// The types of frames.
const (
	TypeData    Type = iota
	TypeEnd          // no more data from this side
	TypeReset        // the connection is broken; why, as an Error in JSON
	TypeOpen         // the guest has taken the connection
	TypeRefused      // it has not; why, as an Error in JSON
)

const (
	frameHeader = 4
	maxFrame    = 64 << 10
)

// chunk is a buffer of a stream. An idle stream has none.
type chunk struct {
	data       [frameHeader + maxFrame]byte
	read, fill int
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// Stream is a connection into a guest, as both ends of it see it (net.Conn). One
// goroutine may read and another write.
type Stream struct {
	unix *net.UnixConn
	raw  syscall.RawConn

	reading sync.Mutex // held while something is read; guards what follows
	in      *chunk     // what has come and was not read yet, or nil
	left    int        // bytes of the current frame that were not read yet
	readErr error      // what every Read returns from now on

	writing  sync.Mutex // held while something is written; guards what follows
	opening  []byte     // to be sent ahead of the first frame
	writeErr error      // what every Write returns from now on
}

// NewStream returns a stream over a connection. opening, if any, is sent with
// the first frame.
func NewStream(c *net.UnixConn, opening []byte) (*Stream, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Stream{unix: c, raw: raw, opening: opening}, nil
}

// Read reads what the other side has sent. After its end it returns io.EOF, after a
// reset an *Error, and if the other side is gone without a word net.ErrClosed.
func (s *Stream) Read(b []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if err := s.data(); err != nil || len(b) == 0 {
		return 0, err
	}
	n := copy(b, s.in.data[s.in.read:min(s.in.fill, s.in.read+s.left)])
	s.took(n)
	return n, nil
}

// WriteTo writes what the other side sends to w, until its end (io.WriterTo). It does
// not hold any memory while nothing comes.
func (s *Stream) WriteTo(w io.Writer) (written int64, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		if err := s.data(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return written, err
		}
		n, err := w.Write(s.in.data[s.in.read:min(s.in.fill, s.in.read+s.left)])
		written += int64(n)
		s.took(n)
		if err != nil {
			return written, err
		}
	}
}

// took notes that n bytes of the current frame were read.
func (s *Stream) took(n int) {
	s.in.read, s.left = s.in.read+n, s.left-n
	if s.in.read == s.in.fill {
		s.drop()
	}
}

func (s *Stream) drop() {
	if s.in != nil {
		s.in.read, s.in.fill = 0, 0
		chunks.Put(s.in)
		s.in = nil
	}
}

// data waits until there are bytes of a data frame to be read.
func (s *Stream) data() error {
	for s.readErr == nil {
		switch {
		case s.left > 0 && s.in != nil:
			return nil
		case s.left > 0:
			if err := s.fill(); err != nil {
				return err
			}
		default:
			kind, payload, err := s.frame()
			if err != nil {
				return err
			}
			s.begin(kind, payload)
		}
	}
	return s.readErr
}

// begin takes note of a frame that begins; payload is that of a frame that is not of
// data.
func (s *Stream) begin(kind Type, payload []byte) {
	switch kind {
	case TypeData:
	case TypeEnd:
		s.readErr = io.EOF
	case TypeReset:
		s.readErr = parseError(payload)
	default:
		s.readErr = fmt.Errorf("%w: a frame of type %d", ErrMalformed, kind)
	}
}

// frame reads the header of the next frame and, if it is not of data, the rest of it.
func (s *Stream) frame() (Type, []byte, error) {
	if err := s.have(frameHeader); err != nil {
		return 0, nil, err
	}
	word := binary.LittleEndian.Uint32(s.in.data[s.in.read:])
	kind, size := Type(word>>24), int(word&(1<<24-1))
	if size > maxFrame || kind == TypeData && size == 0 {
		s.readErr = fmt.Errorf("%w: a frame of %d bytes", ErrMalformed, size)
		return 0, nil, s.readErr
	}
	if kind == TypeData {
		s.left = frameHeader + size
		s.took(frameHeader)
		return kind, nil, nil
	}
	if err := s.have(frameHeader + size); err != nil {
		return 0, nil, err
	}
	payload := append([]byte(nil), s.in.data[s.in.read+frameHeader:][:size]...)
	s.left = frameHeader + size
	s.took(frameHeader + size)
	return kind, payload, nil
}

// have waits until n bytes lie side by side in the buffer.
func (s *Stream) have(n int) error {
	for s.in == nil || s.in.fill-s.in.read < n {
		if s.in != nil && s.in.read > 0 {
			s.in.fill = copy(s.in.data[:], s.in.data[s.in.read:s.in.fill])
			s.in.read = 0
		}
		if err := s.fill(); err != nil {
			return err
		}
	}
	return nil
}

// fill waits for bytes. Only once there are some is there a buffer for them.
func (s *Stream) fill() error {
	var n int
	var err error
	waitErr := s.raw.Read(func(fd uintptr) bool {
		c := s.in
		if c == nil {
			c = chunks.Get().(*chunk)
		}
		for {
			n, err = unix.Read(int(fd), c.data[c.fill:])
			if err != unix.EINTR {
				break
			}
		}
		if n > 0 {
			c.fill += n
			s.in = c
		} else if s.in == nil {
			chunks.Put(c)
		}
		return err != unix.EAGAIN
	})
	switch {
	case waitErr != nil:
		return waitErr // a deadline, or closed: the stream is as it was
	case err != nil:
		s.readErr = &net.OpError{Op: "read", Net: "cell", Err: err}
	case n == 0:
		s.readErr = &net.OpError{Op: "read", Net: "cell", Err: net.ErrClosed}
	}
	return s.readErr
}

// Opened waits until the guest has taken the connection; the error is an *Error if it
// has not.
func (s *Stream) Opened() error {
	s.reading.Lock()
	defer s.reading.Unlock()
	kind, payload, err := s.frame()
	switch {
	case err != nil:
		return err
	case kind == TypeRefused:
		return parseError(payload)
	case kind != TypeOpen:
		s.readErr = fmt.Errorf("%w: a frame of type %d", ErrMalformed, kind)
		return s.readErr
	}
	return nil
}

// Write sends b.
func (s *Stream) Write(b []byte) (written int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for len(b) > 0 {
		n := min(len(b), maxFrame)
		if err := s.send(TypeData, b[:n]); err != nil {
			return written, err
		}
		written, b = written+n, b[n:]
	}
	return written, nil
}

// Send sends a frame that is not of data.
func (s *Stream) Send(kind Type, payload []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.send(kind, payload)
}

// send sends a frame. Once one was not sent whole no other can follow. The caller
// holds s.writing.
func (s *Stream) send(kind Type, payload []byte) error {
	if s.writeErr != nil {
		return s.writeErr
	}
	c := chunks.Get().(*chunk)
	defer chunks.Put(c)
	binary.LittleEndian.PutUint32(c.data[:], uint32(kind)<<24|uint32(len(payload)))
	frame := c.data[:frameHeader+copy(c.data[frameHeader:], payload)]
	if s.opening != nil {
		frame = append(s.opening, frame...)
		s.opening = nil
	}
	_, s.writeErr = s.unix.Write(frame)
	return s.writeErr
}

// Flush sends the opening if nothing has been written yet.
func (s *Stream) Flush() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.opening != nil && s.writeErr == nil {
		_, s.writeErr = s.unix.Write(s.opening)
		s.opening = nil
	}
	return s.writeErr
}

// CloseWrite tells the other side that no more comes. What it sends can still be read.
func (s *Stream) CloseWrite() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	err := s.send(TypeEnd, nil)
	if s.writeErr == nil {
		s.writeErr = &net.OpError{Op: "write", Net: "cell", Err: net.ErrClosed}
	}
	return err
}

// Reset tells the other side that the connection is broken, and closes it.
func (s *Stream) Reset(why *Error) error {
	_ = s.Send(TypeReset, why.Encode()) // who is gone need not be told
	return s.Close()
}

// Close ends the connection. What was written before still arrives.
func (s *Stream) Close() error { return s.unix.Close() }

// LocalAddr and RemoteAddr return the addresses of the socket.
func (s *Stream) LocalAddr() net.Addr  { return s.unix.LocalAddr() }
func (s *Stream) RemoteAddr() net.Addr { return s.unix.RemoteAddr() }

// SetDeadline bounds both reading and writing. A write that a deadline has cut short
// was the last one.
func (s *Stream) SetDeadline(t time.Time) error      { return s.unix.SetDeadline(t) }
func (s *Stream) SetReadDeadline(t time.Time) error  { return s.unix.SetReadDeadline(t) }
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.unix.SetWriteDeadline(t) }
