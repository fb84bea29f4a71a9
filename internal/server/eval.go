package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// EvalSandbox evaluates code in the warm runtime.
func (s *Server) EvalSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.EvalRequest
	_, err := readJSON(w, r, maxEvalBody, &req)
	var eval *sandbox.Evaluation
	if err == nil {
		eval, err = evaluation(req.Code, req.TimeoutSecs)
	}
	var res *api.EvalResult
	if err == nil {
		res, err = s.eval(r.Context(), id, eval)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, res)
}

// evaluation checks what is to be evaluated.
func evaluation(code string, timeoutSecs *float64) (*sandbox.Evaluation, error) {
	timeout, err := seconds("timeout_secs", timeoutSecs)
	if code == "" {
		err = errors.Join(invalid("", "code: required"), err)
	}
	if err != nil {
		return nil, err
	}
	return sandbox.NewEvaluation(code, timeout)
}

// eval evaluates code in one sandbox, and observes how long it took.
func (s *Server) eval(ctx context.Context, id string, eval *sandbox.Evaluation) (*api.EvalResult, error) {
	start := time.Now()
	res, err := s.m.Evaluate(ctx, id, eval)
	if err != nil {
		return nil, err
	}
	s.metrics.eval.Observe(time.Since(start).Seconds())
	out := evalResult(res)
	return &out, nil
}

// EvalSandboxes evaluates code in many sandboxes. All begin at once, and each answers when it
// has something to answer: what becomes of one is nothing to the others.
func (s *Server) EvalSandboxes(w http.ResponseWriter, r *http.Request) {
	var req api.EvalAllRequest
	_, err := readJSON(w, r, maxEvalBody, &req)
	if err == nil {
		err = checkBoxes("sandboxes", req.Sandboxes)
	}
	var eval *sandbox.Evaluation
	if err == nil {
		eval, err = evaluation(req.Code, req.TimeoutSecs)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	eval.Among = len(req.Sandboxes)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	events := newEventWriter(w, cancel)
	sendAll := events.together(gatherTime)
	stopKeepAlive := events.keepAlive(s.keepAlive)
	failed := make([]string, len(req.Sandboxes))
	room := newRoom()
	var wg sync.WaitGroup
	for i, id := range req.Sandboxes {
		wg.Go(func() {
			place := place{room: room}
			defer place.leave()
			answer := s.answer(ctx, id, place.evaluation(eval))
			place.arrived()
			if err := events.send(answer); err != nil && ctx.Err() == nil { // what the sandbox has sent is not JSON
				answer = api.EvalAnswer{SandboxID: id, Error: &api.Error{Code: api.ErrorCodeInternal, Error: "encoding the answer: " + err.Error()}}
				events.send(answer)
			}
			if answer.Error != nil {
				failed[i] = answer.Error.Error
			}
		})
	}
	wg.Wait()
	stopKeepAlive()
	sendAll()
	noteEvals(w, req.Sandboxes, failed)
}

// maxLarge is how many answers that are not small are taken from their sandboxes at a time. The next is taken when one of
// them has been written, so a client that does not read leaves the others where they are, unless somebody wants to
// evaluate there.
const maxLarge = 8

// lateTime is how long a sandbox may take to send its answer, before that keeps no other waiting any more. As many may be
// late at a time as are taken.
const lateTime = time.Second

// room is where answers are between their sandboxes and the client.
type room struct{ taken, late chan struct{} }

func newRoom() room { return room{make(chan struct{}, maxLarge), make(chan struct{}, maxLarge)} }

// place is that of one answer.
type place struct {
	room  room
	timer *time.Timer // nil: it was not taken

	mu   sync.Mutex
	from chan struct{} // where it is: what room has of one kind; nil if nowhere; guarded by mu
}

// evaluation returns an evaluation that takes the place if it needs one.
func (p *place) evaluation(eval *sandbox.Evaluation) *sandbox.Evaluation {
	waits := *eval
	waits.Room = p.take
	return &waits
}

func (p *place) take(ctx context.Context) error {
	select {
	case p.room.taken <- struct{}{}:
		p.from = p.room.taken
		p.timer = time.AfterFunc(lateTime, p.beLate)
		return nil
	case <-ctx.Done():
	}
	err := context.Cause(ctx)
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Code == sandbox.Timeout {
		return &sandbox.Error{Code: e.Code, Message: "the answer was given up: long after the time limit, those before it were not read yet",
			Hint: "read answers as they come, or ask for less"}
	}
	return err
}

// beLate makes room for another, if not too many are late.
func (p *place) beLate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.from == nil {
		return
	}
	select {
	case p.room.late <- struct{}{}:
		<-p.from
		p.from = p.room.late
	default:
	}
}

// arrived says that the answer is here: it is the client now who has it stay.
func (p *place) arrived() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

// leave gives the place to the next.
func (p *place) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.from != nil {
		<-p.from
		p.from = nil
	}
}

// gatherTime is how long an answer may wait for those of other sandboxes. That of one that is
// alone does not wait: the end of all sends what there is.
const gatherTime = 8 * time.Millisecond

// answer is what one of many sandboxes has to say. Nobody else is to hear of it if that ends
// in a panic, which a request of its own would have reported, and survived, too.
func (s *Server) answer(ctx context.Context, id string, eval *sandbox.Evaluation) (answer api.EvalAnswer) {
	answer.SandboxID = id
	defer func() {
		if e := recover(); e != nil {
			s.reportPanic("POST /v1/eval", e)
			answer.Error = &api.Error{Code: api.ErrorCodeInternal, Error: fmt.Sprint("a fault of forkd: ", e)}
		}
	}()
	res, err := s.eval(ctx, id, eval)
	if err != nil {
		answer.Error = describe(ctx, err)
	}
	answer.Result = res
	return answer
}

// noteEvals logs in which sandboxes code was evaluated, in how many it could not be, and why
// in the first of these.
func noteEvals(w http.ResponseWriter, ids, failed []string) {
	note(w, slog.Any("ids", ids))
	n, first := 0, ""
	for _, why := range failed {
		if why == "" {
			continue
		}
		if n++; n == 1 {
			first = why
		}
	}
	if n > 0 {
		note(w, slog.Int("failed", n), slog.String("error", first))
	}
}

// checkBoxes checks a list of ids of sandboxes.
func checkBoxes(field string, ids []string) error {
	if len(ids) == 0 || len(ids) > maxEvals {
		return invalid("", "%s: must be 1 to %d, not %d", field, maxEvals, len(ids))
	}
	seen := make(map[string]bool, len(ids))
	for i, id := range ids {
		switch {
		case id == "":
			return invalid("", "%s: required", item(field, i))
		case len(id) > maxID:
			return invalid("", "%s: no id is longer than %d bytes, as %s is", item(field, i), maxID, quote(id))
		case seen[id]:
			return invalid("name each once", "%s: %s is there already", item(field, i), quote(id))
		}
		seen[id] = true
	}
	return nil
}

// InterruptSandbox interrupts the evaluation that is running.
func (s *Server) InterruptSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	s.finish(w, r, s.m.Interrupt(r.Context(), id))
}
