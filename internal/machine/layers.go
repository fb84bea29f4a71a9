package machine

import "github.com/forkd-dev/forkd/internal/page"

// Stacks are what a machine lies over, a reference each: what it was made over, or what has
// replaced that since, and the same with what was sealed off it.
type Stacks struct {
	MemoryBase, Memory, ScratchBase, Scratch *page.Stack
}

// Stacks returns what the machine lies over; nothing if it is closed.
func (m *Machine) Stacks() (s Stacks, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return s, false
	}
	memory, scratch := m.overlay.Stacks(), m.scratch.Stacks()
	return Stacks{memory[0], memory[1], scratch[0], scratch[1]}, true
}

// Unseal has the machine take back what Freeze or Branch has sealed and nobody needs any
// more, unless not says that this is not the moment; it is asked when nobody else does anything
// to the machine as a whole. The vCPUs stand still only for them to notice.
func (m *Machine) Unseal(not func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || not() {
		return
	}
	var spare []func()
	defer func() { // also if the disk's layers cannot be read
		if len(spare) == 0 {
			return
		}
		m.still(func() {}) // nobody uses a page now that was looked up before
		for _, free := range spare {
			free()
		}
	}()
	for _, top := range []page.Top{m.overlay, m.scratch} {
		if free := top.Unseal(); free != nil {
			spare = append(spare, free)
		}
	}
}

// Replace has layers replaced by others that hold the same, in all that the machine lies
// over. The vCPUs stand still for a moment that does not depend on how many pages that is.
func (m *Machine) Replace(r *page.Replacement) {
	for _, top := range []page.Top{m.overlay, m.scratch} {
		for !m.replace(top, r) {
		}
	}
}

// replace is Replace for RAM or the disk. It fails if there was a seal meanwhile.
func (m *Machine) replace(top page.Top, r *page.Replacement) bool {
	c := top.Replacing(r)
	if c == nil {
		return true
	}
	defer c.Release()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return true
	}
	done := false
	m.still(func() {
		if done = c.Swap(); done && c.Moved && top == m.overlay {
			m.space.Invalidate()
		}
	})
	return done
}

// still calls fn while no vCPU executes and no device works. The caller holds m.mu.
func (m *Machine) still(fn func()) {
	if m.running {
		m.pause()
		defer func() {
			if !m.ended() {
				m.start()
			}
		}()
	}
	fn()
}
