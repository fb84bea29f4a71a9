package client

import "github.com/forkd-dev/forkd/api"

// The types of the API, under the names that this package's methods use.
type (
	BranchRequest    = api.BranchRequest
	DeriveRequest    = api.DeriveRequest
	EvalRequest      = api.EvalRequest
	EvalResult       = api.EvalResult
	EvalError        = api.EvalError
	ExecExit         = api.ExecExit
	ExecRequest      = api.ExecRequest
	ExecResult       = api.ExecResult
	FileInfo         = api.FileInfo
	ForkError        = api.ForkError
	ForkRequest      = api.ForkRequest
	PingResult       = api.PingResult
	Progress         = api.Progress
	PullRequest      = api.PullRequest
	PushRequest      = api.PushRequest
	SandboxInfo      = api.SandboxInfo
	SnapshotDetail   = api.SnapshotDetail
	SnapshotInfo     = api.SnapshotInfo
	SnapshotRequest  = api.SnapshotRequest
	TreeNode         = api.TreeNode
	Version          = api.Version
	Workspace        = api.Workspace
	WorkspaceRequest = api.WorkspaceRequest
)

// Ptr returns a pointer to v, for the fields that distinguish zero from absent.
func Ptr[T any](v T) *T { return &v }
