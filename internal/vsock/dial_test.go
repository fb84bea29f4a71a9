package vsock

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

func TestDialRefused(t *testing.T) {
	g := newGuest(t)
	c := g.dialed(context.Background(), 81)
	req := g.expect(virtio.OpRequest)
	g.send(virtio.Header{SrcPort: req.DstPort, DstPort: req.SrcPort, Op: virtio.OpReset}, "")
	r := <-c
	var op *net.OpError
	if !errors.Is(r.err, ErrRefused) || !errors.As(r.err, &op) || op.Addr.String() != "guest:81" || r.conn != nil {
		t.Errorf("dial: %v, %v", r.conn, r.err)
	}
	g.quiet() // a reset is not answered
}

func TestDialHonoursItsContext(t *testing.T) {
	g := newGuest(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := g.mux.Dial(ctx, 80); !errors.Is(err, context.Canceled) {
		t.Errorf("dial with a done context: %v", err)
	}
	g.quiet()

	ctx, cancel = context.WithCancel(context.Background())
	c := g.dialed(ctx, 80)
	req := g.expect(virtio.OpRequest)
	cancel()
	if r := <-c; !errors.Is(r.err, context.Canceled) {
		t.Errorf("dial: %v", r.err)
	}
	g.expect(virtio.OpReset)
	g.send(virtio.Header{SrcPort: req.DstPort, DstPort: req.SrcPort, Op: virtio.OpResponse}, "") // too late
	g.expect(virtio.OpReset)

	ctx, cancel = context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := g.mux.Dial(ctx, 80)
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("dial that timed out: %v", err)
	}
}

func TestDialBeforeTheGuestIsUp(t *testing.T) {
	g := &guest{TB: t}
	g.d = virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
		g.mux = New()
		return virtio.New(slot, guestCID, g.mux, nil)
	})
	c := g.dialed(context.Background(), 80)
	<-g.d.Posted()
	g.d.RunPosted()
	g.start() // resets the device first
	g.accept(1 << 16)
	if r := <-c; r.err != nil {
		t.Error(r.err)
	}
}

func TestListen(t *testing.T) {
	g := newGuest(t)
	l, err := g.mux.Listen(53)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.mux.Listen(53); !errors.Is(err, ErrPortTaken) {
		t.Errorf("listening twice: %v", err)
	}
	p := &peer{g: g, pair: pair{host: 53, guest: 7000}, alloc: 1 << 16}
	p.send(virtio.OpRequest, "")
	g.expect(virtio.OpResponse)
	p.send(virtio.OpData, "hello")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, conn, 5); got != "hello" || conn.RemoteAddr().String() != "guest:7000" || l.Addr().String() != "host:53" {
		t.Errorf("got %q from %s at %s", got, conn.RemoteAddr(), l.Addr())
	}

	waiting := &peer{g: g, pair: pair{host: 53, guest: 7001}}
	waiting.send(virtio.OpRequest, "")
	g.expect(virtio.OpResponse)
	l.Close()
	g.expect(virtio.OpReset)
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept on a closed listener: %v", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closing twice: %v", err)
	}
	waiting.send(virtio.OpRequest, "")
	g.expect(virtio.OpReset)
	if _, err := g.mux.Listen(53); err != nil {
		t.Errorf("the port is not free again: %v", err)
	}
}

func TestBacklogIsBounded(t *testing.T) {
	g := newGuest(t)
	if _, err := g.mux.Listen(53); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(backlog) {
		(&peer{g: g, pair: pair{host: 53, guest: i}}).send(virtio.OpRequest, "")
		g.expect(virtio.OpResponse)
	}
	(&peer{g: g, pair: pair{host: 53, guest: backlog}}).send(virtio.OpRequest, "")
	g.expect(virtio.OpReset)
}

// What is written to a connection that the guest has not answered yet follows the request, as far as credit may be presumed;
// the rest waits until the guest tells how much room there is.
func TestOpen(t *testing.T) {
	g := newGuest(t)
	conn, err := g.mux.Open(80)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x", presumedCredit+1)
	if n, err := conn.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	req := g.expect(virtio.OpRequest)
	early := 0
	for early < presumedCredit {
		early += len(g.expect(virtio.OpData).payload)
	}
	g.expect(virtio.OpCreditRequest)
	if early != presumedCredit {
		t.Errorf("%d bytes came before the answer", early)
	}
	answer := virtio.Header{SrcPort: req.DstPort, DstPort: req.SrcPort, Op: virtio.OpResponse, BufAlloc: 1 << 18}
	g.send(answer, "")
	if p := g.expect(virtio.OpData); string(p.payload) != "x" {
		t.Errorf("after the answer came %q", p.payload)
	}
	answer.Op = virtio.OpData
	g.send(answer, "yes")
	b := make([]byte, 9)
	if n, err := conn.Read(b); err != nil || string(b[:n]) != "yes" {
		t.Errorf("read: %q, %v", b[:n], err)
	}
}

func TestOpenRefused(t *testing.T) {
	g := newGuest(t)
	conn, err := g.mux.Open(81)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	req := g.expect(virtio.OpRequest)
	g.expect(virtio.OpData)
	reset := virtio.Header{SrcPort: req.DstPort, DstPort: req.SrcPort, Op: virtio.OpReset}
	g.send(reset, "")
	g.send(reset, "") // for the data
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, ErrRefused) {
		t.Errorf("read: %v", err)
	}
	g.quiet()
}
