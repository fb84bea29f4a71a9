package server

import (
	"fmt"
	"io/fs"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// text is how bytes travel in JSON: as a string, and exactly beside it when the
// string cannot hold them.
func text(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), b
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// orNil is nil for the zero value, which the domain uses for "none".
func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// list keeps an empty list from becoming null.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func sandboxInfo(in *sandbox.Info) api.SandboxInfo {
	out := api.SandboxInfo{
		ID:               in.ID,
		SnapshotTag:      in.SnapshotTag,
		Engine:           in.Engine,
		State:            api.SandboxInfoState(in.State),
		Reason:           in.Reason,
		CreatedAtUnix:    in.CreatedAt.Unix(),
		PID:              in.PID,
		MemoryLimitMiB:   orNil(in.Limits.MemoryMiB),
		PrivateKiB:       in.PrivateKiB,
		TranslatedBlocks: int64(in.Translated),
		BranchedFrom:     in.BranchedFrom,
		Workspace:        in.Workspace,
		VCPUs:            in.VCPUs,
		MemoryMiB:        in.MemoryMiB,
		DiskMiB:          in.DiskMiB,
		Metadata:         in.Metadata,
		OnTimeout:        api.TimeoutAction(in.OnTimeout),
		AutoResume:       in.AutoResume,
	}
	l := limits(in.Limits)
	out.CPUs, out.CPUWeight, out.PIDsLimit, out.DiskLimitMiB = l.CPUs, l.CPUWeight, l.PIDsLimit, l.DiskLimitMiB
	out.DiskBytesPerSec, out.NetBytesPerSec, out.IdleTimeoutSecs = l.DiskBytesPerSec, l.NetBytesPerSec, l.IdleTimeoutSecs
	if out.Metadata == nil {
		out.Metadata = api.Metadata{}
	}
	if !in.PausedAt.IsZero() {
		at := in.PausedAt.UTC()
		out.PausedAt = &at
	}
	if !in.ExpiresAt.IsZero() {
		at := in.ExpiresAt.UTC()
		out.ExpiresAt = &at
	}
	return out
}

func snapshotInfo(in *sandbox.SnapshotInfo) api.SnapshotInfo {
	return api.SnapshotInfo{
		Tag:           in.Tag,
		Dir:           in.Dir,
		CreatedAtUnix: in.CreatedAt.Unix(),
		BranchedFrom:  in.BranchedFrom,
		Mode:          api.BranchMode(in.Mode),
		PauseMs:       in.PauseMS,
		Status:        api.SnapshotStatus(in.Status),
		Bootable:      in.Bootable,
		Warning:       in.Warning,
		KeptFor:       in.KeptFor,
	}
}

func snapshotDetail(in *sandbox.SnapshotInfo) api.SnapshotDetail {
	return api.SnapshotDetail{
		Tag:                 in.Tag,
		Dir:                 in.Dir,
		CreatedAtUnix:       in.CreatedAt.Unix(),
		BranchedFrom:        in.BranchedFrom,
		Mode:                api.BranchMode(in.Mode),
		PauseMs:             in.PauseMS,
		Status:              api.SnapshotStatus(in.Status),
		Bootable:            in.Bootable,
		Warning:             in.Warning,
		KeptFor:             in.KeptFor,
		Engine:              in.Engine,
		VCPUs:               in.VCPUs,
		MemoryMiB:           in.MemoryMiB,
		Modules:             list(in.Modules),
		MemoryLogicalBytes:  in.MemoryLogicalBytes,
		MemoryPhysicalBytes: in.MemoryPhysicalBytes,
		DiskPhysicalBytes:   in.DiskPhysicalBytes,
		VmstateBytes:        in.VMStateBytes,
		ContentHash:         in.ContentHash,
		ParentTag:           in.ParentTag,
		ChainDepth:          in.ChainDepth,
		Ancestors:           list(in.Ancestors),
		Dependents:          list(in.Dependents),
		DependentSnapshots:  list(in.DependentSnapshots),
		ExclusiveBytes:      in.ExclusiveBytes,
	}
}

