package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// MaxLifetime bounds the lifetime that a fork may ask for.
const MaxLifetime = 365 * 24 * time.Hour

// Fork makes n children of a snapshot. The error is for a request that is
// refused as a whole; otherwise there is one result per child, and one child's
// failure does not touch the others. If ctx ends before the call returns, no
// child of it stays.
func (m *Manager) Fork(ctx context.Context, spec ForkSpec) ([]ForkResult, error) {
	spec, err := checkFork(spec)
	if err != nil {
		return nil, err
	}
	// The tag cannot be removed before its children are there to be seen.
	free := m.tags.share(spec.Tag)
	src, err := m.source(spec.Tag)
	if err != nil {
		free()
		return nil, err
	}
	defer src.Release()
	f, err := m.forkFrom(ctx, src, spec)
	free()
	if err != nil {
		return nil, err
	}
	return f.finish(ctx, m)
}

// forking is a fork whose children are registered.
type forking struct {
	spec    ForkSpec
	wake    bool // activate them now
	boxes   []*box
	results []ForkResult
}

// forkFrom makes children of an opened snapshot.
func (m *Manager) forkFrom(ctx context.Context, src *snapshot.Snapshot, spec ForkSpec) (*forking, error) {
	if err := src.Intact(); err != nil {
		return nil, m.openError(spec.Tag, err)
	}
	done, err := m.admit(spec.need())
	if err != nil {
		return nil, err
	}
	defer done()
	f := &forking{
		spec: spec, wake: spec.Prewarm || src.Manifest.Held > 0,
		results: make([]ForkResult, spec.N), boxes: make([]*box, spec.N),
	}
	births := make([]birth, spec.N)
	for i := range births {
		births[i] = birthOf(spec)
	}
	boxes, errs := m.spawnAll(ctx, src, births)
	m.giveUp(births, errs)
	made := slices.DeleteFunc(slices.Clone(boxes), func(b *box) bool { return b == nil })
	late := m.register(made...)
	for i, b := range boxes {
		if err := cmp.Or(errs[i], late); err != nil {
			f.results[i].Err = wrap(err, "forking child %d of %q", i, spec.Tag)
			continue
		}
		f.boxes[i] = b
	}
	return f, nil
}

// giveUp notes which children a cell that does not answer may yet make. This daemon closes them
// then, and the next one is to do so, too.
func (m *Manager) giveUp(births []birth, errs []error) {
	var ids []string
	for i, err := range errs {
		if errors.Is(err, cell.ErrSilent) {
			ids = append(ids, births[i].id)
		}
	}
	if len(ids) > 0 {
		m.journal.Gone(reasonRefused, ids...)
	}
}

// finish activates the children if need be and tells what became of each.
func (f *forking) finish(ctx context.Context, m *Manager) ([]ForkResult, error) {
	boxes, results := f.boxes, f.results
	if f.wake {
		m.wake(ctx, f.spec, boxes, results)
	}
	if err := ctx.Err(); err != nil {
		for _, b := range boxes {
			m.drop(b, reasonRefused)
		}
		return nil, wrap(err, "forking %q", f.spec.Tag)
	}
	for i, b := range boxes {
		if b != nil && results[i].Err == nil {
			info := b.info()
			results[i].Sandbox = &info
		}
	}
	return results, nil
}

// checkFork checks a request, and makes copies of what its children share.
func checkFork(spec ForkSpec) (ForkSpec, error) {
	spec.Metadata, spec.Env, spec.Front = maps.Clone(spec.Metadata), maps.Clone(spec.Env), slices.Clone(spec.Front)
	if spec.N < 1 || spec.N > MaxFork {
		return spec, fail(InvalidArgument, "", "n must be 1 to %d, not %d", MaxFork, spec.N)
	}
	if err := checkLifetime(spec.Lifetime); err != nil {
		return spec, err
	}
	if err := spec.terms().check(); err != nil {
		return spec, err
	}
	return spec, checkFront(spec.Front)
}

func (s *ForkSpec) terms() terms {
	return terms{
		limits: s.Limits, metadata: s.Metadata, env: s.Env,
		onTimeout: cmp.Or(s.OnTimeout, KillOnTimeout), autoResume: s.AutoResume,
	}
}

// need is what the children take of the host.
func (s *ForkSpec) need() need {
	what := fmt.Sprintf("forking %d children", s.N)
	if s.Tag != "" {
		what += fmt.Sprintf(" of %q", s.Tag)
	}
	return need{what: what, boxes: s.N, tag: s.Tag, limits: s.Limits}
}

// each calls do for every i below n, from as many goroutines as there are CPUs.
func each(n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, runtime.NumCPU()) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// birth is what a sandbox gets besides its snapshot.
type birth struct {
	id, tag   string
	base      string  // tag that its user knows it to be of, if that is another one
	first     string  // tag of what it was forked from, if it is rolled back
	source    *string // id of the sandbox that it was branched from, if its snapshot does not say
	workspace string
	names     names // that it has already, if any
	fleeting  bool  // it is to be gone should the daemon end now
	created   time.Time
	pausedAt  time.Time // when its state was kept that a resume goes back to, if there is one
	terms
	life
}

