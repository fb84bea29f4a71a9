// Package state carries the saved state of vCPUs and devices.
//
// A saved machine is a list of sections, each (kind, version, payload). A kind
// names what the section holds ("vcpu/riscv64", "virtio-blk/0"), not who wrote
// it, so any engine of the same ISA may take it. Saving appends sections to a
// Writer; restoring is a constructor that takes its sections from a Reader.
// Nothing is lenient: an unknown version, a short or overlong payload, a
// missing section, and a section that nobody took are all errors.
//
// The encoding is described in docs/format/state.md.
package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
)

const (
	magic       = "forkdST\x01" // the last byte is the format version
	maxKind     = 64
	maxSections = 1024
	// MaxSize bounds an encoded state; larger input is refused unread.
	MaxSize = 64 << 20
)

// ErrCorrupt reports bytes that are not a saved state of a known format.
var ErrCorrupt = errors.New("corrupt machine state")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer collects sections.
type Writer struct{ sections []written }

type written struct {
	kind    string
	version uint32
	enc     *Encoder
}

// Section starts a new section. Kinds are unique within a Writer; reusing one
// is a bug.
func (w *Writer) Section(kind string, version uint32) *Encoder {
	if len(kind) == 0 || len(kind) > maxKind {
		panic("BUG: state section kind of bad length: " + kind)
	}
	if slices.ContainsFunc(w.sections, func(s written) bool { return s.kind == kind }) {
		panic("BUG: state section saved twice: " + kind)
	}
	enc := new(Encoder)
	w.sections = append(w.sections, written{kind, version, enc})
	return enc
}

// Bytes returns the encoded sections.
func (w *Writer) Bytes() []byte {
	var e Encoder
	e.b = append(e.b, magic...)
	e.U32(uint32(len(w.sections)))
	for _, s := range w.sections {
		e.String(s.kind)
		e.U32(s.version)
		e.Bytes(s.enc.b)
	}
	return binary.LittleEndian.AppendUint32(e.b, crc32.Checksum(e.b, castagnoli))
}

// Reader hands out the sections of a saved state, each once. A child that is forked has one of its own.
type Reader struct{ sections []section } // those that nobody took

// section is part of what was parsed.
type section struct {
	kind    []byte
	version uint32
	payload []byte
}

// Parse checks an encoded state and returns its sections. The errors wrap
// ErrCorrupt.
func Parse(b []byte) (*Reader, error) {
	if len(b) > MaxSize {
		return nil, fmt.Errorf("%w: %d bytes is more than any machine has", ErrCorrupt, len(b))
	}
	if len(b) < len(magic)+8 || string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: not a saved machine of this format version", ErrCorrupt)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, fmt.Errorf("%w: checksum does not match", ErrCorrupt)
	}
	d := &Decoder{b: body[len(magic):], kind: "(list of sections)"}
	n := d.U32()
	if n > maxSections {
		return nil, fmt.Errorf("%w: %d sections are more than any machine has", ErrCorrupt, n)
	}
	r := &Reader{make([]section, 0, n)}
	for range n {
		s := section{kind: d.Bytes(), version: d.U32(), payload: d.Bytes()}
		if d.err == nil && (len(s.kind) == 0 || len(s.kind) > maxKind) {
			d.Fail(fmt.Sprintf("a section's name is %d bytes long", len(s.kind)))
		}
		if d.err != nil {
			break
		}
		if r.find(string(s.kind)) >= 0 {
			return nil, fmt.Errorf("%w: section %q appears twice", ErrCorrupt, s.kind)
		}
		r.sections = append(r.sections, s)
	}
	if err := d.Done(); err != nil {
		return nil, err
	}
	return r, nil
}

// Take removes a section and returns a decoder for its payload. version is the
// one that the caller reads; a section of another version is an error.
func (r *Reader) Take(kind string, version uint32) (*Decoder, error) {
	i := r.find(kind)
	if i < 0 {
		return nil, fmt.Errorf("%w: section %q is missing", ErrCorrupt, kind)
	}
	s := r.sections[i]
	if s.version != version {
		return nil, fmt.Errorf("%w: section %q has version %d, this forkd reads version %d", ErrCorrupt, kind, s.version, version)
	}
	r.sections = slices.Delete(r.sections, i, i+1)
	return &Decoder{b: s.payload, kind: kind}, nil
}

