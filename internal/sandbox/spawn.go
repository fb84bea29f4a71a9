package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// spawn makes one sandbox. It is not registered yet.
func (m *Manager) spawn(ctx context.Context, src *snapshot.Snapshot, c birth) (*box, error) {
	boxes, errs := m.spawnAll(ctx, src, []birth{c})
	return boxes[0], errs[0]
}

// spawnAll makes sandboxes that have their terms in common; there is one or an error for
// each birth. They are not registered yet.
func (m *Manager) spawnAll(ctx context.Context, src *snapshot.Snapshot, births []birth) ([]*box, []error) {
	boxes, errs := make([]*box, len(births)), make([]error, len(births))
	do := func(from, to int) {
		made, err := m.spawnInto(ctx, src, births[from:to], boxes[from:to])
		for i := range births[from:to] {
			if errs[from+i] = err; err == nil {
				errs[from+i] = m.spawnError(made[i])
			}
			if errs[from+i] != nil {
				boxes[from+i] = nil
			}
		}
	}
	if m.opts.Engine.Each {
		each(len(births), func(i int) {
			// A cell begins with work: where many requests come at once, all would be late, and some so
			// late that they seem not to answer.
			select {
			case m.turns <- struct{}{}:
				defer func() { <-m.turns }()
			case <-ctx.Done(): // it is told
			}
			do(i, i+1)
		})
	} else {
		do(0, len(births))
	}
	return boxes, errs
}

// spawnInto makes sandboxes in one cell, and in another if that turns out not to answer: what it makes
// of them when it goes on is closed.
func (m *Manager) spawnInto(ctx context.Context, src *snapshot.Snapshot, births []birth, boxes []*box) ([]error, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	home, err := m.cellFor(ctx, src)
	if err != nil {
		return nil, err
	}
	errs, err := m.spawnIn(ctx, home, src, births, boxes)
	if err != nil || !errors.Is(errs[0], cell.ErrSilent) || home.Answers(ctx) == nil {
		return errs, err
	}
	another, err := m.cellFor(ctx, src)
	if err != nil || another == home {
		return errs, err
	}
	return m.spawnIn(ctx, another, src, births, boxes)
}

// spawnIn makes sandboxes in a cell.
func (m *Manager) spawnIn(ctx context.Context, home *cell.Cell, src *snapshot.Snapshot, births []birth, boxes []*box) ([]error, error) {
	common, err := json.Marshal(births[0].terms.note())
	if err != nil {
		return nil, err
	}
	limits := births[0].limits
	spec := cell.Spec{
		MemoryPages: limits.MemoryMiB << (20 - page.Shift), Limits: limits.machine(scratchBytes(src)),
		Common: common, Children: make([]cell.Child, len(births)),
	}
	if m.opts.Engine.Each {
		if err := confine(home, limits); err != nil {
			home.Quit()
			return nil, m.spawnError(err)
		}
		spec.MemoryPages = 0
	}
	for i, c := range births {
		b := m.newBox(src.Manifest, c)
		note, err := json.Marshal(b.noteNow())
		if err != nil {
			return nil, err
		}
		spec.Children[i] = cell.Child{Note: note}
		boxes[i] = b
	}
	vms, errs := home.Fork(ctx, src, func() (json.RawMessage, error) { return json.Marshal(sourceNote{src.Manifest}) }, spec)
	for i, b := range boxes {
		if errs[i] == nil {
			b.enter(vms[i], src)
			b.untouched()
		}
	}
	return errs, nil
}

// cellMemory is what a cell takes of the host's memory besides its machine's.
const cellMemory = 96 << 20

// confine has the host's kernel limit the cell of one sandbox, whose engine cannot do it.
func confine(home *cell.Cell, l Limits) error {
	if l.MemoryMiB == 0 && l.CPUs == 0 && l.CPUWeight == 0 {
		return nil
	}
	outer := jail.Limits{CPUWeight: l.CPUWeight, CPUMilli: int(l.CPUs * 1000)}
	if l.MemoryMiB > 0 {
		outer.MemoryBytes = int64(l.MemoryMiB)<<20 + cellMemory
	}
	return home.Limit(outer)
}

// scratchBytes returns the size of a snapshot's scratch disk.
func scratchBytes(s *snapshot.Snapshot) int64 { return int64(s.Manifest.Scratch.Pages) * page.Size }

// cellFor returns the cell in which children of a snapshot live. Those of a branch that
// is in the memory of a cell live there, if they can.
func (m *Manager) cellFor(ctx context.Context, src *snapshot.Snapshot) (*cell.Cell, error) {
	if cut, ok := src.Cut.(*cell.Cut); ok && !m.opts.Engine.Each {
		return cut.Cell(), nil
	}
	key := ""
	if layers := src.Manifest.Memory.Layers; len(layers) > 0 {
		key = layers[0].Digest
	}
	home, err := m.cells.Shared(ctx, key)
	if err != nil {
		return nil, wrap(err, "finding a process for machines")
	}
	return home, nil
}

// spawnError explains why a machine could not be made.
func (m *Manager) spawnError(err error) error {
	if errors.Is(err, engine.ErrNoQuota) {
		return fail(Unsupported, "leave the limits out, or give the daemon a cgroup: `forkd doctor` tells more",
			"the %s engine cannot limit a sandbox's memory and processors here: %s", m.opts.Engine.Name, err)
	}
	if err != nil {
		return fmt.Errorf("restoring machine: %w", err)
	}
	return nil
}

// newBox returns a sandbox that has no machine yet.
func (m *Manager) newBox(man *snapshot.Manifest, c birth) *box {
	b := &box{
		terms:     c.terms,
		id:        c.id,
		tag:       c.tag,
		base:      cmp.Or(c.base, c.tag),
		first:     cmp.Or(c.first, c.base, c.tag),
		source:    man.BranchedFrom,
		names:     c.names,
		manifest:  man,
		engine:    m.opts.Engine.Name,
		created:   c.created,
		restored:  time.Now(),
		idling:    idling{last: time.Now()},
		workspace: c.workspace,
		pausedAt:  c.pausedAt,
		fleeting:  c.fleeting,
		life:      c.life,
		closed:    make(chan struct{}),
		notes:     &m.notes,
		turn:      make(chan struct{}, 1),
		called:    make(chan struct{}),
		awake:     make(chan struct{}),
	}
	b.doomed, b.doom = context.WithCancel(context.Background())
	if c.source != nil {
		b.source = *c.source
	}
	if b.names == (names{}) {
		b.names = newNames()
	}
	b.turn <- struct{}{}
	return b
}

// inhabit gives the sandbox its machine.
func (b *box) inhabit(v *cell.VM) {
	b.machine, b.agent = v, agent.NewClient(v.Open).Lines(v.OpenLine).Watched(b.watch)
}

// enter gives the sandbox its machine, which was made of a snapshot.
func (b *box) enter(v *cell.VM, snap *snapshot.Snapshot) {
	b.inhabit(v)
	b.snap = snap.Retain()
}

// untouched has the sandbox's runtime known as it is in its snapshot, which saves asking the guest.
func (b *box) untouched() {
	if man := b.snap.Manifest; man.Runtime != "" {
		b.agent.Adopt(wire.RuntimeInfo{Name: man.Runtime, Port: man.RuntimePort, Starts: max(1, man.RuntimeStarts), Alive: true})
	}
}
