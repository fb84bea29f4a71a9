package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// holdTime bounds how long a guest may take to make its processes stand still,
// and then to let them go. It takes about a millisecond; a guest that takes
// longer than this does not answer. Tests make it shorter.
var holdTime = 10 * time.Second

// Branch makes a snapshot of a running sandbox, whose processes stand still for
// a moment and go on whatever becomes of the branch. A branch can be forked from
// as soon as Branch has returned. Until its status is ready it is lost if the
// daemon dies; should it turn out that it cannot be written, its status becomes
// failed and its tag can be used again.
func (m *Manager) Branch(ctx context.Context, id string, spec BranchSpec) (*SnapshotInfo, error) {
	spec, err := checkBranch(spec)
	if err != nil {
		return nil, err
	}
	if _, err := m.use(ctx, id); err != nil {
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
	slot, err := m.writers.slot()
	if err != nil {
		return nil, err
	}
	p, err := m.begin(ctx, id, spec)
	if err != nil {
		slot()
		return nil, err
	}
	return m.write(p, spec, slot), nil
}

// begin cuts a branch and gives it its tag.
func (m *Manager) begin(ctx context.Context, id string, spec BranchSpec) (*snapshot.Pending, error) {
	if !m.building.try(spec.Tag) {
		return nil, taken(spec.Tag)
	}
	defer m.building.release(spec.Tag)
	if m.store.Exists(spec.Tag) {
		return nil, taken(spec.Tag)
	}
	b, done, err := m.exclusive(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
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
	man := c.manifest(m, spec)
	p, err := m.store.Begin(man, c.contents(spec.Mode == BranchFull))
	if errors.Is(err, fs.ErrExist) {
		return nil, taken(spec.Tag)
	}
	if err != nil {
		return nil, wrap(err, "branching sandbox %s", b.id)
	}
	m.forgetFailure(spec.Tag)
	return p, nil
}

func taken(tag string) *Error {
	return fail(AlreadyExists, fmt.Sprintf("choose another tag, or remove it with `forkd rmi %s`", tag), "snapshot %q exists already", tag)
}

// exclusive finds a sandbox and waits for the turn to do something to its
// machine as a whole.
func (m *Manager) exclusive(ctx context.Context, id string) (*box, func(), error) {
	for {
		b, err := m.box(id)
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
	frozen *machine.Frozen
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
	c.frozen, err = b.machine.Branch()
	var releaseErr error
	c.pause, releaseErr = held.Release()
	if err = errors.Join(err, releaseErr); err != nil {
		c.release()
		return nil, b.branchError(err)
	}
	return c, nil
}

// hold makes the sandbox's processes stand still. Whatever can be done before is.
func (m *Manager) hold(ctx context.Context, b *box, c *cut) (*agent.Held, error) {
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	if c.origin = b.origin(); c.origin == nil {
		return nil, b.dead()
	}
	var held *agent.Held
	unpin, err := b.pin()
	c.unpin = unpin
	if err == nil {
		// A client that leaves now must not make the pause longer.
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		timer := time.AfterFunc(holdTime, func() { cancel(context.DeadlineExceeded) })
		held, err = b.agent.Branch(ctx)
		timer.Stop()
	}
	if err != nil {
		c.release()
		return nil, b.branchError(err)
	}
	return held, nil
}

// release gives up the references of a cut.
func (c *cut) release() {
	if c.frozen != nil {
		c.frozen.Memory.Release()
		c.frozen.Scratch.Release()
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
	man.ParentTag, man.BranchedFrom, man.Mode = c.box.tag, c.box.id, string(spec.Mode)
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
		State: c.frozen.State, Memory: c.frozen.Memory, Scratch: c.frozen.Scratch, Base: c.origin, Flatten: flatten,
	}
}

// branchError explains why a sandbox could not be branched. It goes on.
func (b *box) branchError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fail(Timeout, "try again when it is less busy", "sandbox %s did not come to a standstill within %s; it goes on", b.id, holdTime)
	}
	if errors.Is(err, machine.ErrEnded) {
		b.awaitEnd()
		return b.dead()
	}
	return b.guestError(err, "branching sandbox %s", b.id)
}

// ForkSandbox makes n children of a running sandbox, all of the same instant. It
// is a branch that nobody but these children needs: it is kept in memory as long
// as one of them lives, and has no tag. spec.Tag must be empty.
func (m *Manager) ForkSandbox(ctx context.Context, id string, spec ForkSpec) ([]ForkResult, error) {
	if err := checkFork(spec); err != nil {
		return nil, err
	}
	if spec.Tag != "" {
		return nil, fail(InvalidArgument, "give one of the two", "a fork is of a snapshot or of a sandbox, not of both")
	}
	b, err := m.use(ctx, id)
	if err != nil {
		return nil, err
	}
	if spec.MemoryLimitMiB == 0 {
		spec.MemoryLimitMiB = b.limitMiB // who is limited cannot fork out of it
	}
	if err := m.admit(spec.N); err != nil {
		return nil, err
	}
	f, err := m.forkCut(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	return f.finish(ctx, m)
}

// forkCut cuts a sandbox and makes children of the cut.
func (m *Manager) forkCut(ctx context.Context, id string, spec ForkSpec) (*forking, error) {
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
	src := &source{snap: p.Snapshot().Retain(), engine: m.engine(man.VCPUs)}
	p.Abort() // the children keep it
	defer src.snap.Release()
	spec.Tag = b.tag
	return m.forkFrom(ctx, src, spec)
}
