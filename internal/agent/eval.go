package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// How long an interrupted evaluation may take to end before the runtime is replaced: an interrupt is sent twice.
const interruptGrace = 1500 * time.Millisecond

// defaultOutput is what a runtime passes on when the request does not say.
const defaultOutput = 1 << 20

// EvalRequest asks for code to be evaluated.
type EvalRequest struct {
	Runtime   string // name of the runtime
	Code      string
	Timeout   time.Duration // 0: none; then only the context ends it
	MaxOutput int           // bytes of stdout and of stderr; 0: 1 MiB
	MaxValue  int           // bytes of the value's JSON; 0: 4 MiB, at most 8 MiB
	MaxRepr   int           // characters of the repr; 0: 64 Ki, at most 1 Mi
	Compiled  []byte        // what Compile has returned for the code in a runtime like this one, which then need not compile it; not with limits
}

// EvalResult is the outcome of an evaluation. An exception in the code is a result, in its Error, not an error.
type EvalResult struct {
	wire.EvalResult
	Stdout, Stderr []byte
}

// TimeoutError means that the time limit ended an evaluation. The runtime's state is kept.
type TimeoutError struct {
	After  time.Duration
	Unmet  bool        // it had not begun: one was running that nobody waits for any more, and goes on
	Result *EvalResult // what there was: output, and where the code was interrupted
}

// Error implements error.
func (e *TimeoutError) Error() string {
	if e.Unmet {
		return fmt.Sprintf("evaluation did not begin within %v: another one runs, which nobody waits for, until it is interrupted", e.After)
	}
	return fmt.Sprintf("evaluation was interrupted after %v", e.After)
}

// RestartedError means that the runtime's process was lost during an evaluation, and a new one has been started and warmed.
// Its state is that of the warm-up.
type RestartedError struct {
	Runtime  string
	Cause    string // such as "ended with status 3"
	TimedOut bool   // it did not react to the interrupt at the time limit, and was killed for that
}

// Error implements error.
func (e *RestartedError) Error() string {
	if e.TimedOut {
		return fmt.Sprintf("runtime %s did not stop when it was interrupted at the time limit; it was killed and started again, its state is lost", e.Runtime)
	}
	return fmt.Sprintf("runtime %s %s during the evaluation; it was started again, its state is lost", e.Runtime, e.Cause)
}

// evaluator is a runtime as the client sees it: one evaluation at a time, over one kept connection.
type evaluator struct {
	turn   chan struct{} // holds a token when nobody evaluates
	asking atomic.Int32  // how many wait for it
	asked  chan struct{} // has an element when one has begun to

	mu   sync.Mutex // guards what follows
	info wire.RuntimeInfo
	call *call
}

// tryTurn takes the turn if nobody evaluates.
func (e *evaluator) tryTurn() bool {
	select {
	case <-e.turn:
		return true
	default:
		return false
	}
}

