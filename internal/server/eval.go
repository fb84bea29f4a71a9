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
	var wg sync.WaitGroup
	for i, id := range req.Sandboxes {
		wg.Go(func() {
			answer := s.answer(ctx, id, eval)
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
