package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/forkd-dev/forkd/api"
)

// Error is an error that the daemon answered with.
type Error struct {
	Status     int           // of the HTTP answer; 0 if it came in a stream
	Code       api.ErrorCode // stable
	Message    string
	Hint       string        // what to do about it, may be empty
	Dependents []string      // what still depends on the thing, for the code in_use
	Shortage   *Shortage     // what the host lacks, if that is why nothing was begun
	RetryAfter time.Duration // when asking again makes sense, for the status 503
}

// Shortage is what a refused request needed of the host, and what there was.
type Shortage = api.Shortage

func (e *Error) Error() string { return e.Message }

// IsCode reports whether err is an *Error with that code.
func IsCode(err error, code api.ErrorCode) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// ConnectError tells that no daemon could be reached.
type ConnectError struct {
	URL string
	Err error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("no forkd daemon answers at %s: %v", e.URL, e.Err)
}

func (e *ConnectError) Unwrap() error { return e.Err }

// LostError tells that the daemon went away, or broke the connection, before it
// had answered. What was asked may have been done or not.
type LostError struct {
	URL string
	Err error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the daemon at %s went away before it had answered", e.URL)
}

func (e *LostError) Unwrap() error { return e.Err }

// Body returns the error as the API has it.
func (e *Error) Body() *api.Error {
	return &api.Error{Error: e.Message, Code: e.Code, Hint: e.Hint, Dependents: e.Dependents, Shortage: e.Shortage}
}

func fromBody(status int, body *api.Error) *Error {
	return &Error{Status: status, Code: body.Code, Message: body.Error, Hint: body.Hint, Dependents: body.Dependents, Shortage: body.Shortage}
}

// maxErrorBody bounds what is read of an error, whoever sent it.
const maxErrorBody = 1 << 20

// fromResponse reads the error in an answer. Something between us and the
// daemon may answer with anything but JSON.
func fromResponse(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return fmt.Errorf("reading the daemon's answer (%s): %w", resp.Status, err)
	}
	var body api.Error
	if err := json.Unmarshal(text, &body); err != nil || body.Error == "" {
		return &Error{
			Status:  resp.StatusCode,
			Code:    api.ErrorCodeInternal,
			Message: fmt.Sprintf("the answer %q is not one of forkd's", resp.Status),
			Hint:    "check that FORKD_URL names a forkd daemon",
		}
	}
	e := fromBody(resp.StatusCode, &body)
	if secs, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31); err == nil {
		e.RetryAfter = time.Duration(secs) * time.Second
	}
	return e
}
