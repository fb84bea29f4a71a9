package server

import (
	"context"
	"io"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Manager is the domain as this package uses it; *sandbox.Manager is one. Its
// errors are *sandbox.Error, others count as internal.
type Manager interface {
	CreateSnapshot(ctx context.Context, spec sandbox.SnapshotSpec, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error)
	Snapshots() ([]sandbox.SnapshotInfo, error)
	Snapshot(tag string) (*sandbox.SnapshotInfo, error)
	RemoveSnapshot(tag string, force bool) error

	Fork(ctx context.Context, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error)
	Sandboxes() []sandbox.Info
	Sandbox(id string) (*sandbox.Info, error)
	Kill(id string) error

	Exec(ctx context.Context, id string, cmd sandbox.Command) (*sandbox.CommandResult, error)
	Eval(ctx context.Context, id, code string, timeout time.Duration) (*sandbox.EvalResult, error)
	Ping(ctx context.Context, id string) (*sandbox.PingResult, error)
	Interrupt(ctx context.Context, id string) error

	ReadFile(ctx context.Context, id, path string, offset, length int64, w io.Writer) error
	WriteFile(ctx context.Context, id, path string, r io.Reader, opts sandbox.WriteOptions) error
	ListFiles(ctx context.Context, id, path string) ([]sandbox.FileInfo, error)
	StatFile(ctx context.Context, id, path string) (*sandbox.FileInfo, error)
	MakeDir(ctx context.Context, id, path string, parents bool) error
	RenameFile(ctx context.Context, id, from, to string) error
	RemoveFile(ctx context.Context, id, path string, recursive bool) error
}
