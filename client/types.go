package client

import "github.com/forkd-dev/forkd/api"

// The types of the API, under the names that this package's methods use.
type (
	BranchRequest    = api.BranchRequest
	CodeContext      = api.CodeContext
	ComposeRequest   = api.ComposeRequest
	ContextRequest   = api.ContextRequest
	DeriveRequest    = api.DeriveRequest
	EvalAnswer       = api.EvalAnswer
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
	Process          = api.Process
	ProcessExit      = api.ProcessExit
	ProcessRequest   = api.ProcessRequest
	Progress         = api.Progress
	PullRequest      = api.PullRequest
	PushRequest      = api.PushRequest
	RunEnd           = api.RunEnd
	RunEvent         = api.RunEvent
	RunRequest       = api.RunRequest
	SandboxInfo      = api.SandboxInfo
	SandboxMetrics   = api.SandboxMetrics
	SnapshotDetail   = api.SnapshotDetail
	SnapshotInfo     = api.SnapshotInfo
	SnapshotRequest  = api.SnapshotRequest
	TTY              = api.TTY
	TreeNode         = api.TreeNode
	User             = api.User
	Version          = api.Version
	WatchEvent       = api.WatchEvent
	Workspace        = api.Workspace
	WorkspaceRequest = api.WorkspaceRequest
)

// Ptr returns a pointer to v, for the fields that distinguish zero from absent.
func Ptr[T any](v T) *T { return &v }