func (r *Reader) find(kind string) int {
	return slices.IndexFunc(r.sections, func(s section) bool { return string(s.kind) == kind })
}

// Done reports sections that nobody took.
func (r *Reader) Done() error {
	if len(r.sections) == 0 {
		return nil
	}
	left := make([]string, len(r.sections))
	for i, s := range r.sections {
		left[i] = string(s.kind)
	}
	slices.Sort(left)
	return fmt.Errorf("%w: nothing in this machine takes sections %q", ErrCorrupt, left)
}

// Encoder appends little-endian values to a section. The zero value is ready.
type Encoder struct{ b []byte }

// U8, U16, U32, U64 and Bool append fixed-width values.
func (e *Encoder) U8(v uint8)   { e.b = append(e.b, v) }
func (e *Encoder) U16(v uint16) { e.b = binary.LittleEndian.AppendUint16(e.b, v) }
func (e *Encoder) U32(v uint32) { e.b = binary.LittleEndian.AppendUint32(e.b, v) }
func (e *Encoder) U64(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }
func (e *Encoder) Bool(v bool) {
	if v {
		e.U8(1)
	} else {
		e.U8(0)
	}
}

// Bytes appends a length and b; String likewise.
func (e *Encoder) Bytes(b []byte) {
	if uint64(len(b)) > math.MaxUint32 {
		panic("BUG: state payload over 4 GiB")
	}
	e.U32(uint32(len(b)))
	e.b = append(e.b, b...)
}
func (e *Encoder) String(s string) { e.Bytes([]byte(s)) }

// Decoder reads what an Encoder wrote. The first error sticks, later reads
// return zeros; call Done at the end.
type Decoder struct {
	b    []byte
	kind string
	err  error
}

func (d *Decoder) take(n int) []byte {
	if d.err == nil && n > len(d.b) {
		d.err = fmt.Errorf("%w: section %q is too short", ErrCorrupt, d.kind)
	}
	if d.err != nil {
		return make([]byte, min(n, 8))
	}
	b := d.b[:n:n] // an append to it must not overwrite what follows
	d.b = d.b[n:]
	return b
}

// U8, U16, U32, U64 and Bool read fixed-width values. A Bool other than 0 or 1
// is an error.
func (d *Decoder) U8() uint8   { return d.take(1)[0] }
func (d *Decoder) U16() uint16 { return binary.LittleEndian.Uint16(d.take(2)) }
func (d *Decoder) U32() uint32 { return binary.LittleEndian.Uint32(d.take(4)) }
func (d *Decoder) U64() uint64 { return binary.LittleEndian.Uint64(d.take(8)) }
func (d *Decoder) Bool() bool {
	v := d.U8()
	if v > 1 {
		d.Fail("flag is neither 0 nor 1")
	}
	return v == 1
}

// Bytes reads a length and that many bytes; String likewise. The result of
// Bytes aliases the input.
func (d *Decoder) Bytes() []byte {
	n := d.U32()
	if d.err == nil && uint64(n) > uint64(len(d.b)) {
		d.err = fmt.Errorf("%w: section %q is too short", ErrCorrupt, d.kind)
	}
	if d.err != nil {
		return nil
	}
	return d.take(int(n))
}
func (d *Decoder) String() string { return string(d.Bytes()) }

// More reports whether there is anything left. A value that a section has at its end
// since a later forkd is not there in what an earlier one wrote.
func (d *Decoder) More() bool { return d.err == nil && len(d.b) > 0 }

// Fail records that a value makes no sense; reason says which and why.
func (d *Decoder) Fail(reason string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: section %q: %s", ErrCorrupt, d.kind, reason)
	}
}

// Err returns the first error so far.
func (d *Decoder) Err() error { return d.err }

// Done returns the first error, or one if bytes are left over.
func (d *Decoder) Done() error {
	if d.err == nil && len(d.b) != 0 {
		d.Fail(fmt.Sprintf("%d bytes left over", len(d.b)))
	}
	return d.err
}
