package cell

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// fileTime is how long a cell may take to go over to files.
const fileTime = time.Minute

// Written has the cell have in files what was written (snapshot.Cut).
func (c *Cut) Written(runs []snapshot.Written) {
	var due []run
	c.mu.Lock()
	for _, w := range runs {
		if r := (run{digest: w.Digest}); c.named(&r, w.Layers) {
			due = append(due, r)
		}
	}
	c.mu.Unlock()
	due = slices.DeleteFunc(due, c.cell.has)
	if len(due) == 0 {
		return
	}
	c.Retain()
	go func() {
		defer c.Release()
		for batch := range slices.Chunk(due, wire.MaxFiles) {
			if err := c.cell.file(c.spec.ID, batch); err != nil {
				c.cell.host.opts.Log.Debug("pages of a branch stay in memory", "cell", c.cell.Name, "error", err)
				return
			}
		}
	}()
}

// written are the files of layers that a cell has numbered. Nobody tells when a cell has such a
// layer no more, so the oldest are forgotten: a layer that is needed after that is fetched.
type written struct {
	of    map[uint64]file
	order []uint64 // as they came
}

// file is the file of a layer.
type file struct {
	digest page.Digest
	mapped bool // the cell has it, too
}

// maxWritten is how many files are remembered of one cell.
const maxWritten = 1 << 12

// put remembers the file of a layer.
func (w *written) put(id uint64, f file) {
	if w.of == nil {
		w.of = make(map[uint64]file)
	}
	had, known := w.of[id]
	f.mapped = f.mapped || had == file{f.digest, true}
	if !known {
		if w.order = append(w.order, id); len(w.order) > maxWritten {
			delete(w.of, w.order[0])
			w.order = w.order[1:]
		}
	}
	w.of[id] = f
}

// run is layers of a cell, bottom first, that have one file together.
type run struct {
	ids    []uint64
	digest page.Digest // zero: they hold nothing, and have no file
}

// named finds out which layers of the cell's a run consists of, and whether it has numbered
// all of them. The caller holds c.mu.
func (c *Cut) named(r *run, layers []*page.Layer) bool {
	for _, l := range layers {
		ids, ok := c.names[l]
		if !ok {
			return false
		}
		r.ids = append(r.ids, ids...)
	}
	return true
}

// has reports whether the cell has the file of a run already, which is one layer.
func (c *Cell) has(r run) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(r.ids) == 1 && c.saved.of[r.ids[0]] == file{r.digest, true}
}

// file gives the cell the files of runs.
func (c *Cell) file(source uint64, runs []run) error {
	ask := wire.Files{Source: source}
	var files []*os.File
	for _, r := range runs {
		f := wire.FileRun{Layers: r.ids, Empty: r.digest == page.Digest{}}
		if ask.Runs = append(ask.Runs, f); f.Empty {
			continue
		}
		l, err := c.host.opts.OpenLayer(r.digest)
		if err != nil {
			return err // it has been removed
		}
		defer l.Release()
		files = append(files, l.File())
	}
	var filed wire.Filed
	if _, err := c.call(context.Background(), request{op: wire.OpFiles, body: ask, files: files, within: fileTime}, &filed); err != nil {
		return err
	}
	if len(filed.Layers) != len(runs) {
		return fmt.Errorf("%w: %d numbers for %d layers", wire.ErrMalformed, len(filed.Layers), len(runs))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range filed.Layers {
		if id&wire.SealedBit != 0 {
			c.saved.put(id, file{runs[i].digest, true})
		}
	}
	return nil
}
