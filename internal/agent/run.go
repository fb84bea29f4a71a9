package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// RunRequest asks for code to be run in a context.
type RunRequest struct {
	Context  string // its id; empty: that of the language, which is started when it is first needed
	Language string // of the context, if that has no id here; default Python
	Code     string
	Env      []wire.Name   // KEY=VALUE, for this run only
	Cwd      string        // of a context that is started for this; default: the home of the user
	User     string        // of a context that is started for this; default root
	Timeout  time.Duration // after which the run is interrupted; 0: none, then only the context ends it
}

// RunEvent is something that running code has brought forth; exactly one field is set. Output is UTF-8: bytes that are not
// have been replaced.
type RunEvent struct {
	Stdout  string
	Stderr  string
	Display *wire.Display
}

// RunResult is how a run ended. An exception in the code is a result, in its Error, not an error.
type RunResult struct {
	Count int            // runs of the context so far
	Error *wire.RunError // nil if it went well
}

// RunCode runs code in a context and passes on what it brings forth, as it does. Runs and evaluations of one context take
// turns. When the context of the call ends first, or event returns an error, the run is interrupted and RunCode returns at
// once. A run that its time limit has ended has a result, too, besides a *TimeoutError.
//
// A *RestartedError means that the interpreter was lost. It has been started again, without its state.
func (c *Client) RunCode(ctx context.Context, req RunRequest, event func(RunEvent) error) (*RunResult, error) {
	if !utf8.ValidString(req.Code) {
		return nil, wire.Errorf(wire.CodeBadRequest, "code", "the code is not UTF-8")
	}
	e, err := c.contextOf(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := e.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer e.endTurn()
	result, err := c.run(ctx, e, req, event)
	if err != nil {
		e.settle(err)
	}
	return result, err
}

// RunsDirectly reports whether a run goes straight to an interpreter that is known to be warm. Only such a run may be sent
// along with a Refresh; it waits in the guest until that is done.
func (c *Client) RunsDirectly(req RunRequest) bool {
	name, _, err := runtimeOf(req)
	if err != nil {
		return false
	}
	info, known := c.Runtime(name)
	return known && info.Port != 0
}

// run runs code once. Precondition: it is the caller's turn.
func (c *Client) run(ctx context.Context, e *evaluator, req RunRequest, event func(RunEvent) error) (*RunResult, error) {
	request := wire.RunRequest{ID: rand.Uint64()>>12 + 1, Code: req.Code, Env: req.Env}
	conn, err := c.beginRun(ctx, e, request)
	if err != nil {
		if _, refused := errors.AsType[*wire.Error](err); refused {
			return nil, err
		}
		return nil, c.recover(ctx, e, err)
	}
	stop := context.AfterFunc(ctx, func() {
		conn.conn.Close()
		c.abandon(e, request.ID)
	})
	defer stop()
	guard := c.guard(e, conn, request.ID, req.Timeout)
	end, err := conn.follow(ctx, request.ID, event)
	if err != nil && ctx.Err() != nil {
		close(guard.over)
		return nil, context.Cause(ctx)
	}
	guard.end()
	var unwanted *eventError
	switch {
	case err == nil:
		result := &RunResult{Count: end.Count, Error: end.Error}
		if guard.timedOut && end.Error != nil && end.Error.Interrupted {
			return result, &TimeoutError{After: req.Timeout}
		}
		return result, nil
	case guard.unmet:
		return new(RunResult), &TimeoutError{After: req.Timeout, Unmet: true}
	case guard.killed != nil:
		return nil, guard.killed
	case errors.As(err, &unwanted):
		conn.conn.Close()
		c.interruptLater(e, request.ID)
		return nil, unwanted.error
	}
	if _, refused := errors.AsType[*wire.Error](err); refused {
		return nil, err
	}
	return nil, c.recover(ctx, e, err)
}

// beginRun sends the request: on the connection kept for a runtime with a port of its own, and else on one for this run.
func (c *Client) beginRun(ctx context.Context, e *evaluator, request wire.RunRequest) (*call, error) {
	if info := e.known(); info.Port == 0 {
		conn, err := c.openLong(ctx, wire.OpRun, wire.RelayedRun{Name: info.Name, RunRequest: request})
		if err != nil {
			return nil, err
		}
		conn.stop()
		return conn, nil
	}
	conn, err := e.connection(ctx, c)
	if err != nil {
		return nil, err
	}
	conn.ctx = ctx
	if err := conn.out.JSON(wire.TypeRun, request); err != nil {
		return nil, lost(ctx, err)
	}
	return conn, nil
}

// eventError is an error of the receiver of events.
type eventError struct{ error }

// follow passes events on until the run ends.
func (c *call) follow(ctx context.Context, id uint64, event func(RunEvent) error) (end wire.RunEnd, err error) {
	var stdout, stderr text
	emit := func(e RunEvent) error {
		if e == (RunEvent{}) {
			return nil
		}
		if err := event(e); err != nil {
			return &eventError{err}
		}
		return nil
	}
	for {
		kind, payload, err := c.next()
		if err != nil {
			return end, err
		}
		switch kind {
		case wire.TypeStdout:
			err = emit(RunEvent{Stdout: stdout.add(payload)})
		case wire.TypeStderr:
			err = emit(RunEvent{Stderr: stderr.add(payload)})
		case wire.TypeDisplay:
			var d wire.Display
			if d, err = decode[wire.Display](payload); err == nil {
				err = emit(RunEvent{Display: &d})
			}
		case wire.TypeRunEnd:
			if end, err = decode[wire.RunEnd](payload); err == nil && end.ID != id {
				err = c.unexpected(kind)
			}
			if err == nil {
				err = errors.Join(emit(RunEvent{Stdout: stdout.rest()}), emit(RunEvent{Stderr: stderr.rest()}))
			}
			return end, err
		default:
			err = c.unexpected(kind)
		}
		if err != nil {
			return end, err
		}
	}
}

// text makes UTF-8 of pieces of a stream that may be cut within a character.
type text struct{ begun []byte }

func (t *text) add(b []byte) string {
	if len(t.begun) > 0 {
		b = append(t.begun, b...)
	}
	whole := len(b)
	for n := 1; n <= min(len(b), utf8.UTFMax-1); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				whole -= n
			}
			break
		}
	}
	t.begun = append([]byte(nil), b[whole:]...)
	return valid(b[:whole])
}

