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
	Close()
}

var (
	_ Top = (*Overlay)(nil)
	_ Top = (*Flat)(nil)
)

// seal makes a layer of pages over below, and returns the stack with it on top.
func seal(limit Number, arena *Arena, pages table, below *Stack) *Stack {
	l := newSealedLayer(limit, arena, pages, below)
	s := below.under(l)
	l.Release() // the new stack holds its own reference
	for _, slot := range pages.slots {
		if slot.page != nil {
			s.set(below, slot.number, slot.page)
		}
	}
	return s
}
