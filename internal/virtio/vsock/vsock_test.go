package vsock_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd-dev/forkd/internal/rate"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
	"github.com/forkd-dev/forkd/internal/virtio/vsock"
)

const guestCID = 3

// host is a Host that plays a script and remembers.
type host struct {
	wake     func()
	port     uint32
	attached int
	resets   int
	busy     bool         // not Ready
	open     bool         // Connected
	lines    []vsock.Line // with open, all connections that there are
	adopted  []vsock.Line

	send []packet // what Send hands out
	got  []packet // what Receive took
}

type packet struct {
	vsock.Header
	payload string
}

func (h *host) Attach(wake func(), port uint32) { h.wake, h.port = wake, port; h.attached++ }
func (h *host) Ready() bool                     { return !h.busy }
func (h *host) Connected() bool                 { return h.open }
func (h *host) Pending() bool                   { return len(h.send) > 0 }
func (h *host) Reset()                          { h.resets++ }
func (h *host) Lines() ([]vsock.Line, bool)     { return h.lines, !h.open || len(h.lines) > 0 }
func (h *host) Adopt(lines []vsock.Line)        { h.adopted = lines }

func (h *host) Receive(hdr *vsock.Header, payload *virtq.Reader) error {
	b := make([]byte, payload.Len())
	err := payload.ReadFull(b)
	h.got = append(h.got, packet{*hdr, string(b)})
	return err
}

func (h *host) Send(hdr *vsock.Header, room *virtq.Writer) (bool, error) {
	p := h.send[0]
	h.send = h.send[1:]
	if p.Op == 0 {
		return false, nil // changed its mind
	}
	*hdr = p.Header
	return true, room.WriteFull([]byte(p.payload)[:min(len(p.payload), room.Len())])
}

// guest is a started device with its host.
type guest struct {
	*virtiotest.Driver
	host          *host
	rx, tx, event *virtiotest.Queue
}

func newGuest(t testing.TB) *guest {
	g := new(guest)
	g.Driver = virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
		g.host = new(host)
		return vsock.New(slot, guestCID, g.host, nil)
	})
	g.start()
	return g
}

func (g *guest) start() {
	g.Start(virtiotest.Features, 64)
	g.rx, g.tx, g.event = g.Queues[0], g.Queues[1], g.Queues[2]
}

func bytesOf(h vsock.Header, payload string) []byte {
	var b [vsock.HeaderSize]byte
	h.Put(&b)
	return append(b[:], payload...)
}

func fromGuest(op uint16, payload string) vsock.Header {
	return vsock.Header{
		SrcCID: guestCID, DstCID: vsock.HostCID, SrcPort: 1111, DstPort: 2222,
		Size: uint32(len(payload)), Type: vsock.TypeStream, Op: op, BufAlloc: 1 << 16, FwdCnt: 7,
	}
}

// received returns the packets that the guest was sent.
func (g *guest) received() (out []packet) {
	for _, u := range g.rx.Take() {
		b := g.rx.Written(u.Head, int(u.Size))
		var p packet
		p.Parse((*[vsock.HeaderSize]byte)(b))
		p.payload = string(b[vsock.HeaderSize:])
		out = append(out, p)
	}
	return out
}

func subject() virtiotest.Subject {
	return virtiotest.Subject{
		New: func(_ testing.TB, slot mmio.Slot) (virtiotest.Device, error) {
			return vsock.New(slot, guestCID, new(host), nil)
		},
		ID:      19,
		Queue:   1,
		Request: []virtiotest.Buffer{virtiotest.Out(bytesOf(fromGuest(vsock.OpData, "data"), "data"))},
		Short: [][]virtiotest.Buffer{
			{virtiotest.Out(bytesOf(fromGuest(vsock.OpReset, ""), "")[:43])},
			{virtiotest.In(4096)},
			{virtiotest.Out(bytesOf(fromGuest(vsock.OpData, "data"), "dat"))},
			{virtiotest.Out(bytesOf(vsock.Header{SrcCID: guestCID, Size: ^uint32(0)}, "data"))},
		},
	}
}

