package sandbox

import "sync"

// maxDeparted is how many sandboxes are remembered that are not known any more.
const maxDeparted = 1000

// departed remembers why sandboxes are not there any more, for those who ask for them.
type departed struct {
	mu      sync.Mutex
	reasons map[string]string // by id; guarded by mu
	order   []string          // ids, oldest first; guarded by mu
}

// add notes why a sandbox has gone.
func (d *departed) add(id, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reasons == nil {
		d.reasons = make(map[string]string)
	}
	if _, again := d.reasons[id]; !again {
		d.order = append(d.order, id)
	}
	d.reasons[id] = reason
	if len(d.order) > maxDeparted {
		delete(d.reasons, d.order[0])
		d.order = d.order[1:]
	}
}

// reason tells why a sandbox has gone; "" if that is not known.
func (d *departed) reason(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reasons[id]
}

// each tells of all of them, oldest first.
func (d *departed) each(tell func(id, reason string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range d.order {
		tell(id, d.reasons[id])
	}
}
