package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
)

// lookup returns a sandbox that is not paused, or nil.
func (m *Manager) lookup(id string) *box {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[id]
}

// box returns a sandbox that is not paused.
func (m *Manager) box(id string) (*box, error) {
	if b := m.lookup(id); b != nil {
		return b, nil
	}
	if _, ok := m.saved(id); ok {
		return nil, pausedError(id)
	}
	return nil, m.noSandbox(id)
}

// noSandbox is the error of those who ask for a sandbox that is not known.
func (m *Manager) noSandbox(id string) *Error {
	hint := "`forkd ls` lists the sandboxes"
	if c := m.dark(); c != nil {
		hint = fmt.Sprintf("process %d does not answer yet, and may have sandboxes that the journal, which is damaged or lacks something, does not tell of", c.PID)
	}
	if _, ok := m.spaces.Get(id); ok {
		hint = fmt.Sprintf("%q is a workspace: use `forkd workspace exec` and `forkd workspace eval`", id)
		if b := m.occupant(id); b != nil {
			hint += ", or its sandbox, " + b.id
		}
	}
	if reason := m.journal.Reason(id); reason != "" {
		return fail(NotFound, hint, "there is no sandbox %q any more: %s", id, reason)
	}
	return fail(NotFound, hint, "there is no sandbox %q", id)
}

// Sandboxes lists the sandboxes, paused ones too, oldest first.
func (m *Manager) Sandboxes() []Info {
	m.cells.Refresh()
	// In this order: what is paused in between is in both.
	m.mu.Lock()
	boxes := maps.Clone(m.boxes)
	m.mu.Unlock()
	paused := m.paused.All()
	infos := make([]Info, 0, len(boxes)+len(paused))
	for _, b := range boxes {
		infos = append(infos, b.info())
	}
	for _, r := range paused {
		if boxes[r.ID] == nil && r.SnapshotTag != "" {
			infos = append(infos, r.info())
		}
	}
	slices.SortFunc(infos, func(a, b Info) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	return infos
}

// Sandbox describes one sandbox.
func (m *Manager) Sandbox(id string) (*Info, error) {
	if b := m.lookup(id); b != nil {
		b.machine.Refresh() // takes a moment, in which it may be paused
	}
	if b := m.lookup(id); b != nil {
		info := b.info()
		return &info, nil
	}
	r, ok := m.saved(id)
	if !ok {
		return nil, m.noSandbox(id)
	}
	info := r.info()
	if e := m.store.Inspect(r.SnapshotTag); e.Err != nil {
		info.Reason = e.Err.Error()
	}
	return &info, nil
}

// Known is Sandbox for somebody to whom it matters what only the process of a sandbox knows of it: it waits for
// one that is Untold, and fails if its process does not answer.
func (m *Manager) Known(ctx context.Context, id string) (*Info, error) {
	if _, err := m.here(ctx, id); err != nil && !hasCode(err, SandboxPaused) {
		return nil, err
	}
	return m.Sandbox(id)
}

// Environment returns the variables that everything in a sandbox has. They are not
// to be changed.
func (m *Manager) Environment(id string) (map[string]string, error) {
	if b := m.lookup(id); b != nil {
		if b.arrival != nil {
			return nil, wrap(untold(b.arrival.cell), "asking for the environment of sandbox %s", id)
		}
		return b.env, nil
	}
	if r, ok := m.saved(id); ok {
		return r.Env, nil
	}
	return nil, m.noSandbox(id)
}

// Kill ends a sandbox, running or paused. When it returns its memory has been
// freed, and what was saved of it; if the latter cannot be, that is the error, and the
// sandbox is paused. A running workspace is in use: what it has done since its last
// suspension would be lost without a word.
func (m *Manager) Kill(id string) error {
	b := m.lookup(id)
	if b != nil && b.workspace != "" && b.state() == Running {
		return fail(InUse, fmt.Sprintf("`forkd workspace suspend %s` keeps its state, `forkd workspace rm %s` gives it up", b.workspace, b.workspace),
			"sandbox %s is workspace %q, which runs", id, b.workspace)
	}
	m.drop(b, reasonKilled)
	// A pause that is under way gives up now; a resume that is ends first.
	free, err := m.turn(context.Background(), id)
	if err != nil {
		return err
	}
	defer free()
	if _, ok := m.pausedOf(id); b == nil && !ok && m.lookup(id) == nil {
		return m.noSandbox(id)
	}
	m.drop(m.lookup(id), reasonKilled)
	if err := m.forget(id); err != nil {
		return err
	}
	m.journal.Gone(reasonKilled, id)
	return nil
}
