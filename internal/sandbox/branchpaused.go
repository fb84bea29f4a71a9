package sandbox

import (
	"context"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// asItIs makes something of a sandbox in the way that fits: running if it runs,
// paused if it is paused. What it is may change in between.
func asItIs[R any](m *Manager, id string, running func() (R, error), paused func(pausedRecord) (R, error)) (R, error) {
	for {
		result, err := running()
		if !hasCode(err, SandboxPaused) {
			return result, err
		}
		r, ok := m.saved(id)
		if !ok {
			continue // it was resumed, or killed
		}
		result, err = paused(r)
		if now, _ := m.saved(id); !hasCode(err, NotFound) || now.SnapshotTag == r.SnapshotTag {
			return result, err
		} // it was paused again, and what was saved before is gone
	}
}

// running is use for those to whom a paused sandbox is to stay paused.
func (m *Manager) running(ctx context.Context, id string) (*box, error) {
	b, err := m.settled(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// branchPaused gives a paused sandbox another tag, under which it is a snapshot.
func (m *Manager) branchPaused(r pausedRecord, spec BranchSpec) (*writing, error) {
	free, err := m.claimTag(spec.Tag)
	if err != nil {
		return nil, err
	}
	defer free()
	src, free, err := m.openPaused(r)
	if err != nil {
		return nil, err
	}
	defer free()
	man := *src.Manifest
	man.Tag, man.CreatedAt, man.Version = spec.Tag, time.Now().UTC(), m.opts.Version
	man.ParentTag, man.BranchedFrom, man.Mode, man.PauseMS = r.BaseTag, r.ID, string(spec.Mode), 0
	if spec.Mode == BranchFull {
		man.ParentTag = ""
	}
	leave, err := m.room(m.branchNeed(r.ID, r.SnapshotTag, spec))
	if err != nil {
		return nil, err
	}
	p, err := m.pend(r.ID, man, snapshot.Contents{
		State: src.State, Memory: src.Memory, Scratch: src.Scratch, Cut: src.Cut, Base: src, Flatten: spec.Mode == BranchFull,
	})
	if err != nil {
		leave()
		return nil, err
	}
	return m.write(p, spec, leave), nil
}

// forkPaused makes children of a paused sandbox.
func (m *Manager) forkPaused(ctx context.Context, r pausedRecord, spec ForkSpec) (*forking, error) {
	src, free, err := m.openPaused(r)
	if err != nil {
		return nil, err
	}
	defer free()
	spec.Tag = r.BaseTag
	if err := spec.inherit(r.terms()); err != nil {
		return nil, err
	}
	return m.forkFrom(ctx, src, spec)
}

// openPaused opens what a paused sandbox resumes from and keeps it until free is
// called.
func (m *Manager) openPaused(r pausedRecord) (src *snapshot.Snapshot, free func(), err error) {
	unlock := m.tags.share(r.SnapshotTag)
	if src, err = m.source(r.SnapshotTag); err == nil {
		if err = src.Intact(); err != nil {
			src.Release()
			err = m.openError(r.SnapshotTag, err)
		}
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return src, func() {
		src.Release()
		unlock()
	}, nil
}
