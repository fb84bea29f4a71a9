package proc

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrHeld means that processes are held for a snapshot, or were when the start was asked for, so none can be started.
var ErrHeld = errors.New("user processes are held for a snapshot")

// Spec describes a process to start. Everything in it has been resolved already: Path is an executable file.
type Spec struct {
	Path   string
	Argv   []string
	Env    []string
	Dir    string
	Cred   Credentials
	Files  []*os.File // descriptors 0, 1, 2, …
	Cgroup *Cgroup    // nil: the agent's own
	TTY    bool       // descriptor 0 is a terminal, which becomes the controlling one
}

// Table knows the running children. There is one in a process, because waiting for any child is process-wide.
type Table struct {
	mu       sync.Mutex // guards everything below
	procs    map[int]*Process
	held     bool
	delayed  bool
	released sync.Cond // when delayed ends
	renewed  uint64    // releases as another machine
	swept    func()    // called without mu after orphans were reaped
}

// Process is a started child. It leads its own session and process group.
type Process struct {
	PID int

	table  *Table
	done   chan struct{}
	status unix.WaitStatus // valid after done is closed
}

var (
	theTable  *Table
	tableOnce sync.Once
)

// Children returns the table of this process and starts its reaper. From then on nothing else in the process can wait for
// children.
func Children() *Table {
	tableOnce.Do(func() {
		theTable = &Table{procs: make(map[int]*Process)}
		theTable.released.L = &theTable.mu
		changed := make(chan os.Signal, 1)
		signal.Notify(changed, unix.SIGCHLD)
		go func() {
			for range changed {
				theTable.reap()
			}
		}()
	})
	return theTable
}

// OnOrphan sets a function that is called after processes have been reaped that were not started here.
func (t *Table) OnOrphan(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.swept = f
}

// Start starts a process, when starts are no longer delayed. It returns ErrHeld while processes are held, else the error
// of the failed system call; a failed start leaves nothing behind.
func (t *Table) Start(s Spec) (*Process, error) {
	attr := &syscall.ProcAttr{Dir: s.Dir, Env: s.Env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: s.TTY}}
	for _, f := range s.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	if !s.Cred.current() {
		attr.Sys.Credential = &syscall.Credential{Uid: s.Cred.UID, Gid: s.Cred.GID, Groups: s.Cred.Groups}
	}
	if s.Cgroup != nil && s.Cgroup.dir != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(s.Cgroup.dir.Fd())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	machine := t.renewed
	for t.delayed {
		t.released.Wait()
	}
	if t.held || t.renewed != machine {
		return nil, ErrHeld
	}
	pid, err := syscall.ForkExec(s.Path, s.Argv, attr)
	if err != nil {
		return nil, err
	}
	p := &Process{PID: pid, table: t, done: make(chan struct{})}
	t.procs[pid] = p
	return p, nil
}

// Adopt takes over a child that was not started here but has become one, as its own parent has ended. It leads its own
// session. It returns unix.ESRCH if the child has ended.
func (t *Table) Adopt(pid int) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Only a child can be asked about, and a number whose process has been reaped is no child's.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return nil, unix.ESRCH
	}
	p := &Process{PID: pid, table: t, done: make(chan struct{})}
	t.procs[pid] = p
	return p, nil
}

// Hold makes Start fail until Release. When it returns, no start is under way.
func (t *Table) Hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = true
}

// Delay makes Start wait until Release. When it returns, no start is under way: one whose new process stood still before
// it has executed its program would wait for that, and keep a processor of the agent waiting.
func (t *Table) Delay() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delayed = true
}

// Release ends Hold and Delay. If the machine is another one now, starts that were delayed fail with ErrHeld: they were
// asked of the other.
func (t *Table) Release(another bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if another {
		t.renewed++
	}
	t.held, t.delayed = false, false
	t.released.Broadcast()
}

// reap collects every child that has ended.
func (t *Table) reap() {
	orphans := false
	t.mu.Lock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			break
		}
		p, ours := t.procs[pid]
		if !ours {
			orphans = true
			continue
		}
		delete(t.procs, pid)
		p.status = status
		close(p.done)
	}
	swept := t.swept
	t.mu.Unlock()
	if orphans && swept != nil {
		swept()
	}
}

// Done is closed when the process has ended and been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status returns how the process ended. It blocks until then.
func (p *Process) Status() unix.WaitStatus {
	<-p.done
	return p.status
}

// Signal sends a signal to the process alone. It returns unix.ESRCH when the process has been reaped; the number cannot
// have been given to another process before that.
func (p *Process) Signal(sig unix.Signal) error { return p.kill(p.PID, sig) }

// SignalGroup sends a signal to the process group that the process leads.
func (p *Process) SignalGroup(sig unix.Signal) error { return p.kill(-p.PID, sig) }

func (p *Process) kill(pid int, sig unix.Signal) error {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.table.procs[p.PID] != p {
		return unix.ESRCH
	}
	return unix.Kill(pid, sig)
}
