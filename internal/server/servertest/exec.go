package servertest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Exec runs the command on this machine, in the sandbox's directory.
func (f *Fake) Exec(ctx context.Context, id string, cmd sandbox.Command) (*sandbox.CommandResult, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	defer f.enter()()
	run, cancel := ctx, context.CancelFunc(func() {})
	if cmd.Timeout > 0 {
		run, cancel = context.WithTimeout(ctx, cmd.Timeout)
	}
	defer cancel()
	c := exec.CommandContext(run, cmd.Args[0], cmd.Args[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 100 * time.Millisecond
	c.Dir = filepath.Join(b.root, cmd.Cwd)
	c.Env = b.environ(cmd.User, cmd.Env)
	stdout, stderr := &limited{w: cmd.Stdout, left: cmd.OutputLimit}, &limited{w: cmd.Stderr, left: cmd.OutputLimit}
	c.Stdout, c.Stderr = stdout, stderr
	if cmd.Stdin != nil {
		// Not c.Stdin: a reader that blocks must not keep the command from
		// having ended.
		in, err := c.StdinPipe()
		if err != nil {
			return nil, err
		}
		go func() {
			io.Copy(in, cmd.Stdin)
			in.Close()
		}()
	}
	start := time.Now()
	_ = c.Run() // how it went stands in ProcessState
	if ctx.Err() != nil {
		return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "running the command", Err: ctx.Err()}
	}
	res := &sandbox.CommandResult{Duration: time.Since(start), TimedOut: run.Err() != nil}
	res.StdoutTruncated, res.StderrTruncated = stdout.cut, stderr.cut
	res.StdoutBytes, res.StderrBytes = stdout.total, stderr.total
	if c.ProcessState == nil {
		res.ExitCode = 127
		fmt.Fprintf(stderr, "%s: not found\n", cmd.Args[0])
		return res, nil
	}
	res.ExitCode = c.ProcessState.ExitCode()
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		res.Signal = ws.Signal().String()
		res.ExitCode = 128 + int(ws.Signal())
	}
	return res, nil
}

type limited struct {
	w     io.Writer
	left  int64
	total int64
	cut   bool
}

func (l *limited) Write(b []byte) (int, error) {
	l.total += int64(len(b))
	keep := min(int64(len(b)), l.left)
	if keep > 0 {
		if _, err := l.w.Write(b[:keep]); err != nil {
			return 0, err
		}
		l.left -= keep
	}
	l.cut = l.cut || keep < int64(len(b))
	return len(b), nil
}

// Evaluate is Eval.
func (f *Fake) Evaluate(ctx context.Context, id string, e *sandbox.Evaluation) (*sandbox.EvalResult, error) {
	return f.Eval(ctx, id, e.Code, e.Timeout)
}

// Eval looks the code up. "sleep" lasts until it is interrupted or cancelled.
func (f *Fake) Eval(ctx context.Context, id, code string, timeout time.Duration) (*sandbox.EvalResult, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	defer f.enter()()
	if code == "sleep" {
		var limit <-chan time.Time
		if timeout > 0 {
			limit = time.After(timeout)
		}
		select {
		case <-b.intr:
			return raised("KeyboardInterrupt", ""), nil
		case <-limit:
			res := raised("KeyboardInterrupt", "")
			res.Error.Type, res.Error.Message = "TimeoutError", fmt.Sprintf("evaluation was interrupted after %s", timeout)
			return res, nil
		case <-ctx.Done():
			return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "evaluating", Err: ctx.Err()}
		}
	}
	if res, ok := f.Evals[code]; ok {
		return &res, nil
	}
	switch strings.TrimSpace(code) {
	case "numpy.zeros(5).tolist()":
		return value("[0.0, 0.0, 0.0, 0.0, 0.0]"), nil
	case "1+1":
		return value("2"), nil
	case "None":
		return &sandbox.EvalResult{Value: json.RawMessage("null"), Repr: "None"}, nil
	case "float('nan')":
		return &sandbox.EvalResult{Repr: "nan"}, nil
	case "x = 1":
		return &sandbox.EvalResult{}, nil
	case "print('hello')":
		return &sandbox.EvalResult{Stdout: []byte("hello\n")}, nil
	case "1/0":
		return raised("ZeroDivisionError", "division by zero"), nil
	case "bytes":
		return &sandbox.EvalResult{Stdout: []byte("\xff\x00ok")}, nil
	}
	return raised("NameError", "name '"+code+"' is not defined"), nil
}

func value(repr string) *sandbox.EvalResult {
	return &sandbox.EvalResult{Value: json.RawMessage(repr), Repr: repr}
}

func raised(kind, message string) *sandbox.EvalResult {
	return &sandbox.EvalResult{Error: &sandbox.EvalError{
		Type: kind, Message: message,
		Traceback: "Traceback (most recent call last):\n" + strings.TrimSuffix(kind+": "+message, ": ") + "\n",
	}}
}

// Ping answers.
func (f *Fake) Ping(_ context.Context, id string) (*sandbox.PingResult, error) {
	if _, err := f.box(id); err != nil {
		return nil, err
	}
	return &sandbox.PingResult{RoundTrip: 150 * time.Microsecond, AgentVersion: "fake", Uptime: 3 * time.Second}, nil
}

// Interrupt ends an evaluation of "sleep".
func (f *Fake) Interrupt(_ context.Context, id string) error {
	b, err := f.box(id)
	if err != nil {
		return err
	}
	select {
	case b.intr <- struct{}{}:
	default:
	}
	return nil
}
