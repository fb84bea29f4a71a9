package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"

	"github.com/forkd-dev/forkd/internal/page"
)

// ErrMismatch reports bytes that are not those which a manifest announces.
var ErrMismatch = errors.New("contents do not match the manifest")

// Import is a snapshot that comes from elsewhere, piece by piece. Every piece
// is verified before it gets a name. The tag is taken meanwhile, but nobody sees
// the snapshot before Commit. An Import is for one goroutine; whoever begins
// commits or aborts.
type Import struct {
	m       *Manifest
	w       writer
	replace bool
	have    map[string]bool // pieces by file name, layers by digest
	over    bool
}

// BeginImport takes m's tag for an import of what m describes. With replace a
// snapshot of that tag may exist; it stays until Commit replaces it. Otherwise
// the error wraps fs.ErrExist if the tag is taken. ctx bounds the whole import.
func (s *Store) BeginImport(ctx context.Context, m Manifest, replace bool) (*Import, error) {
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	i := &Import{m: &m, w: writer{store: s, ctx: ctx}, replace: replace, have: make(map[string]bool)}
	s.mu.Lock()
	err := s.takeOver(m.Tag, replace)
	if err == nil {
		s.importing[m.Tag] = i
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := i.w.begin(m.Tag); err != nil {
		i.Abort()
		return nil, err
	}
	return i, nil
}

// takeOver is take, but a snapshot that is on the disk may be replaced.
func (s *Store) takeOver(tag string, replace bool) error {
	err := s.take(tag)
	if err != nil && replace && s.pending[tag] == nil && s.importing[tag] == nil {
		return nil
	}
	return err
}

// HasLayer reports whether the store has a layer that is not known to be damaged,
// and keeps it for this import.
func (i *Import) HasLayer(l LayerRef) bool {
	if i.have[l.Digest] {
		return true
	}
	s := i.w.store
	s.files.Lock()
	defer s.files.Unlock()
	i.have[l.Digest] = i.w.reserve(l.Digest, l.Size)
	return i.have[l.Digest]
}

// Layer adds a layer that r yields from its first byte to its last. The error
// wraps ErrMismatch or page.ErrCorrupt if it is not the layer l.
func (i *Import) Layer(l LayerRef, r io.Reader) error {
	pages, ok := i.pagesOf(l)
	if !ok {
		return fmt.Errorf("%w: layer %s is not in it", ErrMismatch, l.Digest)
	}
	f, err := i.receive(i.w.store.layers, l.Size, r, nil)
	if err != nil {
		return fmt.Errorf("importing layer %s: %w", l.Digest, err)
	}
	layer, err := openLayer(f.Name(), l.Digest, pages)
	if err == nil {
		err = layer.Verify(i.w.ctx, nil)
		layer.Release()
	} else if !errors.Is(err, page.ErrCorrupt) {
		err = fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("importing layer %s: %w", l.Digest, err), f.discard())
	}
	if _, err := i.w.adopt(f, l.Digest); err != nil {
		return err
	}
	i.have[l.Digest] = true
	return nil
}

// pagesOf returns the size of the address space that a layer is of.
func (i *Import) pagesOf(l LayerRef) (page.Number, bool) {
	for _, stack := range []StackRef{i.m.Memory, i.m.Scratch} {
		for _, mine := range stack.Layers {
			if mine == l {
				return stack.Pages, true
			}
		}
	}
	return 0, false
}

// State adds the state.
func (i *Import) State(r io.Reader) error { return i.add(stateFile, i.m.State, r) }

// Root adds the root image.
func (i *Import) Root(r io.Reader) error { return i.add(rootFile, i.m.Root, r) }

// HasRoot reports whether another snapshot, which is not known to be damaged, has
// the same root image, and links it if so.
func (i *Import) HasRoot() bool {
	if i.have[rootFile] {
		return true
	}
	s := i.w.store
	s.files.Lock()
	defer s.files.Unlock()
	for _, tag := range s.entries() {
		e := s.inspect(tag)
		if e.Status != Ready || e.Manifest.Root != i.m.Root {
			continue
		}
		path := filepath.Join(s.Dir(tag), rootFile)
		if s.disk.linkFile(path, filepath.Join(i.w.dir, rootFile)) == nil {
			i.have[rootFile] = true
			return true
		}
	}
	return false
}

func (i *Import) add(name string, want FileRef, r io.Reader) error {
	h := sha256.New()
	f, err := i.receive(i.w.dir, want.Size, r, h)
	if err != nil {
		return fmt.Errorf("importing %s: %w", name, err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != want.SHA256 {
		err = fmt.Errorf("%w: %s has SHA-256 %s, not %s", ErrMismatch, name, sum, want.SHA256)
		return errors.Join(err, f.discard())
	}
	err = f.Sync()
	if err = errors.Join(err, f.Close()); err == nil {
		err = i.w.store.disk.rename(f.Name(), filepath.Join(i.w.dir, name))
	}
	if err != nil {
		return fmt.Errorf("importing %s: %w", name, err)
	}
	i.have[name] = true
	return nil
}

// receive writes what r yields, which must have exactly that size, to a new
// file. h, if not nil, gets it too.
func (i *Import) receive(dir string, size int64, r io.Reader, h hash.Hash) (*file, error) {
	f, err := i.w.store.disk.create(i.w.ctx, dir, tempPrefix)
	if err != nil {
		return nil, err
	}
	var to io.Writer = f
	if h != nil {
		to = io.MultiWriter(f, h)
	}
	buf := make([]byte, 1<<20)
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, io.LimitReader(r, size), buf)
	if err == nil && n < size {
		err = fmt.Errorf("%w: ends after %d of %d bytes", ErrMismatch, n, size)
	}
	if err == nil {
		// One byte more would be too much.
		if n, _ := io.ReadFull(r, buf[:1]); n > 0 {
			err = fmt.Errorf("%w: goes on after %d bytes", ErrMismatch, size)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.discard())
	}
	return f, nil
}

// Missing names a piece that has not been added yet; it is empty if there is
// none.
func (i *Import) Missing() string {
	for _, name := range []string{stateFile, rootFile} {
		if !i.have[name] {
			return name
		}
	}
	for _, l := range i.m.layers() {
		if !i.have[l.Digest] {
			return "layer " + l.Digest
		}
	}
	return ""
}

// Commit makes the snapshot be there, durably. If it fails the import is over
// too, and nothing of it is left.
func (i *Import) Commit() (err error) {
	if i.over {
		return errors.New("import is over")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.end(true))
			return
		}
		err = i.end(false)
	}()
	if name := i.Missing(); name != "" {
		return fmt.Errorf("%w: %s is missing", ErrMismatch, name)
	}
	m := *i.m
	m.Format = FormatVersion
	return i.w.publish(&m, i.replace, func() error { return nil })
}

// Abort ends an import and removes what it brought. After Commit it does
// nothing.
func (i *Import) Abort() error {
	if i.over {
		return nil
	}
	return i.end(true)
}

func (i *Import) end(failed bool) (err error) {
	i.over = true
	if failed {
		err = i.w.undo()
	}
	i.w.unreserve()
	s := i.w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.importing, i.m.Tag)
	return err
}
