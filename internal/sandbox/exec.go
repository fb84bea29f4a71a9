package sandbox

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/cell"
)

// defaultOutputLimit is what a command may print per stream before it is cut.
const defaultOutputLimit = 64 << 20

// use finds a sandbox and has it ready. The caller uses it until it calls done.
func (m *Manager) use(ctx context.Context, id string) (b *box, done func(), err error) {
	_, b, done, err = m.useWithin(ctx, id, 0)
	return b, done, err
}

// useWithin is use for something that the guest ends at a time limit, if there is one. The context is for
// that, see within, until done is called.
func (m *Manager) useWithin(ctx context.Context, id string, limit time.Duration) (_ context.Context, b *box, done func(), err error) {
	b, end, err := m.engage(ctx, id)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, stop := b.within(ctx, limit)
	done = func() {
		stop()
		end()
	}
	if err := b.ready(ctx); err != nil {
		done()
		return nil, nil, nil, err
	}
	return ctx, b, done, nil
}

// engage is use for somebody who has it ready, or finds that it has ended.
func (m *Manager) engage(ctx context.Context, id string) (b *box, done func(), err error) {
	for {
		if b, err = m.find(ctx, id); err != nil {
			return nil, nil, err
		}
		if done, ok := m.using(b); ok {
			return b, done, nil
		}
	}
}

// Exec runs a command to its end. Output goes to the command's writers as it
// is produced. If ctx ends first, the command and all that it started die.
func (m *Manager) Exec(ctx context.Context, id string, cmd Command) (*CommandResult, error) {
	if len(cmd.Args) == 0 || cmd.Args[0] == "" {
		return nil, fail(InvalidArgument, "", "the command is empty")
	}
	if cmd.Timeout < 0 || cmd.OutputLimit < 0 {
		return nil, fail(InvalidArgument, "", "timeout and output limit must not be negative")
	}
	ctx, b, done, err := m.useWithin(ctx, id, cmd.Timeout)
	if err != nil {
		return nil, err
	}
	defer done()
	start := time.Now()
	cmd.Env = over(b.env, cmd.Env)
	exit, err := b.agent.Run(ctx, cmd.request(), agent.Streams{Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr})
	result := &CommandResult{
		ExitCode:        exit.Code,
		Signal:          signalName(exit.Signal),
		TimedOut:        exit.TimedOut,
		StdoutTruncated: exit.StdoutCut,
		StderrTruncated: exit.StderrCut,
		StdoutBytes:     exit.StdoutBytes,
		StderrBytes:     exit.StderrBytes,
		Duration:        time.Since(start),
	}
	// A program that cannot be started is a result, as in a shell: 126 or 127
	// with the reason on stderr.
	if e, ok := errors.AsType[*wire.Error](err); ok && e.ExitCode() != unstartable && cmd.Stderr != nil {
		result.ExitCode = e.ExitCode()
		_, err = io.WriteString(cmd.Stderr, "forkd: "+e.Message+"\n")
	}
	if err != nil {
		return nil, b.guestError(err, "running %q", cmd.Args[0])
	}
	return result, nil
}

// unstartable is the exit code that stands for every failure without one of
// its own.
const unstartable = 125

func (c *Command) request() wire.ExecRequest {
	limit := c.OutputLimit
	if limit == 0 {
		limit = defaultOutputLimit
	}
	req := wire.ExecRequest{
		Cwd:         wire.Name(c.Cwd),
		User:        c.User,
		TimeoutMS:   c.Timeout.Milliseconds(),
		StdoutLimit: limit,
		StderrLimit: limit,
	}
	if c.Timeout > 0 {
		req.TimeoutMS = max(req.TimeoutMS, 1)
	}
	for _, a := range c.Args {
		req.Argv = append(req.Argv, wire.Name(a))
	}
	req.Env = environ(c.Env)
	return req
}

// Evaluation is code that is to be evaluated, once in each of any number of sandboxes.
type Evaluation struct {
	Code    string
	Timeout time.Duration // zero: none
	Among   int           // how many sandboxes it is for, if that is known
	// Room, if it is not nil, is asked before an answer of more than a few KiB is taken from a sandbox. The answer, and the
	// sandbox's turn, wait until it returns; an error is that of the evaluation.
	Room func(context.Context) error

	*prepared
}

// NewEvaluation checks code, and encodes it for all sandboxes that it is for.
func NewEvaluation(code string, timeout time.Duration) (*Evaluation, error) {
	encoded, err := agent.EvalRequest{Code: code}.Encode()
	if err != nil {
		return nil, fail(InvalidArgument, "", "%s", err)
	}
	return &Evaluation{Code: code, Timeout: timeout, prepared: &prepared{encoded: encoded}}, nil
}

// Eval evaluates code in the sandbox's warm runtime, where state is kept from
// one evaluation to the next. An exception is a result; running into the
// timeout is one too, with the state kept.
func (m *Manager) Eval(ctx context.Context, id, code string, timeout time.Duration) (*EvalResult, error) {
	e, err := NewEvaluation(code, timeout)
	if err != nil {
		return nil, err
	}
	return m.Evaluate(ctx, id, e)
}

