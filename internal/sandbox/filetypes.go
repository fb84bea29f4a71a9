package sandbox

import (
	"io/fs"
	"time"
)

// User is an account in a sandbox.
type User struct {
	Name     string
	UID, GID uint32
	Home     string
}

// WatchSpec asks to be told of changes in a directory.
type WatchSpec struct {
	Path      string
	Recursive bool // also in directories below, and those that are made later
	Entries   bool // describe what was changed
}

// ChangeKind is what has happened to a file.
type ChangeKind string

// The kinds of change.
const (
	FileCreated ChangeKind = "create"
	FileWritten ChangeKind = "write"
	FileRemoved ChangeKind = "remove"
	FileRenamed ChangeKind = "rename" // it was here and has another name now
	FileChmod   ChangeKind = "chmod"  // mode, owner, times or attributes
)

// Change is something that happened in a directory that is watched.
type Change struct {
	Kind  ChangeKind
	Name  string    // relative to the directory
	Entry *FileInfo // if asked for, and it is still there
}

// Watch tells of changes, in order, none left out: whoever falls too far behind
// gets an error. Its methods but Close belong to one goroutine.
type Watch interface {
	Recv() (Change, error)
	Close() error
}

// Metrics are what a sandbox uses at an instant.
type Metrics struct {
	Time      time.Time
	VCPUs     int
	CPU       float64 // percent of one vCPU, averaged since the last time or the fork
	MemTotal  int64   // bytes, as the guest sees them
	MemUsed   int64
	MemCache  int64
	DiskTotal int64 // bytes of the scratch disk
	DiskUsed  int64
	Private   int64 // bytes of memory on the host that only this sandbox has
}

// MakeDirOptions say how MakeDir makes a directory.
type MakeDirOptions struct {
	Parents bool         // make missing directories above it, and be content with one that is there
	User    string       // owner of what is made; default root
	Mode    *fs.FileMode // of what is made; nil: 0755
}
