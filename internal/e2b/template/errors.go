package template

import (
	"fmt"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

func invalid(hint, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.InvalidArgument, Message: fmt.Sprintf(format, args...), Hint: hint}
}

func notFound(format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.NotFound, Message: fmt.Sprintf(format, args...)}
}

func full(format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CapacityExceeded, Message: fmt.Sprintf(format, args...), Hint: "delete some"}
}

func forbidden(format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.FailedPrecondition, Message: fmt.Sprintf(format, args...)}
}

// clip shortens what a client sent for a message.
func clip(s string) string {
	const limit = 100
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return s
}
