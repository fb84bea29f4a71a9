package vsock

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

func TestHostStaysWithinTheGuestsWindow(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(1000)
	want := pattern(sendBuffer + 30_000)
	written := asyncWrite(conn, want)
	var got []byte
	var flying uint32
	for len(got) < len(want) {
		d := g.next()
		if d.Op == virtio.OpCreditRequest {
			if flying == 0 {
				t.Fatal("credit request with room to send")
			}
			p.fwd += flying // the program reads all of it
			flying = 0
			p.send(virtio.OpCreditUpdate, "")
			continue
		}
		if flying += d.Size; d.Op != virtio.OpData || flying > p.alloc {
			t.Fatalf("operation %d; %d bytes on their way to a buffer of %d", d.Op, flying, p.alloc)
		}
		got = append(got, d.payload...)
	}
	if r := <-written; r.err != nil || !bytes.Equal(got, want) {
		t.Errorf("wrote %d bytes, %v; data equal: %t", r.n, r.err, bytes.Equal(got, want))
	}
}

func TestCreditThatMakesNoSense(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(1000)
	write(t, conn, strings.Repeat("x", 600))
	g.expect(virtio.OpData)
	for _, c := range []struct{ alloc, fwd uint32 }{
		{1000, 601},        // more than was sent
		{500, 0},           // the buffer shrank below what is on its way
		{0, 600},           // no buffer at all
		{100, ^uint32(0)},  // goes back
		{1 << 31, 1 << 31}, // both
	} {
		p.alloc, p.fwd = c.alloc, c.fwd
		p.send(virtio.OpCreditUpdate, "")
		g.quiet()
	}
	write(t, conn, "more")
	p.alloc, p.fwd = 1000, 600
	p.send(virtio.OpCreditUpdate, "")
	if got := g.expect(virtio.OpData); string(got.payload) != "more" {
		t.Errorf("guest got %q", got.payload)
	}
}

// A reader that never reads stalls its own connection, and the guest is told
// of the room once it reads.
func TestAReaderThatDoesNotRead(t *testing.T) {
	g := newGuest(t)
	stuck, p := g.connect(1 << 16)
	fine, q := g.connect(1 << 16)
	packet := string(pattern(32 << 10))
	for range receiveWindow / len(packet) {
		p.send(virtio.OpData, packet)
	}
	q.send(virtio.OpData, "hello")
	if got := read(t, fine, 5); got != "hello" {
		t.Errorf("read %q", got)
	}
	g.quiet()
	if got := read(t, stuck, receiveWindow); got != strings.Repeat(packet, receiveWindow/len(packet)) {
		t.Error("data differs")
	}
	if got := g.expect(virtio.OpCreditUpdate); got.FwdCnt < creditStep || got.DstPort != p.pair.guest {
		t.Errorf("credit update %+v", got.Header)
	}
	p.send(virtio.OpCreditRequest, "")
	if got := g.expect(virtio.OpCreditUpdate); got.FwdCnt != receiveWindow {
		t.Errorf("credit update says %d bytes", got.FwdCnt)
	}
	p.send(virtio.OpData, "again")
	if got := read(t, stuck, 5); got != "again" {
		t.Errorf("read %q", got)
	}
}

func TestGuestBeyondItsWindowIsCutOff(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(1 << 16)
	packet := string(pattern(32 << 10))
	for range receiveWindow / len(packet) {
		p.send(virtio.OpData, packet)
	}
	p.send(virtio.OpData, "one too many")
	g.expect(virtio.OpReset)
	read(t, conn, receiveWindow) // what came before is there
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, ErrReset) {
		t.Errorf("read: %v", err)
	}
}

func TestNonsenseOnAConnection(t *testing.T) {
	for name, send := range map[string]func(p *peer){
		"request":         func(p *peer) { p.send(virtio.OpRequest, "") },
		"second response": func(p *peer) { p.send(virtio.OpResponse, "") },
		"operation 0":     func(p *peer) { p.send(0, "") },
		"operation 99":    func(p *peer) { p.send(99, "data") },
		"data after end": func(p *peer) {
			p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend, "")
			p.send(virtio.OpData, "x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t)
			conn, p := g.connect(1 << 16)
			send(p)
			g.expect(virtio.OpReset)
			if _, err := conn.Write([]byte("x")); !errors.Is(err, ErrReset) {
				t.Errorf("write: %v", err)
			}
			g.quiet()
		})
	}
	t.Run("data before the response", func(t *testing.T) {
		g := newGuest(t)
		c := g.dialed(context.Background(), 80)
		req := g.expect(virtio.OpRequest)
		g.send(virtio.Header{SrcPort: req.DstPort, DstPort: req.SrcPort, Op: virtio.OpData}, "x")
		g.expect(virtio.OpReset)
		if r := <-c; !errors.Is(r.err, ErrReset) {
			t.Errorf("dial: %v", r.err)
		}
	})
}

func TestHalfClose(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(1 << 16)
	write(t, conn, "all I have")
	if err := conn.(*Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	g.expect(virtio.OpData)
	if got := g.expect(virtio.OpShutdown); got.Flags != virtio.ShutdownSend {
		t.Errorf("shutdown flags %d", got.Flags)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after CloseWrite: %v", err)
	}
	p.send(virtio.OpData, "reply")
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend, "")
	if b, err := io.ReadAll(conn); string(b) != "reply" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	conn.Close()
	if got := g.expect(virtio.OpShutdown); got.Flags != virtio.ShutdownSend|virtio.ShutdownReceive {
		t.Errorf("shutdown flags %d", got.Flags)
	}
	p.send(virtio.OpReset, "")
	g.quiet()
	if g.mux.conns != nil {
		t.Error("a closed connection is kept")
	}
}

