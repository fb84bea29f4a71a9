package debian

import "errors"

// Sentinels, found with errors.Is. Errors that a person can do something about
// also have a method Hint() string that says what.
var (
	// ErrNoMirror: neither option, environment nor the host's apt sources name
	// a Debian mirror.
	ErrNoMirror = errors.New("no debian mirror is known")
	// ErrUnreachable: the mirror could not be asked. A later try may work.
	ErrUnreachable = errors.New("mirror not reachable")
	// ErrNotFound: the mirror answered that it has no such file.
	ErrNotFound = errors.New("not on the mirror")
	// ErrSignature: the index is not signed by a key this program trusts.
	ErrSignature = errors.New("bad signature")
	// ErrHash: a file differs from what the signed index says of it.
	ErrHash = errors.New("hash mismatch")
	// ErrExpired: the index is past the date its signers gave it.
	ErrExpired = errors.New("index not valid at this time")
	// ErrFormat: a file is not what it should be.
	ErrFormat = errors.New("malformed")
	// ErrUnresolved: a package, or something it depends on, does not exist or
	// cannot be installed beside the others.
	ErrUnresolved = errors.New("cannot resolve packages")
)

// hinted adds advice to an error without changing its text.
type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// Hint says what a person can do about the error.
func (h *hinted) Hint() string { return h.hint }

func withHint(err error, hint string) error { return &hinted{err, hint} }
