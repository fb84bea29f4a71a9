package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/processors"
)

// Snapshot is an opened snapshot: everything that a child needs, in memory or
// mapped. It is immutable and reference counted.
type Snapshot struct {
	Manifest *Manifest
	State    []byte
	// Memory and Scratch are nil if the pages are in the memory of another process;
	// then Cut is set.
	Memory  *page.Stack
	Scratch *page.Stack
	Cut     Cut
	Root    *page.Stack

	refs atomic.Int64

	mu        sync.Mutex
	onRelease []func() // guarded by mu
}

// Cut is the RAM and the scratch disk of a machine at one instant, in the memory of
// another process. It is reference counted.
type Cut interface {
	// Limits returns how many pages the address spaces have.
	Limits() (memory, scratch page.Number)
	// Layers returns how many layers of RAM lie over the first one, and the digests of
	// all layers that have a file.
	Layers() (depth int, _ []page.Digest)
	// Stacks fetches the pages and returns references to stacks of them.
	Stacks(context.Context) (memory, scratch *page.Stack, err error)
	// Bases returns how many of the layers of these, the lowest, the machine had before
	// it ran. What lies above them belongs to it alone.
	Bases() (memory, scratch int)
	// Written tells, when a snapshot of the cut is durable, which files hold what layers
	// of the stacks hold, whose references the caller has. It returns at once.
	Written([]Written)
	Retain()
	Release()
}

// Written is layers that lie on one another, bottom first, and the file of what they hold
// together; none, with a digest of zeros, if they hold nothing.
type Written struct {
	Layers []*page.Layer
	Digest page.Digest
}

// Mapped returns a snapshot of stacks, and InMemory one of a cut. They take over the
// references that they are given.
func Mapped(m *Manifest, state []byte, memory, scratch, root *page.Stack) *Snapshot {
	s := &Snapshot{Manifest: m, State: state, Memory: memory, Scratch: scratch, Root: root}
	s.refs.Store(1)
	return s
}

func InMemory(m *Manifest, state []byte, cut Cut, root *page.Stack) *Snapshot {
	s := &Snapshot{Manifest: m, State: state, Cut: cut, Root: root}
	s.refs.Store(1)
	return s
}

// OnRelease has fn called when the last reference is given up. The caller has one.
func (s *Snapshot) OnRelease(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onRelease = append(s.onRelease, fn)
}

// Intact checks cheaply that nobody has changed the mapped files since they
// were opened. The error wraps ErrNotBootable and names the file.
func (s *Snapshot) Intact() error {
	for _, stack := range []*page.Stack{s.Memory, s.Scratch, s.Root} {
		if stack == nil {
			continue
		}
		if err := stack.Intact(); err != nil {
			return fmt.Errorf("%w: %w", ErrNotBootable, err)
		}
	}
	return nil
}

// Retain takes another reference.
func (s *Snapshot) Retain() *Snapshot {
	if s.refs.Add(1) <= 1 {
		panic("BUG: snapshot used after its release")
	}
	return s
}

// Release drops a reference; the last one unmaps the layers.
func (s *Snapshot) Release() {
	switch n := s.refs.Add(-1); {
	case n == 0:
		for _, fn := range s.onRelease {
			fn()
		}
		for _, stack := range []*page.Stack{s.Memory, s.Scratch, s.Root} {
			if stack != nil {
				stack.Release()
			}
		}
		if s.Cut != nil {
			s.Cut.Release()
		}
	case n < 0:
		panic("BUG: snapshot released twice")
	}
}

