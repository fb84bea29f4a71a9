package vsock

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

func TestDialAndTalk(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(1 << 16)
	write(t, conn, "question")
	if got := g.expect(virtio.OpData); string(got.payload) != "question" || got.BufAlloc != receiveWindow {
		t.Errorf("guest got %q with %d bytes of window", got.payload, got.BufAlloc)
	}
	p.send(virtio.OpData, "ans")
	p.send(virtio.OpData, "wer")
	if got := read(t, conn, 6); got != "answer" {
		t.Errorf("host got %q", got)
	}
	if l, r := conn.LocalAddr().String(), conn.RemoteAddr().String(); l != "host:1024" || r != "guest:80" {
		t.Errorf("addresses %s and %s", l, r)
	}
	g.quiet() // small transfers need no credit updates
}

func TestWritesBeforeTheGuestLooksAreOnePacket(t *testing.T) {
	g := newGuest(t)
	conn, _ := g.connect(1 << 16)
	for range 10 {
		write(t, conn, "x")
	}
	if got := g.expect(virtio.OpData); string(got.payload) != "xxxxxxxxxx" {
		t.Errorf("guest got %q", got.payload)
	}
}

func TestStrayPackets(t *testing.T) {
	g := newGuest(t)
	stray := virtio.Header{SrcPort: 1, DstPort: 2, Op: virtio.OpData}
	g.send(stray, "x")
	if got := g.expect(virtio.OpReset); got.SrcPort != 2 || got.DstPort != 1 || got.Type != virtio.TypeStream {
		t.Errorf("reset is %+v", got.Header)
	}
	for name, change := range map[string]func(*virtio.Header){
		"no listener":    func(h *virtio.Header) { h.Op = virtio.OpRequest },
		"another host":   func(h *virtio.Header) { h.DstCID = 77 },
		"seqpacket":      func(h *virtio.Header) { h.Type = 2; h.Op = virtio.OpRequest },
		"no operation":   func(h *virtio.Header) { h.Op = 0 },
		"late response":  func(h *virtio.Header) { h.Op = virtio.OpResponse },
		"unknown socket": func(h *virtio.Header) { h.Type = 9999; h.Op = 9999 },
	} {
		h := stray
		change(&h)
		g.send(h, "")
		if got := g.expect(virtio.OpReset); got.DstPort != 1 {
			t.Errorf("%s: reset is %+v", name, got.Header)
		}
	}
	stray.Op = virtio.OpReset
	g.send(stray, "")
	forged := virtio.Header{SrcCID: 99, SrcPort: 1, DstPort: 2, Op: virtio.OpData}
	g.send(forged, "")
	g.quiet()
}

// A connection is not disturbed by packets that only look like its own.
func TestPacketsOfAnotherType(t *testing.T) {
	g := newGuest(t)
	conn, p := g.connect(1 << 16)
	g.send(virtio.Header{SrcPort: p.pair.guest, DstPort: p.pair.host, Op: virtio.OpData, Type: 2}, "x")
	g.expect(virtio.OpReset)
	p.send(virtio.OpData, "fine")
	if got := read(t, conn, 4); got != "fine" {
		t.Errorf("read %q", got)
	}
}

// A guest that sends what makes replies, and takes none, is not read any more
// once maxResets wait.
func TestRepliesAreBounded(t *testing.T) {
	g := newGuest(t)
	g.starve = true
	const extra = 10
	for range slots + maxResets + extra { // the first use up the receive buffers
		g.send(virtio.Header{SrcPort: 1, DstPort: 2, Op: virtio.OpData}, "")
	}
	if g.clogged(); g.sent-g.taken != extra {
		t.Errorf("%d packets wait in the guest, want %d", g.sent-g.taken, extra)
	}
	g.mux.mu.Lock()
	if n := len(g.mux.resets); n != maxResets {
		t.Errorf("%d replies wait, want %d", n, maxResets)
	}
	g.mux.mu.Unlock()
	g.starve = false
	for range slots {
		g.fill()
	}
	g.rx.Kick()
	for range slots + maxResets + extra {
		g.expect(virtio.OpReset)
	}
	g.quiet()
}

