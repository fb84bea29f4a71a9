package vsock

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/conn"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

// lingerTime is how long a closed connection may go on delivering what was
// written before.
const lingerTime = 10 * time.Second

type status uint8

const (
	connecting status = iota // the guest has not answered yet
	established
	ended // and not in Mux.conns; err says why
)

// Packets without payload that a connection has to send, as bits.
const (
	dueRequest = 1 << iota
	dueResponse
	dueCredit
	dueCreditRequest
	dueShutdown // once all data is sent
)

// Conn is a connection to a program in the guest (net.Conn). Its methods may
// be called from any goroutine.
type Conn struct {
	mux           *Mux // immutable
	pair          pair // immutable
	local, remote Addr // immutable

	// All below is guarded by mux.mu.

	to     Receiver // of a Relay, whose bytes are never in the buffer in
	line   bool     // it may go on in machines that are made of this one
	status status
	queued bool  // in mux.sending,
	next   *Conn // where this follows
	due    uint8
	err    error // why it ended

	in       conn.Buffer // from the guest, not read yet
	received uint32      // bytes that the guest sent, and
	consumed uint32      // of those, bytes that are not in the buffer any more;
	told     uint32      // what the guest knows of consumed. All wrap.
	eof      bool        // the guest sends no more

	out       conn.Buffer // from Write, not taken by the device yet
	sent      uint32      // bytes that the device took; wraps
	peerAlloc uint32      // the guest's receive buffer
	peerFwd   uint32      // what the guest's program consumed; wraps
	asked     bool        // for credit, since there was some last
	peerDeaf  bool        // the guest receives no more
	shut      bool        // CloseWrite was called
	closed    bool        // Close was called
	linger    *time.Timer

	readable, writable          sync.Cond
	readDeadline, writeDeadline conn.Deadline
}

// LocalAddr returns the host's end, and RemoteAddr the guest's.
func (c *Conn) LocalAddr() net.Addr  { return c.local }
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

func (c *Conn) error(op string, err error) error {
	return &net.OpError{Op: op, Net: "vsock", Source: c.local, Addr: c.remote, Err: err}
}

// Read reads what the guest sent. After the guest has shut down its side it
// returns io.EOF.
func (c *Conn) Read(b []byte) (int, error) {
	c.mux.mu.Lock()
	defer c.mux.unlock()
	for {
		switch {
		case c.closed:
			return 0, c.error("read", net.ErrClosed)
		case c.readDeadline.Passed():
			return 0, c.error("read", os.ErrDeadlineExceeded)
		case c.in.Len() > 0 || len(b) == 0:
			n := c.in.Read(b)
			c.consume(n)
			return n, nil
		case c.eof:
			return 0, io.EOF
		case c.status == ended:
			return 0, c.error("read", c.err)
		}
		c.readable.Wait()
	}
}

// consume accounts for bytes that left the receive buffer, and tells the guest
// when it may begin to run out of credit.
func (c *Conn) consume(n int) {
	c.consumed += uint32(n)
	if c.status == established && !c.eof && c.consumed-c.told >= creditStep {
		c.due |= dueCredit
		c.mux.sending.push(c)
	}
}

// Write sends b to the guest. It returns when all of b is buffered, which may
// be before the guest has read it.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.mux.mu.Lock()
	defer c.mux.unlock()
	for {
		switch {
		case c.closed || c.shut:
			return n, c.error("write", net.ErrClosed)
		case c.writeDeadline.Passed():
			return n, c.error("write", os.ErrDeadlineExceeded)
		case c.status == ended:
			return n, c.error("write", c.err)
		case c.peerDeaf:
			return n, c.error("write", ErrReset)
		}
		room := min(sendBuffer-c.out.Len(), len(b)-n)
		c.out.Write(b[n : n+room])
		if n += room; c.sendable() {
			c.mux.sending.push(c)
		}
		if n == len(b) {
			return n, nil
		}
		// The device must be woken before this waits for it.
		c.mux.unlock()
		c.mux.mu.Lock()
		for c.out.Len() == sendBuffer && c.writing() {
			c.writable.Wait()
		}
	}
}

