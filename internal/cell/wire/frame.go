package wire

import (
	"encoding/binary"
	"fmt"
)

// Type is what a frame of a link is.
type Type uint8

// The types of frames, and what their payload is.
const (
	TypeOpen   Type = 1 + iota // daemon: a new stream; Open
	TypeOpened                 // cell: the guest has taken the connection, as was to be told
	TypeData                   // bytes; those of a stream that are not consumed yet are within Window
	TypeCredit                 // u32: so many more bytes of data are consumed
	TypeEnd                    // no more data from this side
	TypeReset                  // the connection has ended; why, as an Error in JSON
	TypeClose                  // daemon: the stream is of no interest any more
	typeEnd                    // behind the last
)

// Window is how many bytes may be under way on a stream and not be consumed yet: to the
// guest, and from it.
const (
	WindowIn  = 64 << 10
	WindowOut = 256 << 10
)

const (
	frameHeader = 8 // the length of the payload, 24 bits; the type; the number of the stream
	maxFrame    = 64 << 10
)

// Frame is what one side of a link tells the other.
type Frame struct {
	Type    Type
	Stream  uint32
	Payload []byte
}

// append appends the bytes of the frame.
func (f *Frame) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(f.Type)<<24|uint32(len(f.Payload)))
	b = binary.LittleEndian.AppendUint32(b, f.Stream)
	return append(b, f.Payload...)
}

// parseFrame returns the frame that b begins with, whose payload is part of b, and its
// size, which is 0 if more bytes are needed.
func parseFrame(b []byte) (f Frame, size int, err error) {
	if len(b) < frameHeader {
		return f, 0, nil
	}
	word := binary.LittleEndian.Uint32(b)
	f.Type, size = Type(word>>24), int(word&(1<<24-1))
	if size > maxFrame || f.Type < TypeOpen || f.Type >= typeEnd {
		return f, 0, fmt.Errorf("%w: a frame of type %d with %d bytes", ErrMalformed, f.Type, size)
	}
	if size += frameHeader; len(b) < size {
		return f, 0, nil
	}
	f.Stream, f.Payload = binary.LittleEndian.Uint32(b[4:]), b[frameHeader:size]
	return f, size, nil
}

// Credit returns a frame that gives credit.
func Credit(stream uint32, n int) Frame {
	return Frame{TypeCredit, stream, binary.LittleEndian.AppendUint32(nil, uint32(n))}
}

// ParseCredit returns the payload of a frame of TypeCredit.
func ParseCredit(b []byte) (n int, err error) {
	if len(b) != 4 || binary.LittleEndian.Uint32(b) > 1<<30 {
		return 0, fmt.Errorf("%w: credit %x", ErrMalformed, b)
	}
	return int(binary.LittleEndian.Uint32(b)), nil
}

// Open tells where a stream leads to.
type Open struct {
	VM   uint64
	Port uint32
	// Wait has the cell tell (TypeOpened) when the guest has taken the connection; the guest is
	// not presumed to take anything before.
	Wait bool
	// Line has the connection be one that goes on in machines that are made of this one, if it rests then, and be
	// such a one if there is one.
	Line bool
	// Start has a machine that has never run be started as of this time, in ns since
	// 1970; 0 does not.
	Start int64
}

const (
	openSize = 8 + 8 + 4 + 4
	flagWait = 1
	flagLine = 2
)

// Encode returns the open as the payload of a frame.
func (o Open) Encode() []byte {
	flags := uint32(0)
	if o.Wait {
		flags |= flagWait
	}
	if o.Line {
		flags |= flagLine
	}
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, openSize), o.VM)
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Start))
	b = binary.LittleEndian.AppendUint32(b, o.Port)
	return binary.LittleEndian.AppendUint32(b, flags)
}

// ParseOpen is the inverse of Open.Encode.
func ParseOpen(b []byte) (o Open, err error) {
	if len(b) != openSize {
		return o, fmt.Errorf("%w: an open of %d bytes", ErrMalformed, len(b))
	}
	flags := binary.LittleEndian.Uint32(b[20:])
	if flags&^(flagWait|flagLine) != 0 {
		return o, fmt.Errorf("%w: an open with flags %#x", ErrMalformed, flags)
	}
	o.VM, o.Port = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[16:])
	o.Start = int64(binary.LittleEndian.Uint64(b[8:]))
	o.Wait, o.Line = flags&flagWait != 0, flags&flagLine != 0
	return o, nil
}
