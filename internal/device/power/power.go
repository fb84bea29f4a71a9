// Package power is the register through which a guest switches itself off, in
// the form of the SiFive test device: one 32-bit register at offset zero. The
// device tree describes it with the generic syscon-poweroff and syscon-reboot
// bindings.
//
// The device has no state, so there is nothing to save.
package power

// Action is what the guest asked for.
type Action int

// The actions.
const (
	Off    Action = iota
	Reset         // start over
	Failed        // switch off, something went wrong
)

// Values of the register's low half; the high half is Failed's code.
const (
	valueOff    = 0x5555
	valueReset  = 0x7777
	valueFailed = 0x3333
)

// Device is the register (bus.Device).
type Device struct{ do func(Action, uint16) }

// New returns a device that calls do, on the vCPU's goroutine, when the guest
// asks for an action. code is the guest's reason for Failed, else zero.
func New(do func(a Action, code uint16)) *Device { return &Device{do} }

// Read returns zero: the register cannot be read.
func (d *Device) Read(uint64, int) uint64 { return 0 }

// Write asks for an action. Values without one are ignored.
func (d *Device) Write(offset uint64, width int, value uint64) {
	if offset != 0 || width != 4 {
		return
	}
	switch value & 0xffff {
	case valueOff:
		d.do(Off, 0)
	case valueReset:
		d.do(Reset, 0)
	case valueFailed:
		d.do(Failed, uint16(value>>16))
	}
}
