package server

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Manager is the domain as this package uses it; *sandbox.Manager is one. Its
// errors are *sandbox.Error, others count as internal.
type Manager interface {
	CreateSnapshot(ctx context.Context, spec sandbox.SnapshotSpec, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error)
	Snapshots() ([]sandbox.SnapshotInfo, error)
	Snapshot(tag string) (*sandbox.SnapshotInfo, error)
	RemoveSnapshots(tags []string, opts sandbox.RemoveOptions) ([]string, error)
	Compact(ctx context.Context, from, to string) (*sandbox.SnapshotInfo, error)
	Derive(ctx context.Context, spec sandbox.DeriveSpec, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error)
	Verify(ctx context.Context, tag string, progress func(sandbox.Progress)) error
	Tree() ([]sandbox.TreeNode, error)

	Pack(ctx context.Context, tag string, w io.Writer, progress func(sandbox.Progress)) error
	Unpack(ctx context.Context, r io.Reader, tag string, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error)
	Push(ctx context.Context, tag, reference string, opts sandbox.ShipOptions, progress func(sandbox.Progress)) error
	Pull(ctx context.Context, reference, tag string, opts sandbox.ShipOptions, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error)

	Branch(ctx context.Context, id string, spec sandbox.BranchSpec) (*sandbox.SnapshotInfo, error)
	ForkSandbox(ctx context.Context, id string, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error)
	Rollback(ctx context.Context, id, tag string) (*sandbox.Info, error)

	CreateWorkspace(ctx context.Context, spec sandbox.WorkspaceSpec) (*sandbox.Workspace, error)
	SuspendWorkspace(ctx context.Context, name string) (*sandbox.Workspace, error)
	ResumeWorkspace(ctx context.Context, name string) (*sandbox.Workspace, error)
	Workspaces() ([]sandbox.Workspace, error)
	RemoveWorkspace(ctx context.Context, name string) error

	Fork(ctx context.Context, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error)
	Sandboxes() []sandbox.Info
	Sandbox(id string) (*sandbox.Info, error)
	Kill(id string) error

	Pause(ctx context.Context, id string) (*sandbox.Info, error)
	Resume(ctx context.Context, id string, lifetime time.Duration) (*sandbox.Info, error)
	SetLifetime(ctx context.Context, id string, d time.Duration) (*sandbox.Info, error)
	ExtendLifetime(ctx context.Context, id string, d time.Duration) (*sandbox.Info, error)
	Metrics(ctx context.Context, id string) (*sandbox.Metrics, error)

	StartProcess(ctx context.Context, id string, spec sandbox.ProcessSpec) (sandbox.Attachment, error)
	AttachProcess(ctx context.Context, id string, ref sandbox.ProcessRef) (sandbox.Attachment, error)
	Processes(ctx context.Context, id string) ([]sandbox.Process, error)
	WriteProcess(ctx context.Context, id string, ref sandbox.ProcessRef, data []byte) error
	CloseProcessInput(ctx context.Context, id string, ref sandbox.ProcessRef) error
	SignalProcess(ctx context.Context, id string, ref sandbox.ProcessRef, signal int) error
	ResizeProcess(ctx context.Context, id string, ref sandbox.ProcessRef, tty sandbox.TTY) error

	RunCode(ctx context.Context, id string, spec sandbox.RunSpec, event func(sandbox.RunEvent) error) (*sandbox.RunResult, error)
	CreateContext(ctx context.Context, id string, spec sandbox.ContextSpec) (*sandbox.CodeContext, error)
	Contexts(ctx context.Context, id string) ([]sandbox.CodeContext, error)
	RemoveContext(ctx context.Context, id, context string) error
	RestartContext(ctx context.Context, id, context string) error

	DialPort(ctx context.Context, id string, port int) (net.Conn, error)
	User(ctx context.Context, id, name string) (*sandbox.User, error)

	Exec(ctx context.Context, id string, cmd sandbox.Command) (*sandbox.CommandResult, error)
	Evaluate(ctx context.Context, id string, e *sandbox.Evaluation) (*sandbox.EvalResult, error)
	Ping(ctx context.Context, id string) (*sandbox.PingResult, error)
	Interrupt(ctx context.Context, id string) error

	ReadFile(ctx context.Context, id, path string, offset, length int64, w io.Writer) error
	WriteFile(ctx context.Context, id, path string, r io.Reader, opts sandbox.WriteOptions) error
	ListFiles(ctx context.Context, id, path string) ([]sandbox.FileInfo, error)
	StatFile(ctx context.Context, id, path string) (*sandbox.FileInfo, error)
	MakeDir(ctx context.Context, id, path string, opts sandbox.MakeDirOptions) (info *sandbox.FileInfo, created bool, err error)
	RenameFile(ctx context.Context, id, from, to string) error
	RemoveFile(ctx context.Context, id, path string, recursive bool) error
	ListTree(ctx context.Context, id, path string, depth int) ([]sandbox.FileInfo, error)
	ComposeFile(ctx context.Context, id, target string, sources []string, opts sandbox.WriteOptions) (*sandbox.FileInfo, error)
	Watch(ctx context.Context, id string, spec sandbox.WatchSpec) (sandbox.Watch, error)
}
