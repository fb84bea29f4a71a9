package vsock

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/conn"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

const (
	guestCID = 3
	// patience bounds what should happen at once; it is never waited for.
	patience = 30 * time.Second

	rxSlot = virtio.HeaderSize + 4096 // a receive buffer, as large as Linux has them
	slots  = 64
)

// guest is a model of a guest's driver. It belongs to one goroutine, which
// stands for the vCPU.
type guest struct {
	testing.TB
	d             *virtiotest.Driver
	mux           *Mux
	rx, tx, event *virtiotest.Queue
	filled, used  int  // receive buffers given to the device, and used by it
	sent, taken   int  // packets given to the device, and taken by it
	starve        bool // return no receive buffers
	inbox         []packet
}

// empty is a buffer that holds no memory.
var empty conn.Buffer

type packet struct {
	virtio.Header
	payload []byte
}

func newGuest(tb testing.TB) *guest {
	g := &guest{TB: tb}
	g.d = virtiotest.NewDriver(tb, func(slot mmio.Slot) (virtiotest.Device, error) {
		g.mux = New()
		return virtio.New(slot, guestCID, g.mux, nil)
	})
	g.start()
	return g
}

// start sets the device up, as a booting kernel does.
func (g *guest) start() {
	g.d.Start(virtiotest.Features, slots)
	g.rx, g.tx, g.event = g.d.Queues[0], g.d.Queues[1], g.d.Queues[2]
	g.filled, g.used, g.sent, g.taken, g.inbox = 0, 0, 0, 0, nil
	if !g.starve {
		for range slots {
			g.fill()
		}
	}
	for i := range 8 {
		g.event.Add(virtiotest.Buffer{Size: 4, GPA: g.slot(sendSlots) + 0x10_0000 + 4*uint64(i)})
	}
	g.rx.Kick()
	g.event.Kick()
}

// slot returns where buffer i lies in guest memory.
func (g *guest) slot(i int) uint64 { return virtiotest.RAMBase + 0x10_0000 + uint64(i)*0x1_1000 }

// fill returns a receive buffer to the device.
func (g *guest) fill() {
	g.rx.Add(virtiotest.Buffer{Size: rxSlot, GPA: g.slot(sendSlots) + uint64(g.filled%slots)*0x2000})
	g.filled++
}

// run does what the engine would: posted functions, then interrupts.
func (g *guest) run() {
	g.Helper()
	g.d.RunPosted()
	for _, u := range g.rx.Take() {
		b := g.rx.Written(u.Head, int(u.Size))
		var p packet
		p.Parse((*[virtio.HeaderSize]byte)(b))
		p.payload = b[virtio.HeaderSize:]
		if p.SrcCID != virtio.HostCID || p.DstCID != guestCID || int(p.Size) != len(p.payload) {
			g.Fatalf("malformed packet from the host: %+v", p.Header)
		}
		g.inbox = append(g.inbox, p)
		g.used++
		if !g.starve {
			from := g.rx.AvailIndex()
			if g.fill(); g.rx.Wanted(from) {
				g.rx.Kick()
			}
		}
	}
	if g.d.Broken() {
		g.Fatal("device is broken")
	}
}

// next returns the next packet that the host sends, waiting for one.
func (g *guest) next() packet {
	g.Helper()
	timeout := time.After(patience)
	for g.run(); len(g.inbox) == 0; g.run() {
		select {
		case <-g.d.Posted():
		case <-timeout:
			g.Fatal("the host sends nothing")
		}
	}
	p := g.inbox[0]
	g.inbox = g.inbox[1:]
	return p
}

// expect returns the next packet, which must be of the given operation.
func (g *guest) expect(op uint16) packet {
	g.Helper()
	p := g.next()
	if p.Op != op {
		g.Fatalf("the host sent operation %d, want %d", p.Op, op)
	}
	return p
}

// quiet checks that the host has sent nothing more.
func (g *guest) quiet() {
	g.Helper()
	if g.run(); len(g.inbox) > 0 {
		g.Fatalf("the host sent %+v", g.inbox[0].Header)
	}
}

// sendSlots is how many packets may wait for the device.
const sendSlots = 32

// clogged reports whether the device has not taken as many packets as may wait.
func (g *guest) clogged() bool {
	g.taken += len(g.tx.Take())
	return g.sent-g.taken == sendSlots
}

// send sends a packet, completed with what usually stands there.
func (g *guest) send(h virtio.Header, payload string) {
	g.Helper()
	if g.clogged() {
		g.Fatal("the device does not take the guest's packets")
	}
	if h.SrcCID == 0 {
		h.SrcCID = guestCID
	}
	if h.DstCID == 0 {
		h.DstCID = virtio.HostCID
	}
	if h.Type == 0 {
		h.Type = virtio.TypeStream
	}
	h.Size = uint32(len(payload))
	var b [virtio.HeaderSize]byte
	h.Put(&b)
	g.tx.Add(virtiotest.Buffer{Data: append(b[:], payload...), GPA: g.slot(g.sent % sendSlots)})
	g.sent++
	g.tx.Kick()
}

// peer is the guest's end of a connection.
type peer struct {
	g     *guest
	pair  pair
	alloc uint32 // receive buffer
	fwd   uint32 // consumed
}

func (p *peer) send(op uint16, payload string) { p.g.Helper(); p.sendFlags(op, 0, payload) }

func (p *peer) sendFlags(op uint16, flags uint32, payload string) {
	p.g.Helper()
	p.g.send(virtio.Header{
		SrcPort: p.pair.guest, DstPort: p.pair.host, Op: op, Flags: flags, BufAlloc: p.alloc, FwdCnt: p.fwd,
	}, payload)
}

// dialed starts a dial from the host and returns where its result comes.
func (g *guest) dialed(ctx context.Context, port uint32) <-chan result {
	c := make(chan result, 1)
	go func() {
		conn, err := g.mux.Dial(ctx, port)
		c <- result{conn, err}
	}()
	return c
}

type result struct {
	conn net.Conn
	err  error
}

// connect makes a connection from the host to the guest, which has a receive
// buffer of alloc bytes.
func (g *guest) connect(alloc uint32) (net.Conn, *peer) {
	g.Helper()
	c := g.dialed(context.Background(), 80)
	p := g.accept(alloc)
	r := <-c
	if r.err != nil {
		g.Fatal(r.err)
	}
	return r.conn, p
}

// accept answers the host's request.
func (g *guest) accept(alloc uint32) *peer {
	g.Helper()
	req := g.expect(virtio.OpRequest)
	p := &peer{g: g, pair: pair{host: req.SrcPort, guest: req.DstPort}, alloc: alloc}
	p.send(virtio.OpResponse, "")
	return p
}

// async runs f on a goroutine of its own and returns where its result comes.
func async[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

type ioResult struct {
	n   int
	err error
}

func asyncWrite(c net.Conn, b []byte) <-chan ioResult {
	return async(func() ioResult { n, err := c.Write(b); return ioResult{n, err} })
}

func asyncRead(c net.Conn, b []byte) <-chan ioResult {
	return async(func() ioResult { n, err := c.Read(b); return ioResult{n, err} })
}

// read reads n bytes, which must be there.
func read(t testing.TB, c net.Conn, n int) string {
	t.Helper()
	b := make([]byte, n)
	for done := 0; done < n; {
		k, err := c.Read(b[done:])
		if err != nil {
			t.Fatalf("after %d bytes: %v", done, err)
		}
		done += k
	}
	return string(b)
}

func write(t testing.TB, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(s), err)
	}
}

func pattern(n int) []byte {
	return bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz."), n/37+1)[:n]
}
