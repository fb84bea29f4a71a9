package page

import (
	"math/bits"
	"math/rand/v2"
)

// table is an open-addressing hash table from page number to page. A forked
// machine touches a few hundred pages, so it must be small when small; the
// parent touches all of its RAM, so it must grow.
type table struct {
	slots []slot // length is a power of two, or zero
	used  int
}

type slot struct {
	number Number
	large  bool  // not worth packing, as long as nobody writes to it
	ahead  bool  // there because of Overlay.Ahead
	page   *Page // nil: empty; zero: the page was discarded
}

// seed makes the hash unknown to guests, which choose the page numbers: one
// that could have them collide would make its host search for seconds.
var seed = [2]uint64{rand.Uint64(), rand.Uint64() | 1}

func (t *table) home(n Number) int {
	hi, lo := bits.Mul64(uint64(n)^seed[0], seed[1])
	return int(hi^lo) & (len(t.slots) - 1)
}

func (t *table) get(n Number) *Page {
	if s := t.find(n); s != nil {
		return s.page
	}
	return nil
}

// find returns the slot of n, or nil. It is valid until the next put.
func (t *table) find(n Number) *slot {
	if len(t.slots) == 0 {
		return nil
	}
	for i := t.home(n); ; i = (i + 1) & (len(t.slots) - 1) {
		switch s := &t.slots[i]; {
		case s.page == nil:
			return nil
		case s.number == n:
			return s
		}
	}
}

// put adds n, which must be absent.
func (t *table) put(n Number, p *Page) {
	if 4*(t.used+1) > 3*len(t.slots) {
		t.grow()
	}
	t.insert(slot{number: n, page: p})
	t.used++
}

func (t *table) insert(s slot) {
	i := t.home(s.number)
	for t.slots[i].page != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = s
}

func (t *table) grow() { t.resize(max(16, 2*len(t.slots))) }

// reserve makes room for n more.
func (t *table) reserve(n int) {
	size := max(16, len(t.slots))
	for 4*(t.used+n) > 3*size {
		size *= 2
	}
	if size > len(t.slots) {
		t.resize(size)
	}
}

func (t *table) resize(size int) {
	old := t.slots
	t.slots = make([]slot, size)
	for _, s := range old {
		if s.page != nil {
			t.insert(s)
		}
	}
}

// numbers returns the numbers in the table, in no order.
func (t *table) numbers() []Number {
	all := make([]Number, 0, t.used)
	for _, s := range t.slots {
		if s.page != nil {
			all = append(all, s.number)
		}
	}
	return all
}

// all returns the pages in the table that are somebody's own, in no order.
func (t *table) all() []*Page {
	all := make([]*Page, 0, t.used)
	for _, s := range t.slots {
		if s.page != nil && s.page != zero {
			all = append(all, s.page)
		}
	}
	return all
}