func TestMuxCloseEndsEverything(t *testing.T) {
	g := newGuest(t)
	conn, _ := g.connect(10)
	l, err := g.mux.Listen(53)
	if err != nil {
		t.Fatal(err)
	}
	results := []<-chan error{
		async(func() error { return second(conn.Read(make([]byte, 1))) }),
		async(func() error { return second(conn.Write(make([]byte, sendBuffer+100))) }),
		async(func() error { _, err := l.Accept(); return err }),
		async(func() error { _, err := g.mux.Dial(context.Background(), 80); return err }),
	}
	why := errors.New("the guest powered off")
	g.mux.Close(why)
	g.mux.Close(errors.New("too late to say why"))
	for i, c := range results {
		if err := <-c; !errors.Is(err, ErrGone) || !errors.Is(err, why) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := g.mux.Dial(context.Background(), 80); !errors.Is(err, ErrGone) {
		t.Errorf("dial: %v", err)
	}
	if _, err := g.mux.Listen(54); !errors.Is(err, ErrGone) {
		t.Errorf("listen: %v", err)
	}
	if conn.Close() != nil || l.Close() == nil {
		t.Error("closing: want no error for the connection, one for the listener")
	}
	g.send(virtio.Header{SrcPort: 1, DstPort: 2, Op: virtio.OpData}, "nobody is there")
	g.quiet()
}

func TestDriverReset(t *testing.T) {
	g := newGuest(t)
	conn, _ := g.connect(10)
	l, err := g.mux.Listen(53)
	if err != nil {
		t.Fatal(err)
	}
	reading := asyncRead(conn, make([]byte, 1))
	g.start()
	if r := <-reading; !errors.Is(r.err, ErrReset) {
		t.Errorf("read: %v", r.err)
	}
	(&peer{g: g, pair: pair{host: 53, guest: 9}}).send(virtio.OpRequest, "")
	g.expect(virtio.OpResponse)
	if _, err := l.Accept(); err != nil {
		t.Error(err)
	}
	g.connect(10)
}

// After a restore the guest's old connections are reset before new ones are
// made, and the new ones use other ports.
func TestRestore(t *testing.T) {
	g := newGuest(t)
	_, old := g.connect(1 << 16)
	source := g.mux
	g.d.Restore(g.d.State())
	if g.mux == source {
		t.Fatal("the restored device has its source's connections")
	}
	c := g.dialed(context.Background(), 80)
	<-g.d.Posted()
	g.quiet() // no request yet
	if used := g.event.Take(); len(used) != 1 {
		t.Fatalf("%d events, want a transport reset", len(used))
	}
	old.send(virtio.OpData, "does anybody hear me?")
	g.quiet() // nor the reply to that
	g.event.Add(virtiotest.In(4))
	g.event.Kick()
	g.expect(virtio.OpReset)
	if p := g.accept(1 << 16); p.pair.host == old.pair.host {
		t.Error("a port is used again")
	}
	if r := <-c; r.err != nil {
		t.Error(r.err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	g := newGuest(t)
	g.mux.mu.Lock()
	for i := range uint32(maxConnections) {
		g.mux.add(pair{host: i, guest: 1}, established)
	}
	g.mux.mu.Unlock()
	if _, err := g.mux.Dial(context.Background(), 80); err == nil {
		t.Error("no limit to dials")
	}
	if _, err := g.mux.Listen(53); err != nil {
		t.Fatal(err)
	}
	(&peer{g: g, pair: pair{host: 53, guest: 9}}).send(virtio.OpRequest, "")
	g.expect(virtio.OpReset)
}

func TestPortsWrap(t *testing.T) {
	m := New()
	m.Attach(func() {}, ^uint32(0))
	m.add(pair{host: firstPort, guest: 80}, established)
	for _, want := range []uint32{^uint32(0), firstPort + 1} {
		if p, err := m.freePair(80); err != nil || p.host != want {
			t.Errorf("port %d, %v; want %d", p.host, err, want)
		}
	}
}

// Nothing that a machine once used is kept.
func TestNothingIsKept(t *testing.T) {
	g := newGuest(t)
	l, err := g.mux.Listen(53)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		conn, p := g.connect(1 << 20)
		write(t, conn, string(pattern(10000)))
		for n := 0; n < 10000; n += len(g.expect(virtio.OpData).payload) {
		}
		p.send(virtio.OpData, string(pattern(10000)))
		read(t, conn, 10000)
		if c := conn.(*Conn); c.in != empty || c.out != empty {
			t.Error("an idle connection has buffers")
		}
		conn.Close()
		g.expect(virtio.OpShutdown)
		p.send(virtio.OpReset, "")
	}
	l.Close()
	g.quiet()
	if m := g.mux; m.conns != nil || m.sending != (list{}) || m.resets != nil || len(m.listeners) != 0 {
		t.Errorf("%+v", m)
	}
}

// idle makes n idle machines' worth of device and Mux.
func idle(tb testing.TB, n int) (keep []any) {
	g := newGuest(tb)
	for range n {
		mux := New()
		dev, err := virtio.New(mmio.Slot{Memory: g.d.Mem, Line: g.d.Line, Post: g.d.Post}, guestCID, mux, nil)
		if err != nil {
			tb.Fatal(err)
		}
		keep = append(keep, mux, dev)
	}
	return keep
}

func TestIdleMachineIsSmall(t *testing.T) {
	const n = 1000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines := runtime.NumGoroutine()
	before := heap()
	keep := idle(t, n)
	each := (int64(heap()) - int64(before)) / n
	runtime.KeepAlive(keep)
	t.Logf("%d bytes for each idle machine's sockets", each)
	if each > 4096 {
		t.Errorf("%d bytes for each idle machine's sockets", each)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines for idle machines", n-goroutines)
	}
}
