// Package vsock is the virtio socket device (virtio 5.10): it moves packets
// between the guest's queues and a Host, which is where connections live.
//
// Payloads are copied once, between guest memory and the host's buffers. The
// guest's packets are taken only while the host can take them (Host.Ready), so
// a guest that sends and never receives fills nobody's memory.
//
// Where a limiter is in force, packets that it holds back stay where they are: the
// guest's in the ring, the host's with the Host.
//
// A restored device knows nothing of the connections that the guest had when
// it was saved, but for lines, on which nothing was under way; these go on. If there were others, it
// tells the driver so with a transport reset, which breaks
// the guest's connections and leaves its listening sockets alone. Until the
// driver has returned the event's buffer, which it does once it has acted on
// the event, packets are kept back: a connection made right after the restore
// could otherwise arrive first, and be broken by the reset that follows. And a
// port that the host has used for its own end is not used again after a
// restore, as the guest may still hold the dead socket of that pair.
package vsock

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd-dev/forkd/internal/rate"
	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

const (
	deviceID     = 19
	stateVersion = 1

	// The driver keeps more than a page of its memory in every entry of the
	// receive queue.
	queueSize      = 64
	eventQueueSize = 8

	// mostSilent is how many small packets of the guest may be through without an
	// interrupt while there are connections. All that it learns from one is that it
	// can free their memory, and that can wait for the next packet of ours. A large
	// one cannot wait: where memory is short, a few fill the queue with their pieces,
	// and then the guest has to be told before it can send on.
	mostSilent = queueSize / 8
	small      = 512 // bytes of payload

	queueReceive  = 0 // host to guest
	queueTransmit = 1 // guest to host
	queueEvent    = 2

	// firstPort is the first port that the host uses for its own end; those
	// below are for services.
	firstPort = 1024
)

// Host is the host's end. The device calls its methods with the device's lock
// held, on vCPU goroutines; they must not block.
type Host interface {
	// Attach is called once, when the device is made. wake, which may be
	// called from any goroutine and returns at once, has the device look for
	// packets to deliver. The host's own ports are port and up, in sequence.
	Attach(wake func(), port uint32)
	// Ready reports whether Receive can take another packet.
	Ready() bool
	// Receive takes a packet from the guest. The payload has exactly h.Size
	// bytes, some of which may be left unread; neither may be kept. The error
	// is one of payload.
	Receive(h *Header, payload *virtq.Reader) error
	// Connected reports whether there are connections, so that the guest is
	// sooner or later sent something.
	Connected() bool
	// Pending reports whether there is a packet to send.
	Pending() bool
	// Send fills in the next packet's header and writes its payload, for which
	// room has at least one byte. It reports false if there is no packet after
	// all. The error is one of room.
	Send(h *Header, room *virtq.Writer) (bool, error)
	// Lines returns the connections that go on in machines that are made of this one, at most MaxLines,
	// and whether these are all that there are.
	Lines() (lines []Line, all bool)
	// Adopt is called before Attach with the lines of the machine that this one is made of.
	Adopt(lines []Line)
	// Reset tells that the driver is gone, and the guest's connections with it.
	Reset()
}

// Line is a connection between the bytes that have crossed it, all of which were consumed, and those to come.
type Line struct {
	HostPort, GuestPort uint32
	Sent                uint32 // bytes that the host has sent; wraps, as all counts
	Received            uint32 // bytes that the guest has sent
	Told                uint32 // what the guest was told of that
	BufAlloc            uint32 // the guest's receive buffer, in bytes, as it has told last
}

// MaxLines is how many lines a machine has at most.
const MaxLines = 8

// New makes a device for the guest with the given context identifier. limiter, which
// may be nil, bounds the bytes of packets, in both directions; whoever closes the
// machine closes it.
func New(slot mmio.Slot, cid uint32, host Host, limiter *rate.Limiter) (*mmio.Device, error) {
	m := &model{host: host, cid: uint64(cid), port: firstPort}
	d, err := mmio.New(slot, mmio.Spec{
		Name:    "vsock",
		ID:      deviceID,
		Version: stateVersion,
		Queues:  []uint16{queueSize, queueSize, eventQueueSize},
		Config:  binary.LittleEndian.AppendUint64(nil, uint64(cid)),
	}, m)
	if err != nil {
		return nil, err
	}
	m.gate = limiter.Gate(func() { d.Kick(queueReceive) })
	host.Attach(func() { d.Kick(queueReceive) }, m.port)
	return d, nil
}

type model struct {
	host Host   // immutable
	cid  uint64 // immutable
	gate *rate.Gate

	// The rest is guarded by the device's lock.

	port uint32 // above every port that the host has used for itself

	resetDue bool // the driver must be told of a transport reset
	// held is true from then on until the driver has returned all events, that
	// is, until the event queue's available index has reached release.
	held    bool
	release uint16

	// Scratch space that would otherwise be allocated per packet.
	header Header
	raw    [HeaderSize]byte
}

// Notify moves packets both ways until nothing moves any more. What the guest
// sends can make replies, and room for replies lets the guest send.
func (m *model) Notify(queues []virtq.Queue, _ int) error {
	queues[queueTransmit].Moderate(0)
	if m.host.Connected() {
		queues[queueTransmit].Moderate(mostSilent)
	}
	if err := m.events(&queues[queueEvent]); err != nil {
		return err
	}
	for {
		sent, err := m.deliver(&queues[queueReceive])
		if err != nil {
			return err
		}
		taken, err := m.collect(&queues[queueTransmit])
		if err != nil {
			return err
		}
		if sent+taken == 0 {
			return nil
		}
	}
}

