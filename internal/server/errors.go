package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// ErrShutdown is the cause with which requests are cancelled when the daemon
// ends.
var ErrShutdown = errors.New("the daemon is shutting down")

// statusOf maps every code of the spec to its HTTP status.
var statusOf = map[api.ErrorCode]int{
	api.ErrorCodeInvalidArgument:      http.StatusBadRequest,
	api.ErrorCodeUnauthorized:         http.StatusUnauthorized,
	api.ErrorCodeForbidden:            http.StatusForbidden,
	api.ErrorCodeNotFound:             http.StatusNotFound,
	api.ErrorCodeMethodNotAllowed:     http.StatusMethodNotAllowed,
	api.ErrorCodeAlreadyExists:        http.StatusConflict,
	api.ErrorCodeInUse:                http.StatusConflict,
	api.ErrorCodeNoRuntime:            http.StatusConflict,
	api.ErrorCodeRuntimeLost:          http.StatusConflict,
	api.ErrorCodePaused:               http.StatusConflict,
	api.ErrorCodeSandboxDead:          http.StatusGone,
	api.ErrorCodeTooLarge:             http.StatusRequestEntityTooLarge,
	api.ErrorCodeUnsupportedMediaType: http.StatusUnsupportedMediaType,
	api.ErrorCodeNotBootable:          http.StatusConflict,
	api.ErrorCodeFailedPrecondition:   http.StatusConflict,
	api.ErrorCodeCommandFailed:        http.StatusUnprocessableEntity,
	api.ErrorCodeCanceled:             499, // the usual number for a client that went away
	api.ErrorCodeInternal:             http.StatusInternalServerError,
	api.ErrorCodeUnsupported:          http.StatusNotImplemented,
	api.ErrorCodePortClosed:           http.StatusBadGateway,
	api.ErrorCodeUnavailable:          http.StatusServiceUnavailable,
	api.ErrorCodeCapacityExceeded:     http.StatusServiceUnavailable,
	api.ErrorCodeTimeout:              http.StatusGatewayTimeout,
	api.ErrorCodeNoSpace:              http.StatusInsufficientStorage,
}

// refusal is an error that this package itself answers with.
type refusal struct{ body *api.Error }

func (e *refusal) Error() string { return e.body.Error }

// invalid says that a request can never work.
func invalid(hint, format string, args ...any) error {
	return refuse(api.ErrorCodeInvalidArgument, hint, format, args...)
}

// unsupported says that this build lacks something.
func unsupported(format string, args ...any) error {
	return refuse(api.ErrorCodeUnsupported, "leave it out", format, args...)
}

func refuse(code api.ErrorCode, hint, format string, args ...any) error {
	return &refusal{&api.Error{Code: code, Error: fmt.Sprintf(format, args...), Hint: hint}}
}

// describe turns any error into the body of an answer. ctx is what the domain
// worked under: once it has ended, its cause is the reason, however the domain
// words it.
func describe(ctx context.Context, err error) *api.Error {
	var refused *refusal
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		switch {
		case errors.Is(cause, ErrShutdown):
			return &api.Error{Code: api.ErrorCodeUnavailable, Error: ErrShutdown.Error()}
		case errors.As(cause, &refused):
			return refused.body
		}
		return &api.Error{Code: api.ErrorCodeCanceled, Error: "the client went away"}
	}
	if errors.As(err, &refused) {
		return refused.body
	}
	var fault *sandbox.Error
	if !errors.As(err, &fault) {
		return &api.Error{Code: api.ErrorCodeInternal, Error: err.Error()}
	}
	body := &api.Error{Code: api.ErrorCode(fault.Code), Error: err.Error(), Hint: fault.Hint}
	if _, known := statusOf[body.Code]; !known {
		body.Code = api.ErrorCodeInternal
	}
	if s := fault.Shortage; s != nil {
		body.Shortage = &api.Shortage{Resource: api.ShortageResource(s.Resource), Needed: s.Needed, Free: s.Free, Held: s.Held}
	}
	return body
}

// retryAfter is how many seconds a client should wait that asks for what the daemon
// has no room for: a second if nobody knows, as what it waits for (a branch being
// written) is over by then.
func retryAfter(err error) string {
	var fault *sandbox.Error
	if errors.As(err, &fault) && fault.Retry > time.Second {
		return strconv.Itoa(int(math.Ceil(fault.Retry.Seconds())))
	}
	return "1"
}

// fail answers a request with an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	body := describe(r.Context(), err)
	if body.Code == api.ErrorCodeUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if statusOf[body.Code] == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter(err))
	}
	note(w, slog.String("error", body.Error))
	writeJSON(w, statusOf[body.Code], body)
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooled is the size over which a buffer is left to the garbage collector.
const maxPooled = 1 << 20

// writeJSON answers with a JSON document. An error means that the client cannot
// have got it.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	buf := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= maxPooled {
			buf.Reset()
			buffers.Put(buf)
		}
	}()
	if err := encode(buf, v); err != nil { // a sandbox sent something that is not JSON
		buf.Reset()
		status = http.StatusInternalServerError
		encode(buf, api.Error{Code: api.ErrorCodeInternal, Error: "encoding the answer: " + err.Error()})
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(buf.Len()))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, err := w.Write(buf.Bytes())
	return err
}

// encode appends v and a newline.
func encode(buf *bytes.Buffer, v any) error {
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func quote(s string) string {
	const limit = 100
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strconv.Quote(s)
}
