package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// maxWriting is how many branches may be on their way to the disk. More would
// only make all of them late, and each keeps the pages of its source in memory.
const maxWriting = 16

// maxFailures is how many branches that could not be written are remembered.
const maxFailures = 100

// writers are the goroutines that write branches behind their answers.
type writers struct {
	ctx   context.Context // ends when they must
	stop  context.CancelFunc
	slots chan struct{}
	all   sync.WaitGroup
}

func newWriters() *writers {
	w := &writers{slots: make(chan struct{}, maxWriting)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// slot takes one of the slots for branches that are being written.
func (w *writers) slot() (free func(), err error) {
	select {
	case w.slots <- struct{}{}:
		return func() { <-w.slots }, nil
	default:
		return nil, fail(CapacityExceeded, "try again when some are ready", "%d branches are being written already", maxWriting)
	}
}

// drain lets writers finish, and then makes them give up. Nothing may be started
// any more.
func (w *writers) drain(patience time.Duration) {
	timer := time.AfterFunc(patience, w.stop)
	w.all.Wait()
	timer.Stop()
	w.stop()
}

// writing is a branch on its way to the disk.
type writing struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed
}

// write commits a branch in the background. A failure of which no caller hears
// is noted.
func (m *Manager) write(p *snapshot.Pending, spec BranchSpec, free func()) *writing {
	ctx, cancel := context.WithCancel(m.writers.ctx)
	w := &writing{cancel: cancel, done: make(chan struct{})}
	p.Failed = func(err error) {
		if !spec.Wait && !errors.Is(err, snapshot.ErrRemoved) && !errors.Is(err, context.Canceled) {
			m.opts.Log.Error("writing a branch", "tag", spec.Tag, "error", err)
			m.noteFailure(spec.Tag, err)
		}
	}
	m.writers.all.Go(func() {
		defer close(w.done)
		defer cancel()
		defer free()
		w.err = p.Commit(ctx, nil)
	})
	return w
}

// wait returns when the branch is durable. If ctx ends first, the branch is
// given up: nobody was told that it exists.
func (w *writing) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
	}
	w.cancel()
	<-w.done
	if w.err == nil {
		return nil // it was quicker
	}
	return context.Cause(ctx)
}

// failure is a branch that could not be written.
type failure struct {
	tag string
	at  time.Time
	err error
}

func (m *Manager) noteFailure(tag string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures = append(m.failures, failure{tag, time.Now(), err})
	if len(m.failures) > maxFailures {
		m.failures = m.failures[1:]
	}
}

// forgetFailure forgets what became of an earlier branch of this tag, and
// reports whether there was one.
func (m *Manager) forgetFailure(tag string) (had bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.failures[:0]
	for _, f := range m.failures {
		if f.tag == tag {
			had = true
			continue
		}
		kept = append(kept, f)
	}
	m.failures = kept
	return had
}

// failed describes the branches that could not be written.
func (m *Manager) failed() (infos []SnapshotInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.failures {
		infos = append(infos, SnapshotInfo{
			Tag: f.tag, CreatedAt: f.at, Status: string(snapshot.Failed),
			Warning: wrap(f.err, "the branch could not be written").Error(),
		})
	}
	return infos
}
