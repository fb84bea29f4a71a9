package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/page"
)

// contents iterates over pages by number; a nil page is a hole.
type contents = func(yield func(page.Number, *page.Page) bool)

// stacks writes the layers of RAM and scratch disk that have no file yet.
func (w *writer) stacks(m, d *page.Stack, flatten bool) (memory, scratch StackRef, err error) {
	var total, done atomic.Int64
	wrote := func(n int) {
		if w.progress != nil {
			w.progress(min(done.Add(int64(n)), total.Load()), total.Load())
		}
	}
	both := [...]*page.Stack{m, d}
	var all [len(both)]contents // of those that become one layer
	for i, stack := range both {
		pages := 0
		if flatten {
			all[i], pages = flattened(stack)
		} else {
			pages = w.unwritten(stack, w.bases[i])
		}
		total.Add(int64(pages) * page.Size)
	}
	var refs [len(both)]StackRef
	for i, stack := range both {
		if flatten {
			var l LayerRef
			l, err = w.flat(stack.Limit(), all[i], wrote)
			refs[i] = StackRef{stack.Limit(), []LayerRef{l}}
		} else {
			refs[i], err = w.stack(stack, w.bases[i], wrote)
		}
		if err != nil {
			return memory, scratch, err
		}
	}
	return refs[0], refs[1], nil
}

// unwritten returns how many pages of a stack have no file yet.
func (w *writer) unwritten(stack *page.Stack, base int) (pages int) {
	for _, run := range runs(stack.Layers(), base) {
		switch {
		case len(run) == 1 && run[0].Digest() == (page.Digest{}):
			pages += run[0].Stored()
		case len(run) > 1:
			if _, known := w.store.flat.find(run); !known {
				whole := page.Merge(run...)
				pages += whole.Stored()
				whole.Release()
			}
		}
	}
	return pages
}

// stack writes the layers of a stack that have no file, some of a tall stack as one. Those
// that change nothing it leaves out. The lowest, as many as base, are not the machine's own.
func (w *writer) stack(stack *page.Stack, base int, wrote func(int)) (StackRef, error) {
	ref := StackRef{Pages: stack.Limit()}
	for _, run := range runs(stack.Layers(), base) {
		var layer LayerRef
		var err error
		done := Written{Layers: run}
		switch {
		case len(run) > 1:
			layer, err = w.merged(run, wrote)
		case run[0].Len() > 0:
			layer, err = w.layer(run[0], wrote)
		}
		if err == nil && layer != (LayerRef{}) {
			ref.Layers = append(ref.Layers, layer)
			done.Digest, err = digestOf(layer)
		}
		if err != nil {
			return ref, err
		}
		w.written = append(w.written, done)
	}
	return ref, nil
}

// digestOf returns the digest that a reference tells.
func digestOf(ref LayerRef) (d page.Digest, err error) {
	if n, err := hex.Decode(d[:], []byte(ref.Digest)); err != nil || n != len(d) {
		return d, fmt.Errorf("%q is no digest", ref.Digest)
	}
	return d, nil
}

// layer writes a layer unless it has a file.
func (w *writer) layer(l *page.Layer, wrote func(int)) (LayerRef, error) {
	done, err := w.turn(l)
	if err != nil {
		return LayerRef{}, err
	}
	defer done()
	if d := l.Digest(); d != (page.Digest{}) {
		if ref, ok := w.has(d.String()); ok {
			return ref, nil
		}
	}
	return w.file(wrote, func(f *file) (page.Digest, error) { return l.WriteTo(f) })
}

// turn waits until no other writer writes a layer, or the layers of which it is
// the topmost: of several that need the same file one writes it. The caller
// ends its turn with done.
func (w *writer) turn(l *page.Layer) (done func(), err error) {
	s := w.store
	mine := make(chan struct{})
	for {
		s.mu.Lock()
		other := s.writing[l]
		if other == nil {
			s.writing[l] = mine
		}
		s.mu.Unlock()
		if other == nil {
			break
		}
		select {
		case <-other:
		case <-w.ctx.Done():
			return nil, context.Cause(w.ctx)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.writing, l)
		close(mine)
	}, nil
}

