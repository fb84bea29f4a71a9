package vsock

import (
	"net"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

func FuzzDevice(f *testing.F) {
	packet := virtio.Header{
		SrcCID: guestCID, DstCID: virtio.HostCID, SrcPort: 9, DstPort: 53, Size: 4,
		Type: virtio.TypeStream, Op: virtio.OpRequest,
	}
	var b [virtio.HeaderSize]byte
	packet.Put(&b)
	virtiotest.Fuzz(f, virtiotest.Subject{
		New: func(_ testing.TB, slot mmio.Slot) (virtiotest.Device, error) {
			m := New()
			if _, err := m.Listen(53); err != nil {
				return nil, err
			}
			return virtio.New(slot, guestCID, m, nil)
		},
		Queue:   1,
		Request: []virtiotest.Buffer{virtiotest.Out(append(b[:], "data"...))},
	})
}

// FuzzConnections plays a program of what guest and host do with connections,
// all on one goroutine, and checks after each step what must always hold.
func FuzzConnections(f *testing.F) {
	f.Add([]byte{0, 1, 3, 5, 2, 0, 8, 3, 0, 6, 0, 4, 0})
	f.Add([]byte{0, 1, 3, 2, 200, 7, 2, 100, 5, 0, 9, 1, 3, 3, 3, 0, 4, 1})
	f.Add([]byte{10, 1, 4, 1, 1, 1, 2, 40, 3, 3, 11, 1, 4, 1, 6, 3, 10})
	f.Add([]byte{0, 1, 3, 12, 2, 60, 1, 1, 5, 255, 255, 12, 13, 0, 1, 0, 14})
	f.Fuzz(func(t *testing.T, program []byte) {
		w := &world{guest: newGuest(t), in: program}
		for steps := 0; len(w.in) > 0 && steps < 200; steps++ {
			w.step()
			w.check()
		}
		w.mux.Close(nil)
		for _, c := range w.conns {
			if c.status != ended || c.out.Len() != 0 {
				t.Fatalf("connection outlives its machine: %+v", c)
			}
			c.Close()
			if c.in.Len() != 0 || c.queued && c.mux.sending.first != nil {
				t.Fatalf("closed connection keeps buffers: %+v", c)
			}
		}
		if w.mux.conns != nil || w.mux.pending() {
			t.Fatalf("closed mux keeps connections")
		}
	})
}

// world is the guest, the host's connections, and the program that says what
// they do.
type world struct {
	*guest
	in       []byte
	conns    []*Conn
	listener net.Listener
	relays   []relayed
}

// relayed is a Relay and who is told of it.
type relayed struct {
	*Relay
	to *recorder
}

// relay does something with a Relay.
func (w *world) relay() {
	if len(w.relays) == 0 {
		return
	}
	r := w.relays[int(w.byte())%len(w.relays)]
	switch n := int(w.byte()) << 8; w.byte() % 4 {
	case 0, 1:
		room := RelayWindow - r.c.out.Len()
		refused := r.c.status != ended && (n > room || r.c.shut || r.c.closed)
		if err := r.Write(make([]byte, n)); (err != nil) != refused {
			w.Fatalf("%d bytes where there is room for %d: %v", n, room, err)
		}
	case 2:
		r.Consumed(n)
	case 3:
		r.CloseWrite()
	}
}

func (w *world) byte() byte {
	if len(w.in) == 0 {
		return 0
	}
	b := w.in[0]
	w.in = w.in[1:]
	return b
}

func (w *world) u32() uint32 {
	v := uint32(0)
	for range 4 {
		v = v<<8 | uint32(w.byte())
	}
	return v
}

// conn returns one of the connections, or nil.
func (w *world) conn() *Conn {
	if len(w.conns) == 0 {
		return nil
	}
	return w.conns[int(w.byte())%len(w.conns)]
}

func (w *world) step() {
	op := w.byte() % 16
	switch op {
	case 0:
		how := w.byte()
		if how&8 != 0 {
			r := new(recorder)
			if c, err := w.mux.Relay(uint32(how%4), RelayOptions{Wait: how&4 != 0, Line: how&16 != 0}, r); err == nil {
				w.conns, w.relays = append(w.conns, c.c), append(w.relays, relayed{c, r})
			}
		} else if c, err := w.mux.request(uint32(how%4), 0, how&16 != 0, nil); err == nil {
			w.conns = append(w.conns, c)
		}
		return
	case 15:
		w.relay()
		return
	case 10:
		w.listen()
		return
	case 11:
		w.starve = !w.starve
		if !w.starve {
			for w.run(); w.filled-w.used < slots; {
				w.fill()
			}
			w.rx.Kick()
		}
		return
	case 12:
		w.starve = false
		w.start()
		return
	case 13:
		w.run()
		w.inbox = nil
		return
	case 14:
		w.forged()
		return
	}
	c := w.conn()
	if c == nil || c.to != nil && op >= 5 && op <= 8 {
		return // reading and writing is for others
	}
	switch op {
	case 1, 2, 9:
		w.packet(c.pair, []uint16{virtio.OpResponse, virtio.OpData, virtio.OpData}[op%3])
	case 3:
		w.packet(c.pair, uint16(w.byte()%9))
	case 4:
		c.Close()
	case 5:
		c.CloseWrite()
	case 6:
		if n := sendBuffer - c.out.Len(); n > 0 {
			c.Write(make([]byte, min(n, int(w.byte())<<6)))
		}
	case 7, 8:
		if c.in.Len() > 0 || c.eof || c.closed || c.status == ended {
			c.Read(make([]byte, 1+int(w.byte())<<8))
		}
	}
}

func (w *world) listen() {
	if w.listener == nil {
		w.listener, _ = w.mux.Listen(53)
		return
	}
	if l := w.listener.(*Listener); len(l.waiting) > 0 {
		c, err := l.Accept()
		if err != nil {
			w.Fatal(err)
		}
		w.conns = append(w.conns, c.(*Conn))
		return
	}
	w.listener.Close()
	w.listener = nil
}

// packet has the guest send a packet of a connection.
func (w *world) packet(p pair, op uint16) {
	if w.clogged() {
		return
	}
	h := virtio.Header{SrcPort: p.guest, DstPort: p.host, Op: op, BufAlloc: 1 << 16}
	if how := w.byte(); how&1 != 0 {
		h.BufAlloc, h.FwdCnt = w.u32(), w.u32()
	} else if how&2 != 0 {
		h.Flags = uint32(w.byte())
	}
	payload := ""
	if op == virtio.OpData {
		payload = string(pattern(int(w.byte()) << 8))
	}
	w.send(h, payload)
}

// forged has the guest send a packet of no connection.
func (w *world) forged() {
	if w.clogged() {
		return
	}
	w.send(virtio.Header{
		SrcCID: uint64(w.byte()%4) + 1, DstCID: uint64(w.byte()%4) + 1,
		SrcPort: uint32(w.byte() % 4), DstPort: uint32(w.byte()%2) * 53,
		Type: uint16(w.byte()%3) + 1, Op: uint16(w.byte() % 9),
	}, "")
}

func (w *world) check() {
	w.run()
	w.inbox = nil
	if n := len(w.mux.resets); n > maxResets+len(w.conns) {
		w.Fatalf("%d resets wait", n)
	}
	for p, c := range w.mux.conns {
		switch {
		case c.pair != p || c.status == ended:
			w.Fatalf("dead connection in the table: %+v", c)
		case c.in.Len() > receiveWindow || c.out.Len() > sendBuffer:
			w.Fatalf("buffers of %d and %d bytes", c.in.Len(), c.out.Len())
		case c.to == nil && int(c.received-c.consumed) != c.in.Len() || c.received-c.consumed > receiveWindow:
			w.Fatalf("%d bytes received and not consumed, %d in the buffer", c.received-c.consumed, c.in.Len())
		case c.sendable() && !c.queued:
			w.Fatalf("connection has something to send and is not queued: %+v", c)
		}
	}
	for _, r := range w.relays {
		for _, what := range r.to.log {
			if strings.HasPrefix(what, "after") {
				w.Fatal(r.to.log)
			}
		}
	}
	n := 0
	for c := w.mux.sending.first; c != nil; c = c.next {
		if n++; n > len(w.conns)+backlog || !c.queued {
			w.Fatal("queue of senders is broken")
		}
	}
	if !w.starve && w.mux.pending() {
		w.Fatal("something to send and room for it, but it is not sent")
	}
}
