package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Found is a cell that an earlier daemon has left.
type Found struct {
	Cell    *Cell
	Sources []FoundSource
	VMs     []FoundVM
}

// FoundSource is what machines in a found cell were forked from.
type FoundSource struct {
	ID   uint64
	Note json.RawMessage
	spec wire.Source
}

// FoundVM is a machine in a found cell.
type FoundVM struct {
	*VM
	Source       uint64 // 0: it was booted, for somebody who is gone
	Common, Note json.RawMessage
}

// Recover connects to the cells of an earlier daemon, which are to be taken over (see TakeOver), and
// waits for none of them. Those that cannot be it ends; of these and of what is gone already it tells
// why, by name. It comes before any cell is started.
func (h *Host) Recover() (cells []*Cell, lost map[string]error, err error) {
	records, lost, err := h.records()
	if err != nil {
		return nil, nil, fmt.Errorf("looking for cells: %w", err)
	}
	var inmates []*jail.Process
	for _, r := range records {
		c, err := h.reach(r)
		if err != nil {
			lost[r.Name] = fmt.Errorf("%w: process %d %w", ErrLost, r.PID, err)
			h.opts.Log.Warn("what lived in a cell is lost", "cell", r.Name, "process", r.PID, "error", err)
			if err := r.kill(); err != nil {
				h.opts.Log.Warn("ending a cell", "cell", r.Name, "error", err)
			}
			h.erase(r.Name)
			continue
		}
		cells = append(cells, c)
		if r.Jail != nil {
			inmates = append(inmates, r.Jail)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearTime)
	defer cancel()
	if err := h.opts.Launch.Recover(ctx, inmates); err != nil {
		h.opts.Log.Warn("removing what is left of cells", "error", err)
	}
	return cells, lost, nil
}

// reach connects to a cell of an earlier daemon, which stays until it is taken over. The error tells what
// has become of its process, or does when the caller has ended it.
func (h *Host) reach(r record) (*Cell, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	c, err := connect(h, r.Name, h.path(r.Name, socketSuffix), &process{identity: r.identity, inmate: r.Jail})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errEnded, notTakenOver(err))
	}
	c.seal, c.former = r.Seal, &r
	c.need()
	c.sign() // from now on it owes one
	if err := h.enter(c, ""); err != nil {
		return nil, fmt.Errorf("%w: %w", errEnded, notTakenOver(err))
	}
	return c, nil
}

// notTakenOver is why a process is ended.
func notTakenOver(err error) error { return fmt.Errorf("it could not be taken over: %w", err) }

// TakeOver takes over a cell that Recover has connected to, and waits as long as the cell takes: one that
// the host has stopped tells what it has when it goes on. One that makes no sense is ended. If ctx ends
// first the cell is left as it is, and so are its machines.
func (c *Cell) TakeOver(ctx context.Context) (*Found, error) {
	f := &Found{Cell: c}
	err := c.greet(ctx, forever)
	if err == nil {
		if err = f.list(ctx); err != nil {
			err = fmt.Errorf("asking cell %s for what it has: %w", c.Name, err)
		}
	}
	switch {
	case err == nil:
		defer c.unneed()
		return f, c.takenOver(f)
	case ctx.Err() == nil && !errors.Is(err, ErrLost):
		c.End(notTakenOver(err))
		<-c.gone
		err = c.Gone()
	}
	return nil, err
}

// takenOver has a cell be what it was before.
func (c *Cell) takenOver(f *Found) error {
	r, h := c.former, c.host
	c.former = nil
	// What lives in one that is not confined goes on; nothing more is put into it.
	usable := r.Jail != nil || !h.opts.Launch.Confines()
	if !usable {
		h.opts.Log.Warn("a cell of an earlier daemon is not confined", "cell", r.Name, "process", r.PID)
	}
	if r.Key == "" && len(f.VMs) == 0 {
		c.Quit() // it was kept ready, and this daemon makes its own
		return nil
	}
	if r.Key == "" || !usable {
		return nil
	}
	return h.enter(c, r.Key)
}

