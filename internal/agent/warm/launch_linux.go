package warm

import (
	"bufio"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// launchFiles are the process's ends of its descriptors.
type launchFiles struct {
	null, stdout, stderr, control, page, listener *os.File
}

// handedOver closes what the agent must not keep when the process runs: it would hide the process's end.
func (l *launchFiles) handedOver() {
	for _, f := range []**os.File{&l.null, &l.stdout, &l.control, &l.listener} {
		if *f != nil {
			(*f).Close()
			*f = nil
		}
	}
}

func (l *launchFiles) close() {
	l.handedOver()
	if l.stderr != nil {
		l.stderr.Close()
	}
}

// open prepares everything that a process of this runtime needs besides itself.
func (r *Runtime) open() (l *launchFiles, err error) {
	l = new(launchFiles)
	defer func() {
		if err != nil {
			l.close()
			r.discard()
			err = wire.AsError(fmt.Errorf("preparing runtime %s: %w", r.req.Name, err))
		}
	}()
	r.discard()
	if err := os.WriteFile(r.scriptPath(), r.kind.Script, 0o644); err != nil {
		return l, err
	}
	if l.null, err = os.Open(os.DevNull); err != nil {
		return l, err
	}
	if l.stdout, err = captureFile(r.m.cfg.Capture); err != nil {
		return l, err
	}
	if l.stderr, err = captureFile(r.m.cfg.Capture); err != nil {
		return l, err
	}
	if l.listener, err = r.m.cfg.Listen(r.req.Port); err != nil {
		return l, err
	}
	page, err := newPage()
	if err != nil {
		return l, err
	}
	l.page = page.file
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		page.close()
		return l, os.NewSyscallError("socketpair", err)
	}
	l.control = os.NewFile(uintptr(fds[1]), "control")
	control, err := quiet.NewConn(fds[0], "control")
	if err != nil {
		page.close()
		return l, err
	}
	r.mu.Lock()
	// An answer to an order is one read.
	r.page, r.control, r.frames = page, control, wire.NewReader(bufio.NewReaderSize(control, 512))
	r.mu.Unlock()
	return l, nil
}

// captureFile makes a file without a name. It is appended to, so that it can be emptied while writers hold it.
func captureFile(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_APPEND|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making capture file in %s: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), "capture"), nil
}

// spawn starts the process.
func (r *Runtime) spawn(l *launchFiles) error {
	program := r.req.Program
	if program == "" {
		program = wire.Name(r.kind.Program)
	}
	argv := append([]wire.Name{program}, wire.Names(r.kind.Args...)...)
	command := proc.Command{
		Argv: append(argv, wire.Name(r.scriptPath())),
		Env:  r.req.Env,
		Cwd:  r.req.Cwd,
		User: r.req.User,
	}
	spec, err := command.Resolve(r.m.cfg.Accounts, r.m.cfg.Env)
	if err != nil {
		return err
	}
	if err := r.makeCgroup(); err != nil {
		return err
	}
	spec.Cgroup = r.cgroup
	spec.Files = []*os.File{l.null, l.stdout, l.stderr, l.control, l.page, l.listener}
	kills := proc.OOMKills()
	p, err := r.m.cfg.Table.Start(spec)
	if err != nil {
		return proc.StartError(err, spec.Path, spec.Dir)
	}
	proc.Yield(p.PID)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc, r.pid, r.oomKills = p, p.PID, kills
	return nil
}

// makeCgroup makes a cgroup for one process. Programs that an earlier process left running live on in the earlier one. It
// is not used again in any case: some kernels kill what is cloned into a cgroup that was killed once.
func (r *Runtime) makeCgroup() error {
	cgroup, err := proc.NewCgroup(r.m.cfg.Cgroup, fmt.Sprintf("%s.%d", r.req.Name, r.m.launches.Add(1)))
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cgroup = cgroup
	return nil
}