// writing reports whether a Write can still hope to go on.
func (c *Conn) writing() bool {
	return !c.closed && !c.shut && !c.writeDeadline.Passed() && c.status != ended && !c.peerDeaf
}

// CloseWrite tells the guest, after what was written, that no more comes. What
// the guest sends can still be read.
func (c *Conn) CloseWrite() error {
	c.mux.mu.Lock()
	defer c.mux.unlock()
	switch {
	case c.closed:
		return c.error("close", net.ErrClosed)
	case c.status == ended:
		return c.error("close", c.err)
	}
	c.shut = true
	c.due |= dueShutdown
	if c.sendable() {
		c.mux.sending.push(c)
	}
	c.writable.Broadcast()
	return nil
}

// Close ends the connection. What was written before is still delivered, if
// the guest takes it within lingerTime; what was not read is lost.
func (c *Conn) Close() error {
	c.mux.mu.Lock()
	defer c.mux.unlock()
	if c.closed {
		return c.error("close", net.ErrClosed)
	}
	c.closed = true
	c.in.Drop()
	c.consumed = c.received
	c.readDeadline.Stop()
	c.writeDeadline.Stop()
	c.readable.Broadcast()
	c.writable.Broadcast()
	if c.status != established {
		c.abandon(net.ErrClosed)
		return nil
	}
	c.due |= dueShutdown
	if c.sendable() {
		c.mux.sending.push(c)
	}
	if c.out.Len() > 0 {
		c.linger = time.AfterFunc(lingerTime, func() {
			c.mux.mu.Lock()
			defer c.mux.unlock()
			c.abandon(net.ErrClosed)
		})
	}
	return nil
}

// abandon ends the connection with err, and tells the guest if it has heard of
// it.
func (c *Conn) abandon(err error) {
	if c.status != ended && c.due&dueRequest == 0 {
		c.mux.reset(c.pair, virtio.TypeStream)
	}
	c.end(err)
}

// end forgets the connection. What the guest sent before can still be read.
func (c *Conn) end(err error) {
	if c.status == ended {
		return
	}
	c.status, c.err, c.due = ended, err, 0
	c.out.Drop()
	if c.linger != nil {
		c.linger.Stop()
	}
	c.mux.remove(c)
	c.readable.Broadcast()
	c.writable.Broadcast()
	if c.to != nil && !c.closed {
		c.to.Ended(err)
	}
}

// credit returns how many bytes the guest has room for.
func (c *Conn) credit() uint32 {
	if flying := c.sent - c.peerFwd; flying <= c.peerAlloc {
		return c.peerAlloc - flying
	}
	return 0
}

// sendable reports whether send would make a packet.
func (c *Conn) sendable() bool {
	switch {
	case c.status == ended:
		return false
	case c.due&^dueShutdown != 0:
		return true
	case c.out.Len() > 0:
		return c.credit() > 0
	default:
		return c.due != 0
	}
}

// send makes the connection's next packet, if there is one.
func (c *Conn) send(h *virtio.Header, room *virtq.Writer) (bool, error) {
	if !c.sendable() {
		return false, nil
	}
	*h = virtio.Header{
		SrcPort: c.pair.host, DstPort: c.pair.guest,
		Type:     virtio.TypeStream,
		BufAlloc: receiveWindow,
		FwdCnt:   c.consumed,
	}
	c.told = c.consumed
	switch {
	case c.due&dueRequest != 0:
		h.Op = virtio.OpRequest
		c.due &^= dueRequest | dueCredit
	case c.due&dueResponse != 0:
		h.Op = virtio.OpResponse
		c.due &^= dueResponse | dueCredit
	case c.out.Len() > 0 && c.credit() > 0:
		h.Op = virtio.OpData
		c.due &^= dueCredit
		return true, c.sendData(room)
	case c.due&dueCreditRequest != 0:
		h.Op = virtio.OpCreditRequest
		c.due &^= dueCreditRequest | dueCredit
	case c.due&dueCredit != 0:
		h.Op = virtio.OpCreditUpdate
		c.due &^= dueCredit
	default:
		h.Op = virtio.OpShutdown
		h.Flags = virtio.ShutdownSend
		c.due &^= dueShutdown
		if c.closed {
			// Nothing is left to do here; should the guest send more, the
			// answer is a reset.
			h.Flags |= virtio.ShutdownReceive
			c.end(net.ErrClosed)
		}
	}
	return true, nil
}