func TestGuestClosesAfterItsLastWords(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(1 << 16)
	p.send(virtio.OpData, "last words")
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend|virtio.ShutdownReceive, "")
	g.expect(virtio.OpReset)
	if b, err := io.ReadAll(conn); string(b) != "last words" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, ErrReset) {
		t.Errorf("write: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	g.quiet()
}

func TestGuestIsDeaf(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(10)
	written := asyncWrite(conn, make([]byte, sendBuffer+100))
	g.expect(virtio.OpData)
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownReceive, "")
	if r := <-written; !errors.Is(r.err, ErrReset) {
		t.Errorf("write: %v", r.err)
	}
	p.send(virtio.OpData, "but not mute")
	if got := read(t, conn, 12); got != "but not mute" {
		t.Errorf("read %q", got)
	}
}

// A guest that first stops listening and then says no more has been cut short, as one that resets; see quiet.Conn.Relay.
func TestGuestIsCutShort(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(1 << 16)
	p.send(virtio.OpData, "half a wo")
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownReceive, "")
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend|virtio.ShutdownReceive, "")
	g.expect(virtio.OpReset)
	if b, err := io.ReadAll(conn); string(b) != "half a wo" || !errors.Is(err, ErrReset) {
		t.Errorf("read %q, %v", b, err)
	}
	_, p, r := g.relay(t, 1<<16)
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownReceive, "")
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend, "")
	r.expect(t, "opened", "taken", "ended")
}

func TestGuestResets(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(10)
	reading := asyncRead(conn, make([]byte, 10))
	written := asyncWrite(conn, make([]byte, sendBuffer+100))
	g.expect(virtio.OpData)
	p.send(virtio.OpReset, "")
	for _, c := range []<-chan ioResult{reading, written} {
		if r := <-c; !errors.Is(r.err, ErrReset) {
			t.Errorf("after a reset: %v", r.err)
		}
	}
	if g.mux.conns != nil || g.mux.pending() {
		t.Error("a reset connection is kept")
	}
}

func TestCloseDeliversWhatWasWritten(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(100)
	write(t, conn, string(pattern(150)))
	conn.Close()
	if got := g.expect(virtio.OpData); got.Size != 100 {
		t.Fatalf("guest got %d bytes", got.Size)
	}
	g.expect(virtio.OpCreditRequest)
	p.send(virtio.OpData, "nobody reads this") // and it does no harm
	p.fwd = 100
	p.send(virtio.OpCreditUpdate, "")
	if got := g.expect(virtio.OpData); got.Size != 50 {
		t.Fatalf("guest got %d bytes", got.Size)
	}
	if got := g.expect(virtio.OpShutdown); got.Flags != virtio.ShutdownSend|virtio.ShutdownReceive {
		t.Errorf("shutdown flags %d", got.Flags)
	}
	p.send(virtio.OpData, "still talking")
	g.expect(virtio.OpReset)
	for what, err := range map[string]error{
		"write":    second(conn.Write([]byte("x"))),
		"read":     second(conn.Read(make([]byte, 1))),
		"close":    conn.Close(),
		"deadline": conn.SetDeadline(time.Time{}),
		"shutdown": conn.(*Conn).CloseWrite(),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

func second(_ int, err error) error { return err }

func TestCloseUnblocks(t *testing.T) {
	g := newGuest(t)
	conn, _ := g.connect(10)
	reading := asyncRead(conn, make([]byte, 10))
	written := asyncWrite(conn, make([]byte, sendBuffer+100))
	g.expect(virtio.OpData)
	conn.Close()
	for _, c := range []<-chan ioResult{reading, written} {
		if r := <-c; !errors.Is(r.err, net.ErrClosed) {
			t.Errorf("after Close: %v", r.err)
		}
	}
}

func TestDeadlines(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(10)
	past := time.Unix(1, 0)
	p.send(virtio.OpData, "there")

	conn.SetReadDeadline(past)
	if _, err := conn.Read(make([]byte, 5)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read with a past deadline: %v", err)
	}
	conn.SetReadDeadline(time.Time{})
	if got := read(t, conn, 5); got != "there" {
		t.Errorf("read %q", got)
	}
	// A deadline that is set later ends a read in progress.
	reading := asyncRead(conn, make([]byte, 5))
	conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	if r := <-reading; !errors.Is(r.err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", r.err)
	}
	// One that is replaced does not count.
	conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	conn.SetReadDeadline(time.Now().Add(time.Hour))
	reading = asyncRead(conn, make([]byte, 5))
	p.send(virtio.OpData, "later")
	if r := <-reading; r.err != nil || r.n != 5 {
		t.Errorf("read %d, %v", r.n, r.err)
	}

	conn.SetDeadline(time.Now().Add(time.Millisecond))
	if n, err := conn.Write(make([]byte, sendBuffer+100)); !errors.Is(err, os.ErrDeadlineExceeded) || n != sendBuffer {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
	conn.SetWriteDeadline(past)
	if _, err := conn.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write with a past deadline: %v", err)
	}
}
