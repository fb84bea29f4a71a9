package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// kept is the part of a record that a sandbox can be started from again. Workspaces
// and paused sandboxes have one each.
type kept struct {
	SnapshotTag string   `json:"snapshot_tag,omitempty"` // it starts from; empty: it was not saved yet, or is removed
	OwnTags     []string `json:"own_tags,omitempty"`     // made for it; gone once it does not start from them
}

func (k kept) check() error {
	if k.SnapshotTag != "" && !snapshot.ValidTag(k.SnapshotTag) {
		return fmt.Errorf("bad tag %q", k.SnapshotTag)
	}
	if slices.ContainsFunc(k.OwnTags, func(tag string) bool { return !snapshot.ValidTag(tag) }) {
		return fmt.Errorf("bad tags %q", k.OwnTags)
	}
	return nil
}

// garbage returns the snapshots that were made for it and that it does not start
// from.
func (k kept) garbage() []string {
	return slices.DeleteFunc(slices.Clone(k.OwnTags), func(tag string) bool { return tag == k.SnapshotTag })
}

// keeper is somebody whose state a snapshot holds.
type keeper struct {
	kind *keeperKind
	name string
	kept
	runs string // tag of what its sandbox runs from, if it runs
}

// keeperKind is what people call a keeper, and the command that gives it up.
type keeperKind struct{ name, plural, remove string }

var (
	spaceKind   = keeperKind{"workspace", "s", "forkd workspace rm"}
	pausedKind  = keeperKind{"paused sandbox", "es", "forkd kill"}
	resumedKind = keeperKind{"resumed sandbox", "es", "forkd kill"}
)

// keepers lists the workspaces and the sandboxes that were paused.
func (m *Manager) keepers() (list []keeper) {
	runs := func(b *box) string {
		if b == nil {
			return ""
		}
		return b.tag
	}
	for _, w := range m.spaces.All() {
		list = append(list, keeper{&spaceKind, w.Name, w.kept, runs(m.occupant(w.Name))})
	}
	for _, r := range m.paused.All() {
		if r.SnapshotTag == "" {
			continue
		}
		b, kind := m.lookup(r.ID), &pausedKind
		if b != nil {
			kind = &resumedKind
		}
		list = append(list, keeper{kind, r.ID, r.kept, runs(b)})
	}
	return list
}

// keepersOf returns those who start from one of some snapshots or, having been
// rolled back, run from one.
func (m *Manager) keepersOf(tags ...string) []keeper {
	return slices.DeleteFunc(m.keepers(), func(k keeper) bool {
		return !slices.Contains(tags, k.SnapshotTag) && !slices.Contains(tags, k.runs)
	})
}

// keptFor names whose state a snapshot is that was made for it, if it is.
func (m *Manager) keptFor(tag string) string {
	if w, ok := m.spaces.Find(func(w spaceRecord) bool { return w.SnapshotTag == tag && slices.Contains(w.OwnTags, tag) }); ok {
		return w.Name
	}
	r, _ := m.paused.Find(func(r pausedRecord) bool { return r.SnapshotTag == tag })
	return r.ID
}

// restore has a sandbox run from a snapshot that holds its state. The caller
// shares the tag. What a cell makes of it when nobody waits for that any more is not taken over by a
// later daemon.
func (m *Manager) restore(ctx context.Context, c birth) (*box, error) {
	if err := m.certain(c.id); err != nil {
		return nil, err
	}
	c.fleeting = true
	src, err := m.source(c.tag)
	if err != nil {
		return nil, err
	}
	defer src.Release()
	if err := src.Intact(); err != nil {
		return nil, m.openError(c.tag, err)
	}
	done, err := m.admit(c.need("resuming " + c.id))
	if err != nil {
		return nil, err
	}
	defer done()
	b, err := m.spawn(ctx, src, c)
	if err != nil {
		return nil, err
	}
	if err := b.activate(ctx); err != nil {
		b.close()
		return nil, err
	}
	b.mu.Lock()
	b.fleeting = false
	b.mu.Unlock()
	b.note() // before anybody is told: should the daemon end now, it stays
	return b, m.register(b)
}

// save writes the state of a sandbox as a snapshot of its own and has its record
// name that, by put. The machine stands still from the instant on that is written;
// if anything fails it goes on, and the record names what it named before. Who
// saves ends the sandbox.
func (m *Manager) save(ctx context.Context, b *box, name, parent string, k kept, put func(kept) error) (_ kept, err error) {
	// Noted first, so that it is found should this be cut short.
	tag := name + "-" + randomHex(6)
	k.OwnTags = append(slices.DeleteFunc(slices.Clone(k.OwnTags), func(tag string) bool { return !m.store.Exists(tag) }), tag)
	if err := put(k); err != nil {
		return k, err
	}
	// Nobody removes it before it is named.
	free, err := m.claimTag(tag)
	if err != nil {
		return k, err
	}
	defer free()
	c := &cut{box: b}
	held, err := m.hold(ctx, b, c)
	if err != nil {
		return k, err
	}
	defer c.release()
	defer func() {
		if err != nil {
			b.machine.Start()
			m.letGo(held)
		} else {
			held.guest.Abandon() // nobody lets it go any more
		}
	}()
	if err := b.machine.Suspend(ctx); err != nil {
		return k, b.branchError(err)
	}
	if c.frozen, err = b.machine.Freeze(ctx); err != nil {
		return k, b.branchError(err)
	}
	man := c.manifest(m, BranchSpec{Tag: tag, Mode: BranchDiff})
	man.ParentTag = parent
	if err := m.store.Create(ctx, man, c.contents(false)); err != nil {
		return k, err
	}
	next := kept{tag, k.OwnTags}
	if err := put(next); err != nil {
		return k, err
	}
	return next, nil
}

// letGo releases a guest that has been held for longer than a moment.
func (m *Manager) letGo(h *held) {
	if _, err := h.release(); err != nil {
		m.opts.Log.Warn("letting a sandbox go on", "error", err)
	}
}

// dropOwn removes snapshots that were made for somebody who does not start from
// them any more, and returns those that are in use and stay.
func (m *Manager) dropOwn(tags []string) (left []string) {
	for _, tag := range tags {
		_, err := m.RemoveSnapshots([]string{tag}, RemoveOptions{})
		if err == nil || hasCode(err, NotFound) {
			continue
		}
		left = append(left, tag)
		if !hasCode(err, InUse) {
			m.opts.Log.Warn("removing a state that nobody starts from", "tag", tag, "error", err)
		}
	}
	return left
}

// sweepKept removes snapshots that nobody starts from: those of a pause or a
// suspension that was cut short, and those that were in use when they should have
// been removed.
func (m *Manager) sweepKept() {
	for _, w := range m.spaces.All() {
		m.dropOwn(w.garbage())
	}
	for _, r := range m.paused.All() {
		m.sweepPaused(r.ID)
	}
}

// sweepPaused is sweepKept for one sandbox, which somebody may be pausing.
func (m *Manager) sweepPaused(id string) {
	free, err := m.turn(context.Background(), id)
	if err != nil {
		return
	}
	defer free()
	r, ok := m.paused.Get(id)
	if !ok {
		return
	}
	if left := m.dropOwn(r.garbage()); r.SnapshotTag == "" && len(left) == 0 {
		if err := m.paused.Remove(r.ID); err != nil {
			m.opts.Log.Warn("removing a record of what was never paused", "id", r.ID, "error", err)
		}
	}
}

func hasCode(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}
