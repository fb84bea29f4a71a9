package snapshot

import (
	"slices"
	"sync"

	"github.com/forkd-dev/forkd/internal/page"
)

const (
	// maxLayers is how many layers a stack may have on disk: chains that grow for ever, as
	// those of workspaces, would otherwise use up mappings and descriptors.
	maxLayers = 128
	// tall is how many layers of a stack are written. Of a taller one some are written as
	// one, as many as flatStep divides. A sandbox that is branched again and again goes
	// on over that one; other stacks have the same layers below when they are taller.
	tall     = 64
	flatStep = tall / 2
)

// runs divides layers, bottom first, into those that are written as one file each: all
// of them alone, unless there are too many. Then as many as need be go together where that
// makes the smallest file; if possible all of these lie above base.
func runs(layers []*page.Layer, base int) (all [][]*page.Layer) {
	from, to := 0, 0
	if more := len(layers) - tall; more > 0 {
		size := more/flatStep*flatStep + flatStep
		if len(layers)-base < size {
			base = 0
		}
		from = base + smallest(layers[base:], size)
		to = from + size
	}
	for i, l := range layers {
		if i > from && i < to {
			all[from] = append(all[from], l)
		} else {
			all = append(all, []*page.Layer{l})
		}
	}
	return all
}

// smallest returns where so many layers that lie on one another begin that hold less than
// any others; the lowest if several do.
func smallest(layers []*page.Layer, size int) (at int) {
	sum, least := 0, 0
	for i, l := range layers {
		sum += l.Len()
		if i >= size {
			sum -= layers[i-size].Len()
		}
		if i == size-1 || i >= size && sum < least {
			at, least = i-size+1, sum
		}
	}
	return at
}

// flattened returns what a stack holds as one layer would hold it, and how
// many pages that are.
func flattened(stack *page.Stack) (all contents, pages int) {
	all = func(yield func(page.Number, *page.Page) bool) {
		for n, p := range stack.All {
			if !page.IsZero(p) && !yield(n, p) {
				return
			}
		}
	}
	for range all {
		pages++
	}
	return all, pages
}

// flatFiles is which layers have been written as one, and to which file. It
// keeps neither: it forgets the layers when the topmost is freed, and the file may
// have been swept.
type flatFiles struct {
	// mu is a leaf lock: layers are freed under others.
	mu    sync.Mutex
	files map[*page.Layer]flatFile // by the topmost layer; guarded by mu
}

type flatFile struct {
	// layers are compared, not used. The topmost alone does not tell, because a
	// layer may lie on different ones.
	layers []*page.Layer
	ref    LayerRef
}

// find returns the file of what layers hold together.
func (f *flatFiles) find(layers []*page.Layer) (LayerRef, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.files[layers[len(layers)-1]]
	return file.ref, slices.Equal(file.layers, layers)
}

// remember is told the file of what layers hold together. The caller has
// references to them.
func (f *flatFiles) remember(layers []*page.Layer, ref LayerRef) {
	top := layers[len(layers)-1]
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.files[top]; !known {
		top.OnFree(func() { f.forget(top) })
	}
	f.files[top] = flatFile{layers, ref}
}

func (f *flatFiles) forget(top *page.Layer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.files, top)
}

// merged writes what layers hold together as one layer, unless that has a file.
func (w *writer) merged(layers []*page.Layer, wrote func(int)) (LayerRef, error) {
	done, err := w.turn(layers[len(layers)-1])
	if err != nil {
		return LayerRef{}, err
	}
	defer done()
	s := w.store
	if known, ok := s.flat.find(layers); ok {
		if ref, ok := w.has(known.Digest); ok && ref == known {
			return ref, nil
		}
	}
	whole := page.Merge(layers...)
	defer whole.Release()
	ref, err := w.flat(whole.Limit(), whole.All, wrote)
	if err == nil {
		s.flat.remember(layers, ref)
	}
	return ref, err
}

// flat writes one layer of all pages.
func (w *writer) flat(limit page.Number, all contents, wrote func(int)) (LayerRef, error) {
	return w.file(wrote, func(f *file) (page.Digest, error) { return page.WriteLayer(f, limit, all) })
}
