// Package launch starts the daemon in the background and ends it, for those who
// only speak to it: it knows the daemon's home and socket, and nothing of what it
// serves.
package launch

import (
	"fmt"
	"os"

	"github.com/forkd-dev/forkd/client"
)

// Error is a failure that its reader can do something about.
type Error struct {
	Message string
	Hint    string
	Err     error // cause, may be nil
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// maxSocketPath is what fits in a socket address everywhere, without its NUL.
const maxSocketPath = 103

// MakeHome makes the directory and sees that it is its owner's alone.
func MakeHome(home string) error {
	if socket := client.Socket(home); len(socket) > maxSocketPath {
		return &Error{
			Message: fmt.Sprintf("the path of the socket is over %d bytes: %s", maxSocketPath, socket),
			Hint:    "set FORKD_HOME to a directory with a shorter path",
		}
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return &Error{Message: "making the data directory", Hint: "set FORKD_HOME to a directory that you can write", Err: err}
	}
	info, err := os.Stat(home)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(home, 0o700)
	}
	if err != nil {
		return &Error{Message: "the data directory must be yours alone", Hint: "set FORKD_HOME to a directory that you own", Err: err}
	}
	return nil
}
