package power

// The registers of an ACPI device, one byte each: the sleep control and status
// registers of machines without PC hardware (ACPI 6.5, 4.8.3.7) and a reset register
// (4.8.3.6).
const (
	SleepControl = 0x10
	SleepStatus  = 0x11
	ResetControl = 0x12

	// SleepType is what \_S5 names, and ResetValue what the reset register wants.
	SleepType  = 5
	ResetValue = 1

	sleepEnable = 1 << 5
)

// ACPI is the registers as a device (bus.Device).
type ACPI struct{ do func(Action, uint16) }

// NewACPI returns a device that calls do as New's does.
func NewACPI(do func(a Action, code uint16)) *ACPI { return &ACPI{do} }

// Read returns zero: the machine has not slept.
func (d *ACPI) Read(uint64, int) uint64 { return 0 }

// Write asks for an action. Values without one are ignored.
func (d *ACPI) Write(offset uint64, width int, value uint64) {
	switch {
	case width != 1:
	case offset == SleepControl && value == SleepType<<2|sleepEnable:
		d.do(Off, 0)
	case offset == ResetControl && value == ResetValue:
		d.do(Reset, 0)
	}
}
