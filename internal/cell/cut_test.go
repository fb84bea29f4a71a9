package cell

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// rounds checks a stack of RAM of a machine that runs Rounds.
func rounds(t *testing.T, memory *page.Stack) uint64 {
	t.Helper()
	n, err := machinetest.CheckRounds(func(gpa uint64) *[4096]byte { return memory.Get(page.Number((gpa - board.RAMBase) / page.Size)) })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// cutRounds cuts a machine that runs Rounds, and returns how many there were.
func (l *lab) cutRounds(v *VM) (*Cut, uint64) {
	l.t.Helper()
	cut, err := v.Branch(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	memory, scratch, err := cut.Stacks(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	defer memory.Release()
	defer scratch.Release()
	return cut, rounds(l.t, memory)
}

// goesOn waits until a machine has done more than so much, and then some rounds.
func (l *lab) goesOn(v *VM) {
	l.t.Helper()
	v.Refresh()
	l.executed(v, v.Counters().Instructions+20*machinetest.RoundPages*6)
}

// shrinks waits until a machine has no more to itself than so many pages.
func (l *lab) shrinks(what string, v *VM, pages int64) {
	l.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if v.Refresh(); v.PageBytes() <= pages*page.Size {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s: the machine has %d pages to itself, should have %d at most", what, v.PageBytes()/page.Size, pages)
		}
	}
}

// own is about how many pages a machine that runs Rounds writes again and again.
const own = machinetest.RoundPages + 8

// TestWrittenCutsLeaveMemory: a machine that is branched again and again has in memory what
// it has written since the last branch, and its children in memory go over to the file, too.
func TestWrittenCutsLeaveMemory(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.boot(machinetest.Rounds)
	l.goesOn(v)
	last := uint64(0)
	for i := range 100 {
		cut, n := l.cutRounds(v)
		if n < last {
			t.Fatalf("branch %d: %d rounds, and %d before", i, n, last)
		}
		last = n
		tag := fmt.Sprintf("b%d", i)
		var child *VM
		if i%10 == 0 {
			root, err := snapshot.OpenRoot(l.root())
			if err != nil {
				t.Fatal(err)
			}
			inMemory := snapshot.InMemory(&snapshot.Manifest{VCPUs: 1}, cut.State(), retain(cut), root)
			child = l.fork(v.Cell(), inMemory, "child")[0]
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			inMemory.Release()
		}
		if s := l.snapshot(tag, cut); rounds(t, s.Memory) != n {
			t.Fatalf("branch %d has %d rounds, not %d", i, rounds(t, s.Memory), n)
		}
		if cut.Release(); child != nil {
			l.shrinks("a branch with a child", v, own)
			l.goesOn(child)
			again, m := l.cutRounds(child)
			if again.Release(); m < n {
				t.Errorf("a child of %d rounds has done %d", n, m)
			}
			child.Close()
		}
		l.goesOn(v)
	}
	l.shrinks("many branches", v, own)
	cut, n := l.cutRounds(v)
	defer cut.Release()
	if depth := len(l.layersOf(cut)); depth > 70 {
		t.Errorf("%d layers lie over each other", depth)
	}
	if n < last {
		t.Errorf("%d rounds, and %d before", n, last)
	}
	select {
	case <-v.Done():
		t.Errorf("the machine has ended: %v", v.Ending())
	default:
	}
}

// layersOf returns which layers of RAM a cut consists of now.
func (l *lab) layersOf(c *Cut) []uint64 {
	l.t.Helper()
	now, err := c.now(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return now.Memory.Layers
}

// TestCutsThatNobodyKeeps: what was cut for children that have ended, or for a branch that
// was removed, is the machine's own again, or part of the next branch.
func TestCutsThatNobodyKeeps(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.boot(machinetest.Rounds)
	l.goesOn(v)
	for range 50 {
		cut, _ := l.cutRounds(v)
		l.goesOn(v)
		cut.Release()
	}
	l.shrinks("cuts that nobody has", v, own)

	// Layers that lie between others which are needed.
	first, n1 := l.cutRounds(v)
	var between []*Cut
	for range 5 {
		l.goesOn(v)
		c, _ := l.cutRounds(v)
		between = append(between, c)
	}
	last, n2 := l.cutRounds(v)
	l.goesOn(v)
	for _, c := range between {
		c.Release()
	}
	l.shrinks("layers between others", v, 4*own)
	for c, n := range map[*Cut]uint64{first: n1, last: n2} {
		memory, scratch, err := c.Stacks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := rounds(t, memory); got != n {
			t.Errorf("a cut of %d rounds has %d", n, got)
		}
		memory.Release()
		scratch.Release()
	}
	first.Release()
	last.Release()
	l.shrinks("all", v, own)

	for i := range 5 { // branches that are removed
		cut, n := l.cutRounds(v)
		tag := fmt.Sprintf("b%d", i)
		s := l.snapshot(tag, cut)
		if got := rounds(t, s.Memory); got != n {
			t.Errorf("branch %d has %d rounds, not %d", i, got, n)
		}
		if layers := len(s.Manifest.Memory.Layers); layers != 1 {
			t.Errorf("branch %d has %d layers of memory, though those below it were removed", i, layers)
		}
		cut.Release()
		l.shrinks("a branch", v, own)
		if err := l.store.Remove(tag); err != nil {
			t.Fatal(err)
		}
		if _, err := l.store.Open(tag); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		l.goesOn(v)
	}
}

// TestCutOutlivesItsMachine: a cell that is for one machine stays as long as somebody has a cut
// of it, and no longer.
func TestCutOutlivesItsMachine(t *testing.T) {
	l := newLab(t, shortDir(t), func(o *Options) { o.Each = true })
	v := l.counting()
	cut, err := v.Branch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v.Close()
	select {
	case <-v.Cell().gone:
		t.Fatal("the cell has ended under the cut")
	case <-time.After(100 * time.Millisecond):
	}
	if l.count(cut) == 0 {
		t.Error("nothing was counted")
	}
	cut.Release()
	select {
	case <-v.Cell().gone:
	case <-time.After(time.Minute):
		t.Fatal("the cell stays")
	}
}

// TestCellThatNobodyWaitedFor: a cell that was started for somebody who has left does not stay.
func TestCellThatNobodyWaitedFor(t *testing.T) {
	l := newLab(t, shortDir(t), func(o *Options) { o.Patience = 10 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Shared(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		left := len(l.making) + len(l.cells)
		l.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the cell stays")
		}
	}
}

// TestWrittenIsBounded: the oldest files are forgotten, and what is known of a file stays.
func TestWrittenIsBounded(t *testing.T) {
	var w written
	for i := range uint64(3 * maxWritten) {
		w.put(i, file{page.Digest{1}, true})
		w.put(i, file{digest: page.Digest{1}})
	}
	if len(w.of) != maxWritten || len(w.order) != maxWritten {
		t.Errorf("%d files in %d places", len(w.of), len(w.order))
	}
	if last := w.of[3*maxWritten-1]; !last.mapped {
		t.Errorf("the last is %+v", last)
	}
	if w.put(7, file{digest: page.Digest{2}}); w.of[7].mapped {
		t.Error("another file is mapped, too")
	}
}
