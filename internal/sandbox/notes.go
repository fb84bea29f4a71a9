package sandbox

import (
	"encoding/json"
	"sync"
	"time"
)

// noteAfter is how long what nobody was told of may stay unknown to a cell. It keeps notes
// out of bursts, and has many go at once.
const noteAfter = 50 * time.Millisecond

// notes are sandboxes whose cells are to know them as they are.
type notes struct {
	mu  sync.Mutex
	due []*box // guarded by mu
}

// soon has a sandbox's cell know it as it is, before long. A daemon that dies before
// refreshes the guest once more.
func (n *notes) soon(b *box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.due = append(n.due, b); len(n.due) == 1 {
		time.AfterFunc(noteAfter, n.flush)
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
