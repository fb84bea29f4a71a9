// Package servertest has a stand-in for the domain, for tests of what speaks
// REST. Its sandboxes are directories and processes of this machine: commands
// run, files are files, so streams, signals and errors behave as in earnest.
// Only the evaluator is a table.
//
// Import it from tests only. Fake.mu is a leaf lock.
package servertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Fake is a Manager without machines. Set the exported fields before use.
type Fake struct {
	Dir string // where sandboxes keep their files

	// ForkError, if set, is asked for each child.
	ForkError func(i int) *sandbox.Error
	// ForkDelay is how long a fork takes unless it is cancelled.
	ForkDelay time.Duration
	// Evals adds to the answers of the evaluator.
	Evals map[string]sandbox.EvalResult
	// CreateSteps is what the making of a snapshot reports; each step takes
	// StepDelay.
	CreateSteps []sandbox.Progress
	StepDelay   time.Duration
	// BranchError, if set, is asked for each branch.
	BranchError func() *sandbox.Error
	// WriteDelay is how long the writing of a branch takes.
	WriteDelay time.Duration

	mu         sync.Mutex
	next       int
	snapshots  map[string]*saved
	boxes      []*box
	workspaces map[string]*sandbox.Workspace
	running    int // commands and evaluations; guarded by mu
}

type box struct {
	info     sandbox.Info
	root     string
	intr     chan struct{}
	lifetime time.Duration     // that it was given last
	env      map[string]string // of every command

	processes []*process // guarded by Fake.mu
	contexts  []*codeContext
}

// New returns a Fake with the given snapshots.
func New(dir string, tags ...string) *Fake {
	f := &Fake{Dir: dir, snapshots: make(map[string]*saved), workspaces: make(map[string]*sandbox.Workspace)}
	for _, tag := range tags {
		f.snapshots[tag] = snapshot(dir, tag)
	}
	return f
}

func snapshot(dir, tag string) *saved {
	return &saved{SnapshotInfo: sandbox.SnapshotInfo{
		Tag: tag, Dir: filepath.Join(dir, "snapshots", tag), CreatedAt: time.Unix(1_700_000_000, 0),
		Status: "ready", Bootable: true, Engine: "fake", VCPUs: 1, MemoryMiB: 512, Modules: []string{"numpy"},
		MemoryLogicalBytes: 512 << 20, MemoryPhysicalBytes: 100 << 20, DiskPhysicalBytes: 4 << 20,
		VMStateBytes: 4096, ContentHash: "sha256:00",
	}}
}

func fault(code sandbox.Code, hint, format string, args ...any) *sandbox.Error {
	return &sandbox.Error{Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// Running tells how many commands and evaluations are at work.
func (f *Fake) Running() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running
}

func (f *Fake) enter() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running--
	}
}

// Abandon is Close: nobody comes after it.
func (f *Fake) Abandon() error { return f.Close() }

