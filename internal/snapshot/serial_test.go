package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
)

// event is one operation on one tag, as a client saw it.
type event struct {
	what       string // make, remove, read, withdraw
	ok         bool
	value      uint64   // made or read; 0: nobody knows, it is one of among
	among      []uint64 // what a copy may hold
	start, end int64
}

func (e event) String() string {
	return fmt.Sprintf("%d-%d %s %v %d", e.start, e.end, e.what, e.ok, e.value)
}

// apply returns what a tag holds after an event, and whether the event can have
// happened when it held before. 0 is nothing; values from wild on are copies of
// which the value is not known.
const wild = 1 << 32

func (e event) apply(id int, before uint64, all []event) (after uint64, possible bool) {
	switch e.what {
	case "make":
		if !e.ok {
			return before, before != 0
		}
		if e.value == 0 {
			return wild + uint64(id), before == 0
		}
		return e.value, before == 0
	case "remove":
		return 0, e.ok == (before != 0)
	case "withdraw": // of what the client had made itself, unless somebody removed it
		if before == e.value {
			return 0, true
		}
		return before, true
	}
	if before >= wild {
		return before, e.ok && slices.Contains(all[before-wild].among, e.value)
	}
	return before, e.ok == (before != 0) && (!e.ok || e.value == before)
}

// explained reports whether some order of the events, in which none precedes one
// that had ended before it began, explains what all clients saw of a tag.
func explained(events []event) bool {
	type state struct {
		done  string
		value uint64
	}
	seen := make(map[state]bool)
	done := make([]byte, (len(events)+7)/8)
	var search func(left int, value uint64) bool
	search = func(left int, value uint64) bool {
		if left == 0 {
			return true
		}
		key := state{string(done), value}
		if seen[key] {
			return false
		}
		seen[key] = true
		first := int64(1 << 62) // no event that starts later can be next
		for i, e := range events {
			if done[i/8]>>(i%8)&1 == 0 {
				first = min(first, e.end)
			}
		}
		for i, e := range events {
			if done[i/8]>>(i%8)&1 != 0 || e.start > first {
				continue
			}
			if after, possible := e.apply(i, value, events); possible {
				done[i/8] |= 1 << (i % 8)
				if search(left-1, after) {
					return true
				}
				done[i/8] &^= 1 << (i % 8)
			}
		}
		return false
	}
	return search(len(events), 0)
}

func TestExplained(t *testing.T) {
	for _, c := range []struct {
		name   string
		want   bool
		events []event
	}{
		{"in order", true, []event{{"make", true, 1, nil, 1, 2}, {"read", true, 1, nil, 3, 4}, {"remove", true, 0, nil, 5, 6}}},
		{"made twice", false, []event{{"make", true, 1, nil, 1, 3}, {"make", true, 2, nil, 2, 4}}},
		{"removed in between", true, []event{{"make", true, 1, nil, 1, 3}, {"make", true, 2, nil, 2, 4}, {"remove", true, 0, nil, 1, 5}}},
		{"read what is gone", false, []event{{"make", true, 1, nil, 1, 2}, {"remove", true, 0, nil, 3, 4}, {"read", true, 1, nil, 5, 6}}},
		{"a copy", true, []event{{"make", true, 0, []uint64{7, 8}, 1, 2}, {"read", true, 8, nil, 3, 4}}},
		{"a copy of something else", false, []event{{"make", true, 0, []uint64{7, 8}, 1, 2}, {"read", true, 9, nil, 3, 4}}},
	} {
		if explained(c.events) != c.want {
			t.Errorf("%s: explained is %v", c.name, !c.want)
		}
	}
}

// crowd is many clients of one store.
type crowd struct {
	t     *testing.T
	b     *bench
	tags  []string
	clock atomic.Int64
	value atomic.Uint64

	mu     sync.Mutex
	events map[string][]event // by tag
	values map[string][]uint64
}

// note records an operation that began at start.
func (c *crowd) note(tag string, e event, start int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.start, e.end = start, c.clock.Add(1)
	c.events[tag] = append(c.events[tag], e)
}

func (c *crowd) fail(what string, err error) {
	if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrRemoved) {
		c.t.Errorf("%s: %v", what, err)
	}
}

