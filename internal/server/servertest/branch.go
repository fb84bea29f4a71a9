package servertest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// saved is a snapshot: what is told of it, and the files that children get.
type saved struct {
	sandbox.SnapshotInfo
	files   string    // directory; empty: none
	readyAt time.Time // until then it is being written
}

// info is what is told of a snapshot now. The caller holds mu.
func (f *Fake) info(s *saved) *sandbox.SnapshotInfo {
	out := s.SnapshotInfo
	if time.Now().Before(s.readyAt) {
		out.Status = "writing"
	}
	for _, b := range f.boxes {
		if b.info.SnapshotTag == out.Tag {
			out.Dependents = append(out.Dependents, b.info.ID)
		}
	}
	out.DependentSnapshots = f.standingOn(out.Tag)
	out.Ancestors = f.ancestors(out.Tag)
	out.ChainDepth = len(out.Ancestors)
	return &out
}

// standingOn lists the snapshots whose parent is tag. The caller holds mu.
func (f *Fake) standingOn(tag string) (tags []string) {
	for _, s := range f.snapshots {
		if s.ParentTag == tag {
			tags = append(tags, s.Tag)
		}
	}
	slices.Sort(tags)
	return tags
}

// ancestors lists what a snapshot stands on, nearest first. The caller holds mu.
func (f *Fake) ancestors(tag string) (tags []string) {
	for s := f.snapshots[tag]; s != nil && s.ParentTag != ""; s = f.snapshots[s.ParentTag] {
		tags = append(tags, s.ParentTag)
	}
	return tags
}

// add keeps a new snapshot with a copy of the files in a directory. The caller
// holds mu.
func (f *Fake) add(tag, parent, files string) (*saved, error) {
	if f.snapshots[tag] != nil {
		return nil, fault(sandbox.AlreadyExists, "choose another tag or remove it with `forkd rmi`", "snapshot %q exists", tag)
	}
	s := snapshot(f.Dir, tag)
	s.ParentTag, s.CreatedAt = parent, time.Now()
	if _, err := os.Stat(files); files != "" && err == nil {
		s.files = filepath.Join(f.Dir, "saved-"+tag)
		os.RemoveAll(s.files)
		if err := os.CopyFS(s.files, os.DirFS(files)); err != nil {
			return nil, err
		}
	}
	f.snapshots[tag] = s
	return s, nil
}

// Branch copies the files of a sandbox. It is ready WriteDelay after.
func (f *Fake) Branch(ctx context.Context, id string, spec sandbox.BranchSpec) (*sandbox.SnapshotInfo, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	if f.BranchError != nil {
		if err := f.BranchError(); err != nil {
			return nil, err
		}
	}
	s, err := f.branch(b, spec)
	if err != nil {
		return nil, err
	}
	if spec.Wait {
		select {
		case <-time.After(f.WriteDelay):
		case <-ctx.Done():
			f.RemoveSnapshots([]string{s.Tag}, sandbox.RemoveOptions{Force: true})
			return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "writing the branch", Err: ctx.Err()}
		}
	}
	return f.Snapshot(s.Tag)
}

func (f *Fake) branch(b *box, spec sandbox.BranchSpec) (*saved, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	tag, parent := spec.Tag, b.info.SnapshotTag
	if tag == "" {
		tag = fmt.Sprintf("branch-%04d", f.next)
	}
	if spec.Mode == sandbox.BranchFull {
		parent = ""
	}
	s, err := f.add(tag, parent, b.root)
	if err != nil {
		return nil, err
	}
	s.BranchedFrom, s.Mode, s.PauseMS, s.ExclusiveBytes = b.info.ID, spec.Mode, 1.5, 1<<20
	s.readyAt = time.Now().Add(f.WriteDelay)
	return s, nil
}

// ForkSandbox copies the files of a sandbox to its children.
func (f *Fake) ForkSandbox(ctx context.Context, id string, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error) {
	source, err := f.Sandbox(id)
	if err != nil {
		return nil, err
	}
	info, err := f.Branch(ctx, id, sandbox.BranchSpec{Mode: sandbox.BranchLive})
	if err != nil {
		return nil, err
	}
	spec.Tag = info.Tag
	results, err := f.Fork(ctx, spec)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.snapshots, info.Tag)
	for _, b := range f.boxes {
		if b.info.SnapshotTag == info.Tag {
			b.info.SnapshotTag = source.SnapshotTag
		}
	}
	for _, res := range results {
		if res.Sandbox != nil {
			res.Sandbox.SnapshotTag = source.SnapshotTag
		}
	}
	return results, err
}

