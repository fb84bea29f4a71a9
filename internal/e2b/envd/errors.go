package envd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// codes say how an error of the domain is told: by Connect and by HTTP.
var codes = map[sandbox.Code]struct {
	rpc    connect.Code
	status int
}{
	sandbox.InvalidArgument:    {connect.CodeInvalidArgument, http.StatusBadRequest},
	sandbox.NotFound:           {connect.CodeNotFound, http.StatusNotFound},
	sandbox.AlreadyExists:      {connect.CodeAlreadyExists, http.StatusBadRequest},
	sandbox.InUse:              {connect.CodeFailedPrecondition, http.StatusConflict},
	sandbox.FailedPrecondition: {connect.CodeFailedPrecondition, http.StatusConflict},
	sandbox.CapacityExceeded:   {connect.CodeResourceExhausted, http.StatusTooManyRequests},
	sandbox.NoSpace:            {connect.CodeInternal, http.StatusInsufficientStorage},
	sandbox.SandboxDead:        {connect.CodeUnavailable, http.StatusBadGateway},
	sandbox.SandboxPaused:      {connect.CodeUnavailable, http.StatusBadGateway},
	sandbox.Unavailable:        {connect.CodeUnavailable, http.StatusServiceUnavailable},
	sandbox.Timeout:            {connect.CodeDeadlineExceeded, http.StatusGatewayTimeout},
	sandbox.Unsupported:        {connect.CodeUnimplemented, http.StatusNotImplemented},
}

func isCode(err error, code sandbox.Code) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	return ok && e.Code == code
}

// message is an error's text, with the hint that there may be.
func message(err error) string {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Hint != "" {
		return err.Error() + "; " + e.Hint
	}
	return err.Error()
}

// rpcError makes an error one of Connect's.
func rpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connect.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ok := errors.AsType[userError](err); ok {
		return connect.NewError(connect.CodeUnauthenticated, err)
	}
	if _, ok := errors.AsType[*pathError](err); ok {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	code := connect.CodeInternal
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		if known, ok := codes[e.Code]; ok {
			code = known.rpc
		}
	}
	return connect.NewError(code, errors.New(message(err)))
}

// statusOf is the HTTP status that tells an error.
func statusOf(err error) int {
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.status
	}
	if _, ok := errors.AsType[userError](err); ok {
		return http.StatusUnauthorized
	}
	if _, ok := errors.AsType[*pathError](err); ok {
		return http.StatusBadRequest
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		if known, ok := codes[e.Code]; ok {
			return known.status
		}
	}
	return http.StatusInternalServerError
}

// statusError is an error with an HTTP status of its own.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func badRequest(format string, args ...any) error {
	return &statusError{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// fail answers a request with an error.
func fail(w http.ResponseWriter, err error) { writeError(w, statusOf(err), message(err)) }

// writeError answers with the body that envd's errors have.
func writeError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	writeJSON(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

// writeJSON answers with a value that can be marshalled.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an answer does not marshal: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) // who is gone cannot be told
}
