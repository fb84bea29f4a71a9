package page

// Top is the writable top of one machine's memory over a stack: an Overlay, whose
// pages lie wherever there is room, or a Flat, whose pages lie side by side.
type Top interface {
	Limit() Number
	Read(Number) *Page
	Write(Number) (p *Page, moved bool, err error)
	Private(Number) bool
	Owner(Number) *Layer
	Owns(Number) bool

	Pages() int
	Bytes() int
	Resident() int
	Pack()
	// Prepare does ahead, while the machine runs, what a Seal would have to do while
	// it stands still.
	Prepare() error
	Seal() *Stack
	// Unseal undoes Seals whose stacks nobody has any more: their pages are the
	// machine's own again, but for those that it has written since, which nobody needs.
	// It can be called while the machine runs. It returns nil if there was nothing to
	// do, or a page cannot be read that this takes; otherwise the caller calls free, once, when nobody uses any more what Read or
	// Write has returned before the call.
	Unseal() (free func())
	// Replacing prepares to replace layers of the stacks that lie below, which changes no
	// contents. It returns nil if there is nothing to replace.
	Replacing(*Replacement) *Change
	// Stacks returns references to the stacks that lie below; none if it is closed.
	Stacks() []*Stack
	Close()
}

var (
	_ Top = (*Overlay)(nil)
	_ Top = (*Flat)(nil)
)

// seal makes a layer of pages over below, and returns the stack with it on top.
func seal(limit Number, arena *Arena, pages table, below *Stack, keeper *tally) *Stack {
	l := newSealedLayer(limit, arena, pages, below, keeper)
	s := below.under(l)
	l.Release() // the new stack holds its own reference
	for _, slot := range pages.slots {
		if slot.page != nil {
			s.set(below, slot.number, slot.page)
		}
	}
	return s
}

// Stacks returns references to the stacks that an overlay stands on: that which it was
// made over, and that with what it has sealed since. There are none if it is closed.
func (o *Overlay) Stacks() []*Stack {
	o.shape.Lock()
	defer o.shape.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.base == nil {
		return nil
	}
	return []*Stack{o.origin.Retain(), o.base.Retain()}
}

// Stacks is Overlay.Stacks.
func (f *Flat) Stacks() []*Stack {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.base == nil {
		return nil
	}
	return []*Stack{f.origin.Retain(), f.base.Retain()}
}
