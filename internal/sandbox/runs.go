package sandbox

import (
	"context"
	"errors"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// RunCode runs code in a context and passes on what it brings forth, as it does. An
// exception is part of the result, and so are running into the timeout and the death
// of the interpreter. When ctx ends or event returns an error, the run is interrupted
// and the context keeps its state.
func (m *Manager) RunCode(ctx context.Context, id string, spec RunSpec, event func(RunEvent) error) (*RunResult, error) {
	switch {
	case spec.Timeout < 0:
		return nil, fail(InvalidArgument, "", "timeout must not be negative")
	case spec.Context != "" && spec.Language != "":
		return nil, fail(InvalidArgument, "give one of the two", "a context has its language")
	}
	b, done, err := m.engage(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	if b.state() != Running {
		return nil, b.dead()
	}
	ctx, stop := b.within(ctx, spec.Timeout)
	defer stop()
	req := agent.RunRequest{
		Context: spec.Context, Language: spec.Language, Code: spec.Code, Env: environ(over(b.env, spec.Env)),
		Cwd: spec.Cwd, User: spec.User, Timeout: spec.Timeout,
	}
	r, err := atOnce(ctx, b, b.agent.RunsDirectly(req) && patient(req.Timeout), func(ctx context.Context) (*agent.RunResult, error) {
		return b.agent.RunCode(ctx, req, func(e agent.RunEvent) error { return event(runEvent(e)) })
	})
	if _, lost := errors.AsType[*agent.RestartedError](err); lost {
		return &RunResult{Lost: true}, nil
	}
	t, timedOut := errors.AsType[*agent.TimeoutError](err)
	if err != nil && !(timedOut && r != nil) {
		return nil, b.runError(err, "running code")
	}
	result := &RunResult{Count: r.Count}
	if e := r.Error; e != nil {
		result.Error = &EvalError{Type: e.Name, Message: e.Value, Traceback: e.Traceback}
	}
	if timedOut {
		if result.Error == nil {
			result.Error = new(EvalError)
		}
		result.Error.Type, result.Error.Message = "TimeoutError", t.Error()
	}
	return result, nil
}

func runEvent(e agent.RunEvent) RunEvent {
	out := RunEvent{Stdout: e.Stdout, Stderr: e.Stderr}
	if d := e.Display; d != nil {
		out.Result = &RichResult{Main: d.Main, Data: d.Data, Chart: d.Chart}
	}
	return out
}

// runError is guestError for what may come from somewhere else: from the receiver
// of events, or from before the guest was reached.
func (b *box) runError(err error, format string, args ...any) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return b.guestError(err, format, args...)
}

// CreateContext starts an interpreter that keeps state between runs.
func (m *Manager) CreateContext(ctx context.Context, id string, spec ContextSpec) (*CodeContext, error) {
	b, done, err := m.use(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	c, err := b.agent.CreateContext(ctx, agent.ContextSpec{Language: spec.Language, Env: environ(b.env), Cwd: spec.Cwd, User: spec.User})
	if err != nil {
		return nil, b.guestError(err, "starting a context")
	}
	out := codeContext(c)
	return &out, nil
}

// Contexts lists the contexts in the order of their starts.
func (m *Manager) Contexts(ctx context.Context, id string) ([]CodeContext, error) {
	b, done, err := m.use(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	contexts, err := b.agent.Contexts(ctx)
	if err != nil {
		return nil, b.guestError(err, "listing contexts")
	}
	list := make([]CodeContext, len(contexts))
	for i, c := range contexts {
		list[i] = codeContext(c)
	}
	return list, nil
}

func codeContext(c agent.Context) CodeContext {
	return CodeContext{ID: c.ID, Language: c.Language, Cwd: c.Cwd}
}

// RemoveContext ends a context; DefaultContext cannot be ended.
func (m *Manager) RemoveContext(ctx context.Context, id, context string) error {
	return m.process(ctx, id, "ending a context", func(b *box) error { return b.agent.RemoveContext(ctx, context) })
}

// RestartContext starts the interpreter of a context again, without its state.
func (m *Manager) RestartContext(ctx context.Context, id, context string) error {
	return m.process(ctx, id, "restarting a context", func(b *box) error { return b.agent.RestartContext(ctx, context) })
}

// environ is an environment as the guest wants it.
func environ(env map[string]string) (list []wire.Name) {
	for k, v := range env {
		list = append(list, wire.Name(k+"="+v))
	}
	return list
}
