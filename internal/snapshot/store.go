// Package snapshot keeps snapshots on disk and opens them for forking.
//
// A store is a directory:
//
//	snapshots/TAG/manifest.json   what the snapshot is, written last
//	snapshots/TAG/state.bin       vCPUs and devices (package state)
//	snapshots/TAG/rootfs.erofs    the image's root, a hard link
//	layers/DIGEST.layer           RAM and disk pages (package page)
//
// Layers are named by their contents and shared between snapshots; one that no
// manifest names is garbage and is swept when the store is opened and when a
// snapshot is removed. A snapshot is written under a temporary name, synced,
// and renamed, so a reader never sees half of one, and a crash leaves only
// what the next sweep removes. One process at a time may hold a store.
//
// Open verifies every byte once in the life of the process and caches the
// result; a snapshot that fails is never handed to a machine. Removing a
// snapshot unlinks its files; machines that run from it keep their mappings.
//
// Lock order: Store.writing, then Store.mu.
package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/forkd-dev/forkd/internal/page"
)

const (
	manifestFile = "manifest.json"
	stateFile    = "state.bin"
	rootFile     = "rootfs.erofs"
	tempPrefix   = ".tmp-"
)

// Store is the directory of snapshots and layers.
type Store struct {
	snapshots, layers string

	writing sync.Mutex // serialises Create and Remove
	mu      sync.Mutex
	open    map[string]*Snapshot // verified snapshots by tag; guarded by mu
}

// OpenStore opens the store under home, creating it if needed, and removes
// what crashed writers left.
func OpenStore(home string) (*Store, error) {
	s := &Store{
		snapshots: filepath.Join(home, "snapshots"),
		layers:    filepath.Join(home, "layers"),
		open:      make(map[string]*Snapshot),
	}
	for _, dir := range []string{s.snapshots, s.layers} {
		// Snapshots hold whatever the guest held, secrets included.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("creating snapshot store: %w", err)
		}
		if err := removeTemporaries(dir); err != nil {
			return nil, fmt.Errorf("cleaning snapshot store: %w", err)
		}
	}
	return s, s.sweep()
}

