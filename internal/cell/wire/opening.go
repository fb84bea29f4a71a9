package wire

import (
	"encoding/binary"
	"fmt"
)

// Purpose is what a connection to a cell is for.
type Purpose uint16

// The purposes of connections. A daemon has one of each to a cell.
const (
	Control Purpose = 1 + iota // messages; see Conn
	Streams                    // connections into guests; see Link
)

// OpeningSize is how many bytes an opening is.
const OpeningSize = 8

const openingMagic = "fkcl"

// Opening returns the first that a cell hears on a connection.
func Opening(p Purpose) []byte {
	b := append(make([]byte, 0, OpeningSize), openingMagic...)
	b = binary.LittleEndian.AppendUint16(b, Version)
	return binary.LittleEndian.AppendUint16(b, uint16(p))
}

// ParseOpening is the inverse of Opening.
func ParseOpening(b [OpeningSize]byte) (Purpose, error) {
	if string(b[:4]) != openingMagic {
		return 0, fmt.Errorf("%w: not an opening", ErrMalformed)
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != Version {
		return 0, fmt.Errorf("the other side speaks version %d of the protocol, this one version %d", v, Version)
	}
	p := Purpose(binary.LittleEndian.Uint16(b[6:]))
	if p != Control && p != Streams {
		return 0, fmt.Errorf("%w: a connection for %d", ErrMalformed, p)
	}
	return p, nil
}
