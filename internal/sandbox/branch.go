package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// holdTime bounds how long a guest may take to make its processes stand still,
// and then again to let them go. Either takes about a millisecond; a guest that
// takes longer than this does not answer. Tests make it shorter.
var holdTime = 10 * time.Second

// Branch makes a snapshot of a sandbox. If it runs, its processes stand still for
// a moment and go on whatever becomes of the branch; if it is paused, the branch is
// of the instant of the pause. A branch can be forked from
// as soon as Branch has returned. Until its status is ready it is lost if the
// daemon dies; should it turn out that it cannot be written, its status becomes
// failed and its tag can be used again.
func (m *Manager) Branch(ctx context.Context, id string, spec BranchSpec) (*SnapshotInfo, error) {
	spec, err := checkBranch(spec)
	if err != nil {
		return nil, err
	}
	w, err := m.branch(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	if spec.Wait {
		if err := w.wait(ctx); err != nil {
			return nil, wrap(err, "writing branch %q of sandbox %s", spec.Tag, id)
		}
	}
	// Not all that there is to know: looking at its family takes longer than
	// everything else.
	info := m.describe(m.store.Inspect(spec.Tag))
	return &info, nil
}

func checkBranch(spec BranchSpec) (BranchSpec, error) {
	if spec.Tag == "" {
		spec.Tag = "br-" + randomHex(6)
	}
	if spec.Mode == "" {
		spec.Mode = BranchLive
	}
	switch {
	case !snapshot.ValidTag(spec.Tag):
		return spec, badTag(spec.Tag)
	case spec.Mode != BranchFull && spec.Mode != BranchDiff && spec.Mode != BranchLive:
		return spec, fail(InvalidArgument, "modes are full, diff and live", "unknown branch mode %q", spec.Mode)
	}
	return spec, nil
}

// branch cuts a branch and has it written in the background.
func (m *Manager) branch(ctx context.Context, id string, spec BranchSpec) (*writing, error) {
	running := func() (*writing, error) { return m.branchRunning(ctx, id, spec) }
	return asItIs(m, id, running, func(r pausedRecord) (*writing, error) { return m.branchPaused(r, spec) })
}

// branchRunning cuts a branch of a running sandbox and gives it its tag.
func (m *Manager) branchRunning(ctx context.Context, id string, spec BranchSpec) (_ *writing, err error) {
	free, err := m.claimTag(spec.Tag)
	if err != nil {
		return nil, err
	}
	defer free()
	if _, err := m.running(ctx, id); err != nil {
		return nil, err
	}
	b, done, err := m.exclusive(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	// Not before it has the turn: a guest that takes its time takes no room from others.
	leave, err := m.room(m.needOf(b, spec))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	c, err := m.cut(ctx, b)
	if err != nil {
		return nil, err
	}
	defer c.release()
	// What it stands on cannot be removed without seeing it.
	defer m.tags.share(b.tag)()
	if !m.owns(b) {
		return nil, b.dead()
	}
	p, err := m.pend(id, c.manifest(m, spec), c.contents(spec.Mode == BranchFull))
	if err != nil {
		return nil, err
	}
	return m.write(p, spec, leave), nil
}

// room takes what a branch needs of the daemon and of the host until it is written.
func (m *Manager) room(n need) (leave func(), err error) {
	slot, err := m.writers.slot()
	if err != nil {
		return nil, err
	}
	done, err := m.admit(n)
	if err != nil {
		slot()
		return nil, err
	}
	return func() {
		slot()
		done()
	}, nil
}

// claimTag takes a tag for something that is being made, unless it is taken.
func (m *Manager) claimTag(tag string) (free func(), err error) {
	if !m.building.try(tag) {
		return nil, taken(tag)
	}
	if m.store.Exists(tag) {
		m.building.release(tag)
		return nil, taken(tag)
	}
	return func() { m.building.release(tag) }, nil
}

// pend begins a snapshot that is a branch of a sandbox.
func (m *Manager) pend(id string, man snapshot.Manifest, contents snapshot.Contents) (*snapshot.Pending, error) {
	p, err := m.store.Begin(man, contents)
	if errors.Is(err, fs.ErrExist) {
		return nil, taken(man.Tag)
	}
	if err != nil {
		return nil, wrap(err, "branching sandbox %s", id)
	}
	m.forgetFailure(man.Tag)
	return p, nil
}

func taken(tag string) *Error {
	return fail(AlreadyExists, fmt.Sprintf("choose another tag, or remove it with `forkd rmi %s`", tag), "snapshot %q exists already", tag)
}

// exclusive finds a sandbox and waits for the turn to do something to its
// machine as a whole.
func (m *Manager) exclusive(ctx context.Context, id string) (*box, func(), error) {
	for {
		b, err := m.here(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		done, err := b.exclusive(ctx)
		if err != nil {
			return nil, nil, err
		}
		if m.owns(b) {
			return b, done, nil
		}
		done() // it was killed, or has another machine now
	}
}

// owns reports whether b is still the sandbox of its id.
func (m *Manager) owns(b *box) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[b.id] == b
}

// cut is a sandbox at one instant.
type cut struct {
	box    *box
	origin *snapshot.Snapshot // of the sandbox
	frozen *cell.Cut
	pause  time.Duration // as the guest saw it
	unpin  func()        // lets it be packed again
}

// cut has the sandbox stand still, seals it and lets it go on. The caller has
// the turn, and releases the cut.
func (m *Manager) cut(ctx context.Context, b *box) (*cut, error) {
	c := &cut{box: b}
	held, err := m.hold(ctx, b, c)
	if err != nil {
		return nil, err
	}
	c.frozen, err = b.machine.Branch(context.WithoutCancel(ctx))
	var releaseErr error
	c.pause, releaseErr = held.release()
	if err = errors.Join(err, releaseErr); err != nil {
		c.release()
		return nil, b.branchError(err)
	}
	return c, nil
}

// held is a sandbox whose processes stand still.
type held struct {
	guest *agent.Held
	timer *time.Timer // breaks the connection to the guest
}

// release lets the processes go on, and tells how long they stood still as the guest
// saw it. A guest that does not answer in time is told once more behind the caller's
// back.
func (h *held) release() (time.Duration, error) {
	h.timer.Reset(holdTime)
	defer h.timer.Stop()
	return h.guest.Release()
}

// hold makes the sandbox's processes stand still. Whatever can be done before is.
func (m *Manager) hold(ctx context.Context, b *box, c *cut) (*held, error) {
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	if err := b.machine.Cell().Answers(ctx); err != nil { // so it is not even begun
		return nil, wrap(err, "having sandbox %s stand still", b.id)
	}
	if c.origin = b.origin(); c.origin == nil {
		return nil, b.dead()
	}
	var h held
	unpin, err := b.machine.Pin()
	c.unpin = unpin
	if err == nil {
		// A client that leaves now must not make the pause longer.
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		h.timer = time.AfterFunc(holdTime, func() { cancel(context.DeadlineExceeded) })
		h.guest, err = b.agent.Branch(ctx)
		h.timer.Stop()
	}
	if err != nil {
		c.release()
		return nil, b.branchError(err)
	}
	return &h, nil
}

// release gives up the references of a cut.
func (c *cut) release() {
	if c.frozen != nil {
		c.frozen.Release()
	}
	if c.origin != nil {
		c.origin.Release()
	}
	if c.unpin != nil {
		c.unpin()
	}
	c.frozen, c.origin, c.unpin = nil, nil, nil
}

// manifest describes the cut as a snapshot.
func (c *cut) manifest(m *Manager, spec BranchSpec) snapshot.Manifest {
	man := *c.origin.Manifest
	man.Tag, man.CreatedAt, man.Version = spec.Tag, time.Now().UTC(), m.opts.Version
	man.ParentTag, man.BranchedFrom, man.Mode = c.box.base, c.box.id, string(spec.Mode)
	if spec.Mode == BranchFull {
		man.ParentTag = ""
	}
	man.PauseMS = float64(c.pause) / float64(time.Millisecond)
	// Nobody has counted, as that would take longer than everything else. The
	// children of a branch go on at once in any case.
	man.Held = 1
	if info, known := c.box.agent.Runtime(man.Runtime); known {
		man.RuntimeStarts = info.Starts
	}
	return man
}

func (c *cut) contents(flatten bool) snapshot.Contents {
	return snapshot.Contents{
		State: c.frozen.State(), Cut: c.frozen, Base: c.origin, Flatten: flatten,
	}
}

// branchError explains why a sandbox could not be branched. It goes on.
func (b *box) branchError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fail(Timeout, "try again when it is less busy", "sandbox %s needed more than %s to stand still, or to go on again; it goes on", b.id, holdTime)
	}
	if errors.Is(err, machine.ErrEnded) {
		b.awaitEnd()
		return b.dead()
	}
	return b.guestError(err, "branching")
}

