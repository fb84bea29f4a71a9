// Package virtq is the device side of virtio's split virtqueues (virtio 2.7).
//
// The driver is hostile. Rings and descriptors lie in memory that the guest
// may change at any time, so a chain is read once, checked, and kept in host
// memory: what is used is what was checked. A ring that makes no sense is an
// error that wraps ErrMalformed; the transport answers it by putting the
// device into NEEDS_RESET, after which the queue is not read any more.
//
// Invariants. The rings of a ready queue lie in RAM and do not overlap. A
// chain has at least one buffer, at most as many as the queue has entries, no
// empty ones, none outside of RAM, device-readable ones before
// device-writable ones, none of the latter over the queue's own rings, and
// MaxChain bytes in all. A buffer that appears twice in one chain is legal: a
// guest program can ask for that with readv.
//
// A Queue has no lock. It belongs to the transport, whose lock is held when a
// device uses it, and like all guest memory it is only used inside a bus
// access or a posted function (package engine).
package virtq

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/state"
)

// Feature bits of the queues (virtio 6). Every device offers both.
const (
	FeatureIndirect = 1 << 28 // VIRTIO_RING_F_INDIRECT_DESC
	FeatureEventIdx = 1 << 29 // VIRTIO_RING_F_EVENT_IDX
)

const (
	// MaxSize is the greatest number of entries of a queue here. The split
	// layout allows more; nothing needs it.
	MaxSize = 256
	// MaxChain bounds the bytes of one chain.
	MaxChain = 16 << 20

	// quota is how many bytes of requests a device may take from one queue
	// before it goes back to the guest; each chain costs chainCost on top.
	quota     = 1 << 20
	chainCost = 1 << 10
)

// ErrMalformed reports a ring or chain that breaks the rules of virtio.
var ErrMalformed = errors.New("malformed virtqueue")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// Layout is what the driver tells about a queue: its size in entries and the
// guest-physical addresses of its three parts.
type Layout struct {
	Size              uint16
	Desc, Avail, Used uint64
}

type span struct{ base, size uint64 }

func (s span) overlaps(t span) bool { return s.base < t.base+t.size && t.base < s.base+s.size }

// parts returns where descriptor table, available ring and used ring lie; the
// rings with the event index fields that follow them.
func (l *Layout) parts() [3]span {
	n := uint64(l.Size)
	return [3]span{{l.Desc, descSize * n}, {l.Avail, 6 + 2*n}, {l.Used, 6 + 8*n}}
}

// overlaps reports whether s touches one of the parts.
func (l *Layout) overlaps(s span) bool {
	p := l.parts()
	return s.overlaps(p[0]) || s.overlaps(p[1]) || s.overlaps(p[2])
}

// check reports whether the layout is one that the queue can use.
func (l *Layout) check(mem *memory.Space, maxSize uint16) error {
	if l.Size == 0 || l.Size > maxSize || l.Size&(l.Size-1) != 0 {
		return malformed("size %d is not a power of two up to %d", l.Size, maxSize)
	}
	if l.Desc%16 != 0 || l.Avail%2 != 0 || l.Used%4 != 0 {
		return malformed("misaligned: descriptors at %#x, available ring at %#x, used ring at %#x", l.Desc, l.Avail, l.Used)
	}
	p := l.parts()
	for _, part := range p {
		if err := mem.Check(part.base, part.size); err != nil {
			return fmt.Errorf("%w: ring: %w", ErrMalformed, err)
		}
	}
	if p[0].overlaps(p[1]) || p[0].overlaps(p[2]) || p[1].overlaps(p[2]) {
		return malformed("rings overlap")
	}
	return nil
}

// Queue is one virtqueue. Make it with Init; it serves nothing until Enable.
type Queue struct {
	mem      *memory.Space // immutable
	max      uint16        // immutable
	ready    bool
	eventIdx bool
	indirect bool
	// Layout is the driver's to set while the queue is not ready.
	Layout

	next      uint16 // index of the next available entry to take
	done      uint16 // index of the next used entry to write
	signalled uint16 // done, when the driver was interrupted last, or would have been had it wanted to be
	patience  uint16 // how many chains may end without an interrupt

	left      int  // what is left of the quota
	throttled bool // Pop held a chain back because the quota was used up

	chain Chain // the one that Pop handed out
}

// Init prepares a queue of at most maxSize entries.
func (q *Queue) Init(mem *memory.Space, maxSize uint16) {
	if maxSize == 0 || maxSize > MaxSize || maxSize&(maxSize-1) != 0 {
		panic("BUG: bad maximum size of a virtqueue")
	}
	*q = Queue{mem: mem, max: maxSize, left: quota}
}

// MaxSize returns the greatest size that the driver may choose.
func (q *Queue) MaxSize() uint16 { return q.max }

// Ready reports whether the driver has enabled the queue.
func (q *Queue) Ready() bool { return q.ready }

// Enable starts the queue with its present layout and the negotiated features.
func (q *Queue) Enable(features uint64) error {
	if err := q.Layout.check(q.mem, q.max); err != nil {
		return err
	}
	q.eventIdx = features&FeatureEventIdx != 0
	q.indirect = features&FeatureIndirect != 0
	q.next, q.done, q.signalled = 0, 0, 0
	q.ready = true
	return nil
}

// Reset puts the queue back to where Init left it.
func (q *Queue) Reset() { q.Init(q.mem, q.max) }

