package journal

import (
	"slices"
	"sync"
)

// What is remembered of sandboxes that are not known any more.
const (
	// maxDepartedText bounds ids and reasons, in bytes: those of 77,000 that were killed.
	maxDepartedText = 2 << 20
	// departedAtOnce is how many come before it is looked which of the old ones are to be forgotten.
	departedAtOnce = 1000
)

// departed remembers why sandboxes are not there any more, for those who ask for them, and for cells that
// still have them.
type departed struct {
	// usual is how many there are usually: as many as can have lived at once. More are remembered while a cell may
	// not have heard that they have gone, since it would tell of them again.
	usual int

	mu    sync.Mutex
	known map[string]departure   // by id; guarded by mu
	order []string               // ids, oldest first; guarded by mu
	text  int                    // length of ids and reasons; guarded by mu
	most  int                    // beyond which old ones are forgotten; guarded by mu
	deaf  func() map[string]bool // see forgetting; guarded by mu
}

// departure is what has become of one sandbox.
type departure struct {
	reason string
	cell   string // name of that in which it lived; empty: it is not known
}

// add notes why a sandbox has gone.
func (d *departed) add(id string, why departure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, again := d.known[id]
	if again {
		d.text -= len(was.reason)
		if why.cell == "" {
			why.cell = was.cell
		}
	} else {
		d.order = append(d.order, id)
		d.text += len(id)
	}
	d.text += len(why.reason)
	d.known[id] = why
	if len(d.order) > d.most && d.deaf != nil {
		d.trim(d.deaf())
	}
	for d.text > maxDepartedText {
		d.drop(d.order[0])
		d.order = d.order[1:]
	}
}

// forgetting has sandboxes be forgotten when there are too many. deaf returns the names of the cells that may not
// have heard yet of those that have gone; until it is known, all may be of one.
func (d *departed) forgetting(deaf func() map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf = deaf
}

// trim forgets the oldest, but for those of some cells. The caller holds d.mu.
func (d *departed) trim(deaf map[string]bool) {
	excess := len(d.order) - d.usual
	d.order = slices.DeleteFunc(d.order, func(id string) bool {
		if excess <= 0 || deaf[d.known[id].cell] {
			return false
		}
		excess--
		d.drop(id)
		return true
	})
	d.most = len(d.order) + departedAtOnce
}

// drop forgets one, but for its place. The caller holds d.mu.
func (d *departed) drop(id string) {
	d.text -= len(id) + len(d.known[id].reason)
	delete(d.known, id)
}

// reason tells why a sandbox has gone; "" if that is not known.
func (d *departed) reason(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[id].reason
}

// entries returns what a journal tells of them, oldest first: those together that have gone one after the other
// from one cell for one reason.
func (d *departed) entries() (list []*entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var last departure
	for _, id := range d.order {
		if why := d.known[id]; list == nil || why != last {
			list, last = append(list, &entry{Event: gone, Reason: why.reason, Origin: Origin{Cell: why.cell}}), why
		}
		e := list[len(list)-1]
		e.IDs = append(e.IDs, id)
	}
	return list
}
