// Package vsock is the host's half of a guest's virtio sockets: connections
// between the host's goroutines and the guest's programs, as net.Conn.
//
// A Mux belongs to one machine. It starts no goroutine, and holds no buffer
// for a connection whose bytes were all read, so an idle machine costs a few
// hundred bytes. Bytes that a goroutine writes are buffered and the device is
// woken; on the vCPU's goroutine it takes them straight into the guest's
// receive buffers, however many Writes that were. Bytes from the guest are
// buffered when they arrive, and that wakes the reader. So a question and its
// answer cost two goroutine switches.
//
// A Relay is a connection without a reader and a writer of its own: a Receiver is told of
// its bytes on the vCPU's goroutine. It is for who only carries them on.
//
// A line is a connection that goes on in machines that are made of this one, if nothing is under way on it
// at that moment. There it is spare until a Relay that is to be a line is made to its port,
// for which it spares the guest all that a new connection takes.
//
// Both directions are bounded by the credit of virtio 5.10.6.3: the guest may
// have receiveWindow bytes on their way per connection, and is cut off if it
// sends more; a Write blocks when sendBuffer bytes wait for the guest. Nobody
// who does not read stalls anyone but its own peer.
//
// Errors are *net.OpError around a sentinel: ErrRefused, ErrReset, ErrGone, or
// net.ErrClosed, os.ErrDeadlineExceeded, io.EOF as usual.
//
// Lock order: the device's lock (package mmio), then Mux.mu. The device is
// woken with Mux.mu free.
package vsock

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/forkd-dev/forkd/internal/virtio/virtq"
	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

var (
	// ErrRefused reports that nothing in the guest listens on the port.
	ErrRefused = errors.New("connection refused by the guest")
	// ErrReset reports that the guest broke the connection, or that its
	// driver was reset.
	ErrReset = errors.New("connection reset by the guest")
	// ErrGone reports that the machine runs no more.
	ErrGone = errors.New("machine is gone")
)

const (
	receiveWindow = 256 << 10
	// creditStep is after how many consumed bytes the guest is told so, if no
	// other packet does. Linux keeps less than its own buffer on the way, which
	// a program can make small; it must not be smaller than this.
	creditStep     = 32 << 10
	sendBuffer     = 64 << 10
	maxPacket      = 64 << 10 // bytes of payload
	maxConnections = 1024     // per machine
	maxResets      = 64       // replies to the guest's stray packets
	backlog        = 64       // connections that wait for Accept
)

// Addr is one end of a connection.
type Addr struct {
	Host bool // the host's end, not the guest's
	Port uint32
}

// Network returns "vsock".
func (a Addr) Network() string { return "vsock" }

func (a Addr) String() string {
	if a.Host {
		return "host:" + strconv.FormatUint(uint64(a.Port), 10)
	}
	return "guest:" + strconv.FormatUint(uint64(a.Port), 10)
}

// pair identifies a connection of one machine.
type pair struct{ host, guest uint32 }

// Mux is the host's end of all virtio sockets of one machine. It is a
// virtio/vsock.Host; its other methods may be called from any goroutine.
type Mux struct {
	mu        sync.Mutex
	wake      func()               // set once by Attach; guarded by mu
	port      uint32               // the next port for a connection of ours; guarded by mu
	conns     map[pair]*Conn       // nil until there is one; guarded by mu
	spare     []*Conn              // lines that nobody has taken yet, also in conns; guarded by mu
	listeners map[uint32]*Listener // nil until there is one; guarded by mu
	resets    []virtio.Header      // to be sent for packets of no connection; guarded by mu
	sending   list                 // connections with something to send; guarded by mu
	gone      error                // not nil once closed; guarded by mu
}

// New returns a Mux that is ready for a device.
func New() *Mux { return new(Mux) }

// list is a queue of connections through their next fields.
type list struct{ first, last *Conn }

func (l *list) push(c *Conn) {
	if c.queued {
		return
	}
	c.queued = true
	if l.last == nil {
		l.first = c
	} else {
		l.last.next = c
	}
	l.last = c
}

func (l *list) pop() *Conn {
	c := l.first
	if c == nil {
		return nil
	}
	if l.first = c.next; l.first == nil {
		l.last = nil
	}
	c.next, c.queued = nil, false
	return c
}

// unlock frees m.mu and wakes the device if there is something to send. Every
// method that may have made packets ends with it.
func (m *Mux) unlock() {
	wake := m.wake
	if !m.pending() {
		wake = nil
	}
	m.mu.Unlock()
	if wake != nil {
		wake()
	}
}

func (m *Mux) pending() bool { return m.sending.first != nil || len(m.resets) > 0 }

// Close fails all connections, listeners and dials, now and in the future,
// with an error that wraps ErrGone and says why.
func (m *Mux) Close(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone != nil {
		return
	}
	m.gone = ErrGone
	if why != nil {
		m.gone = fmt.Errorf("%w: %w", ErrGone, why)
	}
	for _, c := range m.conns {
		c.end(m.gone)
	}
	for _, l := range m.listeners {
		l.end(m.gone)
	}
	m.resets, m.sending = nil, list{}
}

