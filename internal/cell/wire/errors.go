package wire

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/vsock"
)

// ErrNoLayer reports a layer that is not there, or not any more.
var ErrNoLayer = errors.New("there is no such layer")

// known are the errors that keep what they are on their way.
var known = map[Code]error{
	CodeEnded: machine.ErrEnded, CodeQuota: page.ErrQuota, CodeNoQuota: engine.ErrNoQuota,
	CodeNoSpace: unix.ENOSPC, CodeRefused: vsock.ErrRefused, CodeReset: vsock.ErrReset, CodeNoLayer: ErrNoLayer,
}

// ToError returns what is sent of an error.
func ToError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return &Error{e.Code, err.Error()}
	}
	for _, code := range []Code{CodeEnded, CodeQuota, CodeNoQuota, CodeNoSpace, CodeRefused, CodeReset, CodeNoLayer} {
		if errors.Is(err, known[code]) {
			return &Error{code, err.Error()}
		}
	}
	return &Error{CodeOther, err.Error()}
}

// Failure returns an *Error as an error that is nil if it is.
func (e *Error) Failure() error {
	if e == nil {
		return nil
	}
	return e
}
