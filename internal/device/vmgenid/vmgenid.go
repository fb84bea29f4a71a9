// Package vmgenid is the VM generation ID in the form of the device tree
// binding "microsoft,vmgenid": a region with a 16-byte identifier that differs
// between a machine and every machine that was forked from it, and an
// interrupt that tells the guest of a change. Linux reseeds its random number
// generator from that interrupt.
//
// The binding has no register to acknowledge the interrupt with: Linux's
// handler does nothing but read the identifier. So reading is the
// acknowledgement here. The line goes high when the identifier changes, and
// low when the guest has read all 16 bytes of the new one. That is right for a
// level-triggered input (the line is low when the handler returns, so the
// interrupt does not come again) and for an edge-triggered one alike, no
// interrupt controller needs to remember a pulse, and a change that the guest
// has not looked at yet survives being saved.
//
// Lock order: mu, then the locks of the irq line.
package vmgenid

import (
	"encoding/binary"
	"sync"

	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/state"
)

// Size is the size of an identifier in bytes.
const Size = 16

const (
	section      = "vmgenid"
	stateVersion = 1
)

// Device is the region (bus.Device).
type Device struct {
	id   [Size]byte // immutable
	line irq.Line   // immutable

	mu     sync.Mutex
	unread uint16 // bytes that the guest has not read since a change, as bits; guarded by mu
}

// New makes a device for a machine with the given identifier. If saved is not
// nil, the machine goes on from the one whose section is there; if that had
// another identifier, the guest is told. line may be used at once.
func New(line irq.Line, id [Size]byte, saved *state.Reader) (*Device, error) {
	d := &Device{id: id, line: line}
	if saved == nil {
		return d, nil
	}
	dec, err := saved.Take(section, stateVersion)
	if err != nil {
		return nil, err
	}
	var old [Size]byte
	for i := range old {
		old[i] = dec.U8()
	}
	d.unread = dec.U16()
	if err := dec.Done(); err != nil {
		return nil, err
	}
	if old != d.id {
		d.unread = 1<<Size - 1
	}
	if d.unread != 0 {
		d.line.Set(false) // an edge, whatever the line was when the state was saved
		d.line.Set(true)
	}
	return d, nil
}

// Read reads from the identifier; there are zeros behind it.
func (d *Device) Read(offset uint64, width int) uint64 {
	if offset >= Size {
		return 0
	}
	var b [8]byte
	n := copy(b[:width], d.id[offset:])
	d.seen(uint16(1<<n-1) << offset)
	return binary.LittleEndian.Uint64(b[:])
}

// seen notes that the guest has read the bytes in mask.
func (d *Device) seen(mask uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unread == 0 {
		return
	}
	if d.unread &^= mask; d.unread == 0 {
		d.line.Set(false)
	}
}

// Write does nothing: the guest cannot change the identifier.
func (d *Device) Write(uint64, int, uint64) {}

// Save appends the device's section.
func (d *Device) Save(w *state.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := w.Section(section, stateVersion)
	for _, b := range d.id {
		e.U8(b)
	}
	e.U16(d.unread)
}
