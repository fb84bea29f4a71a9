package vsock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

// recorder writes down what a Relay tells.
type recorder struct {
	log   []string
	data  int
	taken int
	ended error
}

func (r *recorder) note(what string) {
	if r.ended != nil {
		what = "after the end: " + what
	}
	r.log = append(r.log, what)
}

func (r *recorder) Opened()       { r.note("opened") }
func (r *recorder) Data(b []byte) { r.note("data"); r.data += len(b) }
func (r *recorder) Taken(n int)   { r.note("taken"); r.taken += n }
func (r *recorder) EOF()          { r.note("eof") }
func (r *recorder) Ended(err error) {
	r.note("ended")
	r.ended = err
}

func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	if fmt.Sprint(r.log) != fmt.Sprint(want) {
		t.Errorf("was told %q, not %q", r.log, want)
	}
}

// relay makes a Relay that the guest has accepted.
func (g *guest) relay(t *testing.T, alloc uint32) (*Relay, *peer, *recorder) {
	t.Helper()
	var r recorder
	c, err := g.mux.Relay(80, RelayOptions{Wait: true}, &r)
	if err != nil {
		t.Fatal(err)
	}
	return c, g.accept(alloc), &r
}

// What is written to a connection that the guest has not answered yet follows the request, as far as credit may be presumed;
// the rest waits until the guest tells how much room there is.
func TestRelayAhead(t *testing.T) {
	g := newGuest(t)
	var r recorder
	c, err := g.mux.Relay(80, RelayOptions{}, &r)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write([]byte(strings.Repeat("x", presumedCredit+1))); err != nil {
		t.Fatal(err)
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
	if r.data != 3 || r.taken != presumedCredit+1 {
		t.Errorf("%d bytes came, %d were taken", r.data, r.taken)
	}
}

func TestRelayRefused(t *testing.T) {
	g := newGuest(t)
	var r recorder
	c, err := g.mux.Relay(81, RelayOptions{}, &r)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	req := g.expect(virtio.OpRequest)
	g.expect(virtio.OpData)
	reset := virtio.Header{SrcPort: req.DstPort, DstPort: req.SrcPort, Op: virtio.OpReset}
	g.send(reset, "")
	g.send(reset, "") // for the data
	if r.expect(t, "taken", "ended"); !errors.Is(r.ended, ErrRefused) {
		t.Errorf("ended with %v", r.ended)
	}
	g.quiet()
}

// TestRelayWaits: with wait nothing goes ahead of the guest's answer.
func TestRelayWaits(t *testing.T) {
	g := newGuest(t)
	var r recorder
	c, err := g.mux.Relay(80, RelayOptions{Wait: true}, &r)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	p := g.accept(1 << 16)
	if got := g.expect(virtio.OpData); string(got.payload) != "x" {
		t.Errorf("got %q", got.payload)
	}
	p.send(virtio.OpData, "y")
	r.expect(t, "opened", "taken", "data")
}

// TestRelayWindows: a guest gets credit for what was consumed and for nothing else, and
// nobody may write more than there is room for.
func TestRelayWindows(t *testing.T) {
	g := newGuest(t)
	c, p, r := g.relay(t, 1000)
	for range receiveWindow / (32 << 10) {
		p.send(virtio.OpData, strings.Repeat("x", 32<<10))
	}
	g.quiet()
	c.Consumed(receiveWindow + 1) // more than there is
	g.quiet()
	c.Consumed(creditStep)
	if got := g.expect(virtio.OpCreditUpdate); got.FwdCnt != creditStep {
		t.Errorf("credit up to %d", got.FwdCnt)
	}
	if err := c.Write(make([]byte, RelayWindow)); err != nil {
		t.Error(err)
	}
	if got := g.expect(virtio.OpData); len(got.payload) != 1000 || r.taken != 1000 {
		t.Errorf("%d bytes sent, %d said to be taken", len(got.payload), r.taken)
	}
	if err := c.Write(make([]byte, 1001)); !errors.Is(err, ErrWindow) {
		t.Errorf("beyond the window: %v", err)
	}
	if err := c.Write(make([]byte, 1000)); err != nil {
		t.Errorf("within the window: %v", err)
	}
	p.send(virtio.OpData, strings.Repeat("x", creditStep))
	if r.ended != nil {
		t.Error("cut off for what it had credit for")
	}
	p.send(virtio.OpData, "x")
	if !errors.Is(r.ended, ErrReset) || r.data != receiveWindow+creditStep {
		t.Errorf("it goes on without credit after %d bytes, %v", r.data, r.ended)
	}
}

func TestRelayHalfClose(t *testing.T) {
	g := newGuest(t)
	c, p, r := g.relay(t, 1<<16)
	if err := c.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	c.CloseWrite()
	if got := g.expect(virtio.OpData); string(got.payload) != "last" {
		t.Errorf("got %q", got.payload)
	}
	if got := g.expect(virtio.OpShutdown); got.Flags != virtio.ShutdownSend {
		t.Errorf("flags %#x", got.Flags)
	}
	if err := c.Write([]byte("x")); err == nil {
		t.Error("written after the end")
	}
	p.send(virtio.OpData, "words")
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend, "")
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend|virtio.ShutdownReceive, "")
	r.expect(t, "opened", "taken", "data", "eof", "taken", "ended")
}

// TestRelayToTheDeaf: what the guest does not take any more is lost, and holds nobody up.
func TestRelayToTheDeaf(t *testing.T) {
	g := newGuest(t)
	c, p, r := g.relay(t, 0)
	if err := c.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	p.sendFlags(virtio.OpShutdown, virtio.ShutdownReceive, "")
	for range 3 {
		if err := c.Write(make([]byte, RelayWindow)); err != nil {
			t.Fatal(err)
		}
	}
	if r.taken != 100+3*RelayWindow {
		t.Errorf("%d bytes are said to be gone", r.taken)
	}
	p.send(virtio.OpData, "still")
	if r.data != 5 {
		t.Error("a deaf guest is not heard")
	}
}

func TestRelayClose(t *testing.T) {
	g := newGuest(t)
	c, p, r := g.relay(t, 1<<16)
	if err := c.Write([]byte("bye")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got := g.expect(virtio.OpData); string(got.payload) != "bye" {
		t.Errorf("got %q", got.payload)
	}
	g.expect(virtio.OpShutdown)
	p.send(virtio.OpReset, "")
	c.Close()
	c.Consumed(1)
	if err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	r.expect(t, "opened")
}

func TestRelayOfAMachineThatIsGone(t *testing.T) {
	g := newGuest(t)
	_, _, r := g.relay(t, 1<<16)
	g.mux.Close(context.Canceled)
	if !errors.Is(r.ended, ErrGone) {
		t.Errorf("ended with %v", r.ended)
	}
	if c, err := g.mux.Relay(80, RelayOptions{Wait: true}, r); !errors.Is(err, ErrGone) {
		t.Errorf("made %v, %v", c, err)
	}
}
