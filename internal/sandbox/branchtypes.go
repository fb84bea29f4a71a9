package sandbox

import "time"

// BranchMode says what a branch stores and when its caller goes on.
type BranchMode string

const (
	// BranchFull stores everything in layers of its own: the branch depends on
	// no other snapshot.
	BranchFull BranchMode = "full"
	// BranchDiff stores what has changed since the source's snapshot or its last
	// branch, over the layers that are stored already.
	BranchDiff BranchMode = "diff"
	// BranchLive is another name for BranchDiff, which some users know. In every
	// mode a branch can be forked from at once, while its bytes are still on their
	// way to the disk.
	BranchLive BranchMode = "live"
)

// BranchSpec asks for a snapshot of a running sandbox.
type BranchSpec struct {
	Tag  string     // empty: made up
	Mode BranchMode // default BranchLive
	// Wait is whether to return when the branch is durable, not when the source
	// runs again.
	Wait bool
}

// DeriveSpec asks for a snapshot that is another one after some work in it.
type DeriveSpec struct {
	From     string
	Tag      string
	Commands [][]string // run in a child, in order; each must succeed
	Evals    []string   // evaluated in its warm runtime after that; none may raise
}

// RemoveOptions say what to do about what depends on a snapshot to be removed.
type RemoveOptions struct {
	Cascade bool // remove snapshots that stand on it and end sandboxes, too
	Force   bool // end its sandboxes; snapshots that stand on it keep the layers
}

// States of a Workspace.
const (
	WorkspaceRunning   = "running"
	WorkspaceSuspended = "suspended"
)

// Workspace is a named sandbox that outlives the daemon.
type Workspace struct {
	Name        string
	SnapshotTag string // what it resumes from
	BaseTag     string // what it was created from
	State       string // WorkspaceRunning or WorkspaceSuspended
	SandboxID   string // while it runs
	Limits      Limits
	CreatedAt   time.Time
	SuspendedAt time.Time // of the last suspension; zero: never
	Warning     string    // what went wrong with it last, if anything
}

// WorkspaceSpec asks for a workspace.
type WorkspaceSpec struct {
	Name   string
	Tag    string // snapshot to start from
	Limits Limits // an idle lifetime ends in a suspension
}

// Kinds of a TreeNode.
const (
	TreeSnapshot = "snapshot"
	TreeSandbox  = "sandbox"
)

// TreeNode is a snapshot or a sandbox in the family of all.
type TreeNode struct {
	Kind       string // TreeSnapshot or TreeSandbox
	Name       string // tag or id
	Parent     string // tag of the snapshot that it comes from; empty: a root
	Source     string // of a branch: id of the sandbox that it was taken of
	Workspace  string // of a sandbox: the workspace that it is, if any
	CreatedAt  time.Time
	State      string // a snapshot's status, or a sandbox's State
	PrivateKiB int64  // of a sandbox: memory and disk that it alone has
	DiskKiB    int64  // of a snapshot: what is on disk for it alone
}
