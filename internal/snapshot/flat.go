package snapshot

import (
	"slices"
	"sync"

	"github.com/forkd-dev/forkd/internal/page"
)

const (
	// maxLayers is how many layers a stack may have on disk. Of a taller one the
	// lower layers are written as one: chains that grow for ever, as those of
	// workspaces, would otherwise use up mappings and descriptors.
	maxLayers = 128
	// flatStep divides the number of layers that are written as one. A sandbox
	// that is branched again and again has a taller stack each time, with the same
	// layers below: so many of its branches share one file.
	flatStep = maxLayers / 2
)

// tooMany returns the layers of a stack that have to be written as one.
func tooMany(stack *page.Stack) []*page.Layer {
	layers := stack.Layers()
	if len(layers) <= maxLayers {
		return nil
	}
	return layers[:len(layers)/flatStep*flatStep]
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

// stackOf returns a stack of some layers. The caller releases it.
func stackOf(limit page.Number, layers []*page.Layer) *page.Stack {
	empty := page.NewStack(limit)
	defer empty.Release()
	return empty.Push(layers...)
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

// lower writes what layers hold together as one layer, unless that has a file.
func (w *writer) lower(limit page.Number, layers []*page.Layer, wrote func(int)) (LayerRef, error) {
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
	stack := stackOf(limit, layers)
	defer stack.Release()
	all, _ := flattened(stack)
	ref, err := w.flat(limit, all, wrote)
	if err == nil {
		s.flat.remember(layers, ref)
	}
	return ref, err
}

// flat writes one layer of all pages.
func (w *writer) flat(limit page.Number, all contents, wrote func(int)) (LayerRef, error) {
	return w.file(wrote, func(f *file) (page.Digest, error) { return page.WriteLayer(f, limit, all) })
}