// add registers a new connection. The caller holds m.mu and has found the pair
// free.
func (m *Mux) add(p pair, s status) *Conn {
	c := &Conn{mux: m, pair: p, status: s, local: Addr{Host: true, Port: p.host}, remote: Addr{Port: p.guest}}
	c.readable.L = &m.mu
	c.writable.L = &m.mu
	if m.conns == nil {
		m.conns = make(map[pair]*Conn)
	}
	m.conns[p] = c
	return c
}

// remove forgets a connection, and the table with the last one.
func (m *Mux) remove(c *Conn) {
	if m.conns[c.pair] == c {
		delete(m.conns, c.pair)
	}
	if len(m.conns) == 0 {
		m.conns = nil
	}
	m.spare = slices.DeleteFunc(m.spare, func(s *Conn) bool { return s == c })
}

// freePair returns a pair for a new connection to the guest's port.
func (m *Mux) freePair(guest uint32) (pair, error) {
	if len(m.conns) >= maxConnections {
		return pair{}, fmt.Errorf("machine has %d open connections", len(m.conns))
	}
	for {
		p := pair{m.port, guest}
		m.port = max(m.port+1, firstPort) // wraps past the ports of services
		if _, taken := m.conns[p]; !taken && p.host >= firstPort {
			return p, nil
		}
	}
}

// firstPort is the first port that is not one of a service.
const firstPort = 1024

// The methods of virtio/vsock.Host.

// Attach implements virtio/vsock.Host.
func (m *Mux) Attach(wake func(), port uint32) {
	m.mu.Lock()
	m.wake, m.port = wake, port
	m.unlock()
}

// Ready implements virtio/vsock.Host.
func (m *Mux) Ready() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.resets) < maxResets
}

// Connected implements virtio/vsock.Host.
func (m *Mux) Connected() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns) > 0
}

// Pending implements virtio/vsock.Host.
func (m *Mux) Pending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pending()
}

// Reset implements virtio/vsock.Host. A dial that the guest has not heard of
// yet goes on waiting for a driver.
func (m *Mux) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resets, m.sending = nil, list{}
	for _, c := range m.conns {
		c.next, c.queued = nil, false
		if c.due&dueRequest != 0 {
			m.sending.push(c)
		} else {
			c.end(ErrReset)
		}
	}
}

// Send implements virtio/vsock.Host.
func (m *Mux) Send(h *virtio.Header, room *virtq.Writer) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.resets); n > 0 {
		*h = m.resets[0]
		if m.resets = m.resets[1:]; n == 1 {
			m.resets = nil
		}
		return true, nil
	}
	for {
		c := m.sending.pop()
		if c == nil {
			return false, nil
		}
		ok, err := c.send(h, room)
		if c.sendable() {
			m.sending.push(c) // behind the others
		}
		if ok || err != nil {
			return ok, err
		}
	}
}

// Receive implements virtio/vsock.Host.
func (m *Mux) Receive(h *virtio.Header, payload *virtq.Reader) error {
	m.mu.Lock()
	defer m.mu.Unlock() // the device looks for packets to send anyway
	if m.gone != nil {
		return nil
	}
	c := m.conns[pair{host: h.DstPort, guest: h.SrcPort}]
	if c == nil || h.DstCID != virtio.HostCID || h.Type != virtio.TypeStream {
		m.stray(h)
		return nil
	}
	err := c.receive(h, payload)
	if c.sendable() {
		m.sending.push(c)
	}
	return err
}

// stray answers a packet that belongs to no connection.
func (m *Mux) stray(h *virtio.Header) {
	if h.Op == virtio.OpReset {
		return // never answered, or two ends could go on for ever
	}
	if h.Op == virtio.OpRequest && h.DstCID == virtio.HostCID && h.Type == virtio.TypeStream && m.accept(h) {
		return
	}
	m.reset(pair{host: h.DstPort, guest: h.SrcPort}, h.Type)
}

// reset has the guest told that there is no such connection.
//
// The guest can cause maxResets of them (Ready), and the host one for each
// dial that it gives up, but those only for requests that were sent; requests
// are sent after resets, so the two bound each other.
func (m *Mux) reset(p pair, socketType uint16) {
	m.resets = append(m.resets, virtio.Header{
		SrcPort: p.host, DstPort: p.guest,
		Type: socketType, Op: virtio.OpReset,
	})
}

// accept makes a connection that the guest asks for, if somebody listens.
func (m *Mux) accept(h *virtio.Header) bool {
	l := m.listeners[h.DstPort]
	if l == nil || len(l.waiting) >= backlog || len(m.conns) >= maxConnections {
		return false
	}
	c := m.add(pair{host: h.DstPort, guest: h.SrcPort}, established)
	c.peerAlloc, c.peerFwd = h.BufAlloc, h.FwdCnt
	c.due = dueResponse
	m.sending.push(c)
	l.waiting = append(l.waiting, c)
	l.arrived.Signal()
	return true
}
