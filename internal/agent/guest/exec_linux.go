package guest

import (
	"encoding/json"
	"fmt"
	"os"
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
	*session
	req        wire.ExecRequest
	id         uint64
	generation uint64
	proc       *proc.Process
	cgroup     *proc.Cgroup
	stdin      *stdin // nil: the command reads /dev/null
	stdout     *output
	stderr     *output
	oomKills   uint64
	gone       chan struct{} // closed when the client has left or broken the protocol
	killed     bool          // by us
}

// exec runs a command: OK with ExecStarted, output frames, Exit.
func (s *session) exec(req wire.ExecRequest) error {
	if req.TimeoutMS < 0 || req.StdoutLimit < 0 || req.StderrLimit < 0 {
		return wire.Errorf(wire.CodeBadRequest, "timeout_ms", "timeout and limits must not be negative")
	}
	command := proc.Command{Argv: req.Argv, Env: req.Env, Cwd: req.Cwd, User: req.User}
	spec, err := command.Resolve(s.accounts, s.cfg.Env)
	if err != nil {
		return err
	}
	e := &execution{session: s, req: req, gone: make(chan struct{}), oomKills: proc.OOMKills()}
	s.mu.Lock()
	s.execs++
	e.id, e.generation = s.execs, s.generation
	s.mu.Unlock()
	if err := e.start(spec); err != nil {
		return err
	}
	if err := s.out.JSON(wire.TypeOK, wire.ExecStarted{ID: e.id, PID: e.proc.PID}); err != nil && !req.Detach {
		e.kill()
	}
	go e.stdout.run()
	go e.stderr.run()
	if e.stdin != nil {
		go e.stdin.run()
	}
	go e.listen()
	e.finish(e.wait())
	return nil
}

// start makes the pipes and the cgroup and starts the process. When it fails nothing is left.
func (e *execution) start(spec proc.Spec) (err error) {
	var pipes pipes
	defer pipes.closeChild()
	defer func() {
		if err != nil {
			pipes.closeOurs()
		}
	}()
	if err := pipes.open(e.req.Stdin); err != nil {
		return wire.Errorf(wire.CodeExhausted, "", "making pipes: %v", err)
	}
	if e.cgroup, err = proc.NewCgroup(e.users, fmt.Sprintf("e%d", e.id)); err != nil {
		return err
	}
	spec.Cgroup = e.cgroup
	spec.Files = pipes.child
	if e.proc, err = e.table.Start(spec); err != nil {
		e.cgroup.Close()
		return proc.StartError(err, spec.Path, spec.Dir)
	}
	if e.req.Stdin {
		e.stdin = newStdin(pipes.ours[0], e.out)
	}
	e.stdout = newOutput(wire.TypeStdout, pipes.ours[1], e.req.StdoutLimit, e.out)
	e.stderr = newOutput(wire.TypeStderr, pipes.ours[2], e.req.StderrLimit, e.out)
	return nil
}

// listen reads the client's frames until it leaves. It never waits for the command, so that a signal or the end of the
// connection is seen whatever the command does with its standard input.
func (e *execution) listen() {
	defer close(e.gone)
	if e.stdin != nil {
		defer e.stdin.end()
	}
	for {
		kind, payload, err := e.in.Next()
		if err != nil {
			return
		}
		if err := e.handle(kind, payload); err != nil {
			e.fail(err)
			return
		}
	}
}

func (e *execution) handle(kind wire.Type, payload []byte) error {
	switch {
	case kind == wire.TypeStdin && e.stdin != nil:
		return e.stdin.put(payload)
	case kind == wire.TypeStdinEnd && e.stdin != nil:
		e.stdin.end()
	case kind == wire.TypeSignal:
		var r wire.SignalRequest
		if err := json.Unmarshal(payload, &r); err != nil || r.Signal < 1 || r.Signal > 64 {
			return wire.Errorf(wire.CodeBadRequest, "signal", "signal request %.40q must have a number from 1 to 64", payload)
		}
		if unix.Signal(r.Signal) == unix.SIGKILL {
			_ = e.cgroup.Kill()
		}
		_ = e.proc.SignalGroup(unix.Signal(r.Signal)) // it may have ended already
	default:
		return wire.Errorf(wire.CodeUnknownFrame, "", "frame type %d has no place in this exec", kind)
	}
	return nil
}

// kill ends the command and everything that it started.
func (e *execution) kill() {
	e.killed = true
	_ = e.cgroup.Kill()
	_ = e.proc.SignalGroup(unix.SIGKILL)
}

// wait waits for the end of the main process, the time limit, or the end of the connection.
func (e *execution) wait() (exit wire.Exit) {
	var timeout <-chan time.Time
	if e.req.TimeoutMS > 0 {
		timer := time.NewTimer(time.Duration(e.req.TimeoutMS) * time.Millisecond)
		defer timer.Stop()
		timeout = timer.C
	}
	gone := e.gone
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
	return !e.req.Detach && e.generation == e.Server.generation
}

// finish passes on the rest of the output, reports the exit and cleans up.
func (e *execution) finish(exit wire.Exit) {
	if e.stdin != nil {
		e.stdin.close()
	}
	e.stdout.finish()
	e.stderr.finish()
	e.setStatus(&exit)
	exit.StdoutBytes, exit.StdoutCut = e.stdout.total, e.stdout.cut()
	exit.StderrBytes, exit.StderrCut = e.stderr.total, e.stderr.cut()
	exit.Background = !e.killed && e.cgroup.Populated() // what was killed with it may take a moment to be gone
	if !e.cgroup.Close() {
		e.mu.Lock()
		e.emptying = append(e.emptying, e.cgroup)
		e.mu.Unlock()
		e.sweep() // its last process may have been reaped meanwhile
	}
	_ = e.out.JSON(wire.TypeExit, exit)
}

func (e *execution) setStatus(exit *wire.Exit) {
	status := e.proc.Status()
	exit.Code = status.ExitStatus()
	if status.Signaled() {
		exit.Signal = int(status.Signal())
		exit.Code = 128 + exit.Signal
	}
	// A shell whose command was killed reports that as its own status.
	if exit.Code == 128+int(unix.SIGKILL) && !e.killed {
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

func (p *pipes) closeChild() { closeAll(p.child) }
func (p *pipes) closeOurs()  { closeAll(p.ours[:]) }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
