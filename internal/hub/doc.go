// Package hub carries snapshots between machines, without knowing where they
// are kept here: it reads parts from an [archive.Source] and hands them to an
// [archive.Sink]. There are three ways, and a [Reference] says which:
//
//   - a URL: a pack (package archive) is fetched with GET and sent with PUT from
//     any web server or object store;
//   - owner/name[:version]: a pack that the index of a hub lists, registry.json
//     (docs/format/hub.md);
//   - oci://host/repository[:tag]: an artifact in an OCI registry, one blob for
//     each part of the snapshot. A blob that the other side has is not sent, and
//     neither is one whose contents are here already.
//
// A fetch that breaks goes on where it broke, with a range request, as long as
// the server still has the same thing. HTTP has no standard way to continue an
// upload, so a PUT that breaks begins anew; with If-None-Match it never replaces
// what somebody else put there. Pushing to a registry resumes by blobs.
//
// Rules:
//
//   - The other side is not trusted: what it says of sizes bounds nothing that is
//     allocated, and what it sends counts after it was verified.
//   - A token goes to the origin (scheme, host and port) that it is meant for and
//     to no other, not even by redirect.
//   - Errors name servers and paths, never queries, passwords or tokens.
//
// A Client may be used from several goroutines and has no locks.
package hub

import "errors"

// Errors tell what a caller can do about them.
var (
	// ErrReference reports a reference that names nothing.
	ErrReference = errors.New("bad reference")
	// ErrNotFound reports that the other side has no such snapshot.
	ErrNotFound = errors.New("not found")
	// ErrExists reports that something else has that name on the other side.
	ErrExists = errors.New("exists already")
	// ErrDenied reports that the other side wants another token, or none.
	ErrDenied = errors.New("access denied")
	// ErrReadOnly reports a server that stores nothing.
	ErrReadOnly = errors.New("the server does not accept PUT")
	// ErrUnavailable reports a server that cannot be reached or does not work.
	ErrUnavailable = errors.New("unavailable")
)

// Step is what a transfer is doing.
type Step string

// The steps of Push and Pull.
const (
	Packing  Step = "pack"
	Sending  Step = "send"
	Fetching Step = "fetch"
)

// Progress is told how many bytes of a step are done, of how many.
type Progress func(step Step, done, total int64)

// of returns the progress of one step.
func (p Progress) of(step Step) func(done, total int64) {
	return func(done, total int64) {
		if p != nil {
			p(step, done, total)
		}
	}
}
