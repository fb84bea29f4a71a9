package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// drainGrace is how long output is still passed on after the main process has ended while something else holds its pipes
// open: the last words of a helper, not the life of a daemon.
const drainGrace = 100 * time.Millisecond

// execution is a command that runs.
type execution struct {
	*Server
	req        wire.ExecRequest
	id         uint64
	generation uint64
	spec       proc.Spec
	proc       *proc.Process
	cgroup     *proc.Cgroup
	stdin      *stdin    // nil: the command reads /dev/null
	outputs    []*output // stdout and stderr, or the terminal
	oomKills   uint64
	killed     atomic.Bool // by us

	ending sync.Mutex // held while it is killed
	over   bool       // guarded by ending: there is nothing left to kill
}

// execution prepares a command, or tells what is wrong with it.
func (s *Server) execution(req wire.ExecRequest) (*execution, error) {
	if req.TimeoutMS < 0 || req.StdoutLimit < 0 || req.StderrLimit < 0 {
		return nil, wire.Errorf(wire.CodeBadRequest, "timeout_ms", "timeout and limits must not be negative")
	}
	command := proc.Command{Argv: req.Argv, Env: req.Env, Cwd: req.Cwd, User: req.User}
	spec, err := command.Resolve(s.accounts, s.cfg.Env)
	if err != nil {
		return nil, err
	}
	e := &execution{Server: s, req: req, spec: spec, oomKills: proc.OOMKills()}
	s.mu.Lock()
	s.execs++
	e.id, e.generation = s.execs, s.generation
	s.mu.Unlock()
	return e, nil
}

// client is the connection of a command that ends with it.
type client struct {
	*session
	*execution
	gone chan struct{} // closed when the client has left or broken the protocol
}

// exec runs a command: OK with ExecStarted, output frames, Exit.
func (s *session) exec(req wire.ExecRequest) error {
	if req.Keep {
		return s.execKept(req)
	}
	if req.Tag != "" || req.TTY != nil {
		return wire.Errorf(wire.CodeBadRequest, "keep", "a tag or terminal is for kept processes only")
	}
	e, err := s.execution(req)
	if err != nil {
		return err
	}
	if err := e.start(s.out, s.out); err != nil {
		return err
	}
	c := &client{s, e, make(chan struct{})}
	if err := s.out.JSON(wire.TypeOK, wire.ExecStarted{ID: e.id, PID: e.proc.PID}); err != nil {
		e.kill()
	}
	e.run()
	go c.listen()
	exit := e.wait(c.gone)
	e.finish(&exit)
	_ = s.out.JSON(wire.TypeExit, exit)
	return nil
}

// start makes the pipes and the cgroup and starts the process. Output goes to out, and credit for its input to credit, which
// may be nil. When it fails nothing is left.
func (e *execution) start(out sink, credit *wire.Writer) (err error) {
	var pipes pipes
	defer pipes.closeChild()
	defer func() {
		if err != nil {
			pipes.closeOurs()
		}
	}()
	if e.req.TTY != nil {
		err = pipes.openTTY(*e.req.TTY, e.spec.Cred)
	} else {
		err = pipes.open(e.req.Stdin)
	}
	if err != nil {
		return wire.Errorf(wire.CodeExhausted, "", "making pipes: %v", err)
	}
	if e.cgroup, err = proc.NewCgroup(e.users, fmt.Sprintf("e%d", e.id)); err != nil {
		return err
	}
	e.spec.Cgroup, e.spec.Files, e.spec.TTY = e.cgroup, pipes.child, e.req.TTY != nil
	if e.proc, err = e.table.Start(e.spec); err != nil {
		e.cgroup.Close()
		return proc.StartError(err, e.spec.Path, e.spec.Dir)
	}
	e.spec = proc.Spec{Dir: e.spec.Dir} // the rest may be large
	if pipes.ours[0] != nil {
		e.stdin = newStdin(pipes.ours[0], credit)
	}
	if e.req.TTY != nil {
		e.outputs = []*output{newOutput(wire.TypeTerminal, pipes.ours[1], 0, out)}
		return nil
	}
	e.outputs = []*output{
		newOutput(wire.TypeStdout, pipes.ours[1], e.req.StdoutLimit, out),
		newOutput(wire.TypeStderr, pipes.ours[2], e.req.StderrLimit, out),
	}
	return nil
}

// run lets the streams flow.
func (e *execution) run() {
	for _, o := range e.outputs {
		go o.run()
	}
	if e.stdin != nil {
		go e.stdin.run()
	}
}