// takeTurn waits until nobody else evaluates.
func (e *evaluator) takeTurn(ctx context.Context) error {
	if e.tryTurn() {
		return nil
	}
	e.asking.Add(1)
	defer e.asking.Add(-1)
	select {
	case e.asked <- struct{}{}:
	default:
	}
	select {
	case <-e.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (e *evaluator) endTurn() { e.turn <- struct{}{} }

// errAsked means that somebody waits for the turn.
var errAsked = errors.New("another one waits")

// unlessAsked calls wait with a context that ends when somebody waits for the turn; then there is no error.
func (e *evaluator) unlessAsked(ctx context.Context, wait func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for e.asking.Load() == 0 {
			select {
			case <-e.asked:
			case <-ctx.Done():
				return
			}
		}
		cancel(errAsked)
	}()
	if err := wait(ctx); !errors.Is(err, errAsked) {
		return err
	}
	return nil
}

// StartRuntime starts a warm runtime and returns when it is warm.
func (c *Client) StartRuntime(ctx context.Context, req wire.RuntimeStart) (wire.RuntimeInfo, error) {
	info, err := request[wire.RuntimeInfo](ctx, c, wire.OpRuntimeStart, req)
	if err == nil {
		c.Adopt(info)
	}
	return info, err
}

// Adopt makes runtimes known that were started before, as those of a snapshot. It saves Eval from asking the guest.
func (c *Client) Adopt(infos ...wire.RuntimeInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	evaluators := maps.Clone(c.evaluators) // Close iterates without the lock
	for _, info := range infos {
		e := &evaluator{turn: make(chan struct{}, 1), asked: make(chan struct{}, 1), info: info}
		e.turn <- struct{}{}
		evaluators[info.Name] = e
	}
	c.evaluators = evaluators
}

// Runtime returns what is known about a runtime without asking the guest.
func (c *Client) Runtime(name string) (wire.RuntimeInfo, bool) {
	c.mu.Lock()
	e := c.evaluators[name]
	c.mu.Unlock()
	if e == nil {
		return wire.RuntimeInfo{}, false
	}
	return e.known(), true
}

// InterruptRuntime interrupts the evaluation with this id if it is running, and tells what is.
func (c *Client) InterruptRuntime(ctx context.Context, name string, eval uint64) (wire.RuntimeInterrupted, error) {
	return request[wire.RuntimeInterrupted](ctx, c, wire.OpRuntimeInterrupt, wire.RuntimeInterrupt{Name: name, Eval: eval})
}

// Interrupt interrupts whichever evaluation runs; it ends with KeyboardInterrupt, or what the language has in its place.
// Without one it does nothing.
func (c *Client) Interrupt(ctx context.Context, name string) error {
	_, err := c.InterruptRuntime(ctx, name, 0)
	return err
}

// Evaluation is an EvalRequest as guests are sent it. It may be sent to many of them, once to each: what is in it is encoded
// once, and in memory once.
type Evaluation struct {
	id    uint64 // names it in a guest
	frame []byte
	limit int // of stdout and of stderr
	room  func(context.Context) error
}

// smallAnswer is how large an answer is at most, in bytes, that needs no room.
const smallAnswer = 32 << 10

// WaitingFor returns the evaluation with answers that wait for room: one that is not small stays with its guest, and the
// turn with it, until room has returned or somebody else wants the turn. While it waits it runs into no time limit. An error
// is that of the evaluation.
func (e *Evaluation) WaitingFor(room func(context.Context) error) *Evaluation {
	waits := *e
	waits.room = room
	return &waits
}

// noRoomError is why an answer found no room.
type noRoomError struct{ err error }

func (e *noRoomError) Error() string { return "waiting for room for the answer: " + e.err.Error() }
func (e *noRoomError) Unwrap() error { return e.err }

// Encode checks a request. Its runtime and its timeout are not part of what guests are sent.
func (r EvalRequest) Encode() (*Evaluation, error) { return r.encode(false) }

func (r EvalRequest) encode(compile bool) (*Evaluation, error) {
	if !utf8.ValidString(r.Code) {
		return nil, wire.Errorf(wire.CodeBadRequest, "code", "the code is not UTF-8")
	}
	if r.MaxOutput < 0 || r.MaxValue < 0 || r.MaxRepr < 0 {
		return nil, wire.Errorf(wire.CodeBadRequest, "max_output", "limits must not be negative")
	}
	e := &Evaluation{
		id:    rand.Uint64()>>12 + 1, // small enough for a JSON reader that uses doubles
		limit: cmp.Or(r.MaxOutput, defaultOutput),
	}
	kind, payload, err := r.payload(e.id, compile)
	if err != nil {
		return nil, err
	}
	if len(payload) > wire.MaxFrame {
		return nil, wire.Errorf(wire.CodeTooLong, "code", "the code is %d bytes long as guests are sent it, over %d", len(payload), wire.MaxFrame)
	}
	e.frame = wire.AppendFrame(nil, kind, payload)
	return e, nil
}

// payload encodes a valid request.
func (r *EvalRequest) payload(id uint64, compile bool) (wire.Type, []byte, error) {
	if len(r.Compiled) > 0 && r.MaxOutput == 0 && r.MaxValue == 0 && r.MaxRepr == 0 {
		return wire.TypeEvalCompiled, (&wire.CompiledEval{ID: id, Code: r.Code, Compiled: r.Compiled}).Append(nil), nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // which would make code much longer
	req := wire.EvalRequest{
		ID: id, Code: r.Code, Compile: compile,
		MaxOutput: r.MaxOutput, MaxValue: r.MaxValue, MaxRepr: r.MaxRepr,
	}
	err := enc.Encode(req)
	return wire.TypeEval, buf.Bytes(), err
}

// ErrNotShared means that each runtime has to compile some code by itself.
var ErrNotShared = errors.New("it cannot be compiled for others")

// Compile returns what code compiles to in a runtime, for others that are in the same state, see EvalRequest.Compiled. None
// of the code is executed. The error is ErrNotShared if it is wrong, or has the interpreter warn, which it shall
// where it is evaluated, or if the runtime cannot.
func (c *Client) Compile(ctx context.Context, runtime, code string) ([]byte, error) {
	eval, err := EvalRequest{Code: code}.encode(true)
	if err != nil {
		return nil, err
	}
	r, err := c.Evaluate(ctx, runtime, eval, 0)
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeBadRequest {
		return nil, fmt.Errorf("%w: %w", ErrNotShared, err)
	}
	switch {
	case err != nil:
		return nil, err
	case r.Error != nil:
		return nil, fmt.Errorf("%w: %s", ErrNotShared, r.Error.Type)
	case len(r.Compiled) == 0 || len(r.Stdout) > 0 || len(r.Stderr) > 0:
		return nil, ErrNotShared
	}
	return r.Compiled, nil
}

// Eval evaluates code in a runtime. Evaluations of one runtime take turns. When the context ends first, the evaluation is
// interrupted and Eval returns at once.
func (c *Client) Eval(ctx context.Context, req EvalRequest) (*EvalResult, error) {
	eval, err := req.Encode()
	if err != nil {
		return nil, err
	}
	return c.Evaluate(ctx, req.Runtime, eval, req.Timeout)
}

// Evaluate is Eval for code that is encoded already.
func (c *Client) Evaluate(ctx context.Context, runtime string, eval *Evaluation, timeout time.Duration) (*EvalResult, error) {
	e, err := c.evaluator(ctx, runtime)
	if err != nil {
		return nil, err
	}
	if err := e.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer e.endTurn()
	result, err := c.evaluate(ctx, e, eval, timeout)
	if err != nil {
		e.settle(err)
	}
	return result, err
}

// settle drops the kept connection after an error, unless it is still of use.
func (e *evaluator) settle(err error) {
	if t, timedOut := errors.AsType[*TimeoutError](err); !timedOut || t.Unmet {
		e.disconnect()
	}
}

// evaluator finds a runtime, if need be by asking the guest.
func (c *Client) evaluator(ctx context.Context, name string) (*evaluator, error) {
	find := func() *evaluator {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.evaluators[name]
	}
	if e := find(); e != nil {
		return e, nil
	}
	info, err := c.Ping(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(info.Runtimes, func(r wire.RuntimeInfo) bool { return r.Name == name && r.Starts > 0 })
	if i < 0 {
		return nil, wire.Errorf(wire.CodeNotFound, "runtime", "the guest has no runtime %q", name)
	}
	c.Adopt(info.Runtimes[i])
	return find(), nil
}

// evaluate runs one evaluation. Precondition: it is the caller's turn.
func (c *Client) evaluate(ctx context.Context, e *evaluator, eval *Evaluation, timeout time.Duration) (*EvalResult, error) {
	conn, err := e.connection(ctx, c)
	if err != nil {
		return nil, c.recover(ctx, e, err)
	}
	stop := context.AfterFunc(ctx, func() {
		conn.conn.Close()
		c.abandon(e, eval.id)
	})
	defer stop()
	guard := c.guard(e, conn, eval.id, timeout)
	result, err := conn.evaluate(ctx, e, eval, guard)
	if e, ok := errors.AsType[*noRoomError](err); ok {
		close(guard.over)
		return nil, e.err
	}
	if err != nil && ctx.Err() != nil {
		close(guard.over)
		return nil, context.Cause(ctx)
	}
	guard.end()
	switch {
	case err == nil && guard.timedOut && result.Error != nil && result.Error.Interrupted:
		return result, &TimeoutError{After: timeout, Result: result}
	case err == nil:
		return result, nil
	case guard.unmet:
		result = &EvalResult{EvalResult: wire.EvalResult{ID: eval.id, Error: new(wire.EvalError)}}
		return result, &TimeoutError{After: timeout, Unmet: true, Result: result}
	case guard.killed != nil:
		return nil, guard.killed
	}
	if _, refused := errors.AsType[*wire.Error](err); refused {
		return nil, err
	}
	return nil, c.recover(ctx, e, err)
}

// recover finds out what became of a runtime whose connection broke, and has it replaced if it is gone.
func (c *Client) recover(ctx context.Context, e *evaluator, cause error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	before := e.known()
	info, err := request[wire.RuntimeInfo](ctx, c, wire.OpRuntimeRecover, wire.RuntimeRecover{Name: before.Name, Starts: before.Starts})
	if err != nil {
		return err
	}
	e.learn(info)
	switch {
	case info.Starts != before.Starts:
		return &RestartedError{Runtime: info.Name, Cause: info.LastExit}
	case errors.Is(cause, wire.ErrFrameTooLarge), errors.Is(cause, errGarbled):
		// The code wrote to a descriptor of its interpreter. A new connection is in step again.
		return wire.Errorf(wire.CodeRuntimeFailed, "", "the answer of runtime %s could not be read (%v); its state is kept", info.Name, cause)
	}
	// It closed its end: it is dying and has not been missed yet, or the code closed its descriptors.
	return c.replace(e, "closed its connection")
}

// interruptTime is how long a guest may take to pass an interrupt on.
const interruptTime = 5 * time.Second

// interruptLater interrupts an evaluation whose caller has left, or whose time is over. It
// reports whether the guest has answered, and what.
func (c *Client) interruptLater(e *evaluator, id uint64) (answered bool, r wire.RuntimeInterrupted) {
	ctx, cancel := context.WithTimeout(context.Background(), c.interruptTime)
	defer cancel()
	r, err := c.InterruptRuntime(ctx, e.known().Name, id)
	_, refused := errors.AsType[*wire.Error](err)
	return err == nil || refused, r
}

// maxAbandoned is how often a guest is told of an evaluation whose caller has left, until it has answered.
const maxAbandoned = 60

// abandon interrupts an evaluation whose caller has left. A guest that the host has stopped hears of both when it goes on, in
// either order: if there is nothing to interrupt, it is asked once more.
func (c *Client) abandon(e *evaluator, id uint64) {
	for range maxAbandoned {
		at := time.Now()
		answered, r := c.interruptLater(e, id)
		if answered && !r.Delivered {
			time.Sleep(interruptGrace)
			c.interruptLater(e, id)
		}
		if answered || time.Since(at) < c.interruptTime { // or it is gone
			return
		}
	}
}

// maxIgnored is how many interrupts an evaluation may ignore.
const maxIgnored = 3

// guard enforces the time limit of an evaluation from a goroutine of its own.
type guard struct {
	over     chan struct{} // closed by end
	done     chan struct{} // closed when the goroutine has ended
	held     atomic.Bool   // the answer is there, and waits for room
	timedOut bool
	unmet    bool  // another evaluation was running at the time limit
	killed   error // set when the runtime was replaced
}

func (c *Client) guard(e *evaluator, conn *call, id uint64, timeout time.Duration) *guard {
	g := &guard{over: make(chan struct{}), done: make(chan struct{})}
	if timeout <= 0 {
		close(g.done)
		return g
	}
	go func() {
		defer close(g.done)
		// A guest that does not answer, because its host has stopped it, say, has not ignored
		// anything yet. What it is told now it hears when it goes on, and may have its result then.
		wait := timeout
		for ignored := 0; ignored < maxIgnored; wait = interruptGrace {
			select {
			case <-g.over:
				return
			case <-time.After(wait):
			}
			if g.held.Load() {
				continue
			}
			g.timedOut = true
			answered, r := c.interruptLater(e, id)
			if r.Other { // which is not to end for this one
				g.unmet = true
				conn.conn.Close()
				go c.abandon(e, id) // it may have begun just now
				return
			}
			if answered && !g.held.Load() {
				ignored++
			}
		}
		select {
		case <-g.over: // nobody waits for it any more
			return
		default:
		}
		g.killed = c.replace(e, "")
		conn.conn.Close() // what it led to is gone, or was before
	}()
	return g
}

// end stops the guard. What it has done stands in it.
func (g *guard) end() {
	close(g.over)
	<-g.done
}

// replace kills a runtime that is of no more use: it did what cause says, or, without a cause, did not react to the
// interrupt at its time limit.
func (c *Client) replace(e *evaluator, cause string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	before := e.known()
	info, err := request[wire.RuntimeInfo](ctx, c, wire.OpRuntimeRecover, wire.RuntimeRecover{Name: before.Name, Starts: before.Starts, Kill: true})
	if err != nil {
		e.disconnect() // so that the evaluation ends in any case
		return err
	}
	e.learn(info)
	return &RestartedError{Runtime: info.Name, Cause: cmp.Or(cause, info.LastExit), TimedOut: cause == ""}
}

// connection returns the kept connection, or a new one.
func (e *evaluator) connection(ctx context.Context, c *Client) (*call, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.call != nil {
		return e.call, nil
	}
	call, err := c.connect(context.WithoutCancel(ctx), c.line, e.info.Port) // the connection outlives this evaluation
	if err != nil {
		return nil, err
	}
	e.call = call
	return call, nil
}

// Connect makes the connection that evaluations in a runtime will have.
func (c *Client) Connect(ctx context.Context, runtime string) error {
	e, err := c.evaluator(ctx, runtime)
	if err != nil {
		return err
	}
	_, err = e.connection(ctx, c)
	return err
}

// disconnect drops the kept connection.
func (e *evaluator) disconnect() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.call != nil {
		e.call.close()
		e.call = nil
	}
}

func (e *evaluator) known() wire.RuntimeInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.info
}

func (e *evaluator) learn(info wire.RuntimeInfo) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.info = info
}