// rest returns what was begun and never ended.
func (t *text) rest() string { return valid(t.begun) }

func valid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b))) // each byte that belongs to no character becomes U+FFFD
}

// languages are the names of languages as users write them, and the kinds of runtimes that run them.
var languages = map[string]string{
	"": "python", "python": "python",
	"javascript": "javascript", "js": "javascript",
	"bash": "bash",
}

// kindOf returns the kind of runtime for a language.
func kindOf(language string) (string, error) {
	kind, known := languages[language]
	if !known {
		return "", wire.Errorf(wire.CodeUnknownKind, "language", "code in %q cannot be run: the languages are python, javascript and bash", language)
	}
	return kind, nil
}

// DefaultContext is the id of the context of the warm Python.
const DefaultContext = "default"

// defaultRuntime is the runtime of DefaultContext. The context of another language has the id of its runtime, which is named
// for the language.
const defaultRuntime = "python"

func contextID(runtime string) string {
	if runtime == defaultRuntime {
		return DefaultContext
	}
	return runtime
}

func runtimeName(context string) string {
	if context == DefaultContext {
		return defaultRuntime
	}
	return context
}

// runtimeOf returns the runtime that a run goes to; its kind is empty if the run names a context.
func runtimeOf(req RunRequest) (name, kind string, err error) {
	if req.Context != "" {
		if req.Language != "" {
			return "", "", wire.Errorf(wire.CodeBadRequest, "language", "a context has its language; give one of both")
		}
		return runtimeName(req.Context), "", nil
	}
	kind, err = kindOf(req.Language)
	return kind, kind, err
}

// contextOf finds the context of a run, and starts that of a language.
func (c *Client) contextOf(ctx context.Context, req RunRequest) (*evaluator, error) {
	name, kind, err := runtimeOf(req)
	if err != nil {
		return nil, err
	}
	e, err := c.evaluator(ctx, name)
	if typed, ok := errors.AsType[*wire.Error](err); !ok || typed.Code != wire.CodeNotFound {
		return e, err
	}
	if kind == "" {
		return nil, wire.Errorf(wire.CodeNotFound, "context", "there is no context %q", req.Context)
	}
	_, err = c.startContext(ctx, wire.ContextStart{Name: name, Kind: kind, Cwd: wire.Name(req.Cwd), User: req.User})
	if typed, ok := errors.AsType[*wire.Error](err); err != nil && !(ok && typed.Code == wire.CodeExists) {
		return nil, fmt.Errorf("starting the context of %s: %w", kind, err)
	}
	return c.evaluator(ctx, name) // somebody else may have started it meanwhile
}
