package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/forkd-dev/forkd/internal/gate"
	"github.com/forkd-dev/forkd/internal/jsonbody"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Error is the body of an answer that is an error. Clients look at Code where
// they might look at the status, so the two are always the same.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	// ErrorCode says it for programs, in the domain's words.
	ErrorCode string `json:"error_code,omitempty"`
}

func (e *Error) Error() string { return e.Message }

func refuse(status int, format string, args ...any) error {
	return &Error{Code: status, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return refuse(http.StatusBadRequest, format, args...)
}

// missing says that this build lacks something, and why.
func missing(what, why string) error {
	return refuse(http.StatusNotImplemented, "%s is not supported by forkd: %s", what, why)
}

// statusOf maps the domain's codes.
var statusOf = map[sandbox.Code]int{
	sandbox.InvalidArgument:    http.StatusBadRequest,
	sandbox.NotFound:           http.StatusNotFound,
	sandbox.SandboxDead:        http.StatusNotFound, // E2B forgets what has ended
	sandbox.AlreadyExists:      http.StatusConflict,
	sandbox.InUse:              http.StatusConflict,
	sandbox.NotBootable:        http.StatusConflict,
	sandbox.FailedPrecondition: http.StatusConflict,
	sandbox.NoRuntime:          http.StatusConflict,
	sandbox.RuntimeLost:        http.StatusConflict,
	sandbox.CommandFailed:      http.StatusUnprocessableEntity,
	sandbox.CapacityExceeded:   http.StatusTooManyRequests,
	sandbox.Unavailable:        http.StatusServiceUnavailable,
	sandbox.Timeout:            http.StatusGatewayTimeout,
	sandbox.NoSpace:            http.StatusInsufficientStorage,
	sandbox.Unsupported:        http.StatusNotImplemented,
	sandbox.SandboxPaused:      http.StatusConflict,
}

// describe turns any error into the body of an answer.
func describe(ctx context.Context, err error) *Error {
	var own *Error
	var body *jsonbody.Error
	var no *gate.Refusal
	var fault *sandbox.Error
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &body):
		return &Error{Code: body.Status, Message: hinted(body.Message, body.Hint)}
	case errors.As(err, &no):
		return &Error{Code: no.Status, Message: hinted(no.Message, no.Hint)}
	case ctx.Err() != nil:
		return &Error{Code: http.StatusServiceUnavailable, Message: "the request was cancelled: " + context.Cause(ctx).Error()}
	case errors.As(err, &fault):
		status, known := statusOf[fault.Code]
		if !known {
			status = http.StatusInternalServerError
		}
		return &Error{Code: status, Message: hinted(err.Error(), fault.Hint), ErrorCode: string(fault.Code)}
	}
	return &Error{Code: http.StatusInternalServerError, Message: err.Error()}
}

// hinted adds advice to a message: the API has no place of its own for it.
func hinted(message, hint string) string {
	if hint == "" {
		return message
	}
	return message + " (" + hint + ")"
}

// Fail answers a request with an error.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	body := describe(r.Context(), err)
	if body.Code == http.StatusServiceUnavailable || body.Code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, body.Code, body)
}

// answer writes a JSON document.
func answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status = http.StatusInternalServerError
		b, _ = json.Marshal(&Error{Code: status, Message: "encoding the answer: " + err.Error()})
	}
	h := w.Header()
	h.Set("Content-Type", jsonbody.Type)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(b)
}

// clip shortens what a client sent for a message.
func clip(s string) string {
	const limit = 100
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return s
}
