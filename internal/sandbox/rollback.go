package sandbox

import (
	"context"
	"slices"
)

// Rollback puts a sandbox back to a snapshot that it descends from: the one that
// it runs from or was forked from, one that these stand on, or a branch of itself. It
// keeps its id, lifetime and limits; what happened in it since is gone, also
// commands that run. It may have ended by itself. If the rollback fails, the
// sandbox goes on as it was.
func (m *Manager) Rollback(ctx context.Context, id, tag string) (*Info, error) {
	b, done, err := m.exclusive(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	if b.relic != "" {
		return nil, fail(FailedPrecondition, b.remedy(), "sandbox %s has ended, and what it was made with is not known any more: %s", id, b.fate())
	}
	defer m.tags.share(tag)()
	src, err := m.source(tag)
	if err != nil {
		return nil, err
	}
	defer src.Release()
	if err := m.descends(b, tag); err != nil {
		return nil, err
	}
	if err := src.Intact(); err != nil {
		return nil, m.openError(tag, err)
	}
	next, err := m.spawn(ctx, src, birth{
		id: b.id, tag: tag, first: b.first, workspace: b.workspace, created: b.created, pausedAt: b.pausedAt, terms: b.terms,
		fleeting: true, // until it is in the place of the other
	})
	if err != nil {
		return nil, wrap(err, "rolling sandbox %s back to %q", id, tag)
	}
	if err := next.activate(ctx); err != nil {
		next.close()
		return nil, wrap(err, "rolling sandbox %s back to %q", id, tag)
	}
	if err := m.replace(b, next); err != nil {
		next.close()
		return nil, err
	}
	info := next.info()
	return &info, nil
}

// descends refuses a snapshot that is not of a sandbox's own past.
func (m *Manager) descends(b *box, tag string) error {
	if tag == b.tag {
		return nil
	}
	past := m.past(b)
	if slices.Contains(past, tag) {
		return nil
	}
	hint := "no snapshot that it descends from is left"
	if len(past) > 0 {
		hint = "it can go back to " + shorten(past)
	}
	return fail(FailedPrecondition, hint, "sandbox %s does not descend from snapshot %q", b.id, tag)
}

// past lists the snapshots that a sandbox descends from and that are there, each
// once.
func (m *Manager) past(b *box) (tags []string) {
	for _, tag := range []string{b.tag, b.first} {
		tags = append(tags, tag)
		if chain, err := m.store.Chain(tag); err == nil {
			tags = append(tags, chain.Ancestors...)
		}
	}
	for _, e := range m.store.List() {
		if e.Manifest != nil && e.Manifest.BranchedFrom == b.id {
			tags = append(tags, e.Tag)
		}
	}
	seen := make(map[string]bool)
	return slices.DeleteFunc(tags, func(tag string) bool {
		again := seen[tag]
		seen[tag] = true
		return again || !m.store.Exists(tag)
	})
}

// rolledBack is the error for a call that a rollback has cut short.
func rolledBack(id string) *Error {
	return fail(Unavailable, "call again if it is still wanted", "a rollback of sandbox %s ended this call; the sandbox runs on", id)
}

// replace puts another machine in the place of a sandbox's.
func (m *Manager) replace(b, next *box) error {
	if err := m.exchange(b, next); err != nil {
		return err
	}
	m.journal.Began(siblings(next)...)
	next.note() // before the other one ends: should the daemon do so too, one of them stays
	next.machine.OnEnd(func() { m.retire(next) })
	m.end(b, reasonRolled)
	return nil
}

// exchange has a sandbox be another box, of which its cell does not know yet.
func (m *Manager) exchange(b, next *box) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.boxes[b.id] != b {
		return fail(NotFound, "", "sandbox %s was ended while it was rolled back", b.id)
	}
	m.boxes[b.id] = next
	b.mu.Lock()
	life := b.life // as of now
	b.mu.Unlock()
	next.mu.Lock()
	defer next.mu.Unlock()
	next.life, next.fleeting = life, false
	m.arm(next)
	return nil
}