// ForkSandbox makes n children of a sandbox, all of the same instant. Of a running
// one it is a branch that nobody but these children needs: it is kept in memory as
// long as one of them lives, and has no tag. A paused one stays paused. Children
// have the sandbox's environment, with that of spec over it, and its limits where
// those of spec are not tighter, but neither its metadata nor its lifetime. spec.Tag
// must be empty.
func (m *Manager) ForkSandbox(ctx context.Context, id string, spec ForkSpec) ([]ForkResult, error) {
	spec, err := checkFork(spec)
	if err != nil {
		return nil, err
	}
	if spec.Tag != "" {
		return nil, fail(InvalidArgument, "give one of the two", "a fork is of a snapshot or of a sandbox, not of both")
	}
	// Before the sandbox is disturbed; what is forked in the end asks once more.
	done, err := m.admit(spec.need())
	if err != nil {
		return nil, err
	}
	done()
	cut := func() (*forking, error) { return m.forkCut(ctx, id, spec) }
	f, err := asItIs(m, id, cut, func(r pausedRecord) (*forking, error) { return m.forkPaused(ctx, r, spec) })
	if err != nil {
		return nil, err
	}
	return f.finish(ctx, m)
}

// inherit gives children of a sandbox what they have of it.
func (s *ForkSpec) inherit(t terms) error {
	s.Limits = s.Limits.within(t.limits)
	s.Env = over(t.env, s.Env)
	return s.terms().check()
}

// forkCut cuts a running sandbox and makes children of the cut.
func (m *Manager) forkCut(ctx context.Context, id string, spec ForkSpec) (*forking, error) {
	if _, err := m.running(ctx, id); err != nil {
		return nil, err
	}
	b, done, err := m.exclusive(ctx, id)
	if err != nil {
		return nil, err
	}
	c, err := m.cut(ctx, b)
	done()
	if err != nil {
		return nil, err
	}
	defer c.release()
	defer m.tags.share(b.tag)()
	if !m.owns(b) {
		return nil, b.dead()
	}
	man := c.manifest(m, BranchSpec{Tag: "fork-" + randomHex(16), Mode: BranchLive})
	p, err := m.store.Begin(man, c.contents(false))
	if err != nil {
		return nil, wrap(err, "branching sandbox %s", b.id)
	}
	src := p.Snapshot().Retain()
	p.Abort() // the children keep it
	defer src.Release()
	spec.Tag = b.base
	if err := spec.inherit(b.terms); err != nil {
		return nil, err
	}
	return m.forkFrom(ctx, src, spec)
}