// Evaluate is Eval for code that is evaluated in many sandboxes.
func (m *Manager) Evaluate(ctx context.Context, id string, e *Evaluation) (*EvalResult, error) {
	b, done, err := m.engage(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	if b.state() != Running {
		return nil, b.dead()
	}
	if b.manifest.Runtime == "" {
		return nil, fail(NoRuntime, "use exec, or fork a snapshot with a runtime", "snapshot %q has no warm runtime", b.tag)
	}
	ctx, stop := b.within(ctx, e.Timeout)
	defer stop()
	encoded := m.encoded(ctx, b, e)
	r, err := atOnce(ctx, b, patient(e.Timeout), func(ctx context.Context) (*agent.EvalResult, error) {
		return b.agent.Evaluate(ctx, b.manifest.Runtime, encoded.WaitingFor(e.Room), e.Timeout)
	})
	if t, ok := errors.AsType[*agent.TimeoutError](err); ok {
		r, err = t.Result, nil
		r.Error.Type, r.Error.Message = "TimeoutError", t.Error()
	}
	if err != nil {
		return nil, b.runError(err, "evaluating")
	}
	result := &EvalResult{
		Value: r.Value, Repr: r.Repr, ReprTruncated: r.ReprCut,
		Stdout: r.Stdout, Stderr: r.Stderr,
		StdoutTruncated: r.StdoutCut, StderrTruncated: r.StderrCut,
	}
	if e := r.Error; e != nil {
		result.Error = &EvalError{Type: e.Type, Message: e.Message, Traceback: e.Traceback}
	}
	return result, nil
}

// Interrupt interrupts the evaluation that runs in a sandbox; its Eval returns
// with KeyboardInterrupt. Without one it does nothing.
func (m *Manager) Interrupt(ctx context.Context, id string) error {
	b, err := m.running(ctx, id)
	if err != nil {
		return err
	}
	if b.manifest.Runtime == "" {
		return nil
	}
	if err := b.agent.Interrupt(ctx, b.manifest.Runtime); err != nil {
		return b.guestError(err, "interrupting")
	}
	return nil
}

// Ping asks the guest's agent for a sign of life. It is no use of the sandbox: a
// paused one stays paused.
func (m *Manager) Ping(ctx context.Context, id string) (*PingResult, error) {
	b, err := m.running(ctx, id)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	info, err := b.agent.Ping(ctx)
	if err != nil {
		return nil, b.guestError(err, "pinging")
	}
	return &PingResult{RoundTrip: time.Since(start), AgentVersion: info.Agent, Uptime: time.Duration(info.UptimeNS)}, nil
}

// guestCodes maps the agent's errors to the domain's.
var guestCodes = map[wire.Code]Code{
	wire.CodeBadRequest:    InvalidArgument,
	wire.CodeNotFound:      NotFound,
	wire.CodeNotExecutable: InvalidArgument,
	wire.CodePermission:    InvalidArgument,
	wire.CodeNoSuchUser:    InvalidArgument,
	wire.CodeTooLong:       InvalidArgument,
	wire.CodeExists:        AlreadyExists,
	wire.CodeNotEmpty:      InUse,
	wire.CodeIsDirectory:   InvalidArgument,
	wire.CodeNotDirectory:  InvalidArgument,
	wire.CodeNotRegular:    InvalidArgument,
	wire.CodeTooManyLinks:  InvalidArgument,
	wire.CodeReadOnly:      InvalidArgument,
	wire.CodeNoSpace:       NoSpace,
	wire.CodeExhausted:     CapacityExceeded,
	wire.CodeQuiesced:      Unavailable,
	wire.CodeRuntimeFailed: InvalidArgument,
	wire.CodeUnknownKind:   InvalidArgument,
	wire.CodeNoInterpreter: NoRuntime,
	wire.CodeRefused:       PortClosed,
	wire.CodeClosed:        FailedPrecondition,
	wire.CodeOverflow:      CapacityExceeded,
}

// guestError turns what the agent's client fails with into an Error.
func (b *box) guestError(err error, format string, args ...any) error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		code, known := guestCodes[e.Code]
		if !known {
			code = Internal
		}
		hint := b.atLimit(e.Code)
		if e.Code == wire.CodeNoInterpreter && e.Detail != "" && !strings.Contains(e.Message, e.Detail) { // as guests used to say
			hint = "make a snapshot with the package " + e.Detail
		}
		return fail(code, hint, "%s", e.Message)
	}
	if _, ok := errors.AsType[*agent.RestartedError](err); ok {
		return fail(RuntimeLost, "state from earlier evaluations is gone; define it again", "%s", err)
	}
	lost := errors.Is(err, agent.ErrLost)
	if lost {
		b.awaitEnd()
	}
	if b.state() != Running {
		return b.dead()
	}
	if lost {
		return &Error{Code: SandboxDead, Message: "sandbox " + b.id + " does not answer", Err: err,
			Hint: "kill it and fork another one"}
	}
	if errors.Is(err, cell.ErrSilent) {
		return wrap(err, "sandbox %s, "+format, append([]any{b.id}, args...)...)
	}
	return wrap(err, format, args...)
}

// endTime is how long a guest that goes down takes at most between its last word, on a busy host,
// and its end.
const endTime = 5 * time.Second

// awaitEnd waits for the end of a guest that does not answer. One that goes down
// drops its connections before it is off, and the reason is known only then.
func (b *box) awaitEnd() {
	if b.lost() != "" {
		return
	}
	select {
	case <-b.machine.Done():
	case <-time.After(endTime):
	}
}

// signalName returns a signal's name, empty for none.
func signalName(n int) string {
	if n == 0 {
		return ""
	}
	if name := unix.SignalName(unix.Signal(n)); name != "" {
		return name
	}
	return "SIG" + strconv.Itoa(n)
}
