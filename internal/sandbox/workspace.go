package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// suspendTime bounds the suspension of a workspace when the daemon ends.
const suspendTime = 2 * time.Minute

// CreateWorkspace makes a workspace and starts its sandbox.
func (m *Manager) CreateWorkspace(ctx context.Context, spec WorkspaceSpec) (*Workspace, error) {
	if err := checkWorkspace(spec.Name); err != nil {
		return nil, err
	}
	if spec.MemoryLimitMiB < 0 {
		return nil, fail(InvalidArgument, "", "memory limit must not be negative")
	}
	free, err := m.space(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	defer free()
	if _, ok := m.spaces.get(spec.Name); ok {
		return nil, fail(AlreadyExists, "choose another name, or resume it", "workspace %q exists already", spec.Name)
	}
	w := spaceRecord{Name: spec.Name, BaseTag: spec.Tag, SnapshotTag: spec.Tag, MemoryLimitMiB: spec.MemoryLimitMiB, CreatedAt: time.Now().UTC()}
	defer m.tags.share(spec.Tag)()
	b, err := m.enter(ctx, w)
	if err != nil {
		return nil, err
	}
	if err := m.spaces.put(w); err != nil {
		m.drop(b, reasonRefused)
		return nil, wrap(err, "creating workspace %q", spec.Name)
	}
	return m.workspace(spec.Name)
}

// ResumeWorkspace starts the sandbox of a workspace as it was when it was last
// suspended. If it runs, that is not an error.
func (m *Manager) ResumeWorkspace(ctx context.Context, name string) (*Workspace, error) {
	w, free, err := m.enterSpace(ctx, name)
	if err != nil {
		return nil, err
	}
	defer free()
	if m.occupant(name) != nil {
		return m.workspace(name)
	}
	defer m.tags.share(w.SnapshotTag)()
	if _, err := m.enter(ctx, w); err != nil {
		return nil, err
	}
	return m.workspace(name)
}

// SuspendWorkspace makes the state of a workspace durable and ends its sandbox.
// If that fails, the sandbox goes on. If it does not run, that is not an error.
func (m *Manager) SuspendWorkspace(ctx context.Context, name string) (*Workspace, error) {
	w, free, err := m.enterSpace(ctx, name)
	if err != nil {
		return nil, err
	}
	defer free()
	if err := m.leave(ctx, w); err != nil {
		return nil, err
	}
	return m.workspace(name)
}

// RemoveWorkspace ends the sandbox of a workspace and forgets what it resumes
// from.
func (m *Manager) RemoveWorkspace(ctx context.Context, name string) error {
	w, free, err := m.enterSpace(ctx, name)
	if err != nil {
		return err
	}
	defer free()
	if err := m.spaces.remove(name); err != nil {
		return wrap(err, "removing workspace %q", name)
	}
	if b := m.occupant(name); b != nil {
		m.drop(b, reasonSpace)
	}
	m.dropOwn(w.OwnTags)
	return nil
}

// Workspaces lists the workspaces in order of their names.
func (m *Manager) Workspaces() ([]Workspace, error) {
	var list []Workspace
	for _, w := range m.spaces.all() {
		list = append(list, m.describeSpace(w))
	}
	return list, nil
}

func (m *Manager) workspace(name string) (*Workspace, error) {
	w, ok := m.spaces.get(name)
	if !ok {
		return nil, noWorkspace(name)
	}
	space := m.describeSpace(w)
	return &space, nil
}

func (m *Manager) describeSpace(w spaceRecord) Workspace {
	space := Workspace{
		Name: w.Name, SnapshotTag: w.SnapshotTag, BaseTag: w.BaseTag, State: WorkspaceSuspended,
		MemoryLimitMiB: w.MemoryLimitMiB, CreatedAt: w.CreatedAt, SuspendedAt: w.SuspendedAt,
	}
	if b := m.occupant(w.Name); b != nil {
		space.State, space.SandboxID = WorkspaceRunning, b.id
	}
	if e := m.store.Inspect(w.SnapshotTag); e.Err != nil {
		space.Warning = e.Err.Error()
	}
	return space
}

func noWorkspace(name string) *Error {
	return fail(NotFound, "`forkd workspace ls` lists them", "there is no workspace %q", name)
}

func checkWorkspace(name string) error {
	if !snapshot.ValidTag(name) {
		return fail(InvalidArgument, "a name is 1 to 64 letters, digits, '-' or '_'", "bad workspace name %q", name)
	}
	return nil
}

// space waits for the turn to do something to a workspace.
func (m *Manager) space(ctx context.Context, name string) (free func(), err error) {
	if err := m.spaces.turns.take(ctx, name); err != nil {
		return nil, err
	}
	return func() { m.spaces.turns.release(name) }, nil
}

// enterSpace is space for a workspace that there must be.
func (m *Manager) enterSpace(ctx context.Context, name string) (spaceRecord, func(), error) {
	if err := checkWorkspace(name); err != nil {
		return spaceRecord{}, nil, err
	}
	free, err := m.space(ctx, name)
	if err != nil {
		return spaceRecord{}, nil, err
	}
	w, ok := m.spaces.get(name)
	if !ok {
		free()
		return spaceRecord{}, nil, noWorkspace(name)
	}
	return w, free, nil
}

// occupant returns the running sandbox of a workspace, or nil.
func (m *Manager) occupant(name string) *box {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		if b.workspace == name && b.state() == Running {
			return b
		}
	}
	return nil
}

