package warm

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// launchFiles are what a process gets.
type launchFiles struct {
	give  []*os.File // as descriptors 0, 1, 2, …
	drop  []*os.File // those that the agent must not keep when the process runs: it would hide the process's end
	words *os.File   // where the last words of a process are that fails to start; nil if they are nowhere
}

// handedOver closes what the process has now.
func (l *launchFiles) handedOver() {
	for _, f := range l.drop {
		f.Close()
	}
	l.drop = nil
}

func (l *launchFiles) close() {
	l.handedOver()
	if l.words != nil {
		l.words.Close()
	}
}

// open prepares everything that a process of this runtime needs besides itself.
func (r *Runtime) open() (launchFiles, error) {
	r.discard()
	var l launchFiles
	err := r.writeScripts()
	if err == nil {
		l, err = r.driver.open()
	}
	if err != nil {
		l.close()
		r.discard()
		return l, wire.AsError(fmt.Errorf("preparing runtime %s: %w", r.req.Name, err))
	}
	return l, nil
}

// writeScripts puts the files of the kind where the interpreter can read them.
func (r *Runtime) writeScripts() error {
	for _, name := range r.kind.Files {
		script, err := scripts.ReadFile(name)
		if err != nil {
			return err
		}
		if err := r.replaceFile(name, script); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile puts a file in the place of what an interpreter may be reading.
func (r *Runtime) replaceFile(name string, data []byte) error {
	path := filepath.Join(r.m.cfg.Dir, name)
	fresh := fmt.Sprintf("%s.%d", path, r.m.launches.Add(1))
	if err := os.WriteFile(fresh, data, 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// captureFile makes a file without a name. It is appended to, so that it can be emptied while writers hold it.
func captureFile(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_APPEND|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making capture file in %s: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), "capture"), nil
}

// command is what is executed for this runtime, resolved but for its files and its cgroup.
func (r *Runtime) command() (proc.Spec, error) {
	program := r.req.Program
	if program == "" {
		program = wire.Name(r.kind.Program)
	}
	argv := append([]wire.Name{program}, wire.Names(r.kind.Args...)...)
	if len(r.kind.Files) > 0 {
		argv = append(argv, wire.Name(filepath.Join(r.m.cfg.Dir, r.kind.Files[0])))
	}
	command := proc.Command{Argv: argv, Env: r.req.Env, Cwd: r.req.Cwd, User: r.req.User}
	spec, err := command.Resolve(r.m.cfg.Accounts, r.m.cfg.Env)
	if typed := wire.AsError(err); err != nil && typed.Code == wire.CodeNotFound && typed.Field == "argv" && r.req.Program == "" {
		return spec, &wire.Error{
			Code: wire.CodeNoInterpreter, Field: "kind", Detail: r.kind.Package,
			Message: fmt.Sprintf("there is no %s in the image, which runs %s", r.kind.Program, r.req.Kind),
		}
	}
	return spec, err
}

// spawn starts the process.
func (r *Runtime) spawn(spec proc.Spec, l *launchFiles) error {
	if err := r.makeCgroup(); err != nil {
		return err
	}
	spec.Cgroup = r.cgroup
	spec.Files = l.give
	kills := proc.OOMKills()
	p, err := r.m.cfg.Table.Start(spec)
	if err != nil {
		return proc.StartError(err, spec.Path, spec.Dir)
	}
	proc.Yield(p.PID)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc, r.pid, r.oomKills = p, p.PID, kills
	r.info.Cwd = wire.Name(spec.Dir)
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

// pair makes two ends of a line: ours does not block, the other is for a process.
func pair() (ours int, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, os.NewSyscallError("socketpair", err)
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "line"), nil
}