// events sends a transport reset that is due, and finds out whether the driver
// has dealt with all it was sent.
func (m *model) events(q *virtq.Queue) error {
	if !q.Ready() || !m.resetDue && !m.held {
		return nil
	}
	added, err := q.Added()
	if err != nil {
		return err
	}
	if m.held && int16(added-m.release) >= 0 {
		m.held = false
	}
	if m.resetDue {
		c, err := q.Pop()
		if c == nil || err != nil {
			return err
		}
		const transportReset = 0 // VIRTIO_VSOCK_EVENT_TRANSPORT_RESET
		event := binary.LittleEndian.AppendUint32(nil, transportReset)
		if err := c.Writable.WriteFull(event); err != nil {
			return err
		}
		if err := q.Push(c, len(event)); err != nil {
			return err
		}
		if !m.held {
			m.held, m.release = true, added
		}
		m.release++
		m.resetDue = false
	}
	if m.held {
		return q.Arm()
	}
	return nil
}

// deliver sends the host's packets to the guest and returns how many.
func (m *model) deliver(q *virtq.Queue) (int, error) {
	for n := 0; ; n++ {
		if m.held || m.resetDue || !m.host.Pending() || !m.gate.Open() {
			return n, nil
		}
		c, err := q.Pop()
		if c == nil || err != nil {
			return n, err
		}
		size := c.Writable.Len()
		if size <= HeaderSize {
			return n, fmt.Errorf("%w: receive buffer of %d bytes has no room for a packet", virtq.ErrMalformed, size)
		}
		front := c.Writable // the header is written last, when the payload is known
		c.Writable.Skip(HeaderSize)
		ok, err := m.host.Send(&m.header, &c.Writable)
		if err != nil {
			return n, err
		}
		if !ok {
			q.Unpop()
			return n, nil
		}
		used := size - c.Writable.Len()
		m.header.SrcCID, m.header.DstCID = HostCID, m.cid
		m.header.Size = uint32(used - HeaderSize)
		if m.header.Op == OpRequest {
			m.port = max(m.port, m.header.SrcPort+1)
		}
		m.header.Put(&m.raw)
		if err := front.WriteFull(m.raw[:]); err != nil {
			return n, err
		}
		m.gate.Pass(used)
		if err := q.Push(c, used); err != nil {
			return n, err
		}
	}
}

// collect takes the guest's packets and returns how many.
func (m *model) collect(q *virtq.Queue) (int, error) {
	for n := 0; ; n++ {
		if !m.host.Ready() || !m.gate.Open() {
			return n, nil
		}
		c, err := q.Pop()
		if c == nil || err != nil {
			return n, err
		}
		m.gate.Pass(c.Readable.Len() + c.Writable.Len())
		if err := c.Readable.ReadFull(m.raw[:]); err != nil {
			return n, err
		}
		m.header.Parse(&m.raw)
		if uint64(m.header.Size) > uint64(c.Readable.Len()) {
			return n, fmt.Errorf("%w: packet of %d bytes has %d", virtq.ErrMalformed, m.header.Size, c.Readable.Len())
		}
		c.Readable.Truncate(int(m.header.Size))
		if m.header.Size > small {
			q.Moderate(0)
		}
		// A packet in another's name is dropped.
		if m.header.SrcCID == m.cid {
			if err := m.host.Receive(&m.header, &c.Readable); err != nil {
				return n, err
			}
		}
		if err := q.Push(c, 0); err != nil {
			return n, err
		}
	}
}

// Reset forgets the events and the connections of a driver that is gone.
func (m *model) Reset() {
	m.resetDue, m.held, m.release = false, false, 0
	m.host.Reset()
}

// Save appends the model's state. What it says of a reset and of lines is for the machine that is
// made of it: a reset is due there if the driver may know of a connection now that is no line.
func (m *model) Save(e *state.Encoder) {
	lines, all := m.host.Lines()
	resetDue := m.resetDue || !all || m.host.Pending()
	e.U64(m.cid)
	e.U32(m.port)
	e.Bool(m.held)
	e.U16(m.release)
	e.Bool(resetDue)
	if resetDue || len(lines) == 0 {
		return
	}
	e.U32(uint32(len(lines)))
	for _, l := range lines {
		for _, field := range l.fields() {
			e.U32(*field)
		}
	}
}

// fields is a line as it is saved.
func (l *Line) fields() [6]*uint32 {
	return [...]*uint32{&l.HostPort, &l.GuestPort, &l.Sent, &l.Received, &l.Told, &l.BufAlloc}
}

// Load reads what Save wrote.
func (m *model) Load(d *state.Decoder) {
	if cid := d.U64(); d.Err() == nil && cid != m.cid {
		d.Fail(fmt.Sprintf("guest was context %d, now %d", cid, m.cid))
	}
	m.port = d.U32()
	m.held = d.Bool()
	m.release = d.U16()
	m.resetDue = !d.More() || d.Bool()
	if d.More() {
		m.loadLines(d)
	}
}

func (m *model) loadLines(d *state.Decoder) {
	n := d.U32()
	if n > MaxLines {
		d.Fail(fmt.Sprintf("%d lines, at most %d are known", n, MaxLines))
		return
	}
	lines := make([]Line, n)
	for i := range lines {
		for _, field := range lines[i].fields() {
			*field = d.U32()
		}
		if p := lines[i].HostPort; d.Err() == nil && (p < firstPort || p >= m.port) {
			d.Fail(fmt.Sprintf("a line of port %d, which the host has not used", p))
		}
	}
	if d.Err() == nil && !m.resetDue {
		m.host.Adopt(lines)
	}
}