// Derive runs the commands in a child. An evaluation that raises is an error.
func (f *Fake) Derive(ctx context.Context, spec sandbox.DeriveSpec, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
	made, err := f.Fork(ctx, sandbox.ForkSpec{Tag: spec.From, N: 1})
	if err != nil {
		return nil, err
	}
	id := made[0].Sandbox.ID
	defer f.Kill(id)
	for _, args := range spec.Commands {
		progress(sandbox.Progress{Step: "exec", Message: strings.Join(args, " ")})
		var out strings.Builder
		res, err := f.Exec(ctx, id, sandbox.Command{Args: args, Stdout: &out, Stderr: &out, OutputLimit: 1 << 20})
		if err != nil {
			return nil, err
		}
		if res.ExitCode != 0 {
			return nil, fault(sandbox.CommandFailed, out.String(), "%s: exit status %d", args[0], res.ExitCode)
		}
	}
	for _, code := range spec.Evals {
		progress(sandbox.Progress{Step: "eval", Message: code})
		res, err := f.Eval(ctx, id, code, 0)
		if err != nil {
			return nil, err
		}
		if res.Error != nil {
			return nil, fault(sandbox.CommandFailed, "", "%s: %s", res.Error.Type, res.Error.Message)
		}
	}
	return f.Branch(ctx, id, sandbox.BranchSpec{Tag: spec.Tag, Mode: sandbox.BranchDiff, Wait: true})
}

// Compact copies a snapshot without its parent.
func (f *Fake) Compact(_ context.Context, from, to string) (*sandbox.SnapshotInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.saved(from)
	if err != nil {
		return nil, err
	}
	made, err := f.add(to, "", s.files)
	if err != nil {
		return nil, err
	}
	return f.info(made), nil
}

// Verify finds a snapshot named "damaged" to be so.
func (f *Fake) Verify(_ context.Context, tag string, progress func(sandbox.Progress)) error {
	if _, err := f.Snapshot(tag); err != nil {
		return err
	}
	progress(sandbox.Progress{Step: "verify", Message: "verifying " + tag, Done: 1, Total: 2})
	if tag == "damaged" {
		return fault(sandbox.NotBootable, "remove it", "snapshot %q: memory.layer: its bytes are not those of its digest", tag)
	}
	return nil
}

// RemoveSnapshots removes what nothing depends on, or what the options allow.
func (f *Fake) RemoveSnapshots(tags []string, opts sandbox.RemoveOptions) ([]string, error) {
	var all []string
	for _, tag := range tags {
		info, err := f.Snapshot(tag)
		if err != nil {
			return nil, err
		}
		if users := slices.Concat(info.Dependents, info.DependentSnapshots); len(users) > 0 && !opts.Cascade && !opts.Force {
			return nil, fault(sandbox.InUse, "end them first, or force", "snapshot %q is in use by %s", tag, strings.Join(users, ", "))
		}
		all = append(all, tag)
	}
	for i := 0; opts.Cascade && i < len(all); i++ {
		f.mu.Lock()
		all = append(all, f.standingOn(all[i])...)
		f.mu.Unlock()
	}
	for _, tag := range all {
		info, err := f.Snapshot(tag)
		if err != nil {
			continue
		}
		for _, id := range info.Dependents {
			f.end(id)
		}
		f.mu.Lock()
		delete(f.snapshots, tag)
		f.mu.Unlock()
	}
	return all, nil
}

// Rollback gives a sandbox the files of a snapshot again.
func (f *Fake) Rollback(_ context.Context, id, tag string) (*sandbox.Info, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.saved(tag)
	if err != nil {
		return nil, err
	}
	own := tag == b.info.SnapshotTag || s.BranchedFrom == id || slices.Contains(f.ancestors(b.info.SnapshotTag), tag)
	if !own {
		return nil, fault(sandbox.FailedPrecondition, "`forkd tree` shows what it comes from", "sandbox %s does not descend from snapshot %q", id, tag)
	}
	b.info.SnapshotTag, b.info.BranchedFrom = tag, s.BranchedFrom
	if err := os.RemoveAll(b.root); err != nil {
		return nil, err
	}
	info := b.info
	return &info, s.restore(b.root)
}

// restore makes the directory of a sandbox.
func (s *saved) restore(root string) error {
	if s.files == "" {
		return os.MkdirAll(root, 0o700)
	}
	return os.CopyFS(root, os.DirFS(s.files))
}

