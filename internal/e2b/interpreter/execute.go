package interpreter

import (
	"errors"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/envd/pulse"
	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

const (
	// beginAfter is how long the status line waits for the code's first word, to
	// be able to tell that it cannot run at all.
	beginAfter = 800 * time.Millisecond
	// keepaliveEvery is how long the stream may have nothing to say.
	keepaliveEvery = 5 * time.Second
)

// execution is a request to run code.
type execution struct {
	Code     *string           `json:"code"`
	Context  *string           `json:"context_id"`
	Language *string           `json:"language"`
	Env      map[string]string `json:"env_vars"`
}

func (s *Service) execute(w http.ResponseWriter, r *http.Request) {
	var req execution
	if !read(w, r, &req) {
		return
	}
	context, language := value(req.Context), value(req.Language)
	switch {
	case req.Code == nil:
		writeText(w, http.StatusUnprocessableEntity, "invalid request body: code is missing")
		return
	case context != "" && language != "":
		writeText(w, http.StatusBadRequest, "Only one of context_id or language can be provided")
		return
	}
	target := front.TargetOf(r.Context())
	spec := sandbox.RunSpec{Code: *req.Code, Context: context, Env: req.Env, User: target.User()}
	if context == "" {
		spec.Language = languageOf(req.Language)
	}
	out := &stream{w: w, flush: http.NewResponseController(w).Flush}
	out.heart = pulse.Start(beginAfter, keepaliveEvery, out.keepAlive)
	result, err := s.host.RunCode(r.Context(), target.ID, spec, out.event)
	out.heart.Stop()
	switch {
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody is there, and it is not the end of the run
	case err == nil:
		out.end(result)
	case out.begun:
		out.end(&sandbox.RunResult{Error: &sandbox.EvalError{Type: nameOf(err), Message: message(err)}})
	case context != "":
		failContext(w, context, err)
	default:
		fail(w, err)
	}
}

// nameOf is the name of an error that is not the code's.
func nameOf(err error) string {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Code == sandbox.Timeout {
		return "ExecutionTimeout"
	}
	return "ExecutionFailed"
}

// stream is the answer: a line of JSON for each event. Its fields are guarded by
// the pulse, which lets one be sent at a time.
type stream struct {
	w     http.ResponseWriter
	flush func() error
	heart *pulse.Pulse
	begun bool
	buf   []byte // lines
}

// begin sends the status line.
func (s *stream) begin() {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "application/x-ndjson")
		s.w.WriteHeader(http.StatusOK)
	}
}

// line adds a line to what is sent next.
func (s *stream) line(v any) {
	s.buf = append(appendASCII(s.buf, marshal(v)), '\n')
}

func (s *stream) send() error {
	s.begin()
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	if err != nil {
		return err
	}
	return s.flush()
}

// keepAlive is first called to begin, and has nothing to say then.
func (s *stream) keepAlive() error {
	if s.begun {
		s.line(event{Type: "keepalive"})
	}
	return s.send()
}

func (s *stream) event(e sandbox.RunEvent) error {
	return s.heart.Send(func() error {
		now := time.Now().UTC().Format(time.RFC3339Nano)
		switch {
		case e.Result != nil:
			s.line(resultEvent(e.Result))
		case e.Stderr != "":
			s.line(outputEvent{"stderr", e.Stderr, now})
		default:
			s.line(outputEvent{"stdout", e.Stdout, now})
		}
		return s.send()
	})
}

// end sends how the run ended. The pulse must have stopped.
func (s *stream) end(result *sandbox.RunResult) {
	if result.Count > 0 {
		s.line(countEvent{"number_of_executions", result.Count})
	}
	switch {
	case result.Error != nil:
		s.line(errorEvent{"error", result.Error.Type, result.Error.Message, result.Error.Traceback})
	case result.Lost:
		s.line(errorEvent{"error", "UnexpectedEndOfExecution",
			"the interpreter ended before the execution was finished; it was started again without its state", ""})
	}
	if result.Lost {
		s.line(event{"unexpected_end_of_execution"})
	}
	s.line(event{"end_of_execution"})
	s.send() // who is gone cannot be told
}
