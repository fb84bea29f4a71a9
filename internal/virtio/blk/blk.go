// Package blk is the virtio block device (virtio 5.2) over a disk of pages.
//
// Requests are finished inside the kick that brought them: the disk is memory
// or a mapped file, so there is nothing to wait for, and a request is never in
// flight when a machine is saved. Data goes straight between the disk's pages
// and the guest's, with no buffer in between. Where a limiter is in force, requests
// that it holds back stay in the ring, as if they had not been made yet.
//
// What the guest gets wrong within a request (a sector beyond the end, a write
// to a read-only disk, a length that is no multiple of a sector) and what the
// host cannot do (the disk's quota is used up) is an error status of that
// request, and the disk is unchanged from there on. A request without room for
// a status breaks the device.
//
// Flush succeeds at once. A disk here is a machine's private, throw-away
// overlay that becomes durable when it is sealed into a snapshot, which takes
// every page written before that instant, flushed or not. Nothing outlives the
// host process otherwise; that is the documented weaker mode for such disks.
//
// Unaligned requests work. Zeros that are written over zeros are not stored.
// Discarded sectors read as zeros, and pages that are discarded as a whole are given
// back to the disk, as are those of a write-zeroes request that allows it.
package blk

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/rate"
	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

// Source is a disk that can be read; page.Stack is one.
type Source interface {
	Limit() page.Number // size in pages
	Get(page.Number) *page.Page
}

// Disk is a disk that can be written too; page.Overlay is one. Read returns
// page.Zero for a page that is not stored.
type Disk interface {
	Limit() page.Number // size in pages
	Read(page.Number) *page.Page
	Write(page.Number) (p *page.Page, moved bool, err error)
	// Discard makes a page zeros, and frees what it takes.
	Discard(page.Number) error
}

// Feature bits (virtio 5.2.3).
const (
	featureSizeMax     = 1 << 1
	featureSegMax      = 1 << 2
	featureReadOnly    = 1 << 5
	featureBlockSize   = 1 << 6
	featureFlush       = 1 << 9
	featureTopology    = 1 << 10
	featureDiscard     = 1 << 13
	featureWriteZeroes = 1 << 14
)

const (
	deviceID     = 2
	stateVersion = 1
	queueSize    = 128

	sectorSize     = 512
	sectorsPerPage = page.Size / sectorSize

	// A request has at most segMax data buffers of sizeMax bytes, so one
	// request copies less than 8 MiB.
	segMax  = queueSize - 2
	sizeMax = 64 << 10
	// maxDiscard bounds what one discard or write-zeroes request may cover, in
	// sectors.
	maxDiscard = 16 << 20 / sectorSize
	// serialSize is the size of the GET_ID answer.
	serialSize = 20
)

// New makes a device over a disk. The guest sees serial, of at most 20 bytes,
// as the disk's name. limiter, which may be nil, bounds the bytes of requests, in both
// directions; whoever closes the machine closes it.
func New(slot mmio.Slot, serial string, disk Disk, limiter *rate.Limiter) (*mmio.Device, error) {
	return open(slot, serial, disk, false, limiter)
}

// NewReadOnly is New for a disk that the guest cannot write.
func NewReadOnly(slot mmio.Slot, serial string, source Source, limiter *rate.Limiter) (*mmio.Device, error) {
	return open(slot, serial, readOnly{source}, true, limiter)
}

// readOnly makes a Disk of a Source. The device refuses writes before they get
// here.
type readOnly struct{ Source }

func (r readOnly) Read(n page.Number) *page.Page { return r.Get(n) }
func (r readOnly) Write(page.Number) (*page.Page, bool, error) {
	panic("BUG: write to a read-only disk")
}
func (r readOnly) Discard(page.Number) error { panic("BUG: discard on a read-only disk") }

func open(slot mmio.Slot, serial string, disk Disk, readOnly bool, limiter *rate.Limiter) (*mmio.Device, error) {
	if len(serial) > serialSize {
		return nil, fmt.Errorf("disk serial %q is longer than %d bytes", serial, serialSize)
	}
	m := &model{disk: disk, readOnly: readOnly, sectors: uint64(disk.Limit()) * sectorsPerPage}
	copy(m.serial[:], serial)
	features := uint64(featureSizeMax | featureSegMax | featureBlockSize | featureTopology)
	if readOnly {
		features |= featureReadOnly
	} else {
		features |= featureFlush | featureDiscard | featureWriteZeroes
	}
	d, err := mmio.New(slot, mmio.Spec{
		Name:     "blk",
		ID:       deviceID,
		Version:  stateVersion,
		Features: features,
		Queues:   []uint16{queueSize},
		Config:   m.config(),
	}, m)
	if err != nil {
		return nil, err
	}
	m.gate = limiter.Gate(func() { d.Kick(0) })
	return d, nil
}

type model struct {
	disk     Disk
	readOnly bool
	sectors  uint64
	serial   [serialSize]byte
	gate     *rate.Gate
}

// config renders struct virtio_blk_config (virtio 5.2.4).
func (m *model) config() []byte {
	b := make([]byte, 60)
	put32 := func(at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	binary.LittleEndian.PutUint64(b[0:], m.sectors)
	put32(8, sizeMax)
	put32(12, segMax)
	put32(20, sectorSize)
	b[24] = 3                                             // physical blocks of 2^3 sectors: a page
	binary.LittleEndian.PutUint16(b[26:], sectorsPerPage) // smallest good I/O, in blocks
	put32(36, maxDiscard)
	put32(40, 1)              // discard segments in a request
	put32(44, sectorsPerPage) // discard alignment: a page
	put32(48, maxDiscard)     // for write zeroes
	put32(52, 1)
	b[56] = 1 // write zeroes may unmap
	return b
}

// Notify serves the request queue.
func (m *model) Notify(queues []virtq.Queue, _ int) error {
	q := &queues[0]
	for m.gate.Open() {
		c, err := q.Pop()
		if c == nil || err != nil {
			return err
		}
		m.gate.Pass(c.Readable.Len() + c.Writable.Len())
		written, err := m.serve(q, c)
		if err != nil {
			return err
		}
		if err := q.Push(c, written); err != nil {
			return err
		}
	}
	return nil
}

// Reset has nothing to drop: no request is ever in flight.
func (m *model) Reset() {}

// Save appends what must not differ when the machine goes on.
func (m *model) Save(e *state.Encoder) {
	e.U64(m.sectors)
	e.Bool(m.readOnly)
}

// Load checks that the disk is like the one that the guest saw.
func (m *model) Load(d *state.Decoder) {
	sectors, readOnly := d.U64(), d.Bool()
	if d.Err() == nil && (sectors != m.sectors || readOnly != m.readOnly) {
		d.Fail(fmt.Sprintf("disk had %d sectors (read-only: %t), now %d (%t)", sectors, readOnly, m.sectors, m.readOnly))
	}
}
