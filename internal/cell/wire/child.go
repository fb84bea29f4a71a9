package wire

import (
	"encoding/binary"
	"fmt"
)

// Child is one machine that is asked for.
type Child struct {
	ID         uint64
	Generation [16]byte // see machine.Config
	Note       []byte   // the daemon's
}

// Bounds of children.
const (
	childHead   = 8 + 16 + 4
	maxChildren = 1 << 16
	maxNote     = 1 << 20
)

// AppendBinary appends a child: its number, its generation, the length of its note, and
// that.
func (c *Child) AppendBinary(b []byte) ([]byte, error) {
	if err := CheckNote(c.Note); err != nil {
		return b, err
	}
	b = binary.LittleEndian.AppendUint64(b, c.ID)
	b = append(b, c.Generation[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(c.Note)))
	return append(b, c.Note...), nil
}

// ParseChildren is the inverse of AppendBinary for many. The notes are part of b.
func ParseChildren(b []byte) (all []Child, err error) {
	for len(b) > 0 {
		if len(b) < childHead || len(all) == maxChildren {
			return nil, fmt.Errorf("%w: %d bytes after %d children", ErrMalformed, len(b), len(all))
		}
		c := Child{ID: binary.LittleEndian.Uint64(b), Generation: [16]byte(b[8:24])}
		n := int(binary.LittleEndian.Uint32(b[24:]))
		b = b[childHead:]
		if n > maxNote || n > len(b) {
			return nil, fmt.Errorf("%w: a note of %d bytes in %d", ErrMalformed, n, len(b))
		}
		c.Note, b = b[:n:n], b[n:]
		all = append(all, c)
	}
	return all, nil
}