func TestConformance(t *testing.T) { virtiotest.Run(t, subject()) }

func TestLimited(t *testing.T) {
	virtiotest.RunLimited(t, subject(), func(_ testing.TB, slot mmio.Slot, l *rate.Limiter) (virtiotest.Device, error) {
		return vsock.New(slot, guestCID, new(host), l)
	})
}

func FuzzDevice(f *testing.F) { virtiotest.Fuzz(f, subject()) }

func FuzzHeader(f *testing.F) {
	f.Add(bytesOf(fromGuest(vsock.OpRequest, ""), ""))
	f.Add(bytes.Repeat([]byte{0xff}, vsock.HeaderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < vsock.HeaderSize {
			return
		}
		in := (*[vsock.HeaderSize]byte)(b)
		var h vsock.Header
		h.Parse(in)
		var out [vsock.HeaderSize]byte
		if h.Put(&out); out != *in {
			t.Fatalf("%x parsed and put is %x", *in, out)
		}
	})
}

func TestHeaderLayout(t *testing.T) {
	h := vsock.Header{
		SrcCID: 0x0102030405060708, DstCID: 9, SrcPort: 0x0a0b0c0d, DstPort: 0x0e,
		Size: 0x0f, Type: 0x1011, Op: 0x1213, Flags: 0x14, BufAlloc: 0x15, FwdCnt: 0x16,
	}
	want := []byte{
		8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0,
		0x0d, 0x0c, 0x0b, 0x0a, 0x0e, 0, 0, 0, 0x0f, 0, 0, 0,
		0x11, 0x10, 0x13, 0x12, 0x14, 0, 0, 0, 0x15, 0, 0, 0, 0x16, 0, 0, 0,
	}
	if got := bytesOf(h, ""); !bytes.Equal(got, want) {
		t.Errorf("header is\n%x, want\n%x", got, want)
	}
}

func TestConfigHasTheCID(t *testing.T) {
	g := newGuest(t)
	if got := g.Dev.Read(virtiotest.RegConfig, 8); got != guestCID {
		t.Errorf("guest CID is %d", got)
	}
}

func TestFromGuest(t *testing.T) {
	g := newGuest(t)
	h := fromGuest(vsock.OpData, "hello")
	g.tx.Do(virtiotest.Out(bytesOf(h, "")), virtiotest.Out([]byte("hello, and what is past the size")))
	forged := h
	forged.SrcCID = 99
	g.tx.Do(virtiotest.Out(bytesOf(forged, "hello")))
	if len(g.host.got) != 1 || g.host.got[0] != (packet{h, "hello"}) {
		t.Errorf("host got %v", g.host.got)
	}
}

func TestToGuest(t *testing.T) {
	g := newGuest(t)
	g.rx.Add(virtiotest.In(vsock.HeaderSize), virtiotest.In(3))
	g.rx.Add(virtiotest.In(1000))
	g.rx.Kick()
	out := vsock.Header{SrcPort: 5, DstPort: 6, Type: vsock.TypeStream, Op: vsock.OpData, BufAlloc: 8, FwdCnt: 9}
	g.host.send = []packet{{out, "abcdef"}, {}, {out, "x"}}
	g.host.wake()
	g.host.wake()
	if n := g.RunPosted(); n != 1 {
		t.Errorf("two wakes posted %d functions", n)
	}
	g.host.wake() // after the packet that was none
	g.RunPosted()
	got := g.received()
	for i, payload := range []string{"abc", "x"} {
		want := packet{out, payload}
		want.SrcCID, want.DstCID, want.Size = vsock.HostCID, guestCID, uint32(len(payload))
		if i >= len(got) || got[i] != want {
			t.Fatalf("guest got %v, want %v at %d", got, want, i)
		}
	}
	if g.Broken() {
		t.Error("device is broken")
	}
}