func birthOf(spec ForkSpec) birth {
	c := birth{id: newID(), tag: spec.Tag, created: time.Now(), terms: spec.terms(), life: life{front: spec.Front}}
	c.set(spec.Lifetime, c.created)
	return c
}

// newID makes up an id. It can be part of a host name behind a dash.
func newID() string { return "sb" + randomHex(6) }

// register makes new sandboxes known. If it cannot, it closes them.
func (m *Manager) register(boxes ...*box) error {
	m.journal.Began(siblings(boxes...)...) // first: they may end as soon as they are known
	m.mu.Lock()
	closed := m.closed
	if !closed {
		for _, b := range boxes {
			m.boxes[b.id] = b
		}
	}
	m.mu.Unlock()
	for _, b := range boxes {
		if closed {
			b.close()
			m.journal.Gone(reasonClosed, b.id)
			continue
		}
		m.begin(b)
	}
	if closed {
		return errShutdown()
	}
	return nil
}

// begin has a sandbox that is known live, and end.
func (m *Manager) begin(b *box) {
	b.machine.OnEnd(func() { m.retire(b) })
	m.limitLife(b)
}

// swap has a sandbox be another box, unless it is not that which it was. It reports whether it is.
func (m *Manager) swap(was, next *box) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[next.id] != was {
		return false
	}
	m.boxes[next.id] = next
	return true
}

func errShutdown() *Error { return fail(Unavailable, "", "forkd is shutting down") }

// wake activates children before they are used: because the caller wants to
// pay for it now, or because something in them waits to run on.
func (m *Manager) wake(ctx context.Context, spec ForkSpec, boxes []*box, results []ForkResult) {
	if !spec.Prewarm {
		for _, b := range boxes {
			if b != nil {
				go b.activate(context.Background())
			}
		}
		return
	}
	var wg sync.WaitGroup
	for i, b := range boxes {
		if b == nil {
			continue
		}
		wg.Go(func() {
			if err := b.activate(ctx); err != nil {
				results[i].Err = wrap(err, "starting child %d of %q", i, spec.Tag)
				m.drop(b, reasonRefused)
			}
		})
	}
	wg.Wait()
}

// Reasons of the host to end a sandbox.
const (
	reasonKilled  = "it was killed"
	reasonExpired = "its lifetime is over"
	reasonIdle    = "nobody has used it for as long as its idle lifetime"
	reasonRemoved = "its snapshot was removed by force"
	reasonRefused = "the fork that made it failed"
	reasonDerived = "the snapshot that it was for is made"
	reasonRolled  = "it was rolled back"
	reasonSuspend = "its workspace was suspended"
	reasonPaused  = "it was paused"
	reasonSpace   = "its workspace was removed"
	reasonClosed  = "forkd was stopped"
	reasonUnsaved = "forkd was stopped, and could not pause it"

	reasonOutlived = "another machine has taken its place" // of a sandbox that was found
)

// drop ends a sandbox and forgets it. It reports whether it was known.
func (m *Manager) drop(b *box, reason string) (known bool) {
	if b == nil {
		return false
	}
	if known = m.remove(b); known {
		m.journal.Gone(reason, b.id)
	}
	m.end(b, reason)
	return known
}

// remove forgets a sandbox, and reports whether it was known.
func (m *Manager) remove(b *box) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[b.id] != b {
		return false
	}
	delete(m.boxes, b.id)
	return true
}

// end frees a sandbox that is not known any more.
func (m *Manager) end(b *box, reason string) {
	b.giveUp(reason)
	m.spent.learn(b)
	if b.arrival != nil {
		m.forsake(b.arrival)
	}
}

// retire frees a sandbox that ended by itself. It stays listed, with its
// reason, until it is killed or maxEnded others have ended after it. One of which a pause is kept is
// listed until it is killed or resumed: its state is not to go on as if nothing had happened.
func (m *Manager) retire(b *box) {
	m.spent.learn(b)
	b.close()
	known, old := m.list(b)
	if known {
		m.noteEnd(b)
	}
	if old != nil {
		m.journal.Gone(old.endReason(), old.id)
	}
}

// list has a sandbox that has ended be listed, if it is known, and returns the one that is
// listed no more.
func (m *Manager) list(b *box) (known bool, old *box) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[b.id] != b {
		return false, nil
	}
	if b.kept() {
		return true, nil
	}
	m.ended = append(m.ended, b)
	if len(m.ended) <= maxEnded {
		return true, nil
	}
	if first := m.ended[0]; m.boxes[first.id] == first { // and not one that was rolled back
		delete(m.boxes, first.id)
		old = first
	}
	m.ended = m.ended[1:]
	return true, old
}

// closeAll ends many sandboxes.
func closeAll(boxes map[string]*box) {
	list := make([]*box, 0, len(boxes))
	for _, b := range boxes {
		list = append(list, b)
	}
	each(len(list), func(i int) { list[i].close() })
}
