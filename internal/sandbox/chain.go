package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Compact makes a copy of a snapshot under a new tag that depends on no other.
func (m *Manager) Compact(ctx context.Context, from, to string) (*SnapshotInfo, error) {
	for _, tag := range []string{from, to} {
		if !snapshot.ValidTag(tag) {
			return nil, badTag(tag)
		}
	}
	if !m.building.try(to) {
		return nil, taken(to)
	}
	defer m.building.release(to)
	if m.store.Exists(to) {
		return nil, taken(to)
	}
	switch err := m.store.Compact(ctx, from, to); {
	case errors.Is(err, fs.ErrExist):
		return nil, taken(to)
	case err != nil:
		return nil, m.openError(from, err)
	}
	m.forgetFailure(to)
	return m.Snapshot(to)
}

// Verify reads every byte of a snapshot and compares it with its hashes. Damage
// is a NotBootable error that names the file.
func (m *Manager) Verify(ctx context.Context, tag string, progress func(Progress)) error {
	if !snapshot.ValidTag(tag) {
		return badTag(tag)
	}
	report := func(done, total int64) {
		if progress != nil {
			progress(Progress{Step: stepVerify, Message: "reading " + tag, Done: done, Total: total})
		}
	}
	err := m.store.Verify(ctx, tag, report)
	if err == nil {
		return nil
	}
	if errors.Is(err, snapshot.ErrNotBootable) {
		m.cool(tag) // nothing more is forked from what is damaged
	}
	return m.openError(tag, err)
}

// Derive makes a snapshot that is another one after some work: a child runs the
// commands and evaluations, comes to rest as a parent does, is frozen under the
// new tag and ended. If anything fails or ctx ends nothing of it stays.
func (m *Manager) Derive(ctx context.Context, spec DeriveSpec, progress func(Progress)) (*SnapshotInfo, error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	switch {
	case !snapshot.ValidTag(spec.Tag):
		return nil, badTag(spec.Tag)
	case slices.ContainsFunc(spec.Commands, func(c []string) bool { return len(c) == 0 || c[0] == "" }):
		return nil, fail(InvalidArgument, "", "a command is empty")
	}
	if !m.building.try(spec.Tag) {
		return nil, taken(spec.Tag)
	}
	defer m.building.release(spec.Tag)
	if m.store.Exists(spec.Tag) {
		return nil, taken(spec.Tag)
	}
	progress(Progress{Step: stepBoot, Message: "forking a child of " + spec.From})
	b, err := m.transient(ctx, spec.From)
	if err != nil {
		return nil, err
	}
	defer m.drop(b, reasonDerived)
	if err := b.activate(ctx); err != nil {
		return nil, err
	}
	if err := m.prepare(ctx, b, spec, progress); err != nil {
		return nil, wrap(b.guestError(err, "preparing %q", spec.Tag), "deriving %q from %q", spec.Tag, spec.From)
	}
	progress(Progress{Step: stepFreeze, Message: "writing the snapshot"})
	if err := m.freezeInto(ctx, b, spec); err != nil {
		return nil, wrap(err, "deriving %q from %q", spec.Tag, spec.From)
	}
	m.forgetFailure(spec.Tag)
	return m.Snapshot(spec.Tag)
}

// transient makes a child that is there for the host's purposes.
func (m *Manager) transient(ctx context.Context, tag string) (*box, error) {
	defer m.tags.share(tag)()
	src, err := m.source(tag)
	if err != nil {
		return nil, err
	}
	defer src.Release()
	if err := src.Intact(); err != nil {
		return nil, m.openError(tag, err)
	}
	b, err := m.spawnTransient(ctx, src, tag, fmt.Sprintf("deriving from %q", tag))
	if err != nil {
		return nil, err
	}
	return b, m.register(b)
}

// spawnTransient makes a child that is there for the host's purposes, and that nobody knows yet.
func (m *Manager) spawnTransient(ctx context.Context, src *snapshot.Snapshot, tag, what string) (*box, error) {
	c := birthOf(ForkSpec{Tag: tag})
	c.fleeting = true
	done, err := m.admit(c.need(what))
	if err != nil {
		return nil, err
	}
	defer done()
	b, err := m.spawn(ctx, src, c)
	if err != nil {
		return nil, wrap(err, "forking a child of %q", tag)
	}
	return b, nil
}

// prepare does the work that makes a derived snapshot different.
func (m *Manager) prepare(ctx context.Context, b *box, spec DeriveSpec, progress func(Progress)) error {
	for _, args := range spec.Commands {
		progress(Progress{Step: stepWarm, Message: "running " + strings.Join(args, " ")})
		if err := runSetup(ctx, b.agent, args); err != nil {
			return err
		}
	}
	for _, code := range spec.Evals {
		progress(Progress{Step: stepWarm, Message: "evaluating"})
		if b.manifest.Runtime == "" {
			return fail(NoRuntime, "use commands, or derive from a snapshot with a runtime", "snapshot %q has no warm runtime", b.tag)
		}
		r, err := b.agent.Eval(ctx, agent.EvalRequest{Runtime: b.manifest.Runtime, Code: code})
		if err != nil {
			return err
		}
		if r.Error != nil {
			return fail(CommandFailed, "run it in a sandbox to see what is wrong", "evaluation raised %s: %s\n%s",
				r.Error.Type, r.Error.Message, strings.TrimSpace(r.Error.Traceback))
		}
	}
	return nil
}

// freezeInto brings a sandbox to rest and makes it into a snapshot. It does not
// run any more afterwards.
func (m *Manager) freezeInto(ctx context.Context, b *box, spec DeriveSpec) error {
	_, done, err := m.exclusive(ctx, b.id)
	if err != nil {
		return err
	}
	defer done()
	c := &cut{box: b, origin: b.origin()}
	if c.origin == nil {
		return b.dead()
	}
	defer c.release()
	quiet, err := atRest(ctx, b.agent, b.machine)
	if err != nil {
		return b.guestError(err, "bringing the child to rest")
	}
	if c.frozen, err = b.machine.Freeze(ctx); err != nil {
		return b.branchError(err)
	}
	man := c.manifest(m, BranchSpec{Tag: spec.Tag, Mode: BranchDiff})
	man.BranchedFrom, man.Held = "", quiet.Processes
	defer m.tags.share(spec.From)()
	if !m.owns(b) {
		return b.dead()
	}
	return m.store.Create(ctx, man, c.contents(false))
}

// atRest holds user processes, waits until the guest has come to rest, and pauses
// the machine: the state that children start from with the least work.
func atRest(ctx context.Context, a *agent.Client, v *cell.VM) (wire.QuiesceReply, error) {
	quiet, err := a.Quiesce(ctx)
	if err != nil {
		return quiet, err
	}
	settle(v)
	v.Pause()
	return quiet, nil
}
