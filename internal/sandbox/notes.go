package sandbox

import (
	"encoding/json"
	"sync"
	"time"
)

// Notes of what nobody was told of can wait for a pause: in a burst, processors have better
// things to do, and many go at once afterwards.
const (
	noteAfter  = 50 * time.Millisecond  // without another
	noteLatest = 500 * time.Millisecond // with others all the time
)

// notes are sandboxes whose cells are to know them as they are.
type notes struct {
	mu    sync.Mutex
	due   []*box      // guarded by mu
	since time.Time   // of the first of them; guarded by mu
	timer *time.Timer // that flushes; guarded by mu
}

// soon has a sandbox's cell know it as it is, before long. A daemon that dies before
// refreshes the guest once more.
func (n *notes) soon(b *box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	switch n.due = append(n.due, b); {
	case len(n.due) == 1:
		n.since, n.timer = now, time.AfterFunc(noteAfter, n.flush)
	case now.Sub(n.since) < noteLatest-noteAfter:
		n.timer.Reset(noteAfter)
	}
}

// flush tells the cells now.
func (n *notes) flush() {
	n.mu.Lock()
	due := n.due
	n.due = nil
	n.mu.Unlock()
	each(len(due), func(i int) { due[i].note() })
}

// note has the sandbox's cell know it as it is now, unless it is over. Whoever changes
// what a note tells calls it afterwards, without a lock: a cell may take its time. What
// the cell is told last is the last change. If the cell is gone the sandbox is, too.
func (b *box) note() {
	b.noting.Lock()
	defer b.noting.Unlock()
	b.mu.Lock()
	over, now := b.over, b.noteNow()
	b.mu.Unlock()
	if over {
		return
	}
	if note, err := json.Marshal(now); err == nil {
		_ = b.machine.SetNote(note)
	}
}