// listen reads the client's frames until it leaves. It never waits for the command, so that a signal or the end of the
// connection is seen whatever the command does with its standard input.
func (c *client) listen() {
	defer close(c.gone)
	if c.stdin != nil {
		defer c.stdin.end()
	}
	for {
		kind, payload, err := c.in.Next()
		if err != nil {
			return
		}
		if err := c.handle(kind, payload); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *client) handle(kind wire.Type, payload []byte) error {
	switch {
	case kind == wire.TypeStdin && c.stdin != nil:
		return c.stdin.put(payload)
	case kind == wire.TypeStdinEnd && c.stdin != nil:
		c.stdin.end()
	case kind == wire.TypeSignal:
		var r wire.SignalRequest
		if err := json.Unmarshal(payload, &r); err != nil {
			return wire.Errorf(wire.CodeBadRequest, "signal", "signal request %.40q is not readable: %v", payload, err)
		}
		return c.signal(r.Signal)
	default:
		return wire.Errorf(wire.CodeUnknownFrame, "", "frame type %d has no place in this exec", kind)
	}
	return nil
}

// signal sends a signal to the command. That it may have ended already is no error.
func (e *execution) signal(number int) error {
	if number < 1 || number > 64 {
		return wire.Errorf(wire.CodeBadRequest, "signal", "signal %d is not one from 1 to 64", number)
	}
	if unix.Signal(number) == unix.SIGKILL {
		e.kill()
	} else {
		_ = e.proc.SignalGroup(unix.Signal(number))
	}
	return nil
}

// kill ends the command and everything that it started.
func (e *execution) kill() {
	e.ending.Lock()
	defer e.ending.Unlock()
	if e.over {
		return
	}
	e.killed.Store(true)
	_ = e.cgroup.Kill()
	_ = e.proc.SignalGroup(unix.SIGKILL)
}

// wait waits for the end of the main process, or the time limit, or the end of a connection on which it depends.
func (e *execution) wait(gone <-chan struct{}) (exit wire.Exit) {
	var timeout <-chan time.Time
	if e.req.TimeoutMS > 0 {
		timer := time.NewTimer(time.Duration(e.req.TimeoutMS) * time.Millisecond)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		select {
		case <-e.proc.Done():
			return exit
		case <-timeout:
			exit.TimedOut = true
			e.kill()
		case <-gone:
			gone = nil
			if e.abandoned() {
				e.kill()
			}
		}
	}
}

// abandoned reports whether a connection that has ended means that nobody wants the command any more. If the guest is held,
// that is known only when it goes on: as another machine, to which the host has not connected yet, or as it was.
func (e *execution) abandoned() bool {
	e.mu.Lock()
	running := e.running
	e.mu.Unlock()
	<-running
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.generation == e.Server.generation
}

// finish passes on the rest of the output, completes the exit and cleans up.
func (e *execution) finish(exit *wire.Exit) {
	if e.stdin != nil {
		e.stdin.close()
	}
	for _, o := range e.outputs {
		o.finish()
	}
	e.ending.Lock()
	e.over = true
	e.ending.Unlock()
	e.setStatus(exit)
	exit.StdoutBytes, exit.StdoutCut = e.outputs[0].total, e.outputs[0].cut()
	if len(e.outputs) > 1 {
		exit.StderrBytes, exit.StderrCut = e.outputs[1].total, e.outputs[1].cut()
	}
	exit.Background = !e.killed.Load() && e.cgroup.Populated() // what was killed with it may take a moment to be gone
	if !e.cgroup.Close() {
		e.mu.Lock()
		e.emptying = append(e.emptying, e.cgroup)
		e.mu.Unlock()
		e.sweep() // its last process may have been reaped meanwhile
	}
}

func (e *execution) setStatus(exit *wire.Exit) {
	status := e.proc.Status()
	exit.Code = status.ExitStatus()
	if status.Signaled() {
		exit.Signal = int(status.Signal())
		exit.Code = 128 + exit.Signal
	}
	// A shell whose command was killed reports that as its own status.
	if exit.Code == 128+int(unix.SIGKILL) && !e.killed.Load() {
		exit.OOM = proc.OOMKills() > e.oomKills
	}
}

// pipes are the three standard streams of a command.
type pipes struct {
	child []*os.File
	ours  [3]*os.File
}

func (p *pipes) open(stdin bool) error {
	for i := range p.ours {
		if i == 0 && !stdin {
			null, err := os.Open(os.DevNull)
			if err != nil {
				return err
			}
			p.child = append(p.child, null)
			continue
		}
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		ours, child := fds[0], fds[1]
		if i == 0 {
			ours, child = fds[1], fds[0]
		}
		p.child = append(p.child, os.NewFile(uintptr(child), "pipe"))
		// Only our end: the flag belongs to the open file, and the command expects to block.
		err := unix.SetNonblock(ours, true)
		p.ours[i] = os.NewFile(uintptr(ours), "pipe")
		if err != nil {
			return err
		}
	}
	return nil
}

// openTTY makes a terminal stand for all three. Ours are two descriptors of its master, so that each can be closed when it is
// done with; closing the last hangs it up.
func (p *pipes) openTTY(size wire.TTY, owner proc.Credentials) error {
	master, slave, err := proc.OpenTTY(size, owner)
	if err != nil {
		return err
	}
	p.ours[0] = master
	p.child = []*os.File{slave, slave, slave}
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	fd := -1
	if e := raw.Control(func(m uintptr) { fd, err = unix.FcntlInt(m, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return e
	}
	if err == nil {
		p.ours[1] = os.NewFile(uintptr(fd), "terminal")
	}
	return err
}

func (p *pipes) closeChild() { closeAll(p.child) }
func (p *pipes) closeOurs()  { closeAll(p.ours[:]) }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
