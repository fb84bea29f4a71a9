package wire

import (
	"encoding/binary"
	"fmt"
)

// OpeningSize is how many bytes an Opening is.
const OpeningSize = 28

const openingMagic = "fkcl"

// Opening is the first that a cell hears on a connection.
type Opening struct {
	Control bool
	// VM and Port are where a stream leads to. With Wait the cell tells (TypeOpen or
	// TypeRefused) whether the guest has taken the connection before anything is sent.
	VM   uint64
	Port uint32
	Wait bool
	// Start has a machine that has never run be started as of this time, in ns since
	// 1970; 0 does not.
	Start int64
}

const (
	flagControl = 1 << iota
	flagWait
)

// AppendBinary appends the bytes of the opening.
func (o Opening) AppendBinary(b []byte) ([]byte, error) {
	flags := uint16(0)
	if o.Control {
		flags |= flagControl
	}
	if o.Wait {
		flags |= flagWait
	}
	b = append(b, openingMagic...)
	b = binary.LittleEndian.AppendUint16(b, Version)
	b = binary.LittleEndian.AppendUint16(b, flags)
	b = binary.LittleEndian.AppendUint64(b, o.VM)
	b = binary.LittleEndian.AppendUint32(b, o.Port)
	return binary.LittleEndian.AppendUint64(b, uint64(o.Start)), nil
}

// ParseOpening is the inverse of AppendBinary.
func ParseOpening(b [OpeningSize]byte) (o Opening, err error) {
	if string(b[:4]) != openingMagic {
		return o, fmt.Errorf("%w: not an opening", ErrMalformed)
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != Version {
		return o, fmt.Errorf("the other side speaks version %d of the protocol, this one version %d", v, Version)
	}
	flags := binary.LittleEndian.Uint16(b[6:])
	o.VM, o.Port = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[16:])
	o.Start = int64(binary.LittleEndian.Uint64(b[20:]))
	o.Control, o.Wait = flags&flagControl != 0, flags&flagWait != 0
	if flags&^(flagControl|flagWait) != 0 || o.Control && (o.Wait || o.VM != 0 || o.Port != 0 || o.Start != 0) {
		return o, fmt.Errorf("%w: an opening with flags %#x", ErrMalformed, flags)
	}
	return o, nil
}
