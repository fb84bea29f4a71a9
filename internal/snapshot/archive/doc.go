// Package archive packs a snapshot into one stream and takes packs in. A pack
// is a zstd-compressed tar file, .forkd-snapshot.tar.zst, that holds all that a
// fork needs: manifest, machine state, root image, and every layer of the
// chain. Its format is described in docs/format/pack.md.
//
// The manifest comes first and says what follows, in which order, with the size
// and digest of each part. So a reader knows at any time the only thing that
// may come next. A name, a type or a size that is not that one is an error, and
// names in a pack are compared, never used as paths. Nor does a pack decide how
// much is unpacked: a reader stops at what the manifest declared, and whoever
// takes the snapshot in has seen those sizes before the first part arrives.
//
// Packs are hostile input. Read hands parts to an [Import], which verifies each
// against its digest and makes the snapshot visible in Commit; that is called
// after the whole stream was read and found to be in order. Whatever goes wrong
// before ends in Abort.
//
// The same manifest and parts travel as blobs of an OCI registry (package hub).
//
// There are no locks here: a Read or Write belongs to one goroutine.
package archive

import (
	"errors"
	"io"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Suffix is how the names of packs end.
const Suffix = ".forkd-snapshot.tar.zst"

// ErrBadPack reports a pack that is damaged, incomplete, malformed, or of a
// format that this forkd does not read.
var ErrBadPack = errors.New("bad snapshot pack")

// Source is where the parts of a snapshot are read from.
type Source interface {
	// Open returns the bytes of a part; there are exactly p.Size.
	Open(p Part) (io.ReadCloser, error)
}

// Sink decides by the manifest whether a snapshot can be taken in: whether it can
// run here, its tag is free, and its parts fit. Nothing but the manifest has been
// read so far, and it is anybody's word. m is the sink's to keep and change.
type Sink func(m *snapshot.Manifest) (Import, error)

// Import is a snapshot on its way in. Exactly one of Commit and Abort ends it.
type Import interface {
	// Has reports that a part need not be sent: it is there already.
	Has(p Part) bool
	// Add takes a part in and verifies it. It reads p.Size bytes of r, and fails if
	// there are more. A part that could not be added leaves nothing behind and may
	// be added again; the error wraps ErrBadPack if the bytes are not those of the
	// part.
	Add(p Part, r io.Reader) error
	// Commit makes the snapshot visible and durable. Each part was added, or was
	// there. If it fails, it has done what Abort does.
	Commit() error
	// Abort forgets the snapshot and gives back its tag and its space.
	Abort() error
}

// Progress is told how many bytes of the parts were dealt with, of how many.
// They count as they are before compression.
type Progress func(done, total int64)
