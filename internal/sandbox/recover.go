package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/journal"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// What the cells keep for a daemon that comes after this one. A note that is not
// understood is that of another version of forkd: what it is of is ended.

// sourceNote is of what sandboxes were forked from.
type sourceNote struct {
	Manifest *snapshot.Manifest `json:"manifest"`
}

// termsNote is of what sandboxes have in common that were forked together.
type termsNote struct {
	Limits     Limits            `json:"limits"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	OnTimeout  TimeoutAction     `json:"on_timeout,omitempty"`
	AutoResume bool              `json:"auto_resume,omitempty"`
}

func (t terms) note() termsNote {
	return termsNote{t.limits, t.metadata, t.env, t.onTimeout, t.autoResume}
}

func (n termsNote) terms() terms {
	return terms{limits: n.Limits, metadata: n.Metadata, env: n.Env, onTimeout: n.OnTimeout, autoResume: n.AutoResume}
}

// boxNote is of one sandbox.
type boxNote struct {
	ID         string          `json:"id"`
	Tag        string          `json:"tag"`
	Base       string          `json:"base,omitempty"`  // if it is not Tag
	First      string          `json:"first,omitempty"` // if it is not Base
	Source     string          `json:"source,omitempty"`
	Workspace  string          `json:"workspace,omitempty"`
	Names      names           `json:"names"`
	Created    time.Time       `json:"created"`
	Restored   time.Time       `json:"restored"`
	Awake      bool            `json:"awake,omitempty"`
	Fleeting   bool            `json:"fleeting,omitempty"` // it ends with the daemon that made it
	Expires    time.Time       `json:"expires,omitzero"`
	LifetimeMS int64           `json:"lifetime_ms,omitempty"`
	Front      json.RawMessage `json:"front,omitempty"`
	Used       time.Time       `json:"used,omitzero"` // at the latest; if it has an idle lifetime
}

// check refuses what no forkd of this version writes.
func (n boxNote) check() error {
	for _, tag := range []string{n.Tag, n.Base, n.First, n.Workspace} {
		if tag != "" && !snapshot.ValidTag(tag) {
			return fmt.Errorf("bad name %q", tag)
		}
	}
	switch {
	case !journal.ValidID(n.ID):
		return fmt.Errorf("bad id %q", n.ID)
	case n.Tag == "":
		return errors.New("it is of no snapshot")
	case !n.Names.valid():
		return fmt.Errorf("bad names %q", n.Names)
	case n.LifetimeMS < 0 || n.LifetimeMS > MaxLifetime.Milliseconds():
		return fmt.Errorf("bad lifetime of %d ms", n.LifetimeMS)
	}
	return checkFront(n.Front)
}

// noteNow returns the note of a sandbox. The caller holds b.mu, or nobody else knows
// the sandbox yet.
func (b *box) noteNow() boxNote {
	n := boxNote{
		ID: b.id, Tag: b.tag, Source: b.source, Workspace: b.workspace, Names: b.names, Created: b.created, Restored: b.restored, Fleeting: b.fleeting,
		Awake: b.isAwake() && b.wakeErr == nil, Expires: b.expires, LifetimeMS: b.lifetime.Milliseconds(), Front: b.front,
		Used: b.usedUntil(),
	}
	if b.base != b.tag {
		n.Base = b.base
	}
	if b.first != b.base {
		n.First = b.first
	}
	return n
}

// birth is the inverse of noteNow, but for what only a sandbox that exists has.
func (n boxNote) birth(t terms) birth {
	return birth{
		id: n.ID, tag: n.Tag, base: n.Base, first: n.First, source: &n.Source, workspace: n.Workspace, names: n.Names, created: n.Created,
		terms: t, life: life{expires: n.Expires, lifetime: time.Duration(n.LifetimeMS) * time.Millisecond, front: n.Front},
	}
}

// takeOver takes over what a cell has told of. When ctx ends it leaves the rest as it is.
func (m *Manager) takeOver(ctx context.Context, f *cell.Found, a *arrival) {
	snaps, lacks := make(map[uint64]*snapshot.Snapshot), make(map[uint64]error)
	defer func() {
		for _, snap := range snaps {
			if ctx.Err() == nil { // or the cell would be told that nobody needs it
				snap.Release()
			}
		}
	}()
	for _, s := range f.Sources {
		if len(s.Note) == 0 { // a branch that was being made; what it stood on has a source of its own
			f.Cell.DropSource(s)
			continue
		}
		snap, err := m.recoverSource(ctx, f, s)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			m.opts.Log.Warn("what an earlier daemon forked from is lost", "cell", f.Cell.Name, "error", err)
			lacks[s.ID] = err
			f.Cell.DropSource(s)
			continue
		}
		snaps[s.ID] = snap
	}
	each(len(f.VMs), func(i int) {
		v := f.VMs[i]
		if ctx.Err() != nil {
			return
		}
		if v.Source == 0 { // a snapshot was being made, for somebody who is gone
			v.Close()
			return
		}
		id, err := m.recoverBox(ctx, v, snaps[v.Source], lacks[v.Source], a)
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, errOutdated):
			m.opts.Log.Info("a machine is closed", "cell", f.Cell.Name, "id", id, "reason", err)
			v.Close()
		default:
			a.lack(id, err)
			m.opts.Log.Warn("a sandbox of an earlier daemon is lost", "cell", f.Cell.Name, "note", string(v.Note), "error", err)
			v.Close()
		}
	})
}

// recoverSource returns what sandboxes were forked from: what the store has of it, or
// what the cell keeps if that has been removed. The latter they alone see.
func (m *Manager) recoverSource(ctx context.Context, f *cell.Found, s cell.FoundSource) (*snapshot.Snapshot, error) {
	var n sourceNote
	if err := json.Unmarshal(s.Note, &n); err != nil || n.Manifest == nil {
		return nil, fmt.Errorf("its note is not understood: %w", err)
	}
	if err := n.Manifest.Check(); err != nil {
		return nil, fmt.Errorf("its note makes no sense: %w", err)
	}
	// The next fork finds it where its siblings are.
	if snap := m.stored(n.Manifest); snap != nil {
		if err := f.Cell.Adopt(s, snap); err != nil {
			snap.Release()
			return nil, err
		}
		return snap, nil
	}
	return f.Cell.Snapshot(ctx, s, n.Manifest)
}

// stored returns a reference to the snapshot that a manifest is of, or nil if the store
// does not have that one.
func (m *Manager) stored(man *snapshot.Manifest) *snapshot.Snapshot {
	if !m.store.Exists(man.Tag) {
		return nil
	}
	snap, err := m.source(man.Tag)
	if err != nil {
		m.opts.Log.Warn("opening what sandboxes of an earlier daemon were forked from", "snapshot", man.Tag, "error", err)
		return nil
	}
	if !reflect.DeepEqual(snap.Manifest, man) { // another one has the tag now
		snap.Release()
		return nil
	}
	return snap
}

// settle registers a sandbox that was found, in the place of what was listed for it. A daemon that died when
// it had just put a machine in the place of another has left both; the later one counts. One that died when
// it made a workspace, or removed one, has left a sandbox of none, which nobody could end.
func (m *Manager) settle(b *box, a *arrival) error {
	m.settling.Lock()
	defer m.settling.Unlock()
	if _, ok := m.spaces.Get(b.workspace); b.workspace != "" && !ok {
		m.journal.Gone(reasonSpace, b.id)
		return fmt.Errorf("there is no workspace %q any more", b.workspace)
	}
	was := a.boxes[b.id].box
	if m.outdated(b) || was != nil && !m.owns(was) {
		return errOutdated
	}
	rivals := slices.DeleteFunc(m.rivals(b), func(other *box) bool { return other == was })
	if i := slices.IndexFunc(rivals, func(other *box) bool { return other.restored.After(b.restored) }); i >= 0 {
		if rivals[i].id != b.id {
			m.drop(was, reasonOutlived)
			m.journal.Gone(reasonOutlived, b.id)
		}
		return errors.New(reasonOutlived)
	}
	for _, other := range rivals {
		m.drop(other, reasonOutlived)
	}
	if was == nil {
		return m.register(b)
	}
	if !m.swap(was, b) { // it was killed at this moment
		return errOutdated
	}
	was.close()
	m.begin(b)
	return nil
}

var errOutdated = errors.New("it is not what its sandbox is any more")

// outdated reports whether a machine is known not to be what its sandbox is any more. A cell that
// did not answer has it: whoever forked it went elsewhere meanwhile, or gave up, and the daemon that would have
// closed it later has ended. Or the sandbox was killed before the cell told of it.
func (m *Manager) outdated(b *box) bool {
	r, saved := m.saved(b.id)
	return saved && r.PausedAt.After(b.restored) || m.journal.Outdated(b.id, b.restored)
}

// rivals returns the sandboxes that are what another is, too.
func (m *Manager) rivals(b *box) (list []*box) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.boxes {
		if other.id == b.id || b.workspace != "" && other.workspace == b.workspace {
			list = append(list, other)
		}
	}
	return list
}

// releaseTime bounds how long a guest may take to go on.
const releaseTime = 10 * time.Second

// recoverBox takes over one sandbox, unless what it was forked from lacks. What was done to its
// machine when the daemon ended is not done any more, so it runs, if it ever did.
func (m *Manager) recoverBox(ctx context.Context, v cell.FoundVM, snap *snapshot.Snapshot, lacks error, a *arrival) (id string, err error) {
	var n boxNote
	var t termsNote
	if err := json.Unmarshal(v.Note, &n); err != nil {
		return "", err
	}
	if err := json.Unmarshal(v.Common, &t); err != nil {
		return n.ID, err
	}
	if snap == nil {
		return n.ID, fmt.Errorf("what it was forked from is lost: %w", cmp.Or(lacks, errors.New("its process does not have it")))
	}
	if err := errors.Join(n.check(), t.terms().check()); err != nil {
		return n.ID, fmt.Errorf("its note makes no sense: %w", err)
	}
	if n.Fleeting {
		v.Close()
		return n.ID, nil
	}
	b := m.newBox(snap.Manifest, n.birth(t.terms()))
	if r, ok := m.saved(n.ID); ok {
		b.pausedAt = r.PausedAt
	}
	b.restored, b.idling = n.Restored, foundIdle(n.Used, b.limits.Idle)
	b.enter(v.VM, snap)
	if !n.Awake { // else it may have lost its runtime, and have another one
		b.untouched()
	}
	if v.Started() {
		err := v.GoOn(ctx)
		if ctx.Err() != nil {
			return n.ID, ctx.Err()
		}
		if err != nil {
			m.opts.Log.Info("a sandbox has ended while no daemon was there", "id", b.id, "reason", err)
		}
	}
	if n.Awake {
		b.wakeOnce.Do(func() {})
	}
	if err := m.settle(b, a); err != nil {
		b.close()
		return n.ID, err
	}
	if n.Awake {
		go m.awaken(b) // whoever uses it waits for that, and nobody else
	}
	m.opts.Log.Info("took a sandbox over", "id", b.id, "snapshot", b.base, "cell", v.Cell().Name)
	return n.ID, nil
}

// awaken has a sandbox go on that was awake when an earlier daemon ended: a pause or a
// branch that was under way may have left the guest standing still. An evaluation that is under way has nobody
// any more who waits for it, or keeps its time limit, so it is interrupted, as when a client leaves.
func (m *Manager) awaken(b *box) {
	ctx, cancel := b.machine.Cell().Timeout(context.Background(), releaseTime)
	defer cancel()
	if err := b.agent.LetGo(ctx); err != nil && b.state() == Running {
		m.opts.Log.Warn("letting a sandbox go on that an earlier daemon may have held", "id", b.id, "error", err)
	}
	if err := b.interruptFormer(ctx); err != nil && b.state() == Running {
		m.opts.Log.Warn("interrupting what an earlier daemon had evaluated", "id", b.id, "error", err)
	}
	close(b.called) // not earlier: what is evaluated before the interrupt would be what it hits
	close(b.awake)
	b.notes.soon(b)
}

// interruptFormer interrupts what an earlier daemon has evaluated.
func (b *box) interruptFormer(ctx context.Context) error {
	if b.manifest.Runtime == "" {
		return nil
	}
	return b.agent.Interrupt(ctx, b.manifest.Runtime)
}
