package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// ErrLost means that the guest did not answer, or stopped in the middle of an answer: it is gone, or does not run the agent.
var ErrLost = errors.New("the guest agent does not answer")

// errGarbled means that the guest's bytes are no answer to what it was asked.
var errGarbled = errors.New("unreadable answer")

// DialFunc opens a stream connection to a port in the guest.
type DialFunc func(ctx context.Context, port uint32) (net.Conn, error)

// Client talks to the agent in one guest. It may be used by several goroutines.
type Client struct {
	dial, line    DialFunc // the latter: see Lines
	watch         WatchFunc
	lines         bool          // the latter go on in children
	interruptTime time.Duration // see there; tests make it shorter

	mu         sync.Mutex // guards what follows
	evaluators map[string]*evaluator
	kept       *call // see keep
}

// NewClient returns a client. It connects when it is used.
func NewClient(dial DialFunc) *Client {
	unwatched := func(ctx context.Context) (context.Context, func()) { return ctx, func() {} }
	return &Client{dial: dial, line: dial, watch: unwatched, interruptTime: interruptTime, evaluators: make(map[string]*evaluator)}
}

// WatchFunc returns a context for something that a guest answers at once. It ends, with the reason as its cause, when that
// cannot be expected any more, unless stop was called.
type WatchFunc func(ctx context.Context) (watched context.Context, stop func())

// Watched has the requests of a client, which is not in use yet, be watched until they are done, or have begun something
// that may take as long as it likes. Evaluations and refreshes are not: their callers know how long those may take.
func (c *Client) Watched(watch WatchFunc) *Client {
	c.watch = watch
	return c
}

// Lines has a client, which is not in use yet, make the connections with dial that go on in children of the guest's snapshots:
// those to runtimes on which nothing is being evaluated, and one on which a child's Refresh comes.
func (c *Client) Lines(dial DialFunc) *Client {
	c.line, c.lines = dial, true
	return c
}

// Close drops the kept connections. The client can be used again.
func (c *Client) Close() error {
	c.mu.Lock()
	evaluators := c.evaluators
	c.mu.Unlock()
	for _, e := range evaluators {
		e.disconnect()
	}
	c.keep(nil)
	return nil
}

// Ping returns what the agent says about itself.
func (c *Client) Ping(ctx context.Context) (wire.Info, error) {
	return request[wire.Info](ctx, c, wire.OpPing, nil)
}

