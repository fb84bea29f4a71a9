package cell

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// source is a snapshot as a cell knows it.
type source struct {
	id    uint64
	ready chan struct{} // closed when it was sent, or could not be
	err   error         // valid when ready is closed
}

// Spec is what machines are forked with.
type Spec struct {
	// MemoryPages bounds how many pages each has to itself; 0 is no bound.
	MemoryPages int
	Limits      machine.Limits
	Common      json.RawMessage // what a later daemon is to know of all of them
	Children    []Child
}

// Child is one machine that is wanted.
type Child struct {
	Note json.RawMessage // what a later daemon is to know of it
}

// forkTime is how long a cell may take to make machines.
var forkTime = time.Minute // tests make it shorter

// Fork makes machines of a snapshot; there is one or an error for each child. note is
// what a later daemon is to know of the snapshot. The errors wrap ErrSilent if the cell, or that of
// the snapshot, does not answer.
func (c *Cell) Fork(ctx context.Context, snap *snapshot.Snapshot, note func() (json.RawMessage, error), spec Spec) ([]*VM, []error) {
	vms, errs := make([]*VM, len(spec.Children)), make([]error, len(spec.Children))
	fail := func(err error) ([]*VM, []error) {
		for i := range errs {
			errs[i] = err
		}
		return vms, errs
	}
	c.need()
	defer c.unneed()
	if err := wire.CheckNote(spec.Common); err != nil {
		return fail(err)
	}
	id, err := c.load(ctx, snap, note)
	if err != nil {
		return fail(err)
	}
	ask := wire.Fork{Source: id, MemoryPages: spec.MemoryPages, Limits: spec.Limits, Note: spec.Common}
	var children []byte
	common, size := digestOf(spec.Common), extentOf(snap)
	for i, child := range spec.Children {
		w := wire.Child{ID: c.number()}
		rand.Read(w.Generation[:])
		of := subject{ofVM, w.ID, id, common}
		if w.Note, err = c.seal.close(of, child.Note); err == nil {
			children, err = w.AppendBinary(children)
		}
		if err != nil {
			return fail(err)
		}
		vms[i] = c.add(&VM{id: w.ID, source: id, common: common, size: size})
	}
	made := slices.Clone(vms)
	undo := func() { c.closeAll(made) }
	var born wire.Born
	// Who leaves now must not leave machines behind that nobody knows of.
	watched, stop := c.Watch(context.WithoutCancel(ctx), lateTime)
	defer stop()
	_, err = c.call(watched, request{op: wire.OpFork, body: ask, blob: children, within: forkTime, undo: undo}, &born)
	if errors.Is(err, wire.ErrMalformed) {
		undo()
	}
	for i, v := range vms {
		if errs[i] = err; err == nil {
			errs[i] = born.Errors[i].Failure()
		}
		v.age = time.Duration(born.Age)
		if errs[i] != nil {
			c.remove(v)
			vms[i] = nil
		}
	}
	return vms, errs
}

// extentOf returns how many pages machines of a snapshot have.
func extentOf(snap *snapshot.Snapshot) (e extent) {
	if snap.Cut != nil {
		e.memory, e.scratch = snap.Cut.Limits()
		return e
	}
	return extent{snap.Memory.Limit(), snap.Scratch.Limit()}
}

// add makes a machine known. If the cell is gone it has ended.
func (c *Cell) add(v *VM) *VM {
	v.cell, v.done = c, make(chan struct{})
	c.mu.Lock()
	lost := c.why
	if c.vms != nil {
		c.vms[v.id] = v
	}
	c.mu.Unlock()
	if lost != nil {
		v.end(machine.Ending{Err: lost})
	}
	return v
}

// remove forgets a machine that the cell does not have.
func (c *Cell) remove(v *VM) {
	c.mu.Lock()
	delete(c.vms, v.id)
	c.mu.Unlock()
	c.rest()
}

// closeAll has machines end that nobody waits for.
func (c *Cell) closeAll(vms []*VM) {
	for _, v := range vms {
		_ = c.tell(wire.OpClose, wire.Ref{ID: v.id}, nil) // a cell that is gone has none
	}
}

