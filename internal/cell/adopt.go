package cell

import (
	"fmt"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Adopt has a snapshot that was opened be what machines of a found source were forked
// from, as the source's note says: the next ones are forked from that source, and nothing
// is sent again. Which layer is which the cell tells, whose machines alone see them.
func (c *Cell) Adopt(s FoundSource, snap *snapshot.Snapshot) error {
	if err := checkFound(s.spec, snap.Manifest); err != nil {
		return err
	}
	var ids []uint64
	var layers []*page.Layer
	for _, x := range []struct {
		wire.Stack
		of *page.Stack
	}{{s.spec.Memory, snap.Memory}, {s.spec.Scratch, snap.Scratch}, {s.spec.Root, snap.Root}} {
		if len(x.Layers) != len(x.of.Layers()) {
			return fmt.Errorf("%w: %d layers, instead of %d", wire.ErrMalformed, len(x.Layers), len(x.of.Layers()))
		}
		ids, layers = append(ids, x.Layers...), append(layers, x.of.Layers()...)
	}
	known, err := c.adopt(s, snap, ids, layers)
	switch {
	case err != nil:
		return err
	case known:
		c.DropSource(s)
	default:
		snap.OnRelease(func() { c.dropSource(s.spec, snap) })
	}
	c.foundExtent(s.ID, extentOf(snap))
	return nil
}

// adopt notes the source of a snapshot, and the numbers of its layers, unless the snapshot
// has one already.
func (c *Cell) adopt(s FoundSource, snap *snapshot.Snapshot, ids []uint64, layers []*page.Layer) (known bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sources == nil {
		return false, c.why
	}
	if c.sources[snap] != nil {
		return true, nil
	}
	o := &source{id: s.ID, ready: make(chan struct{})}
	close(o.ready)
	c.sources[snap] = o
	for i, l := range layers {
		if h := c.layers[ids[i]]; h != nil {
			h.uses++
			continue
		}
		if ids[i]&wire.SealedBit != 0 {
			continue // the cell keeps it as long as need be
		}
		l.Retain()
		c.layers[ids[i]] = &held{l, 1}
		if _, ok := c.numbers[l]; !ok {
			c.numbers[l] = ids[i]
		}
	}
	return false, nil
}

// checkFound refuses what is not a source of machines that man describes.
func checkFound(d wire.Source, man *snapshot.Manifest) error {
	if len(d.Root.Layers) != 1 || int64(d.Root.Limit)*page.Size != man.Root.Size {
		return fmt.Errorf("%w: %d root images of %d pages, instead of one of %d bytes", wire.ErrMalformed, len(d.Root.Layers), d.Root.Limit, man.Root.Size)
	}
	return checkSource(d, extent{man.Memory.Pages, man.Scratch.Pages})
}

// foundExtent notes how many pages the machines of a found source have.
func (c *Cell) foundExtent(source uint64, e extent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.vms {
		if v.source == source {
			v.mu.Lock()
			v.size = e
			v.mu.Unlock()
		}
	}
}