func TestReceiveBufferWithoutRoom(t *testing.T) {
	for _, b := range []virtiotest.Buffer{virtiotest.In(vsock.HeaderSize), virtiotest.Out(make([]byte, 100))} {
		g := newGuest(t)
		g.rx.Add(b)
		g.host.send = []packet{{vsock.Header{Op: vsock.OpReset}, ""}}
		resets := g.host.resets
		g.host.wake()
		if g.RunPosted(); !g.Broken() || g.host.resets != resets+1 {
			t.Errorf("broken %t; host was told %d times", g.Broken(), g.host.resets-resets)
		}
	}
}

// While the host takes no packets, they stay in the guest; when it takes them
// again, room for replies is what brings it to look.
func TestBusyHost(t *testing.T) {
	g := newGuest(t)
	g.host.busy = true
	for range 5 {
		g.tx.Add(virtiotest.Out(bytesOf(fromGuest(vsock.OpData, ""), "")))
	}
	g.tx.Kick()
	if len(g.host.got) != 0 || len(g.tx.Take()) != 0 {
		t.Fatal("a busy host was given packets")
	}
	g.host.busy = false
	g.rx.Add(virtiotest.In(1000))
	g.rx.Kick()
	if len(g.host.got) != 5 || len(g.tx.Take()) != 5 {
		t.Errorf("%d of 5 packets arrived", len(g.host.got))
	}
}

func TestDriverResetIsPassedOn(t *testing.T) {
	g := newGuest(t)
	before := g.host.resets
	g.Set(virtiotest.RegStatus, 0)
	if g.host.resets != before+1 {
		t.Error("host was not told of the reset")
	}
}

// addEvent makes a buffer for events available, and kicks if that is wanted.
func (g *guest) addEvent(t *testing.T) {
	t.Helper()
	from := g.event.AvailIndex()
	g.event.Add(virtiotest.In(4))
	if g.event.Wanted(from) {
		g.event.Kick()
	}
}

// events returns the events that the guest was sent.
func (g *guest) events() (out []uint32) {
	for _, u := range g.event.Take() {
		out = append(out, binary.LittleEndian.Uint32(g.event.Written(u.Head, int(u.Size))))
	}
	return out
}

var request = vsock.Header{SrcPort: 1024, DstPort: 6, Type: vsock.TypeStream, Op: vsock.OpRequest}

// restored starts a guest, with event buffers and many receive buffers, that
// was just restored and has a host with a packet for it.
func restored(t *testing.T, events int) *guest {
	g := newGuest(t)
	for range events {
		g.addEvent(t)
	}
	for range 32 {
		g.rx.Add(virtiotest.In(1000))
	}
	g.rx.Kick()
	if g.RunPosted(); len(g.events()) != 0 {
		t.Fatal("a new device sends events")
	}
	g.host.open = true
	g.again()
	return g
}

func (g *guest) again() {
	g.Restore(g.State())
	g.host.send = []packet{{request, ""}}
	g.host.wake()
	g.RunPosted()
}

func TestTransportResetComesFirst(t *testing.T) {
	g := restored(t, 8)
	if got := g.events(); len(got) != 1 || got[0] != 0 {
		t.Fatalf("events %v, want one transport reset", got)
	}
	if len(g.received()) != 0 {
		t.Fatal("a packet overtook the reset")
	}
	g.rx.Kick()
	g.event.Kick()
	if g.RunPosted(); len(g.received()) != 0 {
		t.Fatal("a packet came before the driver had dealt with the reset")
	}
	g.addEvent(t) // the driver has handled the event and returns its buffer
	if g.RunPosted(); len(g.received()) != 1 {
		t.Error("the packet does not come after the reset")
	}
	g.rx.Kick()
	if g.RunPosted(); len(g.events()) != 0 {
		t.Error("the reset comes twice")
	}
}

