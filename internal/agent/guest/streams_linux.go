package guest

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// firstBuffer is what a stream begins with; most commands write less, and memory that is not touched is not copied in a
// forked machine.
const firstBuffer = 4 << 10

// sink is what output is passed on to: a wire.Writer, or the listeners of a kept process.
type sink interface {
	Filled(kind wire.Type, b []byte) error
}

// output carries one stream of a command on.
type output struct {
	kind   wire.Type
	pipe   *os.File
	limit  int64 // bytes to pass on; 0: all
	out    sink
	done   chan struct{} // closed when everything has been passed on; total is settled then
	total  int64
	broken bool // the client has left
}

func newOutput(kind wire.Type, pipe *os.File, limit int64, out sink) *output {
	return &output{kind: kind, pipe: pipe, limit: limit, out: out, done: make(chan struct{})}
}

// cut reports whether the limit has swallowed anything.
func (o *output) cut() bool { return o.limit > 0 && o.total > o.limit }

// run passes output on until the pipe ends or finish sets its deadline. After that it goes on reading without passing
// anything on, so that a process in the background neither stops nor dies when it writes. A terminal is hung up instead, as
// when somebody leaves it.
func (o *output) run() {
	defer o.pipe.Close()
	buf := wire.NewBuffer(firstBuffer)
	for {
		n, err := o.pipe.Read(buf[wire.HeaderSize:])
		o.pass(buf[:wire.HeaderSize+max(n, 0)])
		if n == len(buf)-wire.HeaderSize && n < wire.MaxData {
			buf = wire.NewBuffer(min(4*n, wire.MaxData))
		}
		if err == nil {
			continue
		}
		expired := errors.Is(err, os.ErrDeadlineExceeded)
		if expired {
			o.sweep(buf)
		}
		close(o.done)
		if expired && o.kind != wire.TypeTerminal {
			discard(o.pipe, buf)
		}
		return
	}
}

// pass sends the payload in frame, up to the limit.
func (o *output) pass(frame []byte) {
	n := int64(len(frame) - wire.HeaderSize)
	room := n
	if o.limit > 0 {
		room = min(n, max(0, o.limit-o.total))
	}
	o.total += n
	if room > 0 && !o.broken {
		o.broken = o.out.Filled(o.kind, frame[:wire.HeaderSize+room]) != nil
	}
}

// sweep passes on what was in the pipe when the deadline came; the main process may have written it. It ends also when
// something keeps filling the pipe.
func (o *output) sweep(buf []byte) {
	_ = o.pipe.SetReadDeadline(time.Time{})
	raw, err := o.pipe.SyscallConn()
	if err != nil {
		return
	}
	for most := 1 << 20; most > 0; {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buf[wire.HeaderSize:])
			return true // never wait
		})
		if err != nil || n <= 0 {
			return
		}
		o.pass(buf[:wire.HeaderSize+n])
		most -= n
	}
}

// finish gives the stream a last moment and returns when all has been passed on.
func (o *output) finish() {
	_ = o.pipe.SetReadDeadline(time.Now().Add(drainGrace))
	<-o.done
}

func discard(pipe *os.File, buf []byte) {
	for {
		if _, err := pipe.Read(buf); err != nil {
			return
		}
	}
}

// stdin carries what clients send to a command. It holds at most wire.StdinWindow bytes.
type stdin struct {
	pipe *os.File
	out  *wire.Writer // gets credit; nil for a kept process, whose clients wait for room

	mu      sync.Mutex // guards what follows
	changed sync.Cond
	room    chan struct{} // closed, and forgotten, when there is more room or none ever; nil: nobody waits
	data    []byte
	spare   []byte // for data to grow in
	writing int    // bytes taken from data and not yet written
	ended   bool
	closed  bool // by the end of the command; what was on its way is dropped
	refused bool // by the command, which has closed its end
}

func newStdin(pipe *os.File, out *wire.Writer) *stdin {
	s := &stdin{pipe: pipe, out: out}
	s.changed.L = &s.mu
	return s
}

// put adds data. It never blocks; a client that exceeds its window has broken the protocol.
func (s *stdin) put(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil
	case s.ended:
		return wire.Errorf(wire.CodeBadRequest, "stdin", "data after the end of standard input")
	case !s.fits(p):
		return wire.Errorf(wire.CodeBadRequest, "stdin", "more than the window of %d bytes was sent without waiting for credit", wire.StdinWindow)
	}
	s.add(p)
	return nil
}

// offer adds data, at most a window of it and all at once, when there is room. It gives up when gone is closed.
func (s *stdin) offer(p []byte, gone <-chan struct{}) error {
	for {
		room, err := s.tryOffer(p)
		if room == nil {
			return err
		}
		select {
		case <-room:
		case <-gone:
			return wire.Errorf(wire.CodeClosed, "stdin", "the client left before its data was taken")
		}
	}
}

// tryOffer adds data, or returns what to wait for before the next try.
func (s *stdin) tryOffer(p []byte) (room <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended || s.refused:
		return nil, wire.Errorf(wire.CodeClosed, "stdin", "the standard input of the process is closed")
	case s.fits(p):
		s.add(p)
		return nil, nil
	case s.room == nil:
		s.room = make(chan struct{})
	}
	return s.room, nil
}

func (s *stdin) fits(p []byte) bool { return len(s.data)+s.writing+len(p) <= wire.StdinWindow }

func (s *stdin) add(p []byte) {
	s.data = append(s.data, p...)
	s.changed.Signal()
}

// wake wakes whoever waits for room. Precondition: mu is held.
func (s *stdin) wake() {
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
}

// end marks the end of the data.
func (s *stdin) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.changed.Signal()
	s.wake()
}

// close makes the command's end of the pipe see the end of the data at once.
func (s *stdin) close() {
	s.mu.Lock()
	s.ended, s.closed = true, true
	s.changed.Signal()
	s.wake()
	s.mu.Unlock()
	s.pipe.Close()
}

// run writes to the pipe and tells the client what it may send more. A command that does not want its input is no error:
// the rest is taken and dropped.
func (s *stdin) run() {
	defer s.pipe.Close()
	refused := false
	for {
		data := s.take()
		if data == nil {
			return
		}
		if !refused {
			_, err := s.pipe.Write(data)
			refused = err != nil
		}
		s.mu.Lock()
		s.writing, s.refused, s.spare = 0, refused, data[:0]
		s.wake()
		s.mu.Unlock()
		if s.out != nil {
			var credit [4]byte
			binary.LittleEndian.PutUint32(credit[:], uint32(len(data)))
			_ = s.out.Frame(wire.TypeCredit, credit[:]) // a client that has left needs no credit
		}
	}
}

// take waits for data and returns it, or nil at the end.
func (s *stdin) take() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.data) == 0 && !s.ended {
		s.changed.Wait()
	}
	if len(s.data) == 0 {
		return nil
	}
	data := s.data
	s.data, s.spare, s.writing = s.spare, nil, len(data)
	return data
}
