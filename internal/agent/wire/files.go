package wire

// ListRequest asks for the entries of a directory.
type ListRequest struct {
	Path  Name `json:"path"`
	Depth int  `json:"depth,omitempty"` // levels; 0 and 1: only the directory's own entries
	Attrs bool `json:"attrs,omitempty"` // with extended attributes
}

// MaxDepth is how many levels of directories a ListRequest can go down. A tree that is deeper, and is to be listed
// deeper, is an error.
const MaxDepth = 256

// MkdirReply is the reply to a MkdirRequest.
type MkdirReply struct {
	Created bool     `json:"created"` // false: it was there, which is fine with Parents
	Info    FileInfo `json:"info"`
}

// ComposeRequest makes one file of several, which are removed when it is in its place.
type ComposeRequest struct {
	WriteRequest
	Sources []Name `json:"sources"` // regular files, in order
}

// WatchRequest asks to be told of changes in a directory.
type WatchRequest struct {
	Path      Name `json:"path"`
	Recursive bool `json:"recursive,omitempty"` // also in directories below, and those that are made later
	Entries   bool `json:"entries,omitempty"`   // describe what was changed, with extended attributes
}

// ChangeKind is what has happened to a file.
type ChangeKind string

// The kinds of change.
const (
	ChangeCreate ChangeKind = "create"
	ChangeWrite  ChangeKind = "write"
	ChangeRemove ChangeKind = "remove"
	ChangeRename ChangeKind = "rename" // it was here and has another name now
	ChangeChmod  ChangeKind = "chmod"  // mode, owner, times or attributes
)

// Change is something that happened in a watched directory.
type Change struct {
	Kind  ChangeKind `json:"kind"`
	Name  Name       `json:"name"`            // relative to the directory; empty: the directory itself
	Entry *FileInfo  `json:"entry,omitempty"` // if asked for, and it is still there
}