func removeTemporaries(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// sweep removes layers that no manifest names. A snapshot whose manifest
// cannot be read might name any layer, so then nothing is removed.
func (s *Store) sweep() error {
	used := make(map[string]bool)
	for _, e := range s.entries() {
		m, err := readManifest(filepath.Join(s.snapshots, e))
		if err != nil {
			return nil
		}
		for _, l := range append(m.Memory.Layers, m.Scratch.Layers...) {
			used[l.Digest+layerSuffix] = true
		}
	}
	entries, err := os.ReadDir(s.layers)
	for _, e := range entries {
		if !used[e.Name()] && !strings.HasPrefix(e.Name(), tempPrefix) {
			err = errors.Join(err, os.Remove(filepath.Join(s.layers, e.Name())))
		}
	}
	return err
}

const layerSuffix = ".layer"

func (s *Store) layerPath(digest string) string {
	return filepath.Join(s.layers, digest+layerSuffix)
}

// entries returns the names of the snapshot directories.
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

// Exists reports whether a snapshot of this name exists, bootable or not.
func (s *Store) Exists(tag string) bool {
	_, err := os.Lstat(s.Dir(tag))
	return err == nil
}

// Contents is what a new snapshot is made of.
type Contents struct {
	State   []byte
	Memory  *page.Stack
	Scratch *page.Stack
	Root    string // path of the root image, on the same file system or copied
}

// Create writes a snapshot and makes it durable before it returns. m needs no
// file references; they are filled in. The error wraps fs.ErrExist if the tag
// is taken.
func (s *Store) Create(ctx context.Context, m Manifest, c Contents) (err error) {
	if !ValidTag(m.Tag) {
		return fmt.Errorf("bad tag %q", m.Tag)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.Exists(m.Tag) {
		return fmt.Errorf("snapshot %q: %w", m.Tag, fs.ErrExist)
	}
	dir, err := os.MkdirTemp(s.snapshots, tempPrefix)
	if err != nil {
		return fmt.Errorf("creating snapshot directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir), s.sweep())
		}
	}()
	m.Format = FormatVersion
	if m.Memory, err = s.writeStack(ctx, c.Memory); err != nil {
		return fmt.Errorf("writing memory of %q: %w", m.Tag, err)
	}
	if m.Scratch, err = s.writeStack(ctx, c.Scratch); err != nil {
		return fmt.Errorf("writing scratch disk of %q: %w", m.Tag, err)
	}
	if m.Root, err = adoptFile(c.Root, filepath.Join(dir, rootFile)); err != nil {
		return fmt.Errorf("adding root image to %q: %w", m.Tag, err)
	}
	sum := sha256.Sum256(c.State)
	m.State = FileRef{int64(len(c.State)), hex.EncodeToString(sum[:])}
	if err := writeSynced(filepath.Join(dir, stateFile), c.State); err != nil {
		return err
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding manifest: %w", err)
	}
	if err := writeSynced(filepath.Join(dir, manifestFile), append(b, '\n')); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(syncDir(s.layers), syncDir(dir), os.Rename(dir, s.Dir(m.Tag)), syncDir(s.snapshots))
}

// writeStack writes the layers of a stack that have no file yet.
func (s *Store) writeStack(ctx context.Context, stack *page.Stack) (StackRef, error) {
	ref := StackRef{Pages: stack.Limit()}
	for _, l := range stack.Layers() {
		if err := ctx.Err(); err != nil {
			return ref, err
		}
		digest, size, err := s.writeLayer(stack.Limit(), l)
		if err != nil {
			return ref, err
		}
		ref.Layers = append(ref.Layers, LayerRef{digest, size})
	}
	return ref, nil
}

func (s *Store) writeLayer(limit page.Number, l *page.Layer) (digest string, size int64, err error) {
	if l.Digest() != (page.Digest{}) {
		if st, err := os.Stat(s.layerPath(l.Digest().String())); err == nil {
			return l.Digest().String(), st.Size(), nil
		}
	}
	f, err := os.CreateTemp(s.layers, tempPrefix)
	if err != nil {
		return "", 0, fmt.Errorf("creating layer file: %w", err)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	d, err := page.WriteLayer(f, limit, l.All)
	if err != nil {
		return "", 0, err
	}
	if err := f.Sync(); err != nil {
		return "", 0, fmt.Errorf("syncing layer file: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return "", 0, err
	}
	if err := os.Rename(f.Name(), s.layerPath(d.String())); err != nil {
		return "", 0, fmt.Errorf("naming layer file: %w", err)
	}
	return d.String(), st.Size(), nil
}

// Remove deletes a snapshot. Machines that run from it are not affected. The
// error wraps fs.ErrNotExist if there is none.
func (s *Store) Remove(tag string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !ValidTag(tag) || !s.Exists(tag) {
		return fmt.Errorf("snapshot %q: %w", tag, fs.ErrNotExist)
	}
	// Renamed first, so that a crash half way leaves no half snapshot.
	doomed := filepath.Join(s.snapshots, tempPrefix+"removed-"+tag)
	if err := os.Rename(s.Dir(tag), doomed); err != nil {
		return fmt.Errorf("removing snapshot %q: %w", tag, err)
	}
	s.forget(tag)
	return errors.Join(os.RemoveAll(doomed), syncDir(s.snapshots), s.sweep())
}

// forget drops the store's own reference to an opened snapshot.
func (s *Store) forget(tag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap := s.open[tag]; snap != nil {
		delete(s.open, tag)
		snap.Release()
	}
}

// Entry is a snapshot in a listing. Err says why it is not bootable.
type Entry struct {
	Tag      string
	Manifest *Manifest // nil if it cannot be read
	Err      error
}

// List returns all snapshots in order of their tags. It checks that the files
// are there and as long as they should be; Open checks their contents.
func (s *Store) List() (list []Entry) {
	for _, tag := range s.entries() {
		list = append(list, s.Inspect(tag))
	}
	return list
}

// Inspect is List for one tag.
func (s *Store) Inspect(tag string) Entry {
	m, err := readManifest(s.Dir(tag))
	if err == nil && m.Tag != tag {
		err = fmt.Errorf("%w: its manifest names it %q", ErrNotBootable, m.Tag)
	}
	if err != nil {
		return Entry{tag, nil, err}
	}
	return Entry{tag, m, s.checkSizes(m)}
}

func (s *Store) checkSizes(m *Manifest) error {
	sizes := map[string]int64{
		filepath.Join(s.Dir(m.Tag), rootFile):  m.Root.Size,
		filepath.Join(s.Dir(m.Tag), stateFile): m.State.Size,
	}
	for _, l := range append(append([]LayerRef(nil), m.Memory.Layers...), m.Scratch.Layers...) {
		sizes[s.layerPath(l.Digest)] = l.Size
	}
	for path, want := range sizes {
		st, err := os.Stat(path)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrNotBootable, err)
		case st.Size() != want:
			return fmt.Errorf("%w: %s is %d bytes long, should be %d", ErrNotBootable, path, st.Size(), want)
		}
	}
	return nil
}

// Close forgets the verified snapshots.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for tag, snap := range s.open {
		delete(s.open, tag)
		snap.Release()
	}
}

// adoptFile links or copies a file and returns its size and hash.
func adoptFile(from, to string) (FileRef, error) {
	if err := os.Link(from, to); err != nil {
		if err := copyFile(from, to); err != nil {
			return FileRef{}, err
		}
	}
	return hashFile(to)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

func hashFile(path string) (FileRef, error) {
	f, err := os.Open(path)
	if err != nil {
		return FileRef{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return FileRef{n, hex.EncodeToString(h.Sum(nil))}, err
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