// load makes a snapshot known to the cell, once. Who leaves meanwhile leaves that to others.
func (c *Cell) load(ctx context.Context, snap *snapshot.Snapshot, note func() (json.RawMessage, error)) (uint64, error) {
	if cut, ok := snap.Cut.(*Cut); ok && cut.cell == c {
		return cut.spec.ID, cut.note(note)
	}
	c.mu.Lock()
	if c.calls == nil {
		defer c.mu.Unlock()
		return 0, c.why
	}
	o := c.sources[snap]
	if o == nil {
		o = &source{id: c.number(), ready: make(chan struct{})}
		c.sources[snap] = o
		snap.Retain()
		go c.sendFirst(o, snap, note)
	}
	c.mu.Unlock()
	select {
	case <-o.ready:
		return o.id, o.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// sendFirst sends a snapshot, to which it takes over a reference. If it cannot be sent the next
// who needs it tries again.
func (c *Cell) sendFirst(o *source, snap *snapshot.Snapshot, note func() (json.RawMessage, error)) {
	defer snap.Release()
	if o.err = c.sendSource(o.id, snap, note); o.err != nil {
		c.mu.Lock()
		delete(c.sources, snap)
		c.mu.Unlock()
	}
	close(o.ready)
}

// sendSource sends a snapshot, and has it dropped when nobody needs it any more.
func (c *Cell) sendSource(id uint64, snap *snapshot.Snapshot, note func() (json.RawMessage, error)) (err error) {
	memory, scratch, release, err := local(snap)
	if err != nil {
		return err
	}
	defer release()
	d := wire.Source{ID: id, VCPUs: snap.Manifest.VCPUs}
	defer func() {
		if err != nil {
			c.unuse(d)
		}
	}()
	if d.Note, err = c.sourceNote(id, note); err != nil {
		return err
	}
	for _, x := range []struct {
		to *wire.Stack
		of *page.Stack
	}{{&d.Memory, memory}, {&d.Scratch, scratch}, {&d.Root, snap.Root}} {
		if *x.to, err = c.sendStack(x.of); err != nil {
			return err
		}
	}
	if err := c.tell(wire.OpSource, d, snap.State); err != nil {
		return err
	}
	snap.OnRelease(func() { c.dropSource(d, snap) })
	return nil
}

// sourceNote returns the note of a source as the cell keeps it.
func (c *Cell) sourceNote(id uint64, note func() (json.RawMessage, error)) (json.RawMessage, error) {
	n, err := note()
	if err != nil {
		return nil, err
	}
	return c.seal.close(subject{kind: ofSource, id: id}, n)
}

// local returns a snapshot's stacks as this process knows them. A cell that has them has a time
// for each of them.
func local(snap *snapshot.Snapshot) (memory, scratch *page.Stack, release func(), err error) {
	if snap.Cut == nil {
		return snap.Memory, snap.Scratch, func() {}, nil
	}
	memory, scratch, err = snap.Cut.Stacks(context.Background())
	if err != nil {
		return nil, nil, nil, err
	}
	return memory, scratch, func() { memory.Release(); scratch.Release() }, nil
}

// dropSource has the cell forget a source. Its machines go on.
func (c *Cell) dropSource(d wire.Source, snap *snapshot.Snapshot) {
	c.mu.Lock()
	delete(c.sources, snap)
	c.mu.Unlock()
	_ = c.tell(wire.OpDrop, wire.Ref{ID: d.ID}, nil) // a cell that is gone has forgotten it
	c.unuse(d)
}

// sendStack sends the layers of a stack that the cell does not have.
func (c *Cell) sendStack(s *page.Stack) (wire.Stack, error) {
	d := wire.Stack{Limit: s.Limit(), Layers: make([]uint64, len(s.Layers()))}
	for i, l := range s.Layers() {
		var err error
		if d.Layers[i], err = c.sendLayer(l); err != nil {
			return d, err
		}
	}
	return d, nil
}

// sendLayer sends a layer unless the cell has it. Either way it is used once more.
func (c *Cell) sendLayer(l *page.Layer) (uint64, error) {
	// Whoever else needs the layer names it after it was sent.
	c.sending.Lock()
	defer c.sending.Unlock()
	if id, ok := c.reuse(l); ok {
		return id, nil
	}
	id := c.number()
	d := wire.Layer{ID: id, Kind: l.Kind(), Limit: l.Limit()}
	f, blob := l.File(), []byte(nil)
	if d.Kind == page.Sealed {
		var err error
		if f, err = pagesOf(l); err != nil {
			return 0, err
		}
		defer f.Close()
		d.Kind = page.Pages
	}
	if d.Kind == page.Pages {
		d.Stored, blob = wire.AppendNumbers(nil, l)
	}
	if err := c.tell(wire.OpLayer, d, blob, f); err != nil {
		return 0, fmt.Errorf("handing a layer to cell %s: %w", c.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.layers == nil {
		return 0, c.why
	}
	l.Retain()
	c.layers[id], c.numbers[l] = &held{l, 1}, id
	return id, nil
}

// reuse uses a layer once more that the cell has.
func (c *Cell) reuse(l *page.Layer) (id uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, ok = c.numbers[l]; ok {
		c.layers[id].uses++
	}
	return id, ok
}

// pagesOf returns a file of the pages of a layer that has none.
func pagesOf(l *page.Layer) (*os.File, error) {
	f, err := memfile()
	if err != nil {
		return nil, err
	}
	if err := l.WritePages(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// memfile returns an empty file in memory.
func memfile() (*os.File, error) {
	fd, err := unix.MemfdCreate("pages", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("making room for pages: %w", err)
	}
	return os.NewFile(uintptr(fd), "pages"), nil
}

// unuse notes that a source or a cut does not need its layers any more.
func (c *Cell) unuse(d wire.Source) {
	var free []*page.Layer
	var ids []uint64
	c.mu.Lock()
	for _, stack := range []wire.Stack{d.Memory, d.Scratch, d.Root} {
		for _, id := range stack.Layers {
			h := c.layers[id]
			if h == nil {
				continue
			}
			if h.uses--; h.uses == 0 {
				delete(c.layers, id)
				if c.numbers[h.layer] == id {
					delete(c.numbers, h.layer)
				}
				free, ids = append(free, h.layer), append(ids, id)
			}
		}
	}
	c.mu.Unlock()
	for i, l := range free {
		_ = c.tell(wire.OpForget, wire.Ref{ID: ids[i]}, nil) // as above
		l.Release()
	}
}

// BootSpec is a machine that starts a kernel.
type BootSpec struct {
	VCPUs           int
	Memory, Scratch page.Number // pages
	// Raw leaves the scratch disk without a file system.
	Raw            bool
	Root           *page.Stack
	Kernel, Initrd *os.File
	CommandLine    string
	Console        io.Writer
}

// Boot makes a machine that starts a kernel when it is started. The files stay the
// caller's.
func (c *Cell) Boot(ctx context.Context, b BootSpec) (*VM, error) {
	ask := wire.Boot{
		ID: c.number(), VCPUs: b.VCPUs, Memory: b.Memory, Scratch: b.Scratch, ScratchEmpty: b.Raw, CommandLine: b.CommandLine,
	}
	var files []*os.File
	for _, x := range []struct {
		size *int64
		file *os.File
	}{{&ask.KernelSize, b.Kernel}, {&ask.InitrdSize, b.Initrd}} {
		if x.file == nil {
			continue
		}
		st, err := x.file.Stat()
		if err != nil {
			return nil, err
		}
		*x.size, files = st.Size(), append(files, x.file)
	}
	if b.Kernel == nil {
		return nil, errors.New("there is no kernel to boot")
	}
	var err error
	if ask.Root, err = c.sendStack(b.Root); err != nil {
		return nil, err
	}
	c.need()
	defer c.unneed()
	v := c.add(&VM{id: ask.ID, printed: b.Console, size: extent{b.Memory, b.Scratch}})
	undo := func() { c.closeAll([]*VM{v}) }
	if _, err := c.call(ctx, request{op: wire.OpBoot, body: ask, files: files, within: forkTime, undo: undo}, nil); err != nil {
		c.remove(v)
		return nil, err
	}
	return v, nil
}
