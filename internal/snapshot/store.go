// Package snapshot keeps snapshots on disk and opens them for forking.
//
// A store is a directory:
//
//	snapshots/TAG/manifest.json   what the snapshot is, written last
//	snapshots/TAG/state.bin       vCPUs and devices (package state)
//	snapshots/TAG/rootfs.erofs    the image's root, a hard link
//	layers/DIGEST.layer           RAM and disk pages (package page)
//
// Layers are named by their contents and shared between snapshots: one that was
// branched from another names all the layers of that one and its own on top, so
// a chain needs no assembly and none of its members needs the others. A layer
// that no manifest names is garbage and is swept when the store is opened and
// when a snapshot is removed or cannot be written.
//
// A snapshot is written under a temporary name, synced, and renamed, so a
// reader never sees half of one, and a crash leaves only what the next sweep
// removes. Until it is written it can be opened from memory (see Begin). One
// process at a time may hold a store.
//
// Bytes are hashed when they enter the store, by being written or imported, and
// by Verify. Open compares sizes and the hashes of everything but page data,
// so that it does not cost more for a chain, nor for much RAM. Removing a
// snapshot unlinks its files; machines that run from it keep their mappings.
//
// Lock order: Store.files, then Store.mu, then flatFiles.mu.
package snapshot

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/forkd-dev/forkd/internal/page"
)

const (
	manifestFile = "manifest.json"
	stateFile    = "state.bin"
	rootFile     = "rootfs.erofs"
	layerSuffix  = ".layer"
	tempPrefix   = ".tmp-"
)

// Store is the directory of snapshots and layers.
type Store struct {
	snapshots, layers string
	disk              disk
	flat              flatFiles // locks itself

	files    sync.Mutex      // held while names in the directories change
	reserved map[string]int  // layers that snapshots to be will name; guarded by files
	rotten   map[string]bool // layers that Verify found damaged; guarded by files
	gone     []*Snapshot     // opened ones that were forgotten, a reference each; guarded by files

	mu        sync.Mutex
	open      map[string]*Snapshot          // opened snapshots by tag; guarded by mu
	pending   map[string]*Pending           // guarded by mu
	importing map[string]*Import            // guarded by mu
	writing   map[*page.Layer]chan struct{} // closed when the writer's turn ends; guarded by mu
	damaged   map[string]error              // what Verify found; guarded by mu
}

// OpenStore opens the store under home, creating it if needed, and removes
// what crashed writers left.
func OpenStore(home string) (*Store, error) { return openStore(home, disk{}) }

func openStore(home string, d disk) (*Store, error) {
	s := &Store{
		snapshots: filepath.Join(home, "snapshots"),
		layers:    filepath.Join(home, "layers"),
		disk:      d,
		flat:      flatFiles{files: make(map[*page.Layer]flatFile)},
		reserved:  make(map[string]int),
		rotten:    make(map[string]bool),
		open:      make(map[string]*Snapshot),
		pending:   make(map[string]*Pending),
		importing: make(map[string]*Import),
		writing:   make(map[*page.Layer]chan struct{}),
		damaged:   make(map[string]error),
	}
	for _, dir := range []string{s.snapshots, s.layers} {
		// Snapshots hold whatever the guest held, secrets included.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("creating snapshot store: %w", err)
		}
		if err := s.removeTemporaries(dir); err != nil {
			return nil, fmt.Errorf("cleaning snapshot store: %w", err)
		}
	}
	s.files.Lock()
	defer s.files.Unlock()
	if err := s.sweep(); err != nil {
		return nil, fmt.Errorf("cleaning snapshot store: %w", err)
	}
	return s, nil
}