func TestTransportResetWithoutABuffer(t *testing.T) {
	g := restored(t, 0)
	if len(g.received()) != 0 {
		t.Fatal("a packet overtook the reset")
	}
	g.addEvent(t)
	g.event.Kick()
	if len(g.events()) != 1 {
		t.Fatal("no reset though there is a buffer now")
	}
	g.addEvent(t)
	if g.RunPosted(); len(g.received()) != 1 {
		t.Error("the packet does not come after the reset")
	}
}

// A machine is saved after the driver was sent a reset and before it dealt
// with it: the next machine must wait for both.
func TestTransportResetWhileOneIsOnItsWay(t *testing.T) {
	g := restored(t, 8)
	g.again()
	if len(g.events()) != 2 {
		t.Fatal("want two resets")
	}
	g.addEvent(t)
	if g.RunPosted(); len(g.received()) != 0 {
		t.Fatal("the first reset was taken for the second")
	}
	g.addEvent(t)
	if g.RunPosted(); len(g.received()) != 1 {
		t.Error("the packet does not come after the resets")
	}
}

// A driver that knows of no connection has none to break. One that may have heard of a
// connection does, also if it has not dealt with what breaks it.
func TestNoTransportResetWithoutConnections(t *testing.T) {
	g := newGuest(t)
	for range 8 {
		g.addEvent(t)
		g.rx.Add(virtiotest.In(1000))
	}
	g.rx.Kick()
	g.RunPosted()
	g.again()
	if len(g.events()) != 0 || len(g.received()) != 1 {
		t.Fatal("the driver was sent a reset, or no packet")
	}
	g.host.open = true
	saved := g.State()
	g.host.open = false
	g.Restore(saved)
	again := g.State() // of a machine that has not run
	g.Restore(again)
	if g.RunPosted(); len(g.events()) != 1 {
		t.Error("no reset though there was a connection")
	}
	g.addEvent(t)
	g.event.Kick()
	g.RunPosted()
	g.host.send = []packet{{request, ""}}
	g.Restore(g.State())
	if g.RunPosted(); len(g.events()) != 1 {
		t.Error("no reset though the host had something to say")
	}
}

// Connections on which nothing is under way go on in the restored machine.
func TestLinesGoOn(t *testing.T) {
	g := newGuest(t)
	g.rx.Add(virtiotest.In(1000))
	used := request
	used.SrcPort = 5000
	g.host.send = []packet{{used, ""}}
	g.host.wake()
	g.RunPosted()
	lines := []vsock.Line{{HostPort: 1024, GuestPort: 80, Sent: 1, Received: 2, Told: 3, BufAlloc: 4}, {HostPort: 5000, GuestPort: 81, Sent: 1 << 31}}
	g.host.open, g.host.lines = true, lines
	saved := g.State()
	g.addEvent(t)
	g.Restore(saved)
	if g.RunPosted(); len(g.events()) != 0 || !slices.Equal(g.host.adopted, lines) {
		t.Errorf("%d resets, and %+v goes on", len(g.events()), g.host.adopted)
	}

	g.host.open, g.host.lines = true, lines
	g.host.send = []packet{{request, ""}} // which the driver may have heard of then
	g.Restore(g.State())
	if g.RunPosted(); len(g.events()) != 1 || g.host.adopted != nil {
		t.Errorf("with more than lines, %+v goes on", g.host.adopted)
	}
}

