package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/page"
)

// Snapshot is an opened, verified snapshot: everything that a child needs, in
// memory or mapped. It is immutable and reference counted.
type Snapshot struct {
	Manifest *Manifest
	State    []byte
	Memory   *page.Stack
	Scratch  *page.Stack
	Root     *page.Stack

	refs atomic.Int64
}

// Intact checks cheaply that nobody has changed the mapped files since they
// were verified. The error wraps ErrNotBootable and names the file.
func (s *Snapshot) Intact() error {
	for _, stack := range []*page.Stack{s.Memory, s.Scratch, s.Root} {
		if err := stack.Intact(); err != nil {
			return fmt.Errorf("%w: %w", ErrNotBootable, err)
		}
	}
	return nil
}

// Retain takes another reference.
func (s *Snapshot) Retain() *Snapshot {
	s.refs.Add(1)
	return s
}

// Release drops a reference; the last one unmaps the layers.
func (s *Snapshot) Release() {
	switch n := s.refs.Add(-1); {
	case n == 0:
		for _, stack := range []*page.Stack{s.Memory, s.Scratch, s.Root} {
			if stack != nil {
				stack.Release()
			}
		}
	case n < 0:
		panic("BUG: snapshot released twice")
	}
}

// Open verifies a snapshot and returns a reference to it, which the caller
// releases. The error wraps fs.ErrNotExist or ErrNotBootable; the latter names
// the file at fault.
func (s *Store) Open(tag string) (*Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap := s.open[tag]; snap != nil {
		return snap.Retain(), nil
	}
	if !ValidTag(tag) || !s.Exists(tag) {
		return nil, fmt.Errorf("snapshot %q: %w", tag, fs.ErrNotExist)
	}
	snap, err := s.load(tag)
	if err != nil {
		return nil, fmt.Errorf("opening snapshot %q: %w", tag, err)
	}
	s.open[tag] = snap
	return snap.Retain(), nil
}

// load reads and verifies all files of a snapshot.
func (s *Store) load(tag string) (snap *Snapshot, err error) {
	entry := s.Inspect(tag)
	if entry.Err != nil {
		return nil, entry.Err
	}
	m := entry.Manifest
	snap = &Snapshot{Manifest: m}
	snap.refs.Store(1)
	defer func() {
		if err != nil {
			snap.Release()
			if !errors.Is(err, ErrNotBootable) {
				err = fmt.Errorf("%w: %w", ErrNotBootable, err)
			}
		}
	}()
	var rootErr error
	var root sync.WaitGroup
	root.Go(func() { rootErr = checkFile(filepath.Join(s.Dir(tag), rootFile), m.Root) })
	defer root.Wait()

	path := filepath.Join(s.Dir(tag), stateFile)
	if snap.State, err = os.ReadFile(path); err != nil {
		return snap, err
	}
	if sum := sha256.Sum256(snap.State); hex.EncodeToString(sum[:]) != m.State.SHA256 {
		return snap, fmt.Errorf("%s does not match its hash", path)
	}
	if snap.Memory, err = s.openStack(m.Memory); err != nil {
		return snap, err
	}
	if snap.Scratch, err = s.openStack(m.Scratch); err != nil {
		return snap, err
	}
	root.Wait()
	if rootErr != nil {
		return snap, rootErr
	}
	snap.Root, err = OpenRoot(filepath.Join(s.Dir(tag), rootFile))
	return snap, err
}

func checkFile(path string, want FileRef) error {
	got, err := hashFile(path)
	if err == nil && got != want {
		err = fmt.Errorf("%s does not match its hash", path)
	}
	return err
}

func (s *Store) openStack(ref StackRef) (*page.Stack, error) {
	stack := page.NewStack(ref.Pages)
	for _, l := range ref.Layers {
		path := s.layerPath(l.Digest)
		layer, err := page.OpenLayer(path)
		if err == nil && (layer.Digest().String() != l.Digest || layer.Limit() != ref.Pages) {
			layer.Release()
			err = fmt.Errorf("%s is not the layer that its name says", path)
		}
		if err != nil {
			stack.Release()
			return nil, err
		}
		taller := stack.Push(layer)
		layer.Release()
		stack.Release()
		stack = taller
	}
	return stack, nil
}

// OpenRoot maps a root image as a read-only disk.
func OpenRoot(path string) (*page.Stack, error) {
	layer, err := page.OpenRaw(path)
	if err != nil {
		return nil, err
	}
	defer layer.Release()
	empty := page.NewStack(layer.Limit())
	defer empty.Release()
	return empty.Push(layer), nil
}
