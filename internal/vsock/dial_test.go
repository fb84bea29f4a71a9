package vsock

import (
	"context"
	"errors"
	"net"
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