func treeNode(in *sandbox.TreeNode) api.TreeNode {
	return api.TreeNode{
		Kind:          api.TreeNodeKind(in.Kind),
		Name:          in.Name,
		Parent:        in.Parent,
		Source:        in.Source,
		Workspace:     in.Workspace,
		CreatedAtUnix: in.CreatedAt.Unix(),
		State:         in.State,
		PrivateKiB:    in.PrivateKiB,
		DiskKiB:       in.DiskKiB,
	}
}

func workspace(in *sandbox.Workspace) api.Workspace {
	out := api.Workspace{
		Name:           in.Name,
		State:          api.WorkspaceState(in.State),
		SnapshotTag:    in.SnapshotTag,
		BaseTag:        in.BaseTag,
		SandboxID:      in.SandboxID,
		CreatedAtUnix:  in.CreatedAt.Unix(),
		MemoryLimitMiB: orNil(in.Limits.MemoryMiB),
		Warning:        in.Warning,
	}
	l := limits(in.Limits)
	out.CPUs, out.CPUWeight, out.PIDsLimit, out.DiskLimitMiB = l.CPUs, l.CPUWeight, l.PIDsLimit, l.DiskLimitMiB
	out.DiskBytesPerSec, out.NetBytesPerSec, out.IdleTimeoutSecs = l.DiskBytesPerSec, l.NetBytesPerSec, l.IdleTimeoutSecs
	if !in.SuspendedAt.IsZero() {
		out.SuspendedAtUnix = in.SuspendedAt.Unix()
	}
	return out
}

func execExit(in *sandbox.CommandResult) api.ExecExit {
	return api.ExecExit{
		ExitCode:         in.ExitCode,
		Signal:           orNil(in.Signal),
		TimedOut:         in.TimedOut,
		StdoutTruncated:  in.StdoutTruncated,
		StdoutTotalBytes: in.StdoutBytes,
		StderrTruncated:  in.StderrTruncated,
		StderrTotalBytes: in.StderrBytes,
		DurationMs:       millis(in.Duration),
	}
}

func evalResult(in *sandbox.EvalResult) api.EvalResult {
	out := api.EvalResult{
		Result:          orNil(in.Repr),
		ResultTruncated: in.ReprTruncated,
		Value:           in.Value,
		StdoutTruncated: in.StdoutTruncated,
		StderrTruncated: in.StderrTruncated,
	}
	out.Stdout, out.StdoutB64 = text(in.Stdout)
	out.Stderr, out.StderrB64 = text(in.Stderr)
	if out.Error = evalError(in.Error); out.Error != nil {
		out.ExitCode = 1
	}
	return out
}

func evalError(e *sandbox.EvalError) *api.EvalError {
	if e == nil {
		return nil
	}
	return &api.EvalError{Type: e.Type, Message: e.Message, Traceback: e.Traceback}
}

func fileInfo(in *sandbox.FileInfo) api.FileInfo {
	out := api.FileInfo{
		Type:       fileType(in.Mode),
		Size:       in.Size,
		Mode:       fmt.Sprintf("%04o", unixMode(in.Mode)),
		ModifiedAt: in.ModTime.UTC(),
		UID:        int64(in.UID),
		GID:        int64(in.GID),
		Owner:      in.Owner,
		Group:      in.Group,
		Attrs:      in.Attrs,
	}
	out.Name, out.NameB64 = text([]byte(in.Name))
	out.Path, out.PathB64 = text([]byte(in.Path))
	out.Target, out.TargetB64 = text([]byte(in.Target))
	return out
}

func fileType(mode fs.FileMode) api.FileInfoType {
	switch {
	case mode.IsRegular():
		return api.FileInfoTypeFile
	case mode.IsDir():
		return api.FileInfoTypeDir
	case mode&fs.ModeSymlink != 0:
		return api.FileInfoTypeSymlink
	case mode&fs.ModeNamedPipe != 0:
		return api.FileInfoTypeFifo
	case mode&fs.ModeSocket != 0:
		return api.FileInfoTypeSocket
	default:
		return api.FileInfoTypeDevice
	}
}

// unixMode gives the twelve permission bits as Unix has them.
func unixMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// fileMode is the reverse of unixMode.
func fileMode(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	if bits&0o4000 != 0 {
		mode |= fs.ModeSetuid
	}
	if bits&0o2000 != 0 {
		mode |= fs.ModeSetgid
	}
	if bits&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
