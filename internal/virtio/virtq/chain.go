package virtq

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
)

// Flags of a descriptor (virtio 2.7.5).
const (
	flagNext     = 1 // VIRTQ_DESC_F_NEXT
	flagWrite    = 2 // VIRTQ_DESC_F_WRITE
	flagIndirect = 4 // VIRTQ_DESC_F_INDIRECT
)

const descSize = 16

type descriptor struct {
	gpa   uint64
	size  uint32
	flags uint16
	next  uint16
}

func (q *Queue) descriptor(gpa uint64) (descriptor, error) {
	var b [descSize]byte
	if err := q.mem.Read(gpa, b[:]); err != nil {
		return descriptor{}, fmt.Errorf("%w: descriptor: %w", ErrMalformed, err)
	}
	return descriptor{
		gpa:   binary.LittleEndian.Uint64(b[0:]),
		size:  binary.LittleEndian.Uint32(b[8:]),
		flags: binary.LittleEndian.Uint16(b[12:]),
		next:  binary.LittleEndian.Uint16(b[14:]),
	}, nil
}

// segment is one buffer of a chain, checked to lie in RAM.
type segment struct {
	gpa  uint64
	size uint64
}

// Chain is one request: the bytes that the driver sends, then room for the
// bytes that it wants.
type Chain struct {
	head     uint16
	Readable Reader
	Writable Writer
}

// read parses the chain that begins at descriptor head into q.chain.
func (q *Queue) read(head uint16) error {
	c := &q.chain
	c.head = head
	c.Readable.reset(q.mem)
	c.Writable.reset(q.mem)
	// The descriptor table in use; an indirect descriptor replaces it once.
	table, entries, direct := q.Desc, uint32(q.Size), true
	at := uint32(head)
	for count := 0; ; count++ {
		if at >= entries {
			return malformed("descriptor %d of a table of %d", at, entries)
		}
		if count >= int(q.Size) {
			return malformed("chain is longer than the queue, or a loop")
		}
		d, err := q.descriptor(table + descSize*uint64(at))
		if err != nil {
			return err
		}
		if d.flags&flagIndirect != 0 {
			if !direct || !q.indirect || d.flags&flagNext != 0 {
				return malformed("indirect descriptor where none is allowed")
			}
			if d.size == 0 || d.size%descSize != 0 || d.size/descSize > uint32(q.Size) {
				return malformed("indirect table of %d bytes in a queue of %d", d.size, q.Size)
			}
			table, entries, direct = d.gpa, d.size/descSize, false
			at, count = 0, count-1 // the descriptor itself is no buffer
			continue
		}
		if err := q.add(d); err != nil {
			return err
		}
		if d.flags&flagNext == 0 {
			return nil
		}
		at = uint32(d.next)
	}
}

// add appends one buffer to the chain that is being read.
func (q *Queue) add(d descriptor) error {
	c, s := &q.chain, segment{d.gpa, uint64(d.size)}
	if s.size == 0 {
		return malformed("empty buffer")
	}
	if err := q.mem.Check(s.gpa, s.size); err != nil {
		return fmt.Errorf("%w: buffer: %w", ErrMalformed, err)
	}
	if c.Readable.left+c.Writable.left+s.size > MaxChain {
		return malformed("chain of more than %d bytes", MaxChain)
	}
	if d.flags&flagWrite == 0 {
		if c.Writable.left > 0 {
			return malformed("readable buffer after a writable one")
		}
		c.Readable.add(s)
		return nil
	}
	if q.overlaps(span{s.gpa, s.size}) {
		return malformed("writable buffer over the queue's own rings")
	}
	c.Writable.add(s)
	return nil
}

// cursor walks over the buffers of one direction.
type cursor struct {
	mem  *memory.Space
	segs []segment
	pos  int    // index into segs
	off  uint64 // into segs[pos]
	left uint64 // bytes from here to the end, or to where Truncate put it
}

func (c *cursor) reset(mem *memory.Space) { *c = cursor{mem: mem, segs: c.segs[:0]} }

func (c *cursor) add(s segment) {
	c.segs = append(c.segs, s)
	c.left += s.size
}

// Len returns how many bytes are left.
func (c *cursor) Len() int { return int(c.left) }

// Truncate leaves at most n bytes.
func (c *cursor) Truncate(n int) { c.left = min(c.left, uint64(n)) }

// Skip passes over n bytes, or over all if there are fewer.
func (c *cursor) Skip(n int) {
	for n > 0 && c.left > 0 {
		_, size := c.piece(n)
		c.advance(size)
		n -= size
	}
}

// piece returns the address of the next bytes and how many of them, at most
// limit, lie in one page. c.left must not be zero.
func (c *cursor) piece(limit int) (gpa uint64, size int) {
	s := &c.segs[c.pos]
	gpa = s.gpa + c.off
	return gpa, int(min(uint64(limit), c.left, s.size-c.off, page.Size-gpa%page.Size))
}

// advance moves on by size bytes, which piece returned.
func (c *cursor) advance(size int) {
	c.left -= uint64(size)
	if c.off += uint64(size); c.off == c.segs[c.pos].size {
		c.pos, c.off = c.pos+1, 0
	}
}

// Reader reads the device-readable bytes of a chain, in order. A copy of a
// Reader goes on from the same place, independently.
type Reader struct{ cursor }

// Next returns the next bytes, at most limit, as they lie in guest memory, and
// moves past them; nil at the end. The guest may change them at any time. They
// must not be written, and are gone once another guest page is written.
func (r *Reader) Next(limit int) ([]byte, error) {
	if r.left == 0 || limit <= 0 {
		return nil, nil
	}
	gpa, size := r.piece(limit)
	p := r.mem.ReadPage(gpa)
	if p == nil {
		return nil, fmt.Errorf("%w: %#x", memory.ErrRange, gpa)
	}
	r.advance(size)
	return p[gpa%page.Size:][:size], nil
}

// ReadFull fills b, or fails if fewer bytes are left.
func (r *Reader) ReadFull(b []byte) error {
	if len(b) > r.Len() {
		return malformed("request of %d bytes more, where %d are needed", r.Len(), len(b))
	}
	for len(b) > 0 {
		piece, err := r.Next(len(b))
		if err != nil {
			return err
		}
		b = b[copy(b, piece):]
	}
	return nil
}

// Writer writes the device-writable bytes of a chain, in order. A copy of a
// Writer goes on from the same place, independently.
type Writer struct{ cursor }

// Next returns the place for the next bytes, at most limit, in guest memory,
// and moves past it; nil at the end. The place is gone once another guest page
// is written.
func (w *Writer) Next(limit int) ([]byte, error) {
	if w.left == 0 || limit <= 0 {
		return nil, nil
	}
	gpa, size := w.piece(limit)
	p, err := w.mem.WritePage(gpa)
	if p == nil && err == nil {
		err = memory.ErrRange
	}
	if err != nil {
		return nil, fmt.Errorf("writing guest memory at %#x: %w", gpa, err)
	}
	w.advance(size)
	return p[gpa%page.Size:][:size], nil
}

// WriteFull writes all of b, or fails if there is not enough room.
func (w *Writer) WriteFull(b []byte) error {
	if len(b) > w.Len() {
		return malformed("room for %d bytes more, where %d are needed", w.Len(), len(b))
	}
	for len(b) > 0 {
		piece, err := w.Next(len(b))
		if err != nil {
			return err
		}
		b = b[copy(piece, b):]
	}
	return nil
}
