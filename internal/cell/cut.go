package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

var _ snapshot.Cut = (*Cut)(nil)

// Cut is a machine at one instant, whose pages are in its cell (snapshot.Cut).
type Cut struct {
	cell  *Cell
	spec  wire.Source
	state []byte
	refs  atomic.Int64

	noteOnce sync.Once
	noteErr  error // written by noteOnce

	mu    sync.Mutex               // a leaf, as Cell.mu is
	bases [2]int                   // of the last Stacks; guarded by mu
	names map[*page.Layer][]uint64 // what layers of Stacks are in the cell, of those that it has numbered; guarded by mu
}

// note has the cell know, once, what a later daemon is to know of a cut.
func (c *Cut) note(note func() (json.RawMessage, error)) error {
	c.noteOnce.Do(func() {
		n := wire.Note{Source: c.spec.ID}
		if n.Note, c.noteErr = c.cell.sourceNote(n.Source, note); c.noteErr == nil {
			c.noteErr = c.cell.tell(wire.OpNote, n, nil)
		}
	})
	return c.noteErr
}

// cut makes the machine a source, which the caller releases. The cell stays until then.
func (v *VM) cut(ctx context.Context, live bool) (made *Cut, err error) {
	c := v.cell
	c.need()
	defer func() {
		if err != nil {
			c.unneed()
		}
	}()
	cut := &Cut{cell: c}
	cut.refs.Store(1)
	ask := wire.Cut{VM: v.id, Source: c.number(), Live: live}
	drop := func() { _ = c.tell(wire.OpDrop, wire.Ref{ID: ask.Source}, nil) } // a cell that is gone has none
	state, err := c.call(ctx, request{op: wire.OpCut, body: ask, undo: drop}, &cut.spec)
	if err == nil && cut.spec.ID != ask.Source {
		err = fmt.Errorf("%w: source %d instead of %d", wire.ErrMalformed, cut.spec.ID, ask.Source)
	}
	if err == nil {
		err = checkSource(cut.spec, v.extent())
	}
	if errors.Is(err, wire.ErrMalformed) {
		drop()
	}
	if err != nil {
		return nil, err
	}
	cut.state = state
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, stack := range []wire.Stack{cut.spec.Memory, cut.spec.Scratch, cut.spec.Root} {
		for _, id := range stack.Layers {
			if h := c.layers[id]; h != nil {
				h.uses++
			}
		}
	}
	return cut, nil
}

// State returns the saved state of vCPUs and devices.
func (c *Cut) State() []byte { return c.state }

// Cell returns the cell that the cut is in.
func (c *Cut) Cell() *Cell { return c.cell }

// Limits returns how many pages RAM and scratch disk have.
func (c *Cut) Limits() (memory, scratch page.Number) {
	return c.spec.Memory.Limit, c.spec.Scratch.Limit
}

// Layers is that of snapshot.Cut.
func (c *Cut) Layers() (depth int, digests []page.Digest) {
	c.cell.mu.Lock()
	defer c.cell.mu.Unlock()
	for _, stack := range []wire.Stack{c.spec.Memory, c.spec.Scratch} {
		for _, id := range stack.Layers {
			if h := c.cell.layers[id]; h != nil {
				digests = append(digests, h.layer.Digest())
			} else if f, ok := c.cell.saved.of[id]; ok {
				digests = append(digests, f.digest)
			}
		}
	}
	return max(0, len(c.spec.Memory.Layers)-1), digests
}

// Retain takes another reference, and Release gives one up.
func (c *Cut) Retain() {
	if c.refs.Add(1) <= 1 {
		panic("BUG: cut used after its release")
	}
}

func (c *Cut) Release() {
	switch n := c.refs.Add(-1); {
	case n == 0:
		_ = c.cell.tell(wire.OpDrop, wire.Ref{ID: c.spec.ID}, nil) // a cell that is gone has forgotten it
		c.cell.unuse(c.spec)
		c.cell.unneed()
	case n < 0:
		panic("BUG: cut released twice")
	}
}

// extent is how many pages the address spaces of a machine have.
type extent struct{ memory, scratch page.Number }

