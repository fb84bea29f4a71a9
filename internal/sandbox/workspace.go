package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// suspendTime bounds the suspension of a workspace when the daemon ends.
const suspendTime = 2 * time.Minute

// CreateWorkspace makes a workspace and starts its sandbox.
func (m *Manager) CreateWorkspace(ctx context.Context, spec WorkspaceSpec) (*Workspace, error) {
	if err := checkWorkspace(spec.Name); err != nil {
		return nil, err
	}
	if err := spec.Limits.check(); err != nil {
		return nil, err
	}
	free, err := m.space(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	defer free()
	if _, ok := m.spaces.Get(spec.Name); ok {
		return nil, fail(AlreadyExists, "choose another name, or resume it", "workspace %q exists already", spec.Name)
	}
	w := spaceRecord{
		Version: spaceVersion, Name: spec.Name, BaseTag: spec.Tag, kept: kept{SnapshotTag: spec.Tag},
		Limits: spec.Limits, CreatedAt: time.Now().UTC(),
	}
	defer m.tags.share(spec.Tag)()
	b, err := m.enter(ctx, w)
	if err != nil {
		return nil, err
	}
	if err := m.spaces.Put(w); err != nil {
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
	if b := m.occupant(name); b != nil && b.arrival != nil { // whether it runs its cell knows
		if _, err := m.here(ctx, b.id); err != nil {
			return nil, err
		}
	}
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
	if b := m.fallen(w); b != nil {
		return nil, fail(FailedPrecondition, fmt.Sprintf("`forkd workspace resume %s` goes on from what was saved last, `forkd kill %s` forgets what has ended", name, b.id),
			"workspace %q cannot be saved: sandbox %s, in which it ran, has ended: %s", name, b.id, b.endReason())
	}
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
	if err := m.spaces.Remove(name); err != nil {
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
	for _, w := range m.spaces.All() {
		list = append(list, m.describeSpace(w))
	}
	return list, nil
}

func (m *Manager) workspace(name string) (*Workspace, error) {
	w, ok := m.spaces.Get(name)
	if !ok {
		return nil, noWorkspace(name)
	}
	space := m.describeSpace(w)
	return &space, nil
}

func (m *Manager) describeSpace(w spaceRecord) Workspace {
	space := Workspace{
		Name: w.Name, SnapshotTag: w.SnapshotTag, BaseTag: w.BaseTag, State: WorkspaceSuspended,
		Limits: w.Limits, CreatedAt: w.CreatedAt, SuspendedAt: w.SuspendedAt,
	}
	if b := m.occupant(w.Name); b != nil {
		space.State, space.SandboxID = WorkspaceRunning, b.id
	} else if b := m.fallen(w); b != nil {
		space.Warning = fmt.Sprintf("it is not saved: sandbox %s, in which it ran, has ended: %s", b.id, b.endReason())
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
	if err := m.spaceTurns.take(ctx, name); err != nil {
		return nil, err
	}
	return func() { m.spaceTurns.release(name) }, nil
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
	w, ok := m.spaces.Get(name)
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

// fallen returns the sandbox in which a workspace ran last, if that has ended by itself, so that
// what it has done since the last suspension is lost; or nil.
func (m *Manager) fallen(w spaceRecord) (last *box) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		switch {
		case b.workspace != w.Name:
		case b.state() == Running:
			return nil
		case b.restored.After(w.SuspendedAt) && (last == nil || b.restored.After(last.restored)):
			last = b
		}
	}
	return last
}

// enter starts the sandbox of a workspace. The caller shares the tag.
func (m *Manager) enter(ctx context.Context, w spaceRecord) (*box, error) {
	c := birthOf(ForkSpec{Tag: w.SnapshotTag, Limits: w.Limits})
	c.workspace, c.base = w.Name, w.BaseTag
	b, err := m.restore(ctx, c)
	if err != nil {
		return nil, wrap(err, "starting workspace %q", w.Name)
	}
	return b, nil
}

// leave suspends a workspace that runs.
func (m *Manager) leave(ctx context.Context, w spaceRecord) error {
	b := m.occupant(w.Name)
	if b == nil {
		return nil
	}
	b, done, err := m.exclusive(ctx, b.id)
	if err != nil {
		return err
	}
	defer done()
	put := func(k kept) error {
		if k.SnapshotTag != w.SnapshotTag {
			w.SuspendedAt = time.Now().UTC()
		}
		w.kept = k
		return m.spaces.Put(w)
	}
	k, err := m.save(ctx, b, fmt.Sprintf("ws-%.40s", w.Name), w.BaseTag, w.kept, put)
	if err != nil {
		return wrap(err, "suspending workspace %q", w.Name)
	}
	m.drop(b, reasonSuspend)
	m.dropOwn(k.garbage())
	return nil
}

// suspendAll suspends all workspaces that run, because the daemon ends.
func (m *Manager) suspendAll() error {
	var mu sync.Mutex
	var failed error
	spaces := m.spaces.All()
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
