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

// Export is the open files of a snapshot. They stay readable when it is removed.
type Export struct {
	Manifest *Manifest
	// State, Root and Layers are the files that the manifest refers to; of
	// Layers there is one for each digest, whichever address spaces it is in.
	State, Root *os.File
	Layers      map[LayerRef]*os.File

	manifest *os.File
}

// Export opens the files of a snapshot, for reading them as they are. The error
// wraps fs.ErrNotExist or ErrNotBootable; of a snapshot that is still being
// written the former (see Wait).
func (s *Store) Export(tag string) (x *Export, err error) {
	s.files.Lock()
	defer s.files.Unlock()
	if !s.onDisk(tag) {
		return nil, notExist(tag)
	}
	x = &Export{Layers: make(map[LayerRef]*os.File)}
	defer func() {
		if err != nil {
			x.Close()
			err = fmt.Errorf("exporting snapshot %q: %w", tag, err)
		}
	}()
	if x.Manifest, err = readManifest(s.Dir(tag)); err != nil {
		return x, err
	}
	if x.Manifest.Tag != tag {
		return x, fmt.Errorf("%w: its manifest names it %q", ErrNotBootable, x.Manifest.Tag)
	}
	if err := s.checkSizes(x.Manifest); err != nil {
		return x, err
	}
	return x, x.open(s)
}

func (x *Export) open(s *Store) (err error) {
	dir := s.Dir(x.Manifest.Tag)
	for _, f := range []struct {
		name string
		to   **os.File
	}{{manifestFile, &x.manifest}, {stateFile, &x.State}, {rootFile, &x.Root}} {
		if *f.to, err = os.Open(filepath.Join(dir, f.name)); err != nil {
			return err
		}
	}
	for _, l := range x.Manifest.layers() {
		if x.Layers[l] != nil {
			continue
		}
		f, err := os.Open(s.layerPath(l.Digest))
		if err != nil {
			return err
		}
		x.Layers[l] = f
	}
	return nil
}

// Close closes the files.
func (x *Export) Close() error {
	var errs []error
	for _, f := range x.Layers {
		errs = append(errs, f.Close())
	}
	for _, f := range []*os.File{x.manifest, x.State, x.Root} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// verify reads everything. It returns the digests of damaged layers, too.
func (x *Export) verify(ctx context.Context, progress func(done, total int64)) (bad []string, err error) {
	m := x.Manifest
	total := m.State.Size + m.Root.Size
	for l := range x.Layers {
		total += l.Size
	}
	var sum atomic.Int64
	done := func(n int64) {
		if now := sum.Add(n); progress != nil {
			progress(now, total)
		}
	}
	errs := []error{
		verifyFile(ctx, x.State, m.State, done),
		verifyFile(ctx, x.Root, m.Root, done),
	}
	for l, f := range x.Layers {
		if err := verifyLayer(ctx, f.Name(), l, done); err != nil {
			bad, errs = append(bad, l.Digest), append(errs, err)
		}
	}
	return bad, errors.Join(errs...)
}

func verifyFile(ctx context.Context, f *os.File, want FileRef, done func(int64)) error {
	h := sha256.New()
	n, err := io.Copy(h, &meteredReader{ctx, io.NewSectionReader(f, 0, want.Size+1), done})
	switch {
	case err != nil:
		return fmt.Errorf("%w: reading %s: %w", ErrNotBootable, f.Name(), err)
	case n != want.Size || hex.EncodeToString(h.Sum(nil)) != want.SHA256:
		return fmt.Errorf("%w: %s does not match its hash", ErrNotBootable, f.Name())
	}
	return nil
}

// verifyLayer reads a layer file of which its name is known.
func verifyLayer(ctx context.Context, path string, want LayerRef, done func(int64)) error {
	layer, err := page.OpenLayer(path)
	if err == nil {
		defer layer.Release()
		if layer.Digest().String() != want.Digest {
			err = fmt.Errorf("%s is not the layer that its name says", path)
		} else {
			err = layer.Verify(ctx, done)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	return nil
}

// meteredReader reads until ctx ends and tells how much.
type meteredReader struct {
	ctx  context.Context
	r    io.Reader
	done func(int64)
}

func (m *meteredReader) Read(b []byte) (int, error) {
	if m.ctx.Err() != nil {
		return 0, context.Cause(m.ctx)
	}
	n, err := m.r.Read(b)
	if m.done != nil {
		m.done(int64(n))
	}
	return n, err
}
