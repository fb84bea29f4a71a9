package servertest

import (
	"context"
	"errors"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// process is a process of this machine that lives on its own.
type process struct {
	info sandbox.Process // without Exit
	in   io.WriteCloser
	done chan struct{} // closed when it has ended

	// Guarded by Fake.mu.
	exit      sandbox.ProcessExit
	size      sandbox.TTY
	listeners map[*attachment]bool
}

// environ is the environment of a command.
func (b *box) environ(user string, env map[string]string) []string {
	list := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "USER=" + user}
	for _, vars := range []map[string]string{b.env, env} {
		for name, value := range vars {
			list = append(list, name+"="+value)
		}
	}
	return list
}

// killAll ends the processes of a sandbox.
func (b *box) killAll() {
	for _, p := range b.processes {
		_ = syscall.Kill(-p.info.PID, syscall.SIGKILL)
	}
}

// StartProcess starts a process. With a terminal its output is one stream, and its
// input a pipe.
func (f *Fake) StartProcess(ctx context.Context, id string, spec sandbox.ProcessSpec) (sandbox.Attachment, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	c := exec.Command(spec.Args[0], spec.Args[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Dir = filepath.Join(b.root, spec.Cwd)
	c.Env = b.environ(spec.User, spec.Env)
	p := &process{done: make(chan struct{}), listeners: make(map[*attachment]bool)}
	stdout, stderr := &broadcast{f, p, sandbox.Stdout}, &broadcast{f, p, sandbox.Stderr}
	if spec.TTY != nil {
		stdout.kind, stderr.kind, p.size = sandbox.Terminal, sandbox.Terminal, *spec.TTY
	}
	c.Stdout, c.Stderr = stdout, stderr
	if spec.Stdin || spec.TTY != nil {
		if p.in, err = c.StdinPipe(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range b.processes {
		if spec.Tag != "" && !spec.Shared && other.info.Tag == spec.Tag && other.describe().Exit == nil {
			return nil, fault(sandbox.AlreadyExists, "choose another name", "a process with the name %q runs already", spec.Tag)
		}
	}
	if err := c.Start(); err != nil {
		return nil, &sandbox.Error{Code: sandbox.NotFound, Message: "starting the process", Err: err}
	}
	p.info = sandbox.Process{
		PID: c.Process.Pid, Tag: spec.Tag, Args: spec.Args, Env: maps.Clone(spec.Env), Cwd: spec.Cwd, TTY: spec.TTY != nil, StartedAt: time.Now(),
	}
	b.processes = append(b.processes, p)
	a := p.attach(ctx, f)
	if spec.Timeout > 0 {
		time.AfterFunc(spec.Timeout, func() {
			f.mu.Lock()
			p.exit.TimedOut = true
			f.mu.Unlock()
			_ = syscall.Kill(-p.info.PID, syscall.SIGKILL)
		})
	}
	go p.wait(f, c)
	return a, nil
}

func (p *process) wait(f *Fake, c *exec.Cmd) {
	_ = c.Wait() // how it went stands in ProcessState
	f.mu.Lock()
	defer f.mu.Unlock()
	p.exit.Code = c.ProcessState.ExitCode()
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		p.exit.Code, p.exit.Signal = 128+int(ws.Signal()), ws.Signal().String()
	} else {
		p.exit.TimedOut = false
	}
	close(p.done)
}

// broadcast passes output on to whoever listens, and waits for them.
type broadcast struct {
	f    *Fake
	p    *process
	kind sandbox.OutputKind
}

func (w *broadcast) Write(b []byte) (int, error) {
	w.f.mu.Lock()
	listeners := slices.Collect(maps.Keys(w.p.listeners))
	w.f.mu.Unlock()
	for _, a := range listeners {
		select {
		case a.output <- sandbox.Output{Kind: w.kind, Data: slices.Clone(b)}:
		case <-a.ctx.Done():
		}
	}
	return len(b), nil
}

// attach adds a listener. The caller holds Fake.mu.
func (p *process) attach(ctx context.Context, f *Fake) *attachment {
	a := &attachment{fake: f, process: p, info: p.describe(), output: make(chan sandbox.Output)}
	a.ctx, a.cancel = context.WithCancel(ctx)
	p.listeners[a] = true
	context.AfterFunc(a.ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(p.listeners, a)
	})
	return a
}

// describe describes a process. The caller holds Fake.mu.
func (p *process) describe() sandbox.Process {
	info := p.info
	select {
	case <-p.done:
		exit := p.exit
		info.Exit = &exit
	default:
	}
	return info
}

type attachment struct {
	fake    *Fake
	process *process
	info    sandbox.Process
	ctx     context.Context
	cancel  context.CancelFunc
	output  chan sandbox.Output
}

func (a *attachment) Process() sandbox.Process { return a.info }

func (a *attachment) Recv() (sandbox.Output, error) {
	select {
	case out := <-a.output:
		return out, nil
	case <-a.process.done:
		return sandbox.Output{}, io.EOF
	case <-a.ctx.Done():
		return sandbox.Output{}, a.ctx.Err()
	}
}

func (a *attachment) Exit() sandbox.ProcessExit {
	a.fake.mu.Lock()
	defer a.fake.mu.Unlock()
	return a.process.exit
}

func (a *attachment) Close() error {
	a.cancel()
	return nil
}

// find finds a process; of several with a tag, the youngest.
func (f *Fake) process(id string, ref sandbox.ProcessRef) (*process, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range slices.Backward(b.processes) {
		if p.info.PID == ref.PID || ref.PID == 0 && p.info.Tag == ref.Tag {
			return p, nil
		}
	}
	return nil, fault(sandbox.NotFound, "", "there is no process %d %q", ref.PID, ref.Tag)
}

// AttachProcess listens to a process.
func (f *Fake) AttachProcess(ctx context.Context, id string, ref sandbox.ProcessRef) (sandbox.Attachment, error) {
	p, err := f.process(id, ref)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.attach(ctx, f), nil
}

// Processes lists running processes first.
func (f *Fake) Processes(_ context.Context, id string) ([]sandbox.Process, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var running, ended []sandbox.Process
	for _, p := range b.processes {
		if info := p.describe(); info.Exit == nil {
			running = append(running, info)
		} else {
			ended = append(ended, info)
		}
	}
	return append(running, ended...), nil
}

var errNoInput = &sandbox.Error{Code: sandbox.FailedPrecondition, Message: "the process has no input, or no more"}

// WriteProcess writes to a pipe.
func (f *Fake) WriteProcess(_ context.Context, id string, ref sandbox.ProcessRef, data []byte) error {
	p, err := f.process(id, ref)
	if err != nil {
		return err
	}
	if p.in == nil {
		return errNoInput
	}
	if _, err := p.in.Write(data); err != nil {
		return errNoInput
	}
	return nil
}

// CloseProcessInput closes the pipe.
func (f *Fake) CloseProcessInput(_ context.Context, id string, ref sandbox.ProcessRef) error {
	p, err := f.process(id, ref)
	if err != nil {
		return err
	}
	if p.in == nil || p.in.Close() != nil {
		return errNoInput
	}
	return nil
}

// SignalProcess signals the group.
func (f *Fake) SignalProcess(_ context.Context, id string, ref sandbox.ProcessRef, signal int) error {
	p, err := f.process(id, ref)
	if err != nil {
		return err
	}
	if err := syscall.Kill(-p.info.PID, syscall.Signal(signal)); errors.Is(err, syscall.ESRCH) {
		return fault(sandbox.NotFound, "", "process %d has ended", p.info.PID)
	}
	return nil
}

// ResizeProcess keeps the size.
func (f *Fake) ResizeProcess(_ context.Context, id string, ref sandbox.ProcessRef, tty sandbox.TTY) error {
	p, err := f.process(id, ref)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !p.info.TTY {
		return fault(sandbox.InvalidArgument, "", "process %d has no terminal", p.info.PID)
	}
	p.size = tty
	return nil
}

// Size returns the size of a process's terminal.
func (f *Fake) Size(id string, ref sandbox.ProcessRef) sandbox.TTY {
	p, err := f.process(id, ref)
	if err != nil {
		return sandbox.TTY{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.size
}
