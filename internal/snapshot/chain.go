package snapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/processors"
)

// Chain is how a snapshot stands to others.
type Chain struct {
	// Depth is how many layers of RAM lie over the first one.
	Depth int
	// Ancestors are the snapshots that it was made from and still shares its
	// layers with, nearest first.
	Ancestors []string
	// Dependents are the snapshots that were made directly from it and share its
	// layers, in order.
	Dependents []string
	// LogicalBytes is the size of RAM and scratch disk, PhysicalBytes that of
	// all files that the snapshot needs, ExclusiveBytes of those which no other
	// snapshot needs. Of one that is being written only what has a file counts.
	LogicalBytes, PhysicalBytes, ExclusiveBytes int64
}

// member is a snapshot as its family sees it.
type member struct {
	*Manifest      // of one that is being written: without its layers
	pending, alone bool
	depth          int
	layers         []LayerRef
}

// Chain tells how a snapshot stands to others. The error wraps fs.ErrNotExist,
// or ErrNotBootable if its manifest cannot be read.
func (s *Store) Chain(tag string) (Chain, error) {
	family := s.family()
	m := family[tag]
	if m == nil {
		if e := s.Inspect(tag); s.Exists(tag) && e.Err != nil {
			return Chain{}, e.Err
		}
		return Chain{}, notExist(tag)
	}
	c := Chain{Depth: m.depth, LogicalBytes: (int64(m.Memory.Pages) + int64(m.Scratch.Pages)) * page.Size}
	seen := map[string]bool{tag: true}
	for child := m; ; {
		parent := family[child.ParentTag]
		if parent == nil || seen[parent.Tag] || !child.needs(parent) {
			break
		}
		seen[parent.Tag] = true
		c.Ancestors = append(c.Ancestors, parent.Tag)
		child = parent
	}
	for _, other := range family {
		if other.ParentTag == tag && other != m && other.needs(m) {
			c.Dependents = append(c.Dependents, other.Tag)
		}
	}
	slices.Sort(c.Dependents)
	c.PhysicalBytes, c.ExclusiveBytes = s.bytes(m, family)
	return c, nil
}

// needs reports whether m, which names parent as its parent, shares layers with
// it: it may be whole by itself, and the tag may be another snapshot's by now.
func (m *member) needs(parent *member) bool {
	if m.pending || parent.pending {
		return !m.alone
	}
	all, prefix := m.Memory.Layers, parent.Memory.Layers
	return len(prefix) <= len(all) && slices.Equal(all[:len(prefix)], prefix)
}

// family returns all snapshots whose manifests can be read, by tag.
func (s *Store) family() map[string]*member {
	family := make(map[string]*member)
	s.mu.Lock()
	for tag, p := range s.pending {
		family[tag] = p.member()
	}
	s.mu.Unlock()
	for _, tag := range s.entries() {
		if family[tag] != nil {
			continue
		}
		if m, err := readManifest(s.Dir(tag)); err == nil && m.Tag == tag {
			family[tag] = &member{Manifest: m, depth: max(0, len(m.Memory.Layers)-1), layers: m.layers()}
		}
	}
	return family
}

func (p *Pending) member() *member {
	m := &member{Manifest: p.snap.Manifest, pending: true, alone: p.flatten}
	if p.flatten {
		return m
	}
	if cut := p.snap.Cut; cut != nil {
		var digests []page.Digest
		m.depth, digests = cut.Layers()
		m.add(digests...)
		return m
	}
	m.depth = max(0, len(p.snap.Memory.Layers())-1)
	for _, stack := range []*page.Stack{p.snap.Memory, p.snap.Scratch} {
		for _, l := range stack.Layers() {
			m.add(l.Digest())
		}
	}
	return m
}

// add notes layers, but for those that have no file yet.
func (m *member) add(digests ...page.Digest) {
	for _, d := range digests {
		if d != (page.Digest{}) {
			m.layers = append(m.layers, LayerRef{Digest: d.String()})
		}
	}
}

// bytes returns the size of the files of m, and of those that nobody else needs.
func (s *Store) bytes(m *member, family map[string]*member) (all, exclusive int64) {
	others := make(map[string]bool)
	for _, other := range family {
		if other == m {
			continue
		}
		for _, l := range other.layers {
			others[l.Digest] = true
		}
	}
	count := func(path string, shared bool) {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			return
		}
		all += st.Size
		if !shared && st.Nlink == 1 {
			exclusive += st.Size
		}
	}
	seen := make(map[string]bool)
	for _, l := range m.layers {
		if !seen[l.Digest] {
			seen[l.Digest] = true
			count(s.layerPath(l.Digest), others[l.Digest])
		}
	}
	for _, name := range []string{manifestFile, stateFile, rootFile} {
		count(filepath.Join(s.Dir(m.Tag), name), false)
	}
	return all, exclusive
}

// Compact makes a copy of a snapshot in which each address space is one layer,
// under a new tag; it needs no other snapshot. The error wraps fs.ErrNotExist,
// ErrNotBootable or, if the new tag is taken, fs.ErrExist.
func (s *Store) Compact(ctx context.Context, from, to string) error {
	defer processors.All()()
	snap, err := s.Open(from)
	if err != nil {
		return err
	}
	defer snap.Release()
	m := *snap.Manifest
	m.Tag, m.ParentTag, m.CreatedAt = to, "", time.Now().UTC()
	p, err := s.Begin(m, Contents{State: snap.State, Memory: snap.Memory, Scratch: snap.Scratch, Cut: snap.Cut, Base: snap, Flatten: true})
	if err != nil {
		return fmt.Errorf("compacting snapshot %q: %w", from, err)
	}
	return p.Commit(ctx, nil)
}

// Verify compares every byte of a snapshot with its hashes. What it finds is an
// error that wraps ErrNotBootable and names each file at fault, and is
// remembered: until a later Verify finds everything in order, or the process
// ends, the snapshot cannot be opened. One that is being written is verified
// once it is there. progress, which may be nil, is called with numbers of bytes,
// from several goroutines.
func (s *Store) Verify(ctx context.Context, tag string, progress func(done, total int64)) error {
	defer processors.All()()
	if err := s.Wait(ctx, tag); ctx.Err() != nil {
		return context.Cause(ctx)
	} else if err != nil {
		return fmt.Errorf("%w: %w", notExist(tag), err)
	}
	x, err := s.Export(tag)
	if err != nil {
		return err
	}
	defer x.Close()
	bad, err := x.verify(ctx, progress)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.files.Lock()
	defer s.unlock()
	if !s.isStill(tag, x) {
		return notExist(tag)
	}
	for l := range x.Layers {
		delete(s.rotten, l.Digest)
	}
	for _, digest := range bad {
		s.rotten[digest] = true
	}
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.damaged, tag)
		return nil
	}
	s.forget(tag)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damaged[tag] = err
	return err
}

// isStill reports whether tag is still the snapshot that was exported. The
// caller holds s.files.
func (s *Store) isStill(tag string, x *Export) bool {
	now, err := os.Stat(filepath.Join(s.Dir(tag), manifestFile))
	if err != nil {
		return false
	}
	then, err := x.manifest.Stat()
	return err == nil && os.SameFile(now, then)
}
