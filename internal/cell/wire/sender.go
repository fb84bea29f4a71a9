package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrBehind reports a message that is not sent because the peer has not taken up too much of
// what came before it.
var ErrBehind = errors.New("it does not take up what it is told")

// Bounds of what a peer may leave in a sender, in bytes. One that does not take up anything,
// because the host has stopped it, say, is not asked for more much earlier than it is
// too late to tell it anything: who asks can be refused.
const (
	maxBehind = 64 << 20
	maxAsked  = 16 << 20
	fileCost  = 64 << 10 // an open file counts as so many
)

// sender sends bytes and files over a socket, in order, and never waits for the peer: what the
// socket does not take at once is kept, and sent by a goroutine that there is only then.
type sender struct {
	unix *net.UnixConn

	mu   sync.Mutex    // a leaf
	out  []piece       // that were not sent; guarded by mu
	kept int           // what these count; guarded by mu
	busy chan struct{} // closed when all is sent; nil: it is; guarded by mu
	err  error         // why nothing is sent any more; guarded by mu
}

// piece is bytes that are sent together with files.
type piece struct {
	b     []byte
	files []*os.File
}

// cost returns what a piece counts.
func (p *piece) cost() int { return len(p.b) + fileCost*len(p.files) }

// send sends pieces, one right after the other, unless more than so much is kept. The files
// stay the caller's.
func (s *sender) send(most int, pieces ...piece) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.busy == nil {
		for len(pieces) > 0 {
			n, err := s.now(pieces[0])
			if err != nil {
				s.failLocked(err)
				return err
			}
			if n < len(pieces[0].b) {
				if n > 0 { // the files went with the first byte
					pieces[0] = piece{b: pieces[0].b[n:]}
				}
				break
			}
			pieces = pieces[1:]
		}
		if len(pieces) == 0 {
			return nil
		}
	} else if s.kept > most {
		return fmt.Errorf("%w: %d bytes of it", ErrBehind, s.kept)
	}
	return s.keepLocked(pieces)
}

// now gives the socket what it takes of a piece. The caller holds s.mu.
func (s *sender) now(p piece) (n int, err error) {
	if len(p.b) == 0 {
		return 0, nil
	}
	raw, err := s.unix.SyscallConn()
	if err != nil {
		return 0, err
	}
	rights, err := rightsOf(p.files)
	if err != nil {
		return 0, err
	}
	waitErr := raw.Write(func(fd uintptr) bool {
		for {
			if n, err = unix.SendmsgN(int(fd), p.b, rights, nil, unix.MSG_NOSIGNAL); err != unix.EINTR {
				return true
			}
		}
	})
	if err == unix.EAGAIN {
		n, err = 0, nil
	}
	return n, errors.Join(waitErr, err)
}

// keepLocked has pieces be sent later, with descriptors of their own. The caller holds s.mu.
func (s *sender) keepLocked(pieces []piece) error {
	for _, p := range pieces {
		if len(p.b) == 0 {
			continue
		}
		own, err := dupAll(p.files)
		if err != nil {
			// Nobody can tell any more where a message ends of which some was sent.
			s.failLocked(err)
			return err
		}
		p.files = own
		s.out = append(s.out, p)
		s.kept += p.cost()
	}
	if s.busy == nil {
		s.busy = make(chan struct{})
		go s.drain(s.busy)
	}
	return nil
}

// drain sends what is kept, until there is no more.
func (s *sender) drain(done chan struct{}) {
	defer close(done)
	for {
		s.mu.Lock()
		if len(s.out) == 0 {
			s.busy, s.out = nil, nil
			s.mu.Unlock()
			return
		}
		p := s.out[0]
		s.out[0] = piece{}
		s.out = s.out[1:]
		s.mu.Unlock()
		err := s.wait(p)
		closeAll(p.files)
		s.mu.Lock()
		if s.kept -= p.cost(); err != nil {
			s.failLocked(err)
		}
		s.mu.Unlock()
	}
}

// wait sends a piece, however long the peer takes.
func (s *sender) wait(p piece) error {
	if len(p.files) > 0 {
		rights, err := rightsOf(p.files)
		if err != nil {
			return err
		}
		n, _, err := s.unix.WriteMsgUnix(p.b, rights, nil)
		if err == nil && n < len(p.b) {
			err = io.ErrShortWrite
		}
		return err
	}
	_, err := s.unix.Write(p.b)
	return err
}

// failLocked gives up what is kept. The caller holds s.mu.
func (s *sender) failLocked(err error) {
	if s.err == nil {
		s.err = &net.OpError{Op: "write", Net: "cell", Err: err}
	}
	for _, p := range s.out {
		s.kept -= p.cost()
		closeAll(p.files)
	}
	s.out = nil
}

// close gives up what is kept, for a socket that is closed.
func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(net.ErrClosed)
}

// idle returns a channel that is closed when all that was sent is with the socket, or lost.
func (s *sender) idle() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy != nil {
		return s.busy
	}
	done := make(chan struct{})
	close(done)
	return done
}

// rightsOf returns the control message that hands files over.
func rightsOf(files []*os.File) ([]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fd, err := number(f)
		if err != nil {
			return nil, err
		}
		fds[i] = fd
	}
	return unix.UnixRights(fds...), nil
}

// number returns the descriptor of a file, which is valid as long as the caller holds that.
func number(f *os.File) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = raw.Control(func(fd uintptr) { n = int(fd) })
	return n, err
}

// dupAll returns other descriptors of files.
func dupAll(files []*os.File) (own []*os.File, err error) {
	for _, f := range files {
		fd, err := number(f)
		if err == nil {
			fd, err = unix.FcntlInt(uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
		}
		if err != nil {
			closeAll(own)
			return nil, fmt.Errorf("keeping a file that is to be sent: %w", err)
		}
		own = append(own, os.NewFile(uintptr(fd), f.Name()))
	}
	return own, nil
}