// spacesOn returns the names of the workspaces that resume from one of some
// snapshots or, having been rolled back, run from one.
func (m *Manager) spacesOn(tags ...string) (names []string) {
	for _, w := range m.spaces.all() {
		b := m.occupant(w.Name)
		if slices.Contains(tags, w.SnapshotTag) || b != nil && slices.Contains(tags, b.tag) {
			names = append(names, w.Name)
		}
	}
	return names
}

// enter starts the sandbox of a workspace. The caller shares the tag.
func (m *Manager) enter(ctx context.Context, w spaceRecord) (*box, error) {
	src, err := m.source(w.SnapshotTag)
	if err != nil {
		return nil, err
	}
	defer src.snap.Release()
	if err := src.snap.Intact(); err != nil {
		return nil, m.openError(w.SnapshotTag, err)
	}
	if err := m.admit(1); err != nil {
		return nil, err
	}
	c := birthOf(ForkSpec{Tag: w.SnapshotTag, MemoryLimitMiB: w.MemoryLimitMiB})
	c.workspace = w.Name
	b, err := m.spawn(ctx, src, c)
	if err != nil {
		return nil, wrap(err, "starting workspace %q", w.Name)
	}
	if err := b.activate(ctx); err != nil {
		b.close()
		return nil, wrap(err, "starting workspace %q", w.Name)
	}
	if err := m.register(b); err != nil {
		return nil, err
	}
	return b, nil
}

// leave suspends a workspace that runs.
func (m *Manager) leave(ctx context.Context, w spaceRecord) error {
	b := m.occupant(w.Name)
	if b == nil {
		return nil
	}
	_, done, err := m.exclusive(ctx, b.id)
	if err != nil {
		return err
	}
	defer done()
	if w, err = m.suspend(ctx, b, w); err != nil {
		return wrap(err, "suspending workspace %q", w.Name)
	}
	m.drop(b, reasonSuspend)
	old := slices.DeleteFunc(slices.Clone(w.OwnTags), func(tag string) bool { return tag == w.SnapshotTag })
	w.OwnTags = append(m.dropOwn(old), w.SnapshotTag)
	if err := m.spaces.put(w); err != nil {
		m.opts.Log.Warn("writing what a workspace consists of", "workspace", w.Name, "error", err)
	}
	return nil
}

// suspend writes the state of a sandbox, whose machine stands still from the
// instant on that is written, and has the workspace resume from it. If it fails,
// the machine goes on.
func (m *Manager) suspend(ctx context.Context, b *box, w spaceRecord) (_ spaceRecord, err error) {
	// Noted first, so that it is found should this be cut short.
	tag := fmt.Sprintf("ws-%.40s-%s", w.Name, randomHex(6))
	w.OwnTags = append(slices.Clone(w.OwnTags), tag)
	if err := m.spaces.put(w); err != nil {
		return w, err
	}
	c := &cut{box: b}
	held, err := m.hold(ctx, b, c)
	if err != nil {
		return w, err
	}
	defer c.release()
	defer func() {
		if err != nil {
			b.machine.Start()
			m.letGo(held)
		}
	}()
	b.machine.Pause()
	if c.frozen, err = b.machine.Freeze(); err != nil {
		return w, b.branchError(err)
	}
	man := c.manifest(m, BranchSpec{Tag: tag, Mode: BranchDiff})
	man.ParentTag = w.BaseTag
	if err := m.store.Create(ctx, man, c.contents(false)); err != nil {
		return w, err
	}
	w.SnapshotTag, w.SuspendedAt = tag, time.Now().UTC()
	return w, m.spaces.put(w)
}

// letGo releases a guest that has been held for longer than a moment.
func (m *Manager) letGo(held *agent.Held) {
	if _, err := held.Release(); err != nil {
		m.opts.Log.Warn("letting a sandbox go on", "error", err)
	}
}

// dropOwn removes snapshots that were made for a workspace which does not resume
// from them any more, and returns those that are in use and stay.
func (m *Manager) dropOwn(tags []string) (kept []string) {
	for _, tag := range tags {
		_, err := m.RemoveSnapshots([]string{tag}, RemoveOptions{})
		if err == nil || hasCode(err, NotFound) {
			continue
		}
		kept = append(kept, tag)
		if !hasCode(err, InUse) {
			m.opts.Log.Warn("removing the old state of a workspace", "tag", tag, "error", err)
		}
	}
	return kept
}

func hasCode(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// suspendAll suspends all workspaces that run, because the daemon ends.
func (m *Manager) suspendAll() error {
	var mu sync.Mutex
	var failed error
	spaces := m.spaces.all()
	each(len(spaces), func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), suspendTime)
		defer cancel()
		w, free, err := m.enterSpace(ctx, spaces[i].Name)
		if err == nil {
			err = m.leave(ctx, w)
			free()
		}
		if err != nil && !hasCode(err, NotFound) {
			mu.Lock()
			failed = errors.Join(failed, fmt.Errorf("workspace %q is not saved: %w", spaces[i].Name, err))
			mu.Unlock()
		}
	})
	return failed
}

// sweepSpaces removes snapshots of workspaces from which they do not resume: those
// of a suspension that was cut short, and those that were in use when they should
// have been removed.
func (m *Manager) sweepSpaces() {
	for _, w := range m.spaces.all() {
		m.dropOwn(slices.DeleteFunc(slices.Clone(w.OwnTags), func(tag string) bool { return tag == w.SnapshotTag }))
	}
}