// Refill gives the queue a new quota.
func (q *Queue) Refill() { q.left, q.throttled = quota, false }

// Charge takes n bytes of work from the quota, for a request that costs more
// than its buffers tell.
func (q *Queue) Charge(n int) { q.left -= n }

// Throttled reports whether Pop has held chains back since the last Refill.
func (q *Queue) Throttled() bool { return q.throttled }

// Pop takes the next available chain. It returns nil when there is none, or
// when the quota is used up. The chain is valid until the next Pop; the device
// ends it with Push, or gives it back with Unpop.
func (q *Queue) Pop() (*Chain, error) {
	if !q.ready {
		return nil, nil
	}
	if waiting, err := q.Waiting(); waiting == 0 || err != nil {
		if err != nil {
			return nil, err
		}
		// Ask for a kick first and look again afterwards, or an entry that
		// another vCPU adds in between would lie there without one.
		if err := q.Arm(); err != nil {
			return nil, err
		}
		if waiting, err = q.Waiting(); waiting == 0 || err != nil {
			return nil, err
		}
	}
	if q.left <= 0 {
		q.throttled = true
		return nil, nil
	}
	head, err := q.mem.Uint16(q.Avail + 4 + 2*uint64(q.next%q.Size))
	if err != nil {
		return nil, fmt.Errorf("reading the available ring: %w", err)
	}
	if err := q.read(head); err != nil {
		return nil, err
	}
	q.next++
	q.left -= chainCost + q.chain.Readable.Len() + q.chain.Writable.Len()
	return &q.chain, nil
}

// Unpop gives the chain of the last Pop back, untouched.
func (q *Queue) Unpop() { q.next-- }

// Added returns the index that follows the last entry which the driver has
// made available. It wraps.
func (q *Queue) Added() (uint16, error) { return q.mem.Uint16(q.Avail + 2) }

// Waiting returns how many available chains the device has not taken yet.
func (q *Queue) Waiting() (int, error) {
	added, err := q.Added()
	if err != nil {
		return 0, fmt.Errorf("reading the available ring: %w", err)
	}
	waiting := added - q.next
	if waiting > q.Size {
		return 0, malformed("driver made %d entries available in a queue of %d", waiting, q.Size)
	}
	return int(waiting), nil
}

// Arm asks the driver to kick when it makes the next chain available. Pop does
// so when it finds none.
func (q *Queue) Arm() error {
	if !q.eventIdx {
		return nil // it always kicks
	}
	added, err := q.Added()
	if err != nil {
		return err
	}
	// Written only if it differs: a write would make the page this machine's
	// own.
	at := q.Used + 4 + 8*uint64(q.Size)
	if event, err := q.mem.Uint16(at); err != nil || event == added {
		return err
	}
	return q.mem.PutUint16(at, added)
}

// Push ends a chain: the device has written the first written bytes of its
// writable buffers.
func (q *Queue) Push(c *Chain, written int) error {
	var b [8]byte
	binary.LittleEndian.PutUint32(b[0:], uint32(c.head))
	binary.LittleEndian.PutUint32(b[4:], uint32(written))
	if err := q.mem.Write(q.Used+4+8*uint64(q.done%q.Size), b[:]); err != nil {
		return fmt.Errorf("writing the used ring: %w", err)
	}
	q.done++
	// In one piece: the driver may be looking.
	if err := q.mem.PutUint16(q.Used+2, q.done); err != nil {
		return fmt.Errorf("writing the used ring: %w", err)
	}
	return nil
}

// Moderate has the next interrupt wait until more than n chains have ended since
// the last one. It is for a queue whose driver learns from an interrupt only that it
// can free memory.
func (q *Queue) Moderate(n uint16) { q.patience = n }

// Mention counts what was pushed as told: the driver is interrupted for another
// queue of the device, and looks at all of them.
func (q *Queue) Mention() { q.signalled = q.done }

// TakeInterrupt reports whether the driver wants an interrupt for what was
// pushed since the last one.
func (q *Queue) TakeInterrupt() (bool, error) {
	if !q.ready || q.done-q.signalled <= q.patience {
		return false, nil
	}
	old := q.signalled
	q.signalled = q.done
	if q.eventIdx {
		event, err := q.mem.Uint16(q.Avail + 4 + 2*uint64(q.Size))
		return q.done-event-1 < q.done-old, err // virtio 2.7.10
	}
	const noInterrupt = 1 // VIRTQ_AVAIL_F_NO_INTERRUPT
	flags, err := q.mem.Uint16(q.Avail)
	return flags&noInterrupt == 0, err
}

// Save appends the queue's state.
func (q *Queue) Save(e *state.Encoder) {
	e.Bool(q.ready)
	e.U16(q.Size)
	e.U64(q.Desc)
	e.U64(q.Avail)
	e.U64(q.Used)
	e.U16(q.next)
	e.U16(q.done)
	e.U16(q.signalled)
}

// Load reads what Save wrote, for a driver that negotiated the features.
func (q *Queue) Load(d *state.Decoder, features uint64) {
	ready := d.Bool()
	q.Layout = Layout{Size: d.U16(), Desc: d.U64(), Avail: d.U64(), Used: d.U64()}
	next, done, signalled := d.U16(), d.U16(), d.U16()
	if !ready || d.Err() != nil {
		return
	}
	if err := q.Enable(features); err != nil {
		d.Fail(err.Error())
		return
	}
	q.next, q.done, q.signalled = next, done, signalled
}