// checkSource refuses what no source is that machines of such an extent make.
func checkSource(d wire.Source, e extent) error {
	for _, x := range []struct {
		wire.Stack
		limit page.Number
	}{{d.Memory, e.memory}, {d.Scratch, e.scratch}} {
		if x.Limit != x.limit || x.Base < 0 || x.Base > len(x.Layers) || len(x.Layers) > wire.MaxLayers {
			return fmt.Errorf("%w: %d layers over %d of %d pages, instead of at most %d layers of %d pages",
				wire.ErrMalformed, len(x.Layers), x.Base, x.Limit, wire.MaxLayers, x.limit)
		}
	}
	return nil
}

// where is where the daemon has a layer of a cell from.
type where int

const (
	sent    where = iota // it has sent it
	stored               // it is in the store
	removed              // it was, and nobody there needs it any more
	sealed               // nobody has written it down
)

// layer returns a reference to a layer of so many pages that a cut is made of.
func (c *Cell) layer(ctx context.Context, id uint64, limit page.Number) (l *page.Layer, from where, err error) {
	c.mu.Lock()
	if h := c.layers[id]; h != nil {
		h.layer.Retain()
		c.mu.Unlock()
		return h.layer, sent, nil
	}
	file, saved := c.saved.of[id]
	c.mu.Unlock()
	from = sealed
	if saved {
		if l, err = c.host.opts.OpenLayer(file.digest); err == nil {
			return l, stored, nil
		}
		from = removed
	}
	l, err = c.fetch(ctx, id, limit)
	return l, from, err
}

// fetchRate is how many pages a cell is expected to hand over in a second, at the very least.
const fetchRate = (16 << 20) / page.Size

// fetch gets the pages of a layer of so many pages that only the cell has.
func (c *Cell) fetch(ctx context.Context, id uint64, limit page.Number) (*page.Layer, error) {
	f, err := memfile()
	if err != nil {
		return nil, err
	}
	var got wire.Fetched
	within := AnswerTime + time.Duration(limit)*time.Second/fetchRate
	numbers, err := c.call(ctx, request{op: wire.OpFetch, body: wire.Ref{ID: id}, files: []*os.File{f}, within: within}, &got)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("fetching pages from cell %s: %w", c.Name, err)
	}
	if err = final(f, got.Stored); err == nil && got.Limit != limit {
		err = fmt.Errorf("%w: a layer for %d pages in a stack of %d", wire.ErrMalformed, got.Limit, limit)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("fetching pages from cell %s: %w", c.Name, err)
	}
	l, err := wire.OpenLayer(f, wire.Layer{ID: id, Kind: page.Pages, Limit: got.Limit, Stored: got.Stored}, numbers)
	if err != nil {
		return nil, fmt.Errorf("fetching pages from cell %s: %w", c.Name, err)
	}
	l.OnFree(func() {
		if d := l.Digest(); d != (page.Digest{}) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.saved.put(id, file{digest: d})
		}
	})
	return l, nil
}

// final has a file that a cell has written so many pages to stay as it is, although the
// cell may have kept it: what is hashed is what children see.
func final(f *os.File, pages int) error {
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("%w: sealing pages: %w", wire.ErrMalformed, err)
	}
	return allocated(f, pages)
}

// allocated refuses a file in memory that has fewer than so many pages: the others would
// take the daemon's memory when they are read.
func allocated(f *os.File, pages int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	const block = 512 // stat(2)
	if has := st.Blocks * block / page.Size; has < int64(pages) {
		return fmt.Errorf("%w: %d pages of which %d are there", wire.ErrMalformed, pages, has)
	}
	return nil
}

// stacksTime is how long a cell may take to hand over a cut, besides what its pages take.
var stacksTime = AnswerTime // tests make it shorter

// Stacks fetches what the cell alone has, and returns references to the stacks of RAM
// and scratch disk.
func (c *Cut) Stacks(ctx context.Context) (memory, scratch *page.Stack, err error) {
	m, s := c.Limits()
	within := stacksTime + time.Duration(m+s)*time.Second/fetchRate
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("cell %s does not hand over a cut within %s", c.cell.Name, within))
	defer cancel()
	const tries = 100 // the cell puts its layers in order, but not all the time
	for range tries {
		if memory, scratch, err = c.stacks(ctx); !errors.Is(err, wire.ErrNoLayer) {
			break
		}
	}
	return memory, scratch, err
}