// Tree lists snapshots before the sandboxes.
func (f *Fake) Tree() ([]sandbox.TreeNode, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	nodes := []sandbox.TreeNode{}
	for _, s := range f.snapshots {
		nodes = append(nodes, sandbox.TreeNode{
			Kind: sandbox.TreeSnapshot, Name: s.Tag, Parent: s.ParentTag, Source: s.BranchedFrom,
			CreatedAt: s.CreatedAt, State: f.info(s).Status, DiskKiB: 1024,
		})
	}
	slices.SortFunc(nodes, func(a, b sandbox.TreeNode) int { return strings.Compare(a.Name, b.Name) })
	names := map[string]string{}
	for name, w := range f.workspaces {
		names[w.SandboxID] = name
	}
	for _, b := range f.boxes {
		nodes = append(nodes, sandbox.TreeNode{
			Kind: sandbox.TreeSandbox, Name: b.info.ID, Parent: b.info.SnapshotTag, Source: b.info.BranchedFrom, Workspace: names[b.info.ID],
			CreatedAt: b.info.CreatedAt, State: string(b.info.State), PrivateKiB: b.info.PrivateKiB,
		})
	}
	return nodes, nil
}

// CreateWorkspace forks a sandbox and gives it a name.
func (f *Fake) CreateWorkspace(ctx context.Context, spec sandbox.WorkspaceSpec) (*sandbox.Workspace, error) {
	if f.workspaces[spec.Name] != nil {
		return nil, fault(sandbox.AlreadyExists, "choose another name", "workspace %q exists", spec.Name)
	}
	made, err := f.Fork(ctx, sandbox.ForkSpec{Tag: spec.Tag, N: 1, Limits: spec.Limits})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &sandbox.Workspace{
		Name: spec.Name, SnapshotTag: spec.Tag, BaseTag: spec.Tag, State: sandbox.WorkspaceRunning,
		SandboxID: made[0].Sandbox.ID, Limits: spec.Limits, CreatedAt: time.Now(),
	}
	f.workspaces[spec.Name] = w
	f.occupy(w)
	out := *w
	return &out, nil
}

// occupy tells the sandbox of a workspace that it is that. The caller holds mu.
func (f *Fake) occupy(w *sandbox.Workspace) {
	for _, b := range f.boxes {
		if b.info.ID == w.SandboxID {
			b.info.Workspace = w.Name
		}
	}
}

func (f *Fake) workspace(name string) (*sandbox.Workspace, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.workspaces[name]; w != nil {
		return w, nil
	}
	return nil, fault(sandbox.NotFound, "`forkd workspace ls` lists the workspaces", "there is no workspace %q", name)
}

// SuspendWorkspace branches the sandbox and ends it.
func (f *Fake) SuspendWorkspace(ctx context.Context, name string) (*sandbox.Workspace, error) {
	w, err := f.workspace(name)
	if err != nil {
		return nil, err
	}
	if w.State == sandbox.WorkspaceRunning {
		info, err := f.Branch(ctx, w.SandboxID, sandbox.BranchSpec{Mode: sandbox.BranchDiff, Wait: true})
		if err != nil {
			return nil, err
		}
		f.end(w.SandboxID)
		w.SnapshotTag, w.SandboxID, w.State, w.SuspendedAt = info.Tag, "", sandbox.WorkspaceSuspended, time.Now()
	}
	out := *w
	return &out, nil
}

// ResumeWorkspace forks the sandbox that was suspended.
func (f *Fake) ResumeWorkspace(ctx context.Context, name string) (*sandbox.Workspace, error) {
	w, err := f.workspace(name)
	if err != nil {
		return nil, err
	}
	if w.State == sandbox.WorkspaceSuspended {
		made, err := f.Fork(ctx, sandbox.ForkSpec{Tag: w.SnapshotTag, N: 1})
		if err != nil {
			return nil, err
		}
		w.SandboxID, w.State = made[0].Sandbox.ID, sandbox.WorkspaceRunning
		f.mu.Lock()
		f.occupy(w)
		f.mu.Unlock()
	}
	out := *w
	return &out, nil
}

// Workspaces lists by name.
func (f *Fake) Workspaces() ([]sandbox.Workspace, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []sandbox.Workspace{}
	for _, name := range slices.Sorted(maps.Keys(f.workspaces)) {
		all = append(all, *f.workspaces[name])
	}
	return all, nil
}

// RemoveWorkspace ends the sandbox and forgets the name.
func (f *Fake) RemoveWorkspace(_ context.Context, name string) error {
	w, err := f.workspace(name)
	if err != nil {
		return err
	}
	if w.SandboxID != "" {
		f.end(w.SandboxID)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.workspaces, name)
	return nil
}
