package warm

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// ErrLost means that the process of a runtime ended before the run did. What it had written has been passed on.
var ErrLost = errors.New("the runtime's process has ended")

// relay is what drivers of interpreters have in common that do not talk to the host themselves. It passes on what they
// write, and what a run is, in the order in which it came about: an interpreter tells of an event after it has written
// what belongs before it, and whoever hears of the event reads the pipes empty first.
//
// Nobody reads faster than the host does, so an interpreter that writes more has to wait. Between runs everything is read
// and thrown away.
type relay struct {
	turn chan struct{} // holds a token when nothing runs

	mu  sync.Mutex              // keeps the order of frames; held for as long as a client does not take them
	run atomic.Pointer[relayed] // the run under way; written under mu

	ends  sync.Mutex // guards what follows; after mu
	pipes [2]*outlet // standard output and standard error
	count int        // runs of the process
}

// relayed is a run.
type relayed struct {
	wire.RunRequest
	out         *wire.Writer // of the client
	gone        bool         // the client, or its connection; guarded by relay.mu
	interrupted atomic.Bool
	ended       chan *wire.RunError // holds what ended it
}

// outlet is the reading end of a pipe.
type outlet struct {
	kind wire.Type
	file *os.File
	raw  syscall.RawConn
	buf  [wire.HeaderSize + wire.MaxData/2]byte
}

// init makes a relay that nothing runs in.
func (r *relay) init() {
	r.turn = make(chan struct{}, 1)
	r.turn <- struct{}{}
}

// openPipes makes the pipes of a new process and returns the writing ends.
func (r *relay) openPipes() (theirs []*os.File, err error) {
	for i, kind := range []wire.Type{wire.TypeStdout, wire.TypeStderr} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return theirs, os.NewSyscallError("pipe2", err)
		}
		theirs = append(theirs, os.NewFile(uintptr(fds[1]), "pipe"))
		if err := unix.SetNonblock(fds[0], true); err != nil {
			unix.Close(fds[0])
			return theirs, os.NewSyscallError("fcntl", err)
		}
		o := &outlet{kind: kind, file: os.NewFile(uintptr(fds[0]), "pipe")}
		if o.raw, err = o.file.SyscallConn(); err != nil {
			o.file.Close()
			return theirs, err
		}
		r.ends.Lock()
		r.pipes[i] = o
		r.ends.Unlock()
		go r.follow(o)
	}
	return theirs, nil
}

// closePipes lets go of a process that has ended. Programs that it has left behind get SIGPIPE if they still write.
func (r *relay) closePipes() {
	r.ends.Lock()
	defer r.ends.Unlock()
	for i, o := range r.pipes {
		if o != nil {
			go o.file.Close() // it waits for whoever is passing something on
			r.pipes[i] = nil
		}
	}
	r.count = 0
}

// follow passes on what a pipe yields, until its end.
func (r *relay) follow(o *outlet) {
	for more := true; more; {
		err := o.raw.Read(func(fd uintptr) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			n, err := r.pass(o, fd)
			more = n > 0
			return err != unix.EAGAIN
		})
		if err != nil {
			return
		}
	}
}

// pass passes on what one read yields. Precondition: mu is held.
func (r *relay) pass(o *outlet, fd uintptr) (int, error) {
	for {
		n, err := unix.Read(int(fd), o.buf[wire.HeaderSize:])
		if err == unix.EINTR {
			continue
		}
		if run := r.run.Load(); n > 0 && run != nil && !run.gone {
			run.gone = run.out.Filled(o.kind, o.buf[:wire.HeaderSize+n]) != nil
		}
		return n, err
	}
}

// drain passes on what has been written so far, which is no more than a pipe holds. Precondition: mu is held.
func (r *relay) drain() {
	r.ends.Lock()
	pipes := r.pipes
	r.ends.Unlock()
	for _, o := range pipes {
		if o == nil {
			continue
		}
		_ = o.raw.Control(func(fd uintptr) {
			for total := 0; total < 2*wire.MaxData; {
				n, err := r.pass(o, fd)
				if n <= 0 || err != nil {
					return
				}
				total += n
			}
		})
	}
}

// display passes on a Display.
func (r *relay) display(payload []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run := r.run.Load(); run != nil && !run.gone {
		r.drain()
		run.gone = run.out.Frame(wire.TypeDisplay, payload) != nil
	}
}

// finish ends the run under way.
func (r *relay) finish(err *wire.RunError) {
	run := r.run.Load()
	if run == nil {
		return
	}
	if err != nil {
		err.Interrupted = run.interrupted.Load()
	}
	select {
	case run.ended <- err:
	default:
	}
}

// execute has begin start a run, and passes on what comes of it until it ends. A client that leaves before its turn has
// asked for nothing.
func (r *relay) execute(req wire.RunRequest, out *wire.Writer, gone, over <-chan struct{}, begin func(*relayed) error) error {
	select {
	case <-r.turn:
		defer func() { r.turn <- struct{}{} }()
	case <-gone:
		return nil
	}
	select {
	case <-gone: // while it waited
		return nil
	default:
	}
	run := &relayed{RunRequest: req, out: out, ended: make(chan *wire.RunError, 1)}
	r.mu.Lock()
	r.drain() // what nobody has asked for
	r.run.Store(run)
	r.mu.Unlock()
	r.ends.Lock()
	r.count++
	count := r.count
	r.ends.Unlock()
	err := begin(run)
	var failure *wire.RunError
	if err == nil {
		select {
		case failure = <-run.ended:
		case <-over:
			err = ErrLost
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drain()
	r.run.Store(nil)
	if err == nil && !run.gone {
		_ = out.JSON(wire.TypeRunEnd, wire.RunEnd{ID: req.ID, Count: count, Error: failure})
	}
	return err
}

// current returns the id of the run under way.
func (r *relay) current() uint64 {
	if run := r.run.Load(); run != nil {
		return run.ID
	}
	return 0
}

// interrupted marks the run under way, and reports whether it is the one with this id.
func (r *relay) interrupted(id uint64) bool {
	run := r.run.Load()
	if run == nil || run.ID != id {
		return false
	}
	run.interrupted.Store(true)
	return true
}

// runner is a driver that takes runs itself.
type runner interface {
	execute(req wire.RunRequest, out *wire.Writer, gone <-chan struct{}) error
}

// Runs reports what is wrong with a request for a run.
func (m *Manager) Runs(req wire.RelayedRun) error {
	r, err := m.find(req.Name)
	if err != nil {
		return err
	}
	if _, ok := r.driver.(runner); !ok {
		return wire.Errorf(wire.CodeBadRequest, "name", "runtime %s takes runs on its port %d", req.Name, r.req.Port)
	}
	if req.ID == 0 {
		return wire.Errorf(wire.CodeBadRequest, "id", "a run needs an id")
	}
	return nil
}

// Run runs code in a runtime that has no port, and passes on to out what a runtime with one would answer. It returns ErrLost if
// the process ends. Closing gone tells that the client has left; a run that has begun goes on, without anybody to hear of it.
// Precondition: Runs has returned nil.
func (m *Manager) Run(req wire.RelayedRun, out *wire.Writer, gone <-chan struct{}) error {
	r, err := m.find(req.Name)
	if err != nil {
		return err
	}
	d, ok := r.driver.(runner)
	if !ok {
		return ErrLost // another has its name now
	}
	return d.execute(req.RunRequest, out, gone)
}