func (c *Cut) stacks(ctx context.Context) (memory, scratch *page.Stack, err error) {
	now, err := c.now(ctx)
	if err != nil {
		return nil, nil, err
	}
	if memory, err = c.stack(ctx, now.Memory); err != nil {
		return nil, nil, err
	}
	if scratch, err = c.stack(ctx, now.Scratch); err != nil {
		memory.Release()
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bases = [2]int{now.Memory.Base, now.Scratch.Base}
	return memory, scratch, nil
}

// now asks which layers the cut consists of.
func (c *Cut) now(ctx context.Context) (now wire.Source, err error) {
	if _, err := c.cell.call(ctx, request{op: wire.OpStacks, body: wire.Ref{ID: c.spec.ID}}, &now); err != nil {
		return now, fmt.Errorf("asking cell %s for the layers of a cut: %w", c.cell.Name, err)
	}
	return now, checkSource(now, extent{c.spec.Memory.Limit, c.spec.Scratch.Limit})
}

func (c *Cut) stack(ctx context.Context, d wire.Stack) (*page.Stack, error) {
	var b builder
	defer b.release()
	for i, id := range d.Layers {
		l, from, err := c.cell.layer(ctx, id, d.Limit)
		if err != nil {
			return nil, err
		}
		if i < d.Base && from == removed {
			from = stored // it is not the machine's own
		}
		if b.add(l, id, from); l.Limit() != d.Limit {
			return nil, fmt.Errorf("%w: a layer for %d pages in a stack of %d", wire.ErrMalformed, l.Limit(), d.Limit)
		}
	}
	b.flush()
	c.name(b.layers, b.ids)
	empty := page.NewStack(d.Limit)
	defer empty.Release()
	var stack *page.Stack
	err := page.Guard(func() error {
		stack = empty.Push(b.layers...)
		return nil
	})
	return stack, err
}

// builder puts the layers of a stack together. Those that were written for branches which
// have been removed, and what lies on them, become one: nobody needs them apart.
type builder struct {
	layers []*page.Layer // a reference each
	ids    [][]uint64    // parallel to layers

	gone    []*page.Layer // not in layers yet; a reference each
	goneIDs []uint64
}

// add takes over a reference to the next layer.
func (b *builder) add(l *page.Layer, id uint64, from where) {
	switch {
	case from == removed:
		b.gone, b.goneIDs = append(b.gone, l), append(b.goneIDs, id)
	case from == sealed && len(b.gone) > 0:
		b.gone, b.goneIDs = append(b.gone, l), append(b.goneIDs, id)
		b.flush()
	default:
		b.flush()
		b.layers, b.ids = append(b.layers, l), append(b.ids, []uint64{id})
	}
}

// flush makes one layer of those that are gone.
func (b *builder) flush() {
	if len(b.gone) == 0 {
		return
	}
	whole := b.gone[0]
	if len(b.gone) > 1 {
		whole = page.Merge(b.gone...)
		for _, l := range b.gone {
			l.Release()
		}
	}
	b.layers, b.ids = append(b.layers, whole), append(b.ids, b.goneIDs)
	b.gone, b.goneIDs = nil, nil
}

func (b *builder) release() {
	for _, l := range append(b.layers, b.gone...) {
		l.Release()
	}
}

// name remembers which layers of the cell's those of a stack are, as long as they are
// there. Layers that the cell was sent have no name: they stay as they are.
func (c *Cut) name(layers []*page.Layer, ids [][]uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names == nil {
		c.names = make(map[*page.Layer][]uint64)
	}
	for i, l := range layers {
		if _, known := c.names[l]; known || ids[i][0]&wire.SealedBit == 0 {
			continue
		}
		c.names[l] = ids[i]
		l.OnFree(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.names, l)
		})
	}
}

// Bases is that of snapshot.Cut.
func (c *Cut) Bases() (memory, scratch int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bases[0], c.bases[1]
}
