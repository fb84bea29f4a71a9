//go:build linux && amd64

package kvm

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/engine"
)

// Ports that guests may access. There is no firmware in a machine; these are what
// kernels look for early on, and what little there is of the PC in the board.
const (
	portKeyboard = 0x64 // of the keyboard controller; a reset is requested here
	portCMOS     = 0x71
	portConsole  = 0x3f8 // a serial port that can be written to
	portStatus   = 0x3fd // of the serial port
	portPower    = 0x604 // a sleep control register
	portFailure  = 0xf4  // the guest gives up

	keyboardReset  = 0xfe
	statusEmpty    = 0x60 // the serial port takes another byte
	powerOff       = 0x2000
	directionWrite = 1
)

// portAccess answers an access to ports: struct kvm_run's io.
func (v *vcpu) portAccess() (exit engine.Exit, done bool) {
	mem := v.shared.mem
	width, port := int(mem[sharedExit+1]), binary.NativeEndian.Uint16(mem[sharedExit+2:])
	offset := binary.NativeEndian.Uint64(mem[sharedExit+8:])
	size := uint64(width) * uint64(binary.NativeEndian.Uint32(mem[sharedExit+4:]))
	if width == 0 || offset > uint64(len(mem)) || size > uint64(len(mem))-offset {
		panic("BUG: the kernel describes an access to ports beyond what is shared")
	}
	data := mem[offset:][:size]
	if mem[sharedExit] != directionWrite {
		readPort(port, data)
		return 0, false
	}
	for ; len(data) > 0; data = data[width:] {
		if exit, done = v.writePort(port, data[:width]); done {
			return exit, true
		}
	}
	return 0, false
}

func readPort(port uint16, data []byte) {
	value := byte(0xff)
	switch port {
	case portKeyboard, portCMOS:
		value = 0
	case portStatus:
		value = statusEmpty
	}
	for i := range data {
		data[i] = value
	}
}

func (v *vcpu) writePort(port uint16, data []byte) (exit engine.Exit, done bool) {
	switch {
	case port == portConsole && v.vm.console != nil:
		v.vm.console.Write(data[:1]) // a console that fails is no concern of the guest
	case port == portKeyboard && data[0] == keyboardReset:
		return engine.Reset, true
	case port == portPower && len(data) == 2 && binary.LittleEndian.Uint16(data) == powerOff:
		return engine.Off, true
	case port == portFailure:
		return engine.Failed, true
	}
	return 0, false
}
