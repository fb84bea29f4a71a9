// Package rtc is the Goldfish real-time clock: nanoseconds since 1970 and one
// alarm. It is where a guest that boots gets its wall-clock time from.
//
// The time is the host's plus an offset, which is zero until the guest sets
// its clock. The offset is all that is saved of the time: a restored guest
// reads the time as it is then, not as it was at the save.
//
// An alarm that is armed holds a host timer, so a machine that ends must Close
// its clock.
//
// Lock order: mu, then the locks of the irq line.
package rtc

import (
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/state"
)

// Register offsets. Registers are 32 bits wide.
const (
	regTimeLow        = 0x00 // reading it latches the high half
	regTimeHigh       = 0x04
	regAlarmLow       = 0x08 // writing it arms the alarm
	regAlarmHigh      = 0x0c
	regIRQEnabled     = 0x10
	regClearAlarm     = 0x14
	regAlarmStatus    = 0x18
	regClearInterrupt = 0x1c
)

const (
	section      = "rtc"
	stateVersion = 1
)

// Device is the clock (bus.Device).
type Device struct {
	now  func() time.Time // immutable
	line irq.Line         // immutable

	mu        sync.Mutex
	offset    uint64      // added to the host's nanoseconds; wraps; guarded by mu
	latch     uint32      // high half of the time when the low half was read; guarded by mu
	timeHigh  uint32      // written, for when the low half follows; guarded by mu
	alarmHigh uint32      // likewise; guarded by mu
	alarm     uint64      // in the guest's time; guarded by mu
	armed     bool        // guarded by mu
	pending   bool        // the alarm has gone off; guarded by mu
	enabled   bool        // it may interrupt; guarded by mu
	timer     *time.Timer // not nil while armed; guarded by mu
}

// New makes a clock that follows the host's wall clock, now. If saved is not
// nil, the clock goes on from its section there. line may be used at once.
func New(line irq.Line, now func() time.Time, saved *state.Reader) (*Device, error) {
	d := &Device{now: now, line: line}
	if saved == nil {
		return d, nil
	}
	dec, err := saved.Take(section, stateVersion)
	if err != nil {
		return nil, err
	}
	d.offset = dec.U64()
	d.latch, d.timeHigh, d.alarmHigh = dec.U32(), dec.U32(), dec.U32()
	d.alarm = dec.U64()
	d.armed, d.pending, d.enabled = dec.Bool(), dec.Bool(), dec.Bool()
	if err := dec.Done(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending && d.enabled {
		d.line.Set(true)
	}
	d.schedule()
	return d, nil
}

// Save appends the clock's section.
func (d *Device) Save(w *state.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := w.Section(section, stateVersion)
	e.U64(d.offset)
	e.U32(d.latch)
	e.U32(d.timeHigh)
	e.U32(d.alarmHigh)
	e.U64(d.alarm)
	e.Bool(d.armed)
	e.Bool(d.pending)
	e.Bool(d.enabled)
}

// Close disarms the alarm for good.
func (d *Device) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = false
	d.schedule()
}

// time returns the guest's time.
func (d *Device) time() uint64 { return uint64(d.now().UnixNano()) + d.offset }

// schedule has the timer agree with the alarm. The caller holds d.mu.
func (d *Device) schedule() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if !d.armed {
		return
	}
	wait := time.Duration(d.alarm - d.time())
	if wait <= 0 {
		d.ring()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.timer == timer { // else the alarm was changed just now
			d.schedule()
		}
	})
	d.timer = timer
}

// ring lets the alarm go off.
func (d *Device) ring() {
	d.armed, d.pending = false, true
	if d.enabled {
		d.line.Set(true)
	}
}

// Read reads a register.
func (d *Device) Read(offset uint64, width int) uint64 {
	if width != 4 {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch offset {
	case regTimeLow:
		now := d.time()
		d.latch = uint32(now >> 32)
		return now & 0xffff_ffff
	case regTimeHigh:
		return uint64(d.latch)
	case regAlarmLow:
		return d.alarm & 0xffff_ffff
	case regAlarmHigh:
		return d.alarm >> 32
	case regIRQEnabled:
		return bit(d.enabled)
	case regAlarmStatus:
		return bit(d.armed)
	}
	return 0
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Write writes a register.
func (d *Device) Write(offset uint64, width int, value uint64) {
	if width != 4 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch offset {
	case regTimeHigh:
		d.timeHigh = uint32(value)
	case regTimeLow:
		d.offset = join(d.timeHigh, value) - uint64(d.now().UnixNano())
		d.schedule()
	case regAlarmHigh:
		d.alarmHigh = uint32(value)
	case regAlarmLow:
		d.alarm = join(d.alarmHigh, value)
		d.armed = true
		d.schedule()
	case regClearAlarm:
		d.armed = false
		d.schedule()
	case regIRQEnabled:
		d.enabled = value&1 != 0
		d.line.Set(d.pending && d.enabled)
	case regClearInterrupt:
		d.pending = false
		d.line.Set(false)
	}
}

func join(high uint32, low uint64) uint64 { return uint64(high)<<32 | low&0xffff_ffff }