// evaluate sends a request and collects its answer.
func (c *call) evaluate(ctx context.Context, e *evaluator, eval *Evaluation, guard *guard) (*EvalResult, error) {
	c.ctx = ctx
	if _, err := c.conn.Write(eval.frame); err != nil {
		return nil, lost(ctx, err)
	}
	result := new(EvalResult)
	room := eval.room
	ready := func(size int) error {
		if room == nil || len(result.Stdout)+len(result.Stderr)+size <= smallAnswer {
			return nil
		}
		guard.held.Store(true)
		defer guard.held.Store(false)
		if err := e.unlessAsked(ctx, room); err != nil {
			return &noRoomError{err}
		}
		room = nil // there is enough for all of it
		return nil
	}
	for {
		kind, payload, err := c.nextOnce(ready)
		if err != nil {
			return nil, err
		}
		switch kind {
		case wire.TypeStdout:
			result.Stdout = append(result.Stdout, payload...)
		case wire.TypeStderr:
			result.Stderr = append(result.Stderr, payload...)
		case wire.TypeResult:
			if result.EvalResult, err = decode[wire.EvalResult](payload); err == nil && result.ID != eval.id {
				err = c.unexpected(kind)
			}
			return result, err
		default:
			return nil, c.unexpected(kind)
		}
		if len(result.Stdout) > eval.limit || len(result.Stderr) > eval.limit {
			return nil, fmt.Errorf("%w: the runtime sent more output than was asked for", ErrLost)
		}
	}
}