// WaitReady pings until the agent answers or the context ends, for a guest that boots.
func (c *Client) WaitReady(ctx context.Context) (wire.Info, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		info, err := c.Ping(ctx)
		if err == nil || !errors.Is(err, ErrLost) {
			return info, err
		}
		select {
		case <-ctx.Done():
			return info, fmt.Errorf("waiting for the guest agent: %w (last: %v)", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// Metrics returns what the guest uses.
func (c *Client) Metrics(ctx context.Context) (wire.Metrics, error) {
	return request[wire.Metrics](ctx, c, wire.OpMetrics, nil)
}

// User looks an account up by its name or number. The error has code CodeNoSuchUser if there is none of that name.
func (c *Client) User(ctx context.Context, name string) (wire.User, error) {
	return request[wire.User](ctx, c, wire.OpUser, wire.UserRequest{Name: name})
}

// Sync writes the guest's file systems to its disks.
func (c *Client) Sync(ctx context.Context) error { return c.order(ctx, wire.OpSync, nil) }

// PowerOff switches the guest off. It returns when the guest has agreed.
func (c *Client) PowerOff(ctx context.Context) error { return c.order(ctx, wire.OpPowerOff, nil) }

// Quiesce holds every user process, so that a snapshot can be taken. When it returns, the guest has closed the connection
// too, and does nothing more of its own accord. Kept connections are dropped first, so that no child finds them, but for Lines.
func (c *Client) Quiesce(ctx context.Context) (wire.QuiesceReply, error) {
	free, err := c.prepare(ctx)
	defer free()
	if err != nil {
		return wire.QuiesceReply{}, err
	}
	call, err := c.open(ctx, wire.OpQuiesce, nil)
	if err != nil {
		return wire.QuiesceReply{}, err
	}
	defer call.close()
	reply, err := decode[wire.QuiesceReply](call.reply)
	if err != nil {
		return reply, err
	}
	_, _, _ = call.in.Next() // the guest's end of the connection
	return reply, nil
}

// prepare sees to the connections that children are to have. One that something is being evaluated on is none of them, and
// nothing is until free is called.
func (c *Client) prepare(ctx context.Context) (free func(), err error) {
	if !c.lines {
		return func() {}, c.Close()
	}
	c.mu.Lock()
	evaluators := c.evaluators
	c.mu.Unlock()
	var taken []*evaluator
	for _, e := range evaluators {
		if e.tryTurn() {
			taken = append(taken, e)
		} else {
			e.disconnect()
		}
	}
	free = func() {
		for _, e := range taken {
			e.endTurn()
		}
	}
	call, err := c.connect(ctx, c.line, wire.AgentPort)
	if err != nil {
		return free, err
	}
	c.keep(call)
	payload, err := wire.EncodeRequest(wire.OpAwait, nil)
	if err == nil {
		err = call.out.Frame(wire.TypeRequest, payload)
	}
	return free, err
}

// Resume ends a Quiesce: everything goes on under its old identity.
func (c *Client) Resume(ctx context.Context) error {
	c.keep(nil)
	return c.order(ctx, wire.OpResume, wire.ResumeRequest{})
}

// Held is a guest whose user processes stand still for a branch.
type Held struct {
	client *Client
	call   *call
	number uint64
}

// Branch makes the guest's user processes and runtimes stand still where they are, for the moment that the host needs to
// branch the machine; Release must follow. The context is for both. When it ends, or the guest does not answer, they go on
// as soon as the guest can be told.
func (c *Client) Branch(ctx context.Context) (*Held, error) {
	number := uint64(time.Now().UnixNano())
	call, err := c.open(ctx, wire.OpBranch, wire.BranchRequest{Number: number})
	if err != nil {
		if _, refused := errors.AsType[*wire.Error](err); !refused {
			go c.callOff(number)
		}
		return nil, err
	}
	return &Held{c, call, number}, nil
}

// callOff lets a guest go on whose branch has failed on the way.
func (c *Client) callOff(number uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	_ = c.order(ctx, wire.OpResume, wire.ResumeRequest{Branch: number})
}

// LetGo ends whatever branch was begun before now, so that the guest goes on. If it is not held that changes nothing.
func (c *Client) LetGo(ctx context.Context) error {
	return c.order(ctx, wire.OpResume, wire.ResumeRequest{Branch: uint64(time.Now().UnixNano())})
}

// Release lets the processes go on, and tells how long they stood still as the guest saw it.
func (h *Held) Release() (time.Duration, error) {
	defer h.call.close()
	err := context.Cause(h.call.ctx)
	if err == nil {
		err = h.call.out.Frame(wire.TypeRelease, nil)
	}
	if err == nil {
		err = h.call.readReply()
	}
	if err != nil {
		go h.client.callOff(h.number)
		return 0, fmt.Errorf("letting the guest go on: %w", err)
	}
	reply, err := decode[wire.Released](h.call.reply)
	return time.Duration(reply.HeldNS), err
}

// Abandon breaks the connection without a word, as the restore of a child does. The guest stands still until a Resume or a
// Refresh.
func (h *Held) Abandon() { h.call.close() }

// Refresh gives a restored guest its identity and lets its processes go. It is the first request in a restored guest; until
// it has succeeded, nothing else is answered but Ping, Resume and PowerOff.
func (c *Client) Refresh(ctx context.Context, r *wire.Refresh) error {
	finish, err := c.BeginRefresh(ctx, r)
	if err != nil {
		return err
	}
	return finish()
}

// BeginRefresh asks for a Refresh, and finish waits for the answer. In between an evaluation may be asked for: it waits in
// the guest until the runtime is refreshed, and it counts for nothing if finish fails.
func (c *Client) BeginRefresh(ctx context.Context, r *wire.Refresh) (finish func() error, err error) {
	payload, err := r.AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	call, err := c.connect(ctx, c.line, wire.AgentPort)
	if err != nil {
		return nil, err
	}
	if err := call.out.Frame(wire.TypeRefresh, payload); err != nil {
		call.close()
		return nil, lost(ctx, err)
	}
	return func() error {
		if err := call.readReply(); err != nil {
			call.close()
			return err
		}
		c.keep(call)
		return nil
	}, nil
}

// keep leaves the connection of a refresh open, in the place of the one before: closing it would wake the guest once more. It
// closes its end itself when it has something else to do. Or the one that children will be refreshed on.
func (c *Client) keep(call *call) {
	if call != nil {
		call.letBe()
	}
	c.mu.Lock()
	former := c.kept
	c.kept = call
	c.mu.Unlock()
	if former != nil {
		former.close()
	}
}

// order runs an operation whose answer is empty.
func (c *Client) order(ctx context.Context, op wire.Op, args any) error {
	call, err := c.open(ctx, op, args)
	if err != nil {
		return err
	}
	call.close()
	return nil
}

// request runs an operation that has one answer.
func request[R any](ctx context.Context, c *Client, op wire.Op, args any) (R, error) {
	call, err := c.open(ctx, op, args)
	if err != nil {
		var none R
		return none, err
	}
	defer call.close()
	return decode[R](call.reply)
}

// collect reads frames of one type, each a JSON array, up to the end mark.
func collect[T any](c *call, kind wire.Type, most, mostBytes int) ([]T, error) {
	all := []T{}
	for size := 0; ; {
		got, payload, err := c.next()
		switch {
		case err != nil:
			return nil, err
		case got == wire.TypeEnd:
			return all, nil
		case got != kind:
			return nil, c.unexpected(got)
		}
		batch, err := decode[[]T](payload)
		if err != nil {
			return nil, err
		}
		all, size = append(all, batch...), size+len(payload)
		if len(all) > most || size > mostBytes {
			return nil, wire.Errorf(wire.CodeTooLong, "", "the guest lists more than %d entries or %d bytes", most, mostBytes)
		}
	}
}

func decode[R any](payload []byte) (R, error) {
	var r R
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, fmt.Errorf("%w: %w: %v", ErrLost, errGarbled, err)
	}
	return r, nil
}

// call is a connection on which the guest has agreed to an operation.
type call struct {
	ctx   context.Context
	conn  net.Conn
	in    *wire.Reader
	out   *wire.Writer
	stop  func() bool
	relax func() // has it be watched no more; nil: it is not
	reply []byte // payload of the OK frame; valid until in.Next
}

// open starts an operation and reads its first answer.
func (c *Client) open(ctx context.Context, op wire.Op, args any) (*call, error) {
	payload, err := wire.EncodeRequest(op, args)
	if err != nil {
		return nil, err
	}
	if len(payload) > wire.MaxFrame {
		return nil, wire.Errorf(wire.CodeTooLong, "args", "the arguments of %s are %d bytes long", op, len(payload))
	}
	return c.send(ctx, wire.AppendFrame(nil, wire.TypeRequest, payload))
}

// send sends the frames that open an operation, with one write, and reads the answer.
func (c *Client) send(ctx context.Context, frames []byte) (*call, error) {
	ctx, relax := c.watch(ctx)
	call, err := c.connect(ctx, c.dial, wire.AgentPort)
	if err != nil {
		relax()
		return nil, err
	}
	call.relax = relax
	_, _ = call.conn.Write(frames) // a refusal may have come before everything was sent; else reading fails, too
	if err := call.readReply(); err != nil {
		call.close()
		return nil, err
	}
	return call, nil
}

// connect opens a connection that breaks when the context ends.
func (c *Client) connect(ctx context.Context, dial DialFunc, port uint32) (*call, error) {
	conn, err := dial(ctx, port)
	if err != nil {
		return nil, lost(ctx, fmt.Errorf("connecting to port %d: %w", port, err))
	}
	return &call{
		ctx: ctx, conn: conn, in: wire.NewReader(conn), out: wire.NewWriter(conn),
		stop: context.AfterFunc(ctx, func() { conn.Close() }),
	}, nil
}

// letBe has the connection outlive its context.
func (c *call) letBe() {
	if c.relax != nil {
		c.relax()
	}
	c.stop()
}

func (c *call) close() {
	c.letBe()
	c.conn.Close()
}

// openLong is open for what may take as long as it likes once it has begun.
func (c *Client) openLong(ctx context.Context, op wire.Op, args any) (*call, error) {
	call, err := c.open(ctx, op, args)
	if err == nil {
		call.relax()
	}
	return call, err
}

// readReply reads an OK or Error frame.
func (c *call) readReply() error {
	kind, payload, err := c.next()
	if err != nil {
		return err
	}
	if kind != wire.TypeOK {
		return c.unexpected(kind)
	}
	c.reply = payload
	return nil
}

// next returns the next frame; an Error frame is returned as the error.
func (c *call) next() (wire.Type, []byte, error) { return c.nextOnce(nil) }

// nextOnce is next for a frame whose payload may have to wait, see wire.Reader.
func (c *call) nextOnce(ready func(size int) error) (wire.Type, []byte, error) {
	kind, payload, err := c.in.NextOnce(ready)
	if e, ok := errors.AsType[*noRoomError](err); ok {
		return 0, nil, e
	}
	if err != nil {
		return 0, nil, lost(c.ctx, err)
	}
	if kind == wire.TypeError {
		return 0, nil, wire.DecodeError(payload)
	}
	return kind, payload, nil
}

func (c *call) unexpected(kind wire.Type) error {
	return fmt.Errorf("%w: %w: frame of type %d has no place here", ErrLost, errGarbled, kind)
}

// lost explains a broken connection: by the end of the context, or else by the guest.
func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}
