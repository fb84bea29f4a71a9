package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/processors"
)

// ErrRemoved reports a snapshot that was removed while it was being written.
var ErrRemoved = errors.New("snapshot was removed while it was being written")

// Contents is what a new snapshot is made of.
type Contents struct {
	State []byte
	// The pages are in stacks, or another process has them.
	Memory  *page.Stack
	Scratch *page.Stack
	Cut     Cut
	// Base is the snapshot whose root the machine has. Without one Root is the
	// path of the root image, which is linked, or copied from another file system.
	Base *Snapshot
	Root string
	// Flatten has each address space written as one layer that needs no other.
	Flatten bool
}

// Pending is a snapshot that is in memory but not on disk yet.
type Pending struct {
	// Failed, which may be nil, is called when a Commit has failed, before the
	// tag is free again: whoever looks for it then finds one or the other.
	Failed func(error)

	store   *Store
	snap    *Snapshot // one reference until done is closed
	flatten bool
	done    chan struct{} // closed when it is on disk or given up

	// Guarded by store.mu.
	phase  phase
	cancel context.CancelCauseFunc // while committing
	err    error                   // of the commit, when done is closed
}

type phase int

const (
	begun phase = iota
	committing
	publishing // too late to give up
	finished
)

// Begin takes a tag for a snapshot and keeps its contents in memory: from now on
// Exists, List and Open know it. With Contents.Base it does no I/O but for looking
// up names, and costs microseconds; otherwise it hashes the root image. Whoever
// begins commits or aborts.
//
// m needs no file references; they are filled in. Begin takes its own references
// to the contents. The error wraps fs.ErrExist if the tag is taken.
func (s *Store) Begin(m Manifest, c Contents) (*Pending, error) {
	if !ValidTag(m.Tag) { // before anything is read
		return nil, fmt.Errorf("bad tag %q", m.Tag)
	}
	m.Format = FormatVersion
	m.Root, m.State = FileRef{}, FileRef{int64(len(c.State)), hashBytes(c.State)}
	if c.Cut != nil {
		m.Memory.Pages, m.Scratch.Pages = c.Cut.Limits()
	} else {
		m.Memory.Pages, m.Scratch.Pages = c.Memory.Limit(), c.Scratch.Limit()
	}
	m.Memory.Layers, m.Scratch.Layers = nil, nil
	snap := &Snapshot{Manifest: &m, State: c.State}
	snap.refs.Store(1)
	if c.Cut != nil {
		c.Cut.Retain()
		snap.Cut = c.Cut
	} else {
		snap.Memory, snap.Scratch = c.Memory.Retain(), c.Scratch.Retain()
	}
	if err := snap.begin(c); err != nil {
		snap.Release()
		return nil, fmt.Errorf("beginning snapshot %q: %w", m.Tag, err)
	}
	p := &Pending{store: s, snap: snap, flatten: c.Flatten, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.take(m.Tag); err != nil {
		snap.Release()
		return nil, err
	}
	s.pending[m.Tag] = p
	return p, nil
}

// begin adds the root image, and refuses what could not be read again.
func (s *Snapshot) begin(c Contents) (err error) {
	if c.Base != nil {
		s.Manifest.Root, s.Root = c.Base.Manifest.Root, c.Base.Root.Retain()
	} else {
		s.Manifest.Root, s.Root, err = newRoot(c.Root)
	}
	if err != nil {
		return err
	}
	if n := len(s.Root.Layers()); n != 1 {
		return fmt.Errorf("%w: a root image of %d layers", ErrNotBootable, n)
	}
	return s.Manifest.Check()
}

// take checks that a tag is free. The caller holds s.mu and makes use of it.
func (s *Store) take(tag string) error {
	if s.pending[tag] != nil || s.importing[tag] != nil || s.onDisk(tag) {
		return fmt.Errorf("snapshot %q: %w", tag, fs.ErrExist)
	}
	return nil
}

// Create writes a snapshot and makes it durable before it returns. It is Begin
// and Commit.
func (s *Store) Create(ctx context.Context, m Manifest, c Contents) error {
	defer processors.All()()
	p, err := s.Begin(m, c)
	if err != nil {
		return err
	}
	return p.Commit(ctx, nil)
}

// Snapshot returns the snapshot as it is in memory. It is valid while p is
// pending; retain it for longer.
func (p *Pending) Snapshot() *Snapshot { return p.snap }

func (p *Pending) entry() Entry {
	return Entry{p.snap.Manifest.Tag, Writing, p.snap.Manifest, nil}
}

// Abort gives up a snapshot and returns when its tag and its space are free
// again. Whoever has opened it keeps it. After a Commit it does nothing.
func (p *Pending) Abort() {
	p.abort()
	<-p.done
}

// abort has p given up, if it is not too late for that.
func (p *Pending) abort() bool {
	s := p.store
	s.mu.Lock()
	was := p.phase
	given := was == begun || was == committing && p.err == nil
	if given {
		p.err = ErrRemoved
	}
	switch {
	case given && was == begun:
		p.phase = finished // nobody else may finish it
	case given:
		p.cancel(ErrRemoved)
	}
	s.mu.Unlock()
	if given && was == begun {
		p.finish(ErrRemoved)
	}
	return given
}

// finish ends a pending snapshot.
func (p *Pending) finish(err error) {
	s := p.store
	s.mu.Lock()
	p.phase, p.err = finished, err
	delete(s.pending, p.snap.Manifest.Tag)
	s.mu.Unlock()
	p.snap.Release() // without the lock: it may unmap files
	close(p.done)
}

// Wait returns when the snapshot of that tag is not pending any more, or ctx
// ends. The error is that of the commit.
func (s *Store) Wait(ctx context.Context, tag string) error {
	s.mu.Lock()
	p := s.pending[tag]
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.done:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.err
}

// Commit makes the snapshot durable. From then on Open maps it from its files,
// also for those who come while others have it in memory. If it fails the tag is
// free again and nothing is left on the disk, but for what a broken disk does
// not let go. progress, which may be nil, is called with the bytes of page data
// that have been written and that are to be written, from several goroutines.
func (p *Pending) Commit(ctx context.Context, progress func(done, total int64)) error {
	defer processors.All()()
	s := p.store
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	if p.phase != begun {
		defer s.mu.Unlock()
		if p.err != nil {
			return p.err
		}
		return errors.New("snapshot is committed twice")
	}
	p.phase, p.cancel = committing, cancel
	s.mu.Unlock()

	w := &writer{store: s, ctx: ctx, progress: progress}
	defer w.release()
	err := page.Guard(func() error { return w.write(p) })
	if err != nil {
		err = errors.Join(err, w.undo())
	} else if p.snap.Cut != nil {
		p.snap.Cut.Written(w.written)
	}
	w.unreserve()
	if err != nil && p.Failed != nil {
		p.Failed(err)
	}
	p.finish(err)
	return err
}

// write writes everything and gives it its name.
func (w *writer) write(p *Pending) (err error) {
	m := *p.snap.Manifest
	if err := w.begin(m.Tag); err != nil {
		return err
	}
	if m.Memory, m.Scratch, err = w.pages(p); err != nil {
		return fmt.Errorf("writing pages of %q: %w", m.Tag, err)
	}
	if m.Root, err = w.root(p.snap.Root, m.Root); err != nil {
		return fmt.Errorf("adding root image to %q: %w", m.Tag, err)
	}
	if err := w.store.disk.writeFile(w.ctx, filepath.Join(w.dir, stateFile), p.snap.State); err != nil {
		return err
	}
	return w.publish(&m, false, func() error {
		w.store.mu.Lock()
		defer w.store.mu.Unlock()
		if p.err != nil {
			return p.err
		}
		p.phase = publishing
		return nil
	})
}

// pages writes RAM and scratch disk, once they are in this process.
func (w *writer) pages(p *Pending) (memory, scratch StackRef, err error) {
	m, d := p.snap.Memory, p.snap.Scratch
	if cut := p.snap.Cut; cut != nil {
		if m, d, err = cut.Stacks(w.ctx); err != nil {
			return memory, scratch, err
		}
		w.held = []*page.Stack{m, d}
		w.bases[0], w.bases[1] = cut.Bases()
	}
	return w.stacks(m, d, p.flatten)
}

// release gives up what was fetched.
func (w *writer) release() {
	for _, s := range w.held {
		s.Release()
	}
	w.held = nil
}

// writer puts one snapshot on the disk.
type writer struct {
	store    *Store
	ctx      context.Context
	progress func(done, total int64)
	dir      string   // its own files
	reserved []string // layers
	named    string   // where dir was renamed to

	held    []*page.Stack // that were fetched, a reference each
	bases   [2]int        // how many layers of RAM and scratch disk are not the machine's own
	written []Written     // what has a file now
}

func (w *writer) begin(tag string) (err error) {
	if w.dir, err = w.store.disk.mkdirTemp(w.store.snapshots); err != nil {
		return fmt.Errorf("creating directory of snapshot %q: %w", tag, err)
	}
	return nil
}

// publish writes the manifest and gives the snapshot its name, unless last,
// which is called when nothing else can be in the way, returns an error.
func (w *writer) publish(m *Manifest, replace bool, last func() error) error {
	s := w.store
	if err := m.Check(); err != nil {
		return fmt.Errorf("snapshot %q could not be read again: %w", m.Tag, err)
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding manifest: %w", err)
	}
	if len(b) > maxManifest {
		return fmt.Errorf("manifest of snapshot %q has %d bytes, more than the %d allowed", m.Tag, len(b), maxManifest)
	}
	if err := s.disk.writeFile(w.ctx, filepath.Join(w.dir, manifestFile), append(b, '\n')); err != nil {
		return err
	}
	for _, dir := range []string{s.layers, w.dir} {
		if err := s.disk.syncDir(dir); err != nil {
			return err
		}
	}
	s.files.Lock()
	defer s.unlock()
	if err := last(); err != nil {
		return err
	}
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	return w.name(m.Tag, replace)
}

// name is the step that makes a snapshot be there. The caller holds s.files.
func (w *writer) name(tag string, replace bool) error {
	s, to := w.store, w.store.Dir(tag)
	if replace && s.onDisk(tag) {
		return w.exchange(tag, to)
	}
	if err := s.disk.rename(w.dir, to); err != nil {
		return fmt.Errorf("naming snapshot %q: %w", tag, err)
	}
	w.named = to
	return s.disk.syncDir(s.snapshots)
}

// exchange names a snapshot as another one is named, and removes that.
func (w *writer) exchange(tag, to string) error {
	s := w.store
	err := s.disk.exchange(w.dir, to)
	if err == nil {
		if err = s.disk.syncDir(s.snapshots); err == nil {
			s.forget(tag)
			// What cannot be removed of the old one goes at the next start.
			_ = errors.Join(s.disk.removeAll(w.dir), s.sweep())
			return nil
		}
		err = errors.Join(err, s.disk.exchange(w.dir, to))
	}
	return fmt.Errorf("replacing snapshot %q: %w", tag, err)
}

// undo removes what a failed writer has written.
func (w *writer) undo() (err error) {
	s := w.store
	s.files.Lock()
	defer s.files.Unlock()
	if w.named != "" {
		// It was named, but might not be after a crash.
		if err = s.disk.rename(w.named, w.dir); err == nil {
			err = s.disk.syncDir(s.snapshots)
		}
	}
	if w.dir != "" {
		err = errors.Join(err, s.disk.removeAll(w.dir))
	}
	w.drop()
	return errors.Join(err, s.sweep())
}

// reserve keeps a layer from being swept until the writer is done. It reports
// whether the layer is there, of that size, and not known to be damaged. The
// caller holds s.files.
func (w *writer) reserve(digest string, size int64) bool {
	st, err := os.Stat(w.store.layerPath(digest))
	if err != nil || st.Size() != size || w.store.rotten[digest] {
		return false
	}
	w.store.reserved[digest]++
	w.reserved = append(w.reserved, digest)
	return true
}

func (w *writer) unreserve() {
	w.store.files.Lock()
	defer w.store.files.Unlock()
	w.drop()
}

// drop is unreserve for a caller that holds s.files.
func (w *writer) drop() {
	for _, digest := range w.reserved {
		if w.store.reserved[digest]--; w.store.reserved[digest] == 0 {
			delete(w.store.reserved, digest)
		}
	}
	w.reserved = nil
}
