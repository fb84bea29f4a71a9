package guest

import (
	"bufio"
	"encoding/json"
	"io"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// session is one connection with its one operation.
type session struct {
	*Server
	conn   *quiet.Conn
	buffer *bufio.Reader // over conn, beneath in
	in     *wire.Reader
	out    *wire.Writer
	line   bool // see Server.serveLine
}

func (s *Server) session(conn *quiet.Conn) *session {
	buffer := bufio.NewReaderSize(conn, 512)
	return &session{Server: s, conn: conn, buffer: buffer, in: wire.NewReader(buffer), out: wire.NewWriter(conn)}
}

// refreshed answers a connection that begins with a whole refresh, and reports whether this one did. It is how every child
// begins, so it is done with as little as possible: no buffers, and the poller never hears of the connection.
func (s *Server) refreshed(fresh quiet.Fresh, begin []byte, refresh func(*wire.Refresh) error) bool {
	kind, payload, ok := wire.WholeFrame(begin)
	if !ok || kind != wire.TypeRefresh {
		return false
	}
	err := s.request.UnmarshalBinary(payload)
	if err == nil {
		err = refresh(&s.request)
	}
	kind, payload = wire.TypeOK, nil
	if err != nil {
		kind = wire.TypeError
		payload, _ = json.Marshal(wire.AsError(err)) // it has nothing that could not be encoded
	}
	_, _ = fresh.WriteNow(wire.AppendFrame(begin[:0], kind, payload)) // the client may be gone already
	return true
}

// reuse makes a session that is over serve another connection with the memory that it has.
func (s *session) reuse(conn *quiet.Conn) *session {
	s.conn = conn
	s.buffer.Reset(conn)
	s.in.Reset(s.buffer)
	s.out.Reset(conn)
	return s
}

// run reads the opening frame and answers it. A connection that ends before it asks for anything is no error.
func (s *session) run() {
	kind, payload, err := s.in.Next()
	if err != nil {
		if err != io.EOF {
			s.fail(wire.Errorf(wire.CodeBadRequest, "", "no request could be read: %v", err))
		}
		return
	}
	switch kind {
	case wire.TypeRefresh:
		var r wire.Refresh
		if err = r.UnmarshalBinary(payload); err == nil {
			err = s.refresh(&r)
		}
		s.done(nil, err)
	case wire.TypeRequest:
		r, err := wire.DecodeRequest(payload)
		if err == nil {
			err = s.dispatch(r)
		}
		if err != nil {
			s.fail(err)
		}
	default:
		s.fail(wire.Errorf(wire.CodeUnknownFrame, "", "frame type %d does not open an operation", kind))
	}
}

// fail answers with an error. The peer may be gone already, so whether it arrives does not matter.
func (s *session) fail(err error) { _ = s.out.JSON(wire.TypeError, wire.AsError(err)) }

// done answers with v, or with err if that is not nil.
func (s *session) done(v any, err error) {
	switch {
	case err != nil:
		s.fail(err)
	case v == nil:
		_ = s.out.Frame(wire.TypeOK, nil)
	default:
		_ = s.out.JSON(wire.TypeOK, v)
	}
}

// dispatch runs an operation. An error that it returns has not been answered yet.
func (s *session) dispatch(r wire.Request) error {
	if err := s.admit(r.Op); err != nil {
		return err
	}
	switch r.Op {
	case wire.OpPing:
		return answer(s, r, func(struct{}) (any, error) { return s.info(), nil })
	case wire.OpSync:
		return answer(s, r, func(struct{}) (any, error) { unix.Sync(); return nil, nil })
	case wire.OpPowerOff:
		err := answer(s, r, func(struct{}) (any, error) { unix.Sync(); return nil, nil })
		if err == nil && s.cfg.PowerOff != nil {
			s.cfg.PowerOff()
		}
		return err
	case wire.OpQuiesce:
		return answer(s, r, func(struct{}) (any, error) { return s.quiesce() })
	case wire.OpAwait:
		return with(r, func(struct{}) error { s.line = s != s.heldSession; return nil })
	case wire.OpResume:
		return answer(s, r, func(a wire.ResumeRequest) (any, error) { return nil, s.resume(a.Branch) })
	case wire.OpBranch:
		return with(r, s.branch)
	case wire.OpExec:
		return with(r, s.exec)
	case wire.OpProcesses:
		return with(r, func(struct{}) error { return s.processes() })
	case wire.OpAttach:
		return with(r, s.attach)
	case wire.OpInput:
		return with(r, s.input)
	case wire.OpSignal:
		return answer(s, r, func(a wire.ProcessSignal) (any, error) { return nil, s.signalKept(a) })
	case wire.OpResize:
		return answer(s, r, func(a wire.ResizeRequest) (any, error) { return nil, s.resize(a) })
	case wire.OpDial:
		return with(r, s.dial)
	case wire.OpMetrics:
		return answer(s, r, func(struct{}) (any, error) { return s.metrics() })
	case wire.OpUser:
		return answer(s, r, func(a wire.UserRequest) (any, error) { return s.user(a) })
	case wire.OpRuntimeStart:
		return answer(s, r, func(a wire.RuntimeStart) (any, error) { return s.warm.Start(a, s.disconnected()) })
	case wire.OpRuntimeRecover:
		return answer(s, r, func(a wire.RuntimeRecover) (any, error) { return s.warm.Recover(a, s.disconnected()) })
	case wire.OpContextStart:
		return answer(s, r, func(a wire.ContextStart) (any, error) { return s.warm.StartContext(a, s.disconnected()) })
	case wire.OpContextStop:
		return answer(s, r, func(a wire.ContextStop) (any, error) { return nil, s.warm.Stop(a.Name) })
	case wire.OpRun:
		return with(r, s.runCode)
	case wire.OpRuntimeInterrupt:
		return answer(s, r, func(a wire.RuntimeInterrupt) (any, error) {
			return s.warm.Interrupt(a)
		})
	}
	return s.dispatchFile(r)
}

// admit refuses what cannot be done while the guest is held for a snapshot. A branch is over in a moment, so then it waits;
// what was asked of the machine that was branched is not done in its children.
func (s *session) admit(op wire.Op) error {
	switch op {
	case wire.OpPing, wire.OpResume, wire.OpAwait, wire.OpQuiesce, wire.OpPowerOff:
		return nil
	}
	s.mu.Lock()
	how, running, generation := s.how, s.running, s.generation
	s.mu.Unlock()
	switch {
	case how == released:
		return nil
	case how == paused && op != wire.OpBranch:
		<-running
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.generation == generation {
			return nil
		}
	}
	return wire.Errorf(wire.CodeQuiesced, "", "%s: the guest is held for a snapshot: refresh or resume it first", op)
}

// with decodes the arguments of a request and calls f with them.
func with[A any](r wire.Request, f func(A) error) error {
	var args A
	if err := r.DecodeArgs(&args); err != nil {
		return err
	}
	return f(args)
}

// answer is with for an operation that has one reply.
func answer[A any](s *session, r wire.Request, f func(A) (any, error)) error {
	return with(r, func(args A) error {
		reply, err := f(args)
		if err == nil {
			s.done(reply, nil)
		}
		return err
	})
}

// disconnected returns a channel that is closed when the client ends the connection. Nothing else may read from it.
func (s *session) disconnected() <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			if _, _, err := s.in.Next(); err != nil {
				return
			}
		}
	}()
	return gone
}