func (c *Conn) sendData(room *virtq.Writer) error {
	size := min(c.out.Len(), int(c.credit()), room.Len(), maxPacket)
	for left := size; left > 0; {
		piece, err := room.Next(left)
		if err != nil {
			return err
		}
		left -= c.out.Read(piece)
	}
	c.sent += uint32(size)
	if c.out.Len() > 0 && c.credit() == 0 && !c.asked {
		c.asked = true
		c.due |= dueCreditRequest
	}
	c.writable.Broadcast()
	if c.to != nil && !c.closed {
		c.to.Taken(size)
	}
	return nil
}

// receive takes a packet that the guest sent for this connection.
func (c *Conn) receive(h *virtio.Header, payload *virtq.Reader) error {
	c.peerAlloc, c.peerFwd = h.BufAlloc, h.FwdCnt
	if c.credit() > 0 {
		c.asked = false
	}
	switch {
	case h.Op == virtio.OpReset:
		c.peerReset()
	case h.Op == virtio.OpResponse && c.status == connecting && c.due&dueRequest == 0:
		c.status = established
		c.readable.Broadcast() // Dial waits there
		if c.to != nil && !c.closed {
			c.to.Opened()
		}
	case c.status != established:
		c.abandon(ErrReset)
	case h.Op == virtio.OpData && c.mux.isSpare(c):
		c.abandon(ErrReset) // nobody has asked it anything yet
	case h.Op == virtio.OpData:
		return c.receiveData(payload)
	case h.Op == virtio.OpShutdown:
		c.peerShutdown(h.Flags)
	case h.Op == virtio.OpCreditRequest:
		c.due |= dueCredit
	case h.Op != virtio.OpCreditUpdate:
		c.abandon(ErrReset)
	}
	return nil
}

func (c *Conn) receiveData(payload *virtq.Reader) error {
	size := payload.Len()
	if c.eof || uint32(size) > receiveWindow-(c.received-c.consumed) {
		c.abandon(ErrReset) // it sends after its end, or without credit
		return nil
	}
	c.received += uint32(size)
	if c.closed {
		c.consume(size)
		return nil
	}
	for payload.Len() > 0 {
		piece, err := payload.Next(payload.Len())
		if err != nil {
			return err
		}
		if c.to != nil {
			c.to.Data(piece)
		} else {
			c.in.Write(piece)
		}
	}
	c.readable.Broadcast()
	return nil
}

func (c *Conn) peerReset() {
	if c.status == connecting {
		c.end(ErrRefused)
	} else {
		c.end(ErrReset)
	}
}

func (c *Conn) peerShutdown(flags uint32) {
	if flags&virtio.ShutdownSend != 0 {
		if c.peerDeaf && !c.eof {
			c.abandon(ErrReset) // who stops listening before it has said its last word was cut short
			return
		}
		c.hearEnd()
	}
	if flags&virtio.ShutdownReceive != 0 {
		c.peerDeaf = true
		lost := c.out.Len()
		c.out.Drop()
		c.writable.Broadcast()
		if c.to != nil && !c.closed {
			c.to.Taken(lost)
		}
	}
	if c.eof && c.peerDeaf {
		c.abandon(ErrReset) // the guest waits for this (virtio 5.10.6.5)
	}
}

// hearEnd takes note that the guest sends no more.
func (c *Conn) hearEnd() {
	if c.eof {
		return
	}
	c.eof = true
	c.readable.Broadcast()
	if c.to != nil && !c.closed {
		c.to.EOF()
	}
}