// branch makes a snapshot upon another one, and sometimes changes its mind.
func (c *crowd) branch(rng *rand.Rand, tag, from string) {
	value := c.value.Add(1)
	c.mu.Lock()
	c.values[tag] = append(c.values[tag], value)
	c.mu.Unlock()
	start := c.clock.Add(1)
	p, err := c.b.begin(c.b.store, tag, from, value)
	if errors.Is(err, fs.ErrNotExist) {
		return // from is gone; nothing was done to tag
	}
	c.note(tag, event{what: "make", ok: err == nil, value: value}, start)
	if err != nil {
		c.fail("branching", err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rng.IntN(4) == 0 {
		time.AfterFunc(time.Duration(rng.IntN(2000))*time.Microsecond, cancel)
	}
	start = c.clock.Add(1)
	switch err := p.Commit(ctx, nil); {
	case errors.Is(err, context.Canceled):
		c.note(tag, event{what: "withdraw", value: value}, start)
	default:
		c.fail("committing", err)
	}
}

func (c *crowd) read(tag string) {
	start := c.clock.Add(1)
	s, err := c.b.store.Open(tag)
	e := event{what: "read", ok: err == nil}
	if err == nil {
		e.value = valueOf(s)
		s.Release()
	}
	c.fail("opening", err)
	c.note(tag, e, start)
}

func (c *crowd) remove(tag string) {
	start := c.clock.Add(1)
	err := c.b.store.Remove(tag)
	c.fail("removing", err)
	c.note(tag, event{what: "remove", ok: err == nil}, start)
}

func (c *crowd) compact(tag, from string) {
	start := c.clock.Add(1)
	err := c.b.store.Compact(context.Background(), from, tag)
	c.fail("compacting", err)
	c.mu.Lock()
	among := slices.Clone(c.values[from])
	c.mu.Unlock()
	switch {
	case err == nil:
		c.note(tag, event{what: "make", ok: true, among: among}, start)
	case errors.Is(err, fs.ErrExist):
		c.note(tag, event{what: "make"}, start)
	case errors.Is(err, ErrRemoved):
		// It was there for as long as it was written.
		c.note(tag, event{what: "make", ok: true, among: among}, start)
	}
}

func (c *crowd) client(seed uint64, n int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range n {
		a, b := c.tags[rng.IntN(len(c.tags))], c.tags[rng.IntN(len(c.tags))]
		switch r := rng.IntN(100); {
		case r < 30 && a != b:
			c.branch(rng, a, b)
		case r < 40:
			c.branch(rng, a, "")
		case r < 65:
			c.remove(a)
		case r < 90:
			c.read(a)
		case r < 96 && a[0] == 'a' && b[0] != 'a':
			c.compact(a, b) // of originals only, so that what it may hold is known
		case r < 98:
			c.fail("verifying", c.b.store.Verify(context.Background(), a, nil))
		default:
			if _, err := c.b.store.Chain(a); err != nil {
				c.fail("looking at the chain", err)
			}
			for _, e := range c.b.store.List() {
				if e.Status == Failed && e.Manifest != nil && c.b.store.Inspect(e.Tag).Status == Failed && c.b.store.Exists(e.Tag) {
					c.t.Errorf("snapshot %q is listed as failed: %v", e.Tag, e.Err)
				}
			}
		}
	}
}

// What many clients do to the same snapshots at once has an order that explains
// all that they saw, and leaves no file that nobody needs.
func TestSomeOrderExplainsWhatManyClientsSee(t *testing.T) {
	for round := range uint64(6) {
		f := &trouble{}
		s := newStory(t, page.NewArena(), f)
		c := &crowd{
			t: t, b: s.b, tags: []string{"a1", "a2", "b1", "b2", "b3"},
			events: make(map[string][]event), values: make(map[string][]uint64),
		}
		var clients sync.WaitGroup
		for i := range uint64(5) {
			clients.Go(func() { c.client(round*100+i, 30) })
		}
		clients.Wait()
		for _, tag := range c.tags {
			c.read(tag)
			if !explained(c.events[tag]) {
				slices.SortFunc(c.events[tag], func(a, b event) int { return int(a.start - b.start) })
				t.Fatalf("no order explains what was seen of %q: %v", tag, c.events[tag])
			}
		}
		for _, tag := range c.tags {
			c.remove(tag)
		}
		if left := s.b.files(); len(left) > 0 {
			t.Errorf("removing all left %v", left)
		}
		s.b.store.Close()
		if n := s.b.arena.InUse(); n > 0 {
			t.Errorf("%d pages are still in use", n)
		}
	}
}
