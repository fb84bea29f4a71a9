package sandbox

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// maxTag is how many bytes the tag of a process may have.
const maxTag = wire.MaxTag

// StartProcess starts a process that lives on its own and attaches to it from its
// first output. The end of ctx ends the attachment only. The process survives a
// pause, and the children of a fork or a branch have it as well.
func (m *Manager) StartProcess(ctx context.Context, id string, spec ProcessSpec) (Attachment, error) {
	switch {
	case len(spec.Args) == 0 || spec.Args[0] == "":
		return nil, fail(InvalidArgument, "", "the command is empty")
	case spec.Timeout < 0:
		return nil, fail(InvalidArgument, "", "timeout must not be negative")
	case len(spec.Tag) > maxTag:
		return nil, fail(InvalidArgument, "", "a tag has at most %d bytes", maxTag)
	case spec.TTY != nil && (spec.TTY.Cols == 0 || spec.TTY.Rows == 0):
		return nil, noTerminal()
	}
	ctx, b, done, err := m.useWithin(ctx, id, spec.Timeout)
	if err != nil {
		return nil, err
	}
	a, err := b.agent.StartProcess(ctx, spec.request(b.env))
	if err != nil {
		done()
		return nil, hinted(b.guestError(err, "starting %q", spec.Args[0]), AlreadyExists, "choose another name, or end that one with `forkd signal`")
	}
	p := process(a.Info)
	p.Env = spec.Env // without the sandbox's
	return &attachment{b, a, p, done}, nil
}

func noTerminal() *Error {
	return fail(InvalidArgument, "", "a terminal has at least one column and one row")
}

func (s *ProcessSpec) request(env map[string]string) wire.ExecRequest {
	command := Command{Args: s.Args, Env: over(env, s.Env), Cwd: s.Cwd, User: s.User, Timeout: s.Timeout}
	req := command.request()
	req.StdoutLimit, req.StderrLimit = 0, 0
	req.Tag, req.TagShared, req.Stdin = s.Tag, s.Shared, s.Stdin
	if s.TTY != nil {
		req.TTY = &wire.TTY{Cols: s.TTY.Cols, Rows: s.TTY.Rows}
	}
	return req
}

// AttachProcess listens to a process from now on. One that has ended within the last
// minutes has its Exit, and no output.
func (m *Manager) AttachProcess(ctx context.Context, id string, ref ProcessRef) (Attachment, error) {
	b, done, err := m.use(ctx, id)
	if err != nil {
		return nil, err
	}
	a, err := b.agent.AttachProcess(ctx, wire.ProcessRef(ref))
	if err != nil {
		done()
		return nil, b.processError(err, "attaching to a process")
	}
	return &attachment{b, a, process(a.Info), done}, nil
}

// Processes lists the processes that StartProcess has started, here or in the
// sandbox that this one was forked from: running ones first, by PID, then those that
// have ended within the last minutes.
func (m *Manager) Processes(ctx context.Context, id string) ([]Process, error) {
	b, done, err := m.use(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	infos, err := b.agent.Processes(ctx)
	if err != nil {
		return nil, b.guestError(err, "listing processes")
	}
	list := make([]Process, len(infos))
	for i, info := range infos {
		list[i] = process(info)
	}
	return list, nil
}

// WriteProcess writes to the standard input or the terminal of a process. It returns
// when the guest has taken all of it. An input that has ended is a
// FailedPrecondition.
func (m *Manager) WriteProcess(ctx context.Context, id string, ref ProcessRef, data []byte) error {
	return m.process(ctx, id, "writing to a process", func(b *box) error {
		return b.agent.WriteProcess(ctx, wire.ProcessRef(ref), data)
	})
}

// CloseProcessInput ends the standard input of a process; that of a terminal cannot
// be ended.
func (m *Manager) CloseProcessInput(ctx context.Context, id string, ref ProcessRef) error {
	return m.process(ctx, id, "closing the input of a process", func(b *box) error {
		return b.agent.CloseProcessInput(ctx, wire.ProcessRef(ref))
	})
}

// SignalProcess sends a signal to the process group of a process; SIGKILL (9) to all
// that it has started.
func (m *Manager) SignalProcess(ctx context.Context, id string, ref ProcessRef, signal int) error {
	if signal < 1 || signal > 64 {
		return fail(InvalidArgument, "", "signals are 1 to 64, not %d", signal)
	}
	return m.process(ctx, id, "sending a signal to a process", func(b *box) error {
		return b.agent.SignalProcess(ctx, wire.ProcessRef(ref), signal)
	})
}

// ResizeProcess gives the terminal of a process another size.
func (m *Manager) ResizeProcess(ctx context.Context, id string, ref ProcessRef, tty TTY) error {
	if tty.Cols == 0 || tty.Rows == 0 {
		return noTerminal()
	}
	return m.process(ctx, id, "resizing the terminal of a process", func(b *box) error {
		return b.agent.ResizeProcess(ctx, wire.ProcessRef(ref), wire.TTY(tty))
	})
}

// process does something to a process of a ready sandbox.
func (m *Manager) process(ctx context.Context, id, what string, do func(*box) error) error {
	b, done, err := m.use(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	if err := do(b); err != nil {
		return b.processError(err, what)
	}
	return nil
}

// processError is guestError with what to do about a process that is not there.
func (b *box) processError(err error, what string) error {
	return hinted(b.guestError(err, "%s", what), NotFound, "`forkd ps -c "+b.id+"` lists its processes")
}

// hinted adds a hint to an error with that code that has none.
func hinted(err error, code Code, hint string) error {
	if e, ok := errors.AsType[*Error](err); ok && e.Code == code && e.Hint == "" {
		e.Hint = hint
	}
	return err
}

func process(in wire.ProcessInfo) Process {
	p := Process{
		PID: in.PID, Tag: in.Tag, Args: make([]string, len(in.Argv)), Env: make(map[string]string, len(in.Env)), Cwd: string(in.Cwd),
		TTY: in.TTY != nil, StartedAt: time.Unix(0, in.StartedNS).UTC(),
	}
	for i, arg := range in.Argv {
		p.Args[i] = string(arg)
	}
	for _, v := range in.Env {
		name, value, _ := strings.Cut(string(v), "=")
		p.Env[name] = value
	}
	if in.Exit != nil {
		exit := processExit(*in.Exit)
		p.Exit = &exit
	}
	return p
}

func processExit(in wire.Exit) ProcessExit {
	return ProcessExit{Code: in.Code, Signal: signalName(in.Signal), TimedOut: in.TimedOut, OOM: in.OOM}
}

// attachment is an Attachment to a process in a guest.
type attachment struct {
	box     *box
	agent   *agent.Attachment
	process Process
	done    func()
}

func (a *attachment) Process() Process { return a.process }

func (a *attachment) Recv() (Output, error) {
	chunk, err := a.agent.Recv()
	if errors.Is(err, io.EOF) && !errors.Is(err, agent.ErrLost) {
		return Output{}, io.EOF
	}
	if err != nil {
		return Output{}, a.box.guestError(err, "listening to process %d", a.process.PID)
	}
	return Output{Kind: outputKinds[chunk.Stream], Data: chunk.Data}, nil
}

var outputKinds = map[agent.Stream]OutputKind{agent.Stdout: Stdout, agent.Stderr: Stderr, agent.Terminal: Terminal}

func (a *attachment) Exit() ProcessExit { return processExit(a.agent.Exit()) }

func (a *attachment) Close() error {
	defer a.done()
	return a.agent.Close()
}