// maxState bounds what a cell may tell of what it has, in bytes.
const maxState = 1 << 30

// list hears what the cell has.
func (f *Found) list(ctx context.Context) error {
	total := 0
	for after, more := uint64(0), true; more; {
		m, err := f.Cell.ask(ctx, request{op: wire.OpList, body: wire.List{After: after}, within: forever})
		if err != nil {
			return err
		}
		closeAll(m.Files)
		var part wire.State
		if err := decode(m, &part); err != nil {
			return err
		}
		if total += len(m.Body); total > maxState {
			return fmt.Errorf("%w: more than %d bytes of what it has", wire.ErrMalformed, maxState)
		}
		if err := f.add(&part, after); err != nil {
			return err
		}
		more = part.Next != 0
		if more && part.Next <= after {
			return fmt.Errorf("%w: what comes after %d ends at %d", wire.ErrMalformed, after, part.Next)
		}
		after = part.Next
	}
	return nil
}

// add takes note of what the cell has behind a number.
func (f *Found) add(part *wire.State, after uint64) error {
	last := after
	for _, s := range part.Sources {
		if s.ID <= last {
			return fmt.Errorf("%w: source %d after %d", wire.ErrMalformed, s.ID, last)
		}
		last = s.ID
		if found, err := f.Cell.sourceFound(s); err != nil {
			f.refuse("source", s.ID, err)
			f.Cell.DropSource(found)
		} else {
			f.Sources = append(f.Sources, found)
		}
	}
	last = after
	for _, v := range part.VMs {
		if v.ID <= last || v.Common < 0 || v.Common > len(part.Common) {
			return fmt.Errorf("%w: machine %d after %d, with note %d of %d", wire.ErrMalformed, v.ID, last, v.Common, len(part.Common))
		}
		last = v.ID
		var common json.RawMessage
		if v.Common > 0 {
			common = part.Common[v.Common-1]
		}
		found, err := f.Cell.vmFound(v, common)
		if err != nil {
			f.refuse("machine", v.ID, err)
			go found.Close()
			continue
		}
		found.zero.Store(v.Zero)
		if v.Ended != nil {
			found.end(machine.Ending{Exit: engine.Exit(v.Ended.Exit), Err: v.Ended.Err.Failure()})
		}
		f.VMs = append(f.VMs, found)
	}
	return nil
}

// refuse tells that something in the cell is ended, because the cell does not tell of it
// what it was told.
func (f *Found) refuse(what string, id uint64, err error) {
	f.Cell.host.opts.Log.Warn("what lived in a cell is lost", "cell", f.Cell.Name, what, id, "error", err)
}

// Snapshot returns what machines of a found source were forked from, as a snapshot
// that man describes, however long the cell takes. The caller releases it.
func (c *Cell) Snapshot(ctx context.Context, s FoundSource, man *snapshot.Manifest) (*snapshot.Snapshot, error) {
	for {
		snap, err := c.found(ctx, s, man)
		if !errors.Is(err, ErrSilent) || !c.goesOn(ctx) {
			return snap, err
		}
	}
}

