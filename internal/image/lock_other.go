//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package image

import (
	"context"
	"errors"
)

// lock refuses: without a lock that dies with its holder, two builds could
// remove each other's files.
func lock(context.Context, string, func()) (func(), error) {
	return nil, errors.New("images cannot be built or removed on this operating system")
}