// Close suspends the workspaces that run and ends all sandboxes.
func (f *Fake) Close() error {
	var failed error
	for name := range maps.Clone(f.workspaces) {
		if _, err := f.SuspendWorkspace(context.Background(), name); err != nil {
			failed = errors.Join(failed, fmt.Errorf("workspace %q is not saved: %w", name, err))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes = nil
	return failed
}

// CreateSnapshot reports the steps and keeps the name.
func (f *Fake) CreateSnapshot(ctx context.Context, spec sandbox.SnapshotSpec, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
	f.mu.Lock()
	_, taken := f.snapshots[spec.Tag]
	f.mu.Unlock()
	if taken {
		return nil, fault(sandbox.AlreadyExists, "choose another tag or remove it with `forkd rmi`", "snapshot %q exists", spec.Tag)
	}
	for _, step := range f.CreateSteps {
		progress(step)
		select {
		case <-time.After(f.StepDelay):
		case <-ctx.Done():
			return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "making the snapshot", Err: ctx.Err()}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := snapshot(f.Dir, spec.Tag)
	f.snapshots[spec.Tag] = s
	return f.info(s), nil
}

// Snapshots lists by tag.
func (f *Fake) Snapshots() ([]sandbox.SnapshotInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []sandbox.SnapshotInfo{}
	for _, s := range f.snapshots {
		all = append(all, *f.info(s))
	}
	slices.SortFunc(all, func(a, b sandbox.SnapshotInfo) int { return strings.Compare(a.Tag, b.Tag) })
	return all, nil
}

// Snapshot describes one snapshot.
func (f *Fake) Snapshot(tag string) (*sandbox.SnapshotInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.saved(tag)
	if err != nil {
		return nil, err
	}
	return f.info(s), nil
}

// saved finds a snapshot. The caller holds mu.
func (f *Fake) saved(tag string) (*saved, error) {
	if s := f.snapshots[tag]; s != nil {
		return s, nil
	}
	return nil, fault(sandbox.NotFound, "`forkd images` lists the snapshots", "there is no snapshot %q", tag)
}

// Fork makes directories.
func (f *Fake) Fork(ctx context.Context, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error) {
	if _, err := f.Snapshot(spec.Tag); err != nil {
		return nil, err
	}
	if f.ForkDelay > 0 {
		select {
		case <-time.After(f.ForkDelay):
		case <-ctx.Done():
			return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "forking", Err: ctx.Err()}
		}
	}
	results := make([]sandbox.ForkResult, spec.N)
	for i := range results {
		if f.ForkError != nil {
			if err := f.ForkError(i); err != nil {
				results[i].Err = err
				continue
			}
		}
		info, err := f.spawn(spec)
		if err != nil {
			return nil, err
		}
		results[i].Sandbox = info
	}
	return results, nil
}

func (f *Fake) spawn(spec sandbox.ForkSpec) (*sandbox.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.saved(spec.Tag)
	if err != nil {
		return nil, err
	}
	f.next++
	b := &box{intr: make(chan struct{}, 1), env: spec.Env, info: sandbox.Info{
		ID: fmt.Sprintf("sb%012d", f.next), SnapshotTag: spec.Tag, Engine: "fake", State: sandbox.Running,
		CreatedAt: time.Now(), Limits: spec.Limits, PrivateKiB: 64, BranchedFrom: s.BranchedFrom,
		VCPUs: 1, MemoryMiB: 512, DiskMiB: 4096,
		Metadata: spec.Metadata, OnTimeout: cmp.Or(spec.OnTimeout, sandbox.KillOnTimeout), AutoResume: spec.AutoResume, Front: spec.Front,
	}}
	b.live(spec.Lifetime)
	b.root = filepath.Join(f.Dir, b.info.ID)
	f.boxes = append(f.boxes, b)
	info := b.info
	return &info, s.restore(b.root)
}

// box returns a sandbox for use.
func (f *Fake) box(id string) (*box, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.find(id)
	if err != nil {
		return nil, err
	}
	if b.info.State == sandbox.Paused {
		if !b.info.AutoResume {
			return nil, fault(sandbox.SandboxPaused, "`forkd resume "+id+"` has it go on", "sandbox %s is paused", id)
		}
		b.resume(b.lifetime)
	}
	return b, os.MkdirAll(b.root, 0o700)
}

// find finds a sandbox. The caller holds mu.
func (f *Fake) find(id string) (*box, error) {
	for _, b := range f.boxes {
		if b.info.ID == id {
			return b, nil
		}
	}
	return nil, fault(sandbox.NotFound, "`forkd ls` lists the sandboxes", "there is no sandbox %q", id)
}

// Sandboxes lists by age.
func (f *Fake) Sandboxes() []sandbox.Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []sandbox.Info{}
	for _, b := range f.boxes {
		all = append(all, b.info)
	}
	return all
}

// Sandbox describes one sandbox.
func (f *Fake) Sandbox(id string) (*sandbox.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.boxes {
		if b.info.ID == id {
			info := b.info
			return &info, nil
		}
	}
	return nil, fault(sandbox.NotFound, "", "there is no sandbox %q", id)
}

// Kill forgets a sandbox.
func (f *Fake) Kill(id string) error {
	f.mu.Lock()
	for name, w := range f.workspaces {
		if w.SandboxID == id {
			f.mu.Unlock()
			return fault(sandbox.InUse, "suspend or remove that", "sandbox %s is workspace %q, which runs", id, name)
		}
	}
	f.mu.Unlock()
	return f.end(id)
}

// end ends a sandbox, a workspace's too.
func (f *Fake) end(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.boxes)
	if b, err := f.find(id); err == nil {
		b.killAll()
	}
	f.boxes = slices.DeleteFunc(f.boxes, func(b *box) bool { return b.info.ID == id })
	if len(f.boxes) == before {
		return fault(sandbox.NotFound, "", "there is no sandbox %q", id)
	}
	return nil
}