// found is Snapshot for a cell that answers.
func (c *Cell) found(ctx context.Context, s FoundSource, man *snapshot.Manifest) (*snapshot.Snapshot, error) {
	if err := checkFound(s.spec, man); err != nil {
		return nil, err
	}
	state, err := c.call(ctx, request{op: wire.OpReturn, body: wire.Ref{ID: s.ID}}, nil)
	if err != nil {
		return nil, fmt.Errorf("asking cell %s for a state: %w", c.Name, err)
	}
	// The cell may put its layers in order meanwhile.
	sealed, err := c.ownLayers(ctx, s.spec)
	if errors.Is(err, wire.ErrNoLayer) {
		var now wire.Source
		if _, err = c.call(ctx, request{op: wire.OpStacks, body: wire.Ref{ID: s.ID}}, &now); err == nil {
			err = checkFound(now, man)
		}
		if err == nil {
			s.spec = now
			sealed, err = c.ownLayers(ctx, s.spec)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("asking cell %s for a layer: %w", c.Name, err)
	}
	snap, err := c.snapshot(ctx, &Cut{cell: c, spec: s.spec, state: state}, sealed, man)
	if err != nil {
		c.unuse(s.spec)
		return nil, err
	}
	return snap, nil
}

// snapshot returns a snapshot of a cut, which is not released. It has some of its layers only
// in memory, or all of them in files.
func (c *Cell) snapshot(ctx context.Context, cut *Cut, sealed bool, man *snapshot.Manifest) (*snapshot.Snapshot, error) {
	root, err := cut.stack(ctx, cut.spec.Root)
	if err != nil {
		return nil, err
	}
	c.foundExtent(cut.spec.ID, extent{man.Memory.Pages, man.Scratch.Pages})
	if sealed {
		cut.refs.Store(1)
		c.need()
		return snapshot.InMemory(man, cut.state, cut, root), nil
	}
	memory, scratch, err := cut.Stacks(ctx)
	if err != nil {
		root.Release()
		return nil, err
	}
	snap := snapshot.Mapped(man, cut.state, memory, scratch, root)
	o := &source{id: cut.spec.ID, ready: make(chan struct{})}
	close(o.ready)
	c.mu.Lock()
	if c.sources != nil {
		c.sources[snap] = o
	}
	c.mu.Unlock()
	snap.OnRelease(func() { c.dropSource(cut.spec, snap) })
	return snap, nil
}

// DropSource has a found cell forget a source that nobody needs.
func (c *Cell) DropSource(s FoundSource) {
	_ = c.tell(wire.OpDrop, wire.Ref{ID: s.ID}, nil) // a cell that is gone has forgotten it
}

// ownLayers uses all layers of a source once more, or none. It reports whether there are
// some that have no file, because the cell has sealed them.
func (c *Cell) ownLayers(ctx context.Context, d wire.Source) (sealed bool, err error) {
	var used wire.Source
	for _, x := range [][2]*wire.Stack{{&used.Memory, &d.Memory}, {&used.Scratch, &d.Scratch}, {&used.Root, &d.Root}} {
		for _, id := range x[1].Layers {
			is, err := c.ownLayer(ctx, id, x[1].Limit)
			if err != nil {
				c.unuse(used)
				return false, err
			}
			sealed = sealed || is
			x[0].Layers = append(x[0].Layers, id)
		}
	}
	return sealed, nil
}

// ownLayer gets the file of a layer of so many pages that an earlier daemon has sent, and uses it once
// more. It reports a layer that has none, because the cell has sealed it.
func (c *Cell) ownLayer(ctx context.Context, id uint64, limit page.Number) (sealed bool, err error) {
	c.mu.Lock()
	h := c.layers[id]
	if h != nil {
		h.uses++
	}
	c.mu.Unlock()
	if h != nil {
		return false, nil
	}
	m, err := c.ask(ctx, request{op: wire.OpFile, body: wire.Ref{ID: id}})
	if err != nil {
		return false, err
	}
	var d wire.Layer
	if err := decode(m, &d); err != nil || d.Kind == page.Sealed {
		closeAll(m.Files)
		return true, err
	}
	switch {
	case len(m.Files) != 1:
		err = fmt.Errorf("%w: %d files for a layer", wire.ErrMalformed, len(m.Files))
	case d.Limit != limit:
		err = fmt.Errorf("%w: a layer for %d pages in a stack of %d", wire.ErrMalformed, d.Limit, limit)
	case d.Kind == page.Pages:
		err = allocated(m.Files[0], d.Stored)
	}
	if err != nil {
		closeAll(m.Files)
		return false, err
	}
	l, err := wire.OpenLayer(m.Files[0], d, m.Blob)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.layers == nil {
		l.Release()
		return false, c.why
	}
	c.layers[id], c.numbers[l] = &held{l, 1}, id
	return false, nil
}