// has looks for a layer in the store, and keeps it there.
func (w *writer) has(digest string) (LayerRef, bool) {
	s := w.store
	s.files.Lock()
	defer s.files.Unlock()
	st, err := os.Stat(s.layerPath(digest))
	if err != nil || !w.reserve(digest, st.Size()) {
		return LayerRef{}, false
	}
	return LayerRef{digest, st.Size()}, true
}

// file makes a layer file of what write writes.
func (w *writer) file(wrote func(int), write func(*file) (page.Digest, error)) (ref LayerRef, err error) {
	f, err := w.store.disk.create(w.ctx, w.store.layers, tempPrefix)
	if err != nil {
		return ref, fmt.Errorf("creating layer file: %w", err)
	}
	f.wrote = wrote
	d, err := write(f)
	if err != nil {
		return ref, errors.Join(err, f.discard())
	}
	return w.adopt(f, d.String())
}

// adopt syncs a layer file that is complete and gives it its name.
func (w *writer) adopt(f *file, digest string) (ref LayerRef, err error) {
	s := w.store
	st, err := f.Stat()
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return ref, errors.Join(fmt.Errorf("syncing layer file: %w", err), f.discard())
	}
	s.files.Lock()
	defer s.files.Unlock()
	// Over another of the same name, if there is one: that might be damaged.
	if err := s.disk.rename(f.Name(), s.layerPath(digest)); err != nil {
		return ref, errors.Join(fmt.Errorf("naming layer file: %w", err), f.discard())
	}
	delete(s.rotten, digest)
	w.reserve(digest, st.Size())
	return LayerRef{digest, st.Size()}, f.Close()
}

// root links or copies the root image, whose reference is known.
func (w *writer) root(stack *page.Stack, known FileRef) (FileRef, error) {
	d, path := w.store.disk, filepath.Join(w.dir, rootFile)
	image := stack.Layers()[0]
	if d.link(image, path) != nil {
		// It lies elsewhere, or has been removed.
		ref, err := w.copyRoot(image, path)
		if err == nil && ref != known {
			err = fmt.Errorf("%w: the root image has changed while it was in use", ErrNotBootable)
		}
		return ref, err
	}
	return known, d.syncFile(path)
}

// newRoot opens a root image and finds out its reference.
func newRoot(path string) (ref FileRef, root *page.Stack, err error) {
	if root, err = OpenRoot(path); err != nil {
		return ref, nil, err
	}
	err = page.Guard(func() error {
		ref, err = writeRoot(io.Discard, root.Layers()[0])
		return err
	})
	return ref, root, err
}

// copyRoot writes a root image that is only known by its mapping.
func (w *writer) copyRoot(image *page.Layer, path string) (ref FileRef, err error) {
	f, err := w.store.disk.create(w.ctx, w.dir, tempPrefix)
	if err != nil {
		return ref, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if ref, err = writeRoot(f, image); err != nil {
		return ref, fmt.Errorf("copying root image: %w", err)
	}
	if err := f.Sync(); err != nil {
		return ref, fmt.Errorf("syncing root image: %w", err)
	}
	return ref, w.store.disk.rename(f.Name(), path)
}

// writeRoot writes a root image and tells what it has written.
func writeRoot(to io.Writer, image *page.Layer) (ref FileRef, err error) {
	h := sha256.New()
	buf := make([]byte, 0, 256*page.Size)
	for n, p := range image.All {
		buf = append(buf, p[:]...)
		if len(buf) < cap(buf) && int(n)+1 < image.Len() {
			continue
		}
		h.Write(buf)
		if _, err := to.Write(buf); err != nil {
			return ref, err
		}
		buf = buf[:0]
	}
	return FileRef{int64(image.Len()) * page.Size, hex.EncodeToString(h.Sum(nil))}, nil
}

func hashBytes(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
