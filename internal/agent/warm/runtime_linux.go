package warm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Runtime is one warm interpreter.
type Runtime struct {
	m    *Manager
	req  wire.RuntimeStart
	kind Kind

	op     sync.Mutex // held by whoever starts, holds, releases or replaces the process
	driver driver

	mu       sync.Mutex // guards the rest for those who only look
	info     wire.RuntimeInfo
	proc     *proc.Process
	pid      int // of proc; 0 when there is none
	cgroup   *proc.Cgroup
	oomKills uint64
}

func newRuntime(m *Manager, req wire.RuntimeStart, kind Kind) *Runtime {
	r := &Runtime{
		m: m, req: req, kind: kind,
		info: wire.RuntimeInfo{Name: req.Name, Kind: req.Kind, Port: req.Port, User: req.User},
	}
	r.driver = kind.drive(r)
	return r
}

// Info describes the runtime.
func (r *Runtime) Info() wire.RuntimeInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info
}

// launch starts a process and waits until it is warm. Precondition: op is held and no process is alive.
func (r *Runtime) launch(cancel <-chan struct{}) error {
	l, err := r.begin()
	if err != nil {
		r.discard()
		return err
	}
	defer l.close()
	l.handedOver()
	ready := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-cancel:
			r.killTree()
		case <-ready:
		}
	}()
	version, err := r.driver.greet()
	close(ready)
	<-watching
	if err != nil {
		r.killTree()
		r.proc.Status()
		typed := wire.AsError(err)
		if typed.Code != wire.CodeRuntimeFailed {
			typed = wire.Errorf(wire.CodeRuntimeFailed, "", "runtime %s %s before it was warm", r.req.Name, exitReason(r.proc.Status(), false))
			typed.Detail = tail(l.words)
		}
		r.discard()
		return typed
	}
	r.mu.Lock()
	r.info.Starts++
	r.info.Alive = true
	r.info.PID = r.proc.PID
	r.info.Version = version
	r.mu.Unlock()
	go r.note(r.proc)
	return nil
}

// begin gives the runtime a process that is to be greeted: one that the spare forks or, if it cannot, a new one.
func (r *Runtime) begin() (launchFiles, error) {
	spec, err := r.command()
	if err != nil {
		return launchFiles{}, err
	}
	if s := r.m.spareFor(r, spec); s != nil {
		l, err := r.open()
		if err == nil {
			if err = r.spawnFrom(s, spec, &l); err == nil {
				return l, nil
			}
			l.close()
			if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeExhausted {
				return l, e // a new process would not fare better
			}
		}
		if r.proc != nil {
			r.killTree()
		}
		r.m.dropSpare(s)
	}
	l, err := r.open()
	if err == nil {
		if err = r.spawn(spec, &l); err != nil {
			l.close()
		}
	}
	return l, err
}

// note waits for the end of a process and records it, if that has not been done yet.
func (r *Runtime) note(p *proc.Process) {
	status := p.Status()
	kills := proc.OOMKills()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proc != p || !r.info.Alive {
		return
	}
	r.info.Alive, r.info.PID, r.pid = false, 0, 0
	r.info.LastExit = exitReason(status, kills > r.oomKills)
}

func exitReason(status unix.WaitStatus, oom bool) string {
	switch {
	case status.Signaled() && status.Signal() == unix.SIGKILL && oom:
		return "was killed because the guest ran out of memory"
	case status.Signaled():
		return "was ended by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("ended with status %d", status.ExitStatus())
}

// exitPatience is how long a process that has let go of its descriptors may take to end by itself.
const exitPatience = time.Second

// alive reports whether the process runs and still holds its lines to the agent. One that is ending has closed them, before the
// connections that the host sees closing; its end is waited for. Precondition: op is held.
func (r *Runtime) alive() bool {
	if r.proc == nil {
		return false
	}
	if r.driver.gone() {
		select {
		case <-r.proc.Done():
		case <-time.After(exitPatience):
			r.killTree()
		}
	}
	select {
	case <-r.proc.Done():
	default:
		if !r.driver.gone() {
			return true
		}
	}
	r.note(r.proc)
	return false
}

// kill ends the process and everything that it started, and waits for its end.
func (r *Runtime) kill() {
	r.killTree()
	r.note(r.proc)
}

func (r *Runtime) killTree() {
	_ = r.cgroup.Kill()
	_ = r.proc.SignalGroup(unix.SIGKILL)
}

// discard forgets a process that has ended.
func (r *Runtime) discard() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc, r.pid = nil, 0
	if r.cgroup != nil {
		r.m.retire(r.cgroup)
		r.cgroup = nil
	}
	r.driver.close()
}

// interrupt raises the language's interrupt in the evaluation with this id, or in any for 0, and in the programs that it
// started.
func (r *Runtime) interrupt(id uint64) (done wire.RuntimeInterrupted, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pid == 0 {
		return done, nil
	}
	running := r.driver.current()
	if running == 0 || id != 0 && id != running {
		done.Other = running != 0
		return done, nil
	}
	switch err := r.driver.interrupt(running); {
	case errors.Is(err, unix.ESRCH):
		return done, nil // it has just ended
	case err != nil:
		return done, err
	}
	// An interpreter that waits for a program in C does not see the signal until that program ends.
	pids, _ := r.cgroup.PIDs()
	for _, pid := range pids {
		if pid != r.pid {
			_ = unix.Kill(pid, unix.SIGINT)
		}
	}
	done.Delivered = true
	return done, nil
}

// processes counts what lives in the runtime's cgroup besides an idle interpreter.
func (r *Runtime) processes() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pids, err := r.cgroup.PIDs()
	if r.pid == 0 {
		return len(pids), err
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == r.pid })
	if r.driver.current() != 0 {
		return len(pids) + 1, err
	}
	return len(pids), err
}

// tail returns the end of what was captured.
func tail(f *os.File) string {
	const most = 16 << 10
	if f == nil {
		return ""
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		return ""
	}
	b := make([]byte, min(size, most))
	n, _ := f.ReadAt(b, max(0, size-most))
	return string(b[:n])
}