// Open returns a reference to a snapshot, which the caller releases. One that is
// being written is there at once, in memory. Of any other the sizes of all
// files, the manifest, the state and the indexes of the layers are checked; the
// error wraps fs.ErrNotExist or ErrNotBootable, and the latter names the file at
// fault. Pages are not read (see Verify).
func (s *Store) Open(tag string) (*Snapshot, error) {
	if snap := s.known(tag); snap != nil {
		return snap, nil
	}
	// While names cannot change, so that what is loaded is still there when it
	// is kept.
	s.files.Lock()
	defer s.files.Unlock()
	if snap := s.known(tag); snap != nil {
		return snap, nil
	}
	if !s.onDisk(tag) {
		return nil, notExist(tag)
	}
	snap, err := s.load(tag)
	if err != nil {
		return nil, fmt.Errorf("opening snapshot %q: %w", tag, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[tag] = snap
	return snap.Retain(), nil
}

// known returns a reference to a snapshot that is in memory or mapped, or nil.
func (s *Store) known(tag string) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pending[tag]; p != nil {
		return p.snap.Retain()
	}
	if snap := s.open[tag]; snap != nil && s.damaged[tag] == nil {
		return snap.Retain()
	}
	return nil
}

// load opens the files of a snapshot.
func (s *Store) load(tag string) (snap *Snapshot, err error) {
	defer processors.All()()
	entry := s.inspect(tag)
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
	path := filepath.Join(s.Dir(tag), stateFile)
	if snap.State, err = os.ReadFile(path); err != nil {
		return snap, err
	}
	if hashBytes(snap.State) != m.State.SHA256 {
		return snap, fmt.Errorf("%s does not match its hash", path)
	}
	if snap.Memory, err = s.openStack(m.Memory); err != nil {
		return snap, err
	}
	if snap.Scratch, err = s.openStack(m.Scratch); err != nil {
		return snap, err
	}
	snap.Root, err = s.openRoot(filepath.Join(s.Dir(tag), rootFile), m.Root)
	return snap, err
}

// OpenLayer maps a layer of the store, which the caller releases. The error wraps
// fs.ErrNotExist if it is not there any more.
func (s *Store) OpenLayer(digest page.Digest) (*page.Layer, error) {
	s.files.Lock()
	defer s.files.Unlock()
	name := digest.String()
	if s.rotten[name] {
		return nil, fmt.Errorf("layer %s is damaged: %w", name, fs.ErrNotExist)
	}
	l, err := page.OpenLayer(s.layerPath(name))
	if err == nil && l.Digest() != digest {
		l.Release()
		err = fmt.Errorf("layer %s: %w", name, page.ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// openRoot maps a root image, unless another snapshot has it open.
func (s *Store) openRoot(path string, ref FileRef) (*page.Stack, error) {
	s.mu.Lock()
	for _, snap := range s.open {
		root := snap.Root.Layers()[0]
		if snap.Manifest.Root == ref && root.Maps(path) && root.Intact() == nil {
			defer s.mu.Unlock()
			return snap.Root.Retain(), nil
		}
	}
	s.mu.Unlock()
	return OpenRoot(path)
}

// openLayer maps a layer of an address space of so many pages.
func openLayer(path string, digest string, pages page.Number) (*page.Layer, error) {
	layer, err := page.OpenLayer(path)
	if err == nil && (layer.Digest().String() != digest || layer.Limit() != pages) {
		layer.Release()
		err = fmt.Errorf("%s is not the layer that its name says", path)
	}
	return layer, err
}

// openStack maps the layers of an address space, those that other snapshots have
// open only once: what is known about their pages, and the host's page tables,
// then serve all.
func (s *Store) openStack(ref StackRef) (*page.Stack, error) {
	stack, shared := s.share(ref)
	defer stack.Release()
	var upper []*page.Layer
	defer func() {
		for _, l := range upper {
			l.Release()
		}
	}()
	for _, l := range ref.Layers[len(stack.Layers()):] {
		layer := shared[l.Digest]
		if layer != nil {
			layer.Retain()
		} else {
			var err error
			if layer, err = openLayer(s.layerPath(l.Digest), l.Digest, ref.Pages); err != nil {
				return nil, err
			}
		}
		upper = append(upper, layer)
	}
	return stack.Push(upper...), nil
}

// share returns a reference to the tallest opened stack that a stack can be built
// upon, if only an empty one, and those of its layers that are open.
func (s *Store) share(ref StackRef) (best *page.Stack, shared map[string]*page.Layer) {
	wanted := make(map[string]bool)
	for _, l := range ref.Layers {
		wanted[l.Digest] = true
	}
	best, shared = page.NewStack(ref.Pages), make(map[string]*page.Layer)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, snap := range s.open {
		if snap.Intact() != nil {
			continue
		}
		for _, stack := range []*page.Stack{snap.Memory, snap.Scratch} {
			layers := stack.Layers()
			if stack.Limit() != ref.Pages {
				continue
			}
			prefix := len(layers) <= len(ref.Layers)
			for i, l := range layers {
				digest := l.Digest().String()
				if wanted[digest] {
					shared[digest] = l
				}
				prefix = prefix && ref.Layers[i].Digest == digest
			}
			if prefix && len(layers) > len(best.Layers()) {
				best.Release()
				best = stack.Retain()
			}
		}
	}
	return best, shared
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
