package wire

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Code is the stable, machine-readable kind of an Error.
type Code string

// The codes. A client must treat one that it does not know like CodeInternal.
const (
	CodeBadRequest         Code = "bad_request"         // malformed: missing, contradictory or unknown fields
	CodeUnsupportedVersion Code = "unsupported_version" // Min and Max tell what the server speaks
	CodeUnknownOp          Code = "unknown_op"
	CodeUnknownFrame       Code = "unknown_frame" // a frame type that has no place here
	CodeNotFound           Code = "not_found"     // program, directory, file or runtime; Field tells which
	CodeNotExecutable      Code = "not_executable"
	CodePermission         Code = "permission"
	CodeNoSuchUser         Code = "no_such_user"
	CodeTooLong            Code = "too_long" // arguments and environment, or a name, beyond the kernel's limit
	CodeExists             Code = "exists"
	CodeNotEmpty           Code = "not_empty"
	CodeIsDirectory        Code = "is_directory"
	CodeNotDirectory       Code = "not_directory"
	CodeNotRegular         Code = "not_regular" // a device, socket or pipe where a file is needed
	CodeNoSpace            Code = "no_space"
	CodeReadOnly           Code = "read_only"
	CodeCrossDevice        Code = "cross_device"   // a rename between file systems
	CodeTooManyLinks       Code = "too_many_links" // symbolic links in a circle
	CodeExhausted          Code = "exhausted"      // processes, memory or descriptors
	CodeQuiesced           Code = "quiesced"       // held for a snapshot: refresh or resume first
	CodeRefreshFailed      Code = "refresh_failed" // Field is the step; user processes stay held
	CodeRuntimeFailed      Code = "runtime_failed" // a runtime did not start
	CodeRuntimeBusy        Code = "runtime_busy"   // a runtime did not come to a safe point in time
	CodeNoInterpreter      Code = "no_interpreter" // the image lacks the program of a kind of runtime; Detail names the package that has it
	CodeUnknownKind        Code = "unknown_kind"   // there is no such kind of runtime
	CodeRefused            Code = "refused"        // nobody listens on the port
	CodeClosed             Code = "closed"         // the process has no standard input, or no more
	CodeOverflow           Code = "overflow"       // a watch fell behind: changes have been missed
	CodeInternal           Code = "internal"
)

// Error is the typed error that a peer answers with.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`  // the request field or step that is at fault
	Detail  string `json:"detail,omitempty"` // long text such as a traceback
	Min     int    `json:"min,omitempty"`
	Max     int    `json:"max,omitempty"`
}

// Error returns the message with its code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Code) }

// ExitCode returns the exit status that a shell would report for an exec that failed with e: 127 for a program that does
// not exist, 126 for one that cannot be run, and 125 for everything else.
func (e *Error) ExitCode() int {
	switch {
	case e.Code == CodeNotFound && e.Field == "argv":
		return 127
	case e.Code == CodeNotExecutable, e.Code == CodePermission, e.Code == CodeTooLong:
		return 126
	}
	return 125
}

// Errorf returns an Error with a formatted message.
func Errorf(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// AsError returns err as an Error; one that is not typed becomes CodeInternal. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var typed *Error
	if errors.As(err, &typed) {
		return typed
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

// DecodeError reads the payload of an Error frame. A payload that is not one still yields an Error, which says so.
func DecodeError(payload []byte) *Error {
	e := new(Error)
	if err := json.Unmarshal(payload, e); err != nil || e.Code == "" {
		return Errorf(CodeInternal, "", "peer sent an unreadable error of %d bytes", len(payload))
	}
	return e
}
