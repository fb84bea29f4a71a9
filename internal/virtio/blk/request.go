package blk

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

// Request types and status values (virtio 5.2.6).
const (
	typeIn          = 0
	typeOut         = 1
	typeFlush       = 4
	typeGetID       = 8
	typeDiscard     = 11
	typeWriteZeroes = 13

	statusOK          = 0
	statusIOError     = 1
	statusUnsupported = 2
)

// header is struct virtio_blk_req without data and status.
type header struct {
	kind   uint32
	sector uint64
}

const headerSize = 16

// serve executes one request and returns how many bytes of the writable
// buffers were written. The error is for what breaks the device; all else is
// the request's status.
func (m *model) serve(q *virtq.Queue, c *virtq.Chain) (int, error) {
	var b [headerSize]byte
	if err := c.Readable.ReadFull(b[:]); err != nil {
		return 0, err
	}
	h := header{kind: binary.LittleEndian.Uint32(b[0:]), sector: binary.LittleEndian.Uint64(b[8:])}

	// The status is the last writable byte, wherever the buffers begin and end.
	room := c.Writable.Len() - 1
	if room < 0 {
		return 0, fmt.Errorf("%w: disk request without room for a status", virtq.ErrMalformed)
	}
	status := c.Writable
	status.Skip(room)
	c.Writable.Truncate(room)

	result, err := m.execute(q, h, c)
	if err != nil {
		return 0, err
	}
	if err := status.WriteFull([]byte{result}); err != nil {
		return 0, err
	}
	return room - c.Writable.Len() + 1, nil
}

func (m *model) execute(q *virtq.Queue, h header, c *virtq.Chain) (status byte, err error) {
	if m.readOnly && (h.kind == typeOut || h.kind == typeDiscard || h.kind == typeWriteZeroes) {
		return statusIOError, nil
	}
	switch h.kind {
	case typeIn:
		return m.read(h.sector, &c.Writable)
	case typeOut:
		return m.write(h.sector, &c.Readable)
	case typeFlush:
		return statusOK, nil
	case typeGetID:
		return m.getID(&c.Writable)
	case typeDiscard, typeWriteZeroes:
		return m.clear(q, h.kind, &c.Readable)
	default:
		return statusUnsupported, nil
	}
}

// inside reports whether [sector, sector+n) lies on the disk.
func (m *model) inside(sector, n uint64) bool { return sector <= m.sectors && n <= m.sectors-sector }

// extent returns where on the disk the transfer of size bytes begins; ok is
// false if the disk has no such place.
func (m *model) extent(sector uint64, size int) (offset uint64, ok bool) {
	ok = size > 0 && size <= segMax*sizeMax && size%sectorSize == 0 && m.inside(sector, uint64(size)/sectorSize)
	return sector * sectorSize, ok
}

func split(offset uint64) (n page.Number, within int) {
	return page.Number(offset >> page.Shift), int(offset % page.Size)
}

// read copies from the disk to the guest.
func (m *model) read(sector uint64, w *virtq.Writer) (byte, error) {
	offset, ok := m.extent(sector, w.Len())
	if !ok {
		return statusIOError, nil
	}
	for {
		n, within := split(offset)
		dst, err := w.Next(page.Size - within)
		if len(dst) == 0 || err != nil {
			return statusOK, err
		}
		copy(dst, m.disk.Read(n)[within:])
		offset += uint64(len(dst))
	}
}

// write copies from the guest to the disk.
func (m *model) write(sector uint64, r *virtq.Reader) (byte, error) {
	offset, ok := m.extent(sector, r.Len())
	if !ok {
		return statusIOError, nil
	}
	for {
		n, within := split(offset)
		src, err := r.Next(page.Size - within)
		if len(src) == 0 || err != nil {
			return statusOK, err
		}
		if !m.store(n, within, src) {
			return statusIOError, nil
		}
		offset += uint64(len(src))
	}
}

// store writes to one page of the disk. It reports false if the disk has no
// room.
func (m *model) store(n page.Number, within int, src []byte) bool {
	if m.disk.Read(n) == page.Zero() && isZero(src) {
		return true
	}
	p, _, err := m.disk.Write(n)
	if err != nil {
		return false
	}
	copy(p[within:], src)
	return true
}

// isZero reports whether b is all zeros.
func isZero(b []byte) bool {
	return string(b) == string(page.Zero()[:len(b)])
}

func (m *model) getID(w *virtq.Writer) (byte, error) {
	if w.Len() < serialSize {
		return statusIOError, nil
	}
	return statusOK, w.WriteFull(m.serial[:])
}

// clear serves discard and write zeroes, which differ in the flags that they allow,
// and in that only some of the latter may give pages back: a discarded sector reads as
// zeros here.
func (m *model) clear(q *virtq.Queue, kind uint32, r *virtq.Reader) (byte, error) {
	const segmentSize = 16 // sector, number of sectors, flags
	if r.Len() != segmentSize {
		return statusIOError, nil
	}
	var b [segmentSize]byte
	if err := r.ReadFull(b[:]); err != nil {
		return 0, err
	}
	sector := binary.LittleEndian.Uint64(b[0:])
	count := uint64(binary.LittleEndian.Uint32(b[8:]))
	flags := binary.LittleEndian.Uint32(b[12:])
	const unmap = 1
	if flags&^unmap != 0 || kind == typeDiscard && flags != 0 {
		return statusUnsupported, nil // virtio 5.2.6.2
	}
	if count > maxDiscard || !m.inside(sector, count) {
		return statusIOError, nil
	}
	q.Charge(int(count) * sectorSize)
	giveBack := kind == typeDiscard || flags&unmap != 0
	zeros := page.Zero()
	for offset, end := sector*sectorSize, (sector+count)*sectorSize; offset < end; {
		n, within := split(offset)
		size := int(min(page.Size-uint64(within), end-offset))
		if giveBack && size == page.Size {
			if m.disk.Discard(n) != nil {
				return statusIOError, nil
			}
		} else if !m.store(n, within, zeros[:size]) {
			return statusIOError, nil
		}
		offset += uint64(size)
	}
	return statusOK, nil
}