func TestLinesThatCannotBe(t *testing.T) {
	g := newGuest(t)
	for name, lines := range map[string][]vsock.Line{
		"too many":         make([]vsock.Line, vsock.MaxLines+1),
		"a service's port": {{HostPort: 1023, GuestPort: 80}},
		"the next port":    {{HostPort: 1024, GuestPort: 80}},
		"a port far ahead": {{HostPort: 1 << 31, GuestPort: 80}},
	} {
		g.host.open, g.host.lines = true, lines
		if err := g.TryRestore(g.State()); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}

func TestNewDriverNeedsNoTransportReset(t *testing.T) {
	g := newGuest(t)
	g.again()
	g.start()
	g.addEvent(t)
	g.rx.Add(virtiotest.In(1000))
	g.rx.Kick()
	if len(g.received()) != 1 || len(g.events()) != 0 {
		t.Error("a driver that starts afresh is treated like one that was restored")
	}
}

// The number of a port that the host used before the save is not used again.
func TestHostPortsAreNotReused(t *testing.T) {
	g := newGuest(t)
	if g.host.port != 1024 {
		t.Errorf("first port %d, want 1024", g.host.port)
	}
	g.rx.Add(virtiotest.In(1000))
	g.rx.Add(virtiotest.In(1000))
	used := request
	used.SrcPort = 5000
	reply := used
	reply.Op, reply.SrcPort = vsock.OpResponse, 9000 // a service's port
	g.host.send = []packet{{used, ""}, {reply, ""}}
	g.host.wake()
	g.RunPosted()
	for range 2 {
		g.Restore(g.State())
		if g.host.port != 5001 || g.host.attached != 1 {
			t.Errorf("restored host goes on at port %d", g.host.port)
		}
	}
}

func TestRestoreNeedsTheSameCID(t *testing.T) {
	cid := uint32(guestCID)
	d := virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
		return vsock.New(slot, cid, new(host), nil)
	})
	saved := d.State()
	cid = 4
	if err := d.TryRestore(saved); err == nil || !strings.Contains(err.Error(), "context 3, now 4") {
		t.Errorf("another CID: %v", err)
	}
}

// While there are connections, the guest is not interrupted for each packet that it
// has sent, but with the next that it gets, or when there are many.
func TestModeration(t *testing.T) {
	g := newGuest(t)
	interruptedBy := func(text string) bool {
		g.tx.Do(virtiotest.Out(bytesOf(fromGuest(vsock.OpData, text), text))) // it wants an interrupt
		return g.Interrupt() != 0
	}
	interrupted := func() bool { return interruptedBy("data") }
	if !interrupted() {
		t.Error("no interrupt without connections")
	}
	g.host.open = true
	for i := range 3 {
		if interrupted() {
			t.Errorf("an interrupt for packet %d", i)
		}
	}
	if !interruptedBy(strings.Repeat("much ", 200)) {
		t.Error("no interrupt for a large packet")
	}
	interrupted()
	g.host.send = append(g.host.send, packet{Header: fromGuest(vsock.OpData, "")})
	g.rx.Add(virtiotest.In(1000))
	g.rx.Kick()
	if g.Interrupt() == 0 {
		t.Error("no interrupt for a packet to the guest")
	}
	interrupts := 0
	for range 64 {
		if interrupted() {
			interrupts++
		}
	}
	if interrupts < 5 || interrupts > 10 {
		t.Errorf("%d interrupts for 64 packets", interrupts)
	}
}

// What the host sends is bounded, too, together with what the guest does, and stays with
// the host meanwhile.
func TestLimitToGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(guest)
		limiter := rate.NewLimiter(10_000) // 2500 at once
		g.Driver = virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
			g.host = new(host)
			return vsock.New(slot, guestCID, g.host, limiter)
		})
		g.start()
		text := strings.Repeat("x", 1000)
		for range 8 {
			g.host.send = append(g.host.send, packet{fromGuest(vsock.OpData, text), text})
			g.rx.Add(virtiotest.In(4096))
		}
		g.host.wake()
		g.RunPosted()
		if n := len(g.received()); n != 3 || len(g.host.send) != 5 {
			t.Errorf("%d packets at once, want 3; %d are left", n, len(g.host.send))
		}
		g.tx.Add(virtiotest.Out(bytesOf(fromGuest(vsock.OpData, text), text)))
		g.tx.Kick()
		if len(g.host.got) != 0 {
			t.Error("the guest sends although the bound is used up")
		}
		for end := time.After(300 * time.Millisecond); ; {
			select {
			case <-g.Posted():
				g.RunPosted()
				continue
			case <-end:
			}
			break
		}
		if n := len(g.received()) + len(g.host.got); n < 2 || n > 3 {
			t.Errorf("%d packets in 0.3 s", n)
		}
		limiter.Close()
	})
}
