package vsock

import (
	"testing"

	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

// line makes a line that the guest has accepted, and has it carry a question and an answer.
func (g *guest) line(t *testing.T, port uint32) (*Relay, *peer) {
	t.Helper()
	var r recorder
	c, err := g.mux.Relay(port, RelayOptions{Line: true}, &r)
	if err != nil {
		t.Fatal(err)
	}
	p := g.accept(1 << 16)
	g.ask(t, c, p)
	return c, p
}

// ask has a connection carry a question and an answer.
func (g *guest) ask(t *testing.T, c *Relay, p *peer) {
	t.Helper()
	if err := c.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if got := g.expect(virtio.OpData); string(got.payload) != "question" || got.SrcPort != p.pair.host {
		t.Fatalf("the guest was asked %q on port %d", got.payload, got.SrcPort)
	}
	p.fwd += uint32(len("question"))
	p.send(virtio.OpData, "answer")
}

// restored makes the guest one that was restored from the present state.
func (g *guest) restored() {
	g.d.Restore(g.d.State())
	g.run()
}

// A line goes on in a machine that was made of the one that it was in, with the counts that it had there, and again in the next.
func TestLine(t *testing.T) {
	g := newGuest(t)
	_, p := g.line(t, 80)
	_, other := g.line(t, 81)
	for range 3 {
		g.restored()
		if used := g.event.Take(); len(used) != 0 {
			t.Fatal("the guest's connections were reset")
		}
		var r recorder
		c, err := g.mux.Relay(80, RelayOptions{Line: true}, &r)
		if err != nil {
			t.Fatal(err)
		}
		g.quiet() // it is there already
		g.ask(t, c, p)
		r.expect(t, "opened", "taken", "data")
		var second recorder
		if _, err := g.mux.Relay(80, RelayOptions{Line: true}, &second); err != nil {
			t.Fatal(err)
		}
		if q := g.expect(virtio.OpRequest); q.SrcPort == p.pair.host || q.SrcPort == other.pair.host {
			t.Error("a port was used again")
		}
		(&peer{g: g, pair: pair{host: g.mux.port - 1, guest: 80}}).send(virtio.OpReset, "")
		second.expect(t, "ended")
	}
}

// Who does not ask for a line gets a connection of its own.
func TestOtherConnectionsTakeNoLine(t *testing.T) {
	g := newGuest(t)
	_, p := g.line(t, 80)
	g.restored()
	var r recorder
	if _, err := g.mux.Relay(80, RelayOptions{}, &r); err != nil {
		t.Fatal(err)
	}
	if q := g.expect(virtio.OpRequest); q.SrcPort == p.pair.host {
		t.Error("it was given the line")
	}
}

// What is not at rest does not go on, and nothing else does then.
func TestNotALine(t *testing.T) {
	for name, use := range map[string]func(g *guest, c *Relay, p *peer){
		"another connection":  func(g *guest, _ *Relay, _ *peer) { g.connect(1 << 16) },
		"bytes to the guest":  func(_ *guest, c *Relay, _ *peer) { c.Write([]byte("x")) },
		"bytes not yet read":  func(g *guest, c *Relay, _ *peer) { c.Write([]byte("x")); g.expect(virtio.OpData) },
		"the guest has ended": func(_ *guest, _ *Relay, p *peer) { p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend, "") },
		"the guest is deaf":   func(_ *guest, _ *Relay, p *peer) { p.sendFlags(virtio.OpShutdown, virtio.ShutdownReceive, "") },
		"the host has ended":  func(_ *guest, c *Relay, _ *peer) { c.CloseWrite() },
	} {
		g := newGuest(t)
		c, p := g.line(t, 80)
		use(g, c, p)
		if lines, all := g.mux.Lines(); all || lines != nil {
			t.Errorf("%s: %+v goes on", name, lines)
		}
	}
	g := newGuest(t)
	c, _ := g.line(t, 80)
	c.Close()
	g.expect(virtio.OpShutdown)
	if lines, all := g.mux.Lines(); !all || lines != nil {
		t.Errorf("a closed one: %+v goes on", lines)
	}
	for range virtio.MaxLines + 1 {
		g.line(t, 80)
	}
	if lines, all := g.mux.Lines(); all || lines != nil {
		t.Errorf("%d lines go on", len(lines))
	}
}

// A guest that speaks on a line that nobody has taken, or ends it, loses it; nothing is kept of that.
func TestSpareLine(t *testing.T) {
	for name, use := range map[string]func(p *peer){
		"speaks": func(p *peer) { p.send(virtio.OpData, "anybody there?") },
		"ends":   func(p *peer) { p.sendFlags(virtio.OpShutdown, virtio.ShutdownSend|virtio.ShutdownReceive, "") },
	} {
		g := newGuest(t)
		_, p := g.line(t, 80)
		g.restored()
		use(p)
		if q := g.expect(virtio.OpReset); q.SrcPort != p.pair.host {
			t.Errorf("%s: port %d was reset", name, q.SrcPort)
		}
		g.mux.mu.Lock()
		if len(g.mux.conns)+len(g.mux.spare) != 0 {
			t.Errorf("%s: %d connections, %d of them spare", name, len(g.mux.conns), len(g.mux.spare))
		}
		g.mux.mu.Unlock()
	}
	g := newGuest(t)
	_, p := g.line(t, 80)
	g.restored()
	p.send(virtio.OpReset, "")
	g.quiet()
	p.send(virtio.OpData, "x")
	g.expect(virtio.OpReset) // it is not known any more
}