func (s *Store) removeTemporaries(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			err = errors.Join(err, s.disk.removeAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// sweep removes layers that no manifest and no writer names. A snapshot whose
// manifest cannot be read might name any layer, so then nothing is removed. The
// caller holds s.files.
func (s *Store) sweep() error {
	used := make(map[string]bool)
	for _, e := range s.entries() {
		m, err := readManifest(s.Dir(e))
		if err != nil {
			return nil
		}
		for _, l := range m.layers() {
			used[l.Digest+layerSuffix] = true
		}
	}
	entries, err := os.ReadDir(s.layers)
	for _, e := range entries {
		name := e.Name()
		if used[name] || strings.HasPrefix(name, tempPrefix) || s.reserved[strings.TrimSuffix(name, layerSuffix)] > 0 {
			continue
		}
		err = errors.Join(err, s.disk.remove(filepath.Join(s.layers, name)))
	}
	return err
}

func (s *Store) layerPath(digest string) string {
	return filepath.Join(s.layers, digest+layerSuffix)
}

// entries returns the names of the snapshot directories, in order.
func (s *Store) entries() (tags []string) {
	entries, _ := os.ReadDir(s.snapshots)
	for _, e := range entries {
		if e.IsDir() && ValidTag(e.Name()) {
			tags = append(tags, e.Name())
		}
	}
	return tags
}

// Dir returns where a snapshot's own files lie.
func (s *Store) Dir(tag string) string { return filepath.Join(s.snapshots, tag) }

// Exists reports whether a snapshot of this name exists, bootable or not, or is
// being written.
func (s *Store) Exists(tag string) bool {
	s.mu.Lock()
	p := s.pending[tag]
	s.mu.Unlock()
	return p != nil || s.onDisk(tag)
}

func (s *Store) onDisk(tag string) bool {
	if !ValidTag(tag) {
		return false
	}
	_, err := os.Lstat(s.Dir(tag))
	return err == nil
}

func notExist(tag string) error { return fmt.Errorf("snapshot %q: %w", tag, fs.ErrNotExist) }

// Remove deletes snapshots. One that is being written is given up: its Commit
// fails with ErrRemoved. Machines that run from them are not affected, nor are
// snapshots that were branched from them.
//
// If one of them does not exist nothing is done, and the error wraps
// fs.ErrNotExist; as it does for each that somebody else removes meanwhile.
func (s *Store) Remove(tags ...string) error {
	for _, tag := range tags {
		if !s.Exists(tag) {
			return notExist(tag)
		}
	}
	var err error
	for _, tag := range tags {
		err = errors.Join(err, s.remove(tag))
	}
	s.files.Lock()
	defer s.files.Unlock()
	return errors.Join(err, s.disk.syncDir(s.snapshots), s.sweep())
}

// remove deletes a snapshot's own files, but for what a sweep is needed for.
func (s *Store) remove(tag string) error {
	s.mu.Lock()
	p := s.pending[tag]
	s.mu.Unlock()
	if p != nil {
		given := p.abort()
		if <-p.done; given {
			return nil
		}
	}
	s.files.Lock()
	defer s.unlock()
	if !s.onDisk(tag) {
		return notExist(tag)
	}
	// Renamed first, so that a crash half way leaves no half snapshot; to a name that
	// nothing has which could not be removed before.
	doomed := filepath.Join(s.snapshots, tempPrefix+"removed-"+tag+"-"+rand.Text())
	if err := s.disk.rename(s.Dir(tag), doomed); err != nil {
		return fmt.Errorf("removing snapshot %q: %w", tag, err)
	}
	s.forget(tag)
	return s.disk.removeAll(doomed)
}

// forget drops what the store knows about a snapshot that has been removed or
// replaced. The caller holds s.files, and lets it go with unlock.
func (s *Store) forget(tag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap := s.open[tag]; snap != nil {
		s.gone = append(s.gone, snap)
	}
	delete(s.damaged, tag)
	delete(s.open, tag)
}

// unlock lets s.files go and releases what was forgotten meanwhile: that may unmap
// files, and have other processes be told.
func (s *Store) unlock() {
	gone := s.gone
	s.gone = nil
	s.files.Unlock()
	for _, snap := range gone {
		snap.Release()
	}
}

// Status tells how far a snapshot is.
type Status string

const (
	Writing Status = "writing" // can be opened, and is lost if the process ends
	Ready   Status = "ready"   // durable
	Failed  Status = "failed"  // cannot be opened
)

// Entry is a snapshot in a listing. Err says why it is not bootable.
type Entry struct {
	Tag      string
	Status   Status
	Manifest *Manifest // nil if it cannot be read; without file references while it is being written
	Err      error
}

// List returns all snapshots in order of their tags. It checks that the files
// are there and as long as they should be; Verify checks their contents.
func (s *Store) List() (list []Entry) {
	// First those that are not on the disk yet: by the time that the others are
	// read they may be.
	s.mu.Lock()
	seen := make(map[string]bool)
	for tag, p := range s.pending {
		seen[tag] = true
		list = append(list, p.entry())
	}
	s.mu.Unlock()
	for _, tag := range s.entries() {
		if !seen[tag] {
			list = append(list, s.inspect(tag))
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Tag, b.Tag) })
	return list
}

// Inspect is List for one tag.
func (s *Store) Inspect(tag string) Entry {
	s.mu.Lock()
	p := s.pending[tag]
	s.mu.Unlock()
	if p != nil {
		return p.entry()
	}
	return s.inspect(tag)
}

func (s *Store) inspect(tag string) Entry {
	m, err := readManifest(s.Dir(tag))
	if err == nil && m.Tag != tag {
		err = fmt.Errorf("%w: its manifest names it %q", ErrNotBootable, m.Tag)
	}
	if err != nil {
		return Entry{tag, Failed, nil, err}
	}
	if err = s.checkSizes(m); err == nil {
		s.mu.Lock()
		err = s.damaged[tag]
		s.mu.Unlock()
	}
	if err != nil {
		return Entry{tag, Failed, m, err}
	}
	return Entry{tag, Ready, m, nil}
}

func (s *Store) checkSizes(m *Manifest) error {
	check := func(path string, want int64) error {
		st, err := os.Stat(path)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrNotBootable, err)
		case st.Size() != want:
			return fmt.Errorf("%w: %s is %d bytes long, should be %d", ErrNotBootable, path, st.Size(), want)
		}
		return nil
	}
	for _, l := range m.layers() {
		if err := check(s.layerPath(l.Digest), l.Size); err != nil {
			return err
		}
	}
	if err := check(filepath.Join(s.Dir(m.Tag), stateFile), m.State.Size); err != nil {
		return err
	}
	return check(filepath.Join(s.Dir(m.Tag), rootFile), m.Root.Size)
}

// Close forgets the opened snapshots. Those that are being written fail.
func (s *Store) Close() {
	s.mu.Lock()
	var pending []*Pending
	for _, p := range s.pending {
		pending = append(pending, p)
	}
	s.mu.Unlock()
	for _, p := range pending {
		p.Abort()
	}
	s.files.Lock()
	defer s.unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for tag, snap := range s.open {
		delete(s.open, tag)
		s.gone = append(s.gone, snap)
	}
}
