package vsock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

// network joins two machines' sockets back to back: what one host sends its
// guest, the other gets from its own. So both ends are real ones, and what the
// end calls its guest is the other.
type network struct {
	a, b *guest
}

// newNetwork returns a network that a goroutine drives until the test ends.
func newNetwork(tb testing.TB) *network {
	n := &network{newGuest(tb), newGuest(tb)}
	stop, stopped := make(chan struct{}), make(chan struct{})
	tb.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		for {
			for n.move(n.a, n.b) || n.move(n.b, n.a) {
			}
			select {
			case <-n.a.d.Posted():
			case <-n.b.d.Posted():
			case <-stop:
				return
			}
		}
	}()
	return n
}

// move carries packets from one to the other and reports whether it did
// anything.
func (n *network) move(from, to *guest) bool {
	busy := from.d.RunPosted() > 0
	from.run()
	for len(from.inbox) > 0 && !to.clogged() {
		p := from.inbox[0]
		from.inbox = from.inbox[1:]
		busy = true
		p.SrcCID, p.DstCID = 0, 0
		to.send(p.Header, string(p.payload))
	}
	return busy
}

// pipe returns the two ends of a connection.
func (n *network) pipe(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := n.b.mux.Listen(80)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = n.a.mux.Dial(context.Background(), 80); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// Many connections at once, of programs that write and read at random.
func TestHammer(t *testing.T) {
	n := newNetwork(t)
	l, err := n.b.mux.Listen(80)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // echo
				defer c.Close()
				io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
				c.(*Conn).CloseWrite()
			}()
		}
	}()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for round := range 2 {
				if err := hammer(n.a.mux, rand.New(rand.NewPCG(uint64(i), uint64(round)))); err != nil {
					t.Errorf("client %d, round %d: %v", i, round, err)
				}
			}
		})
	}
	wg.Wait()
	l.Close()
}

// hammer sends up to 300 KiB in pieces and checks what comes back.
func hammer(m *Mux, rnd *rand.Rand) error {
	c, err := m.Dial(context.Background(), 80)
	if err != nil {
		return err
	}
	defer c.Close()
	data := make([]byte, rnd.IntN(300<<10))
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	sent := async(func() error {
		for b := data; len(b) > 0; {
			n, err := c.Write(b[:min(len(b), 1+rnd.IntN(50_000))])
			if err != nil {
				return err
			}
			b = b[n:]
		}
		return c.(*Conn).CloseWrite()
	})
	got, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return fmt.Errorf("sent %d bytes %x, got %d bytes %x", len(data), sha256.Sum256(data), len(got), sha256.Sum256(got))
	}
	return nil
}

// The machine goes away in the middle of everything.
func TestHammerAndGone(t *testing.T) {
	n := newNetwork(t)
	l, err := n.b.mux.Listen(80)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		}
	}()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				c, err := n.a.mux.Dial(context.Background(), 80)
				if err != nil {
					return
				}
				if _, err := c.Write(make([]byte, 100_000)); err == nil {
					c.Read(make([]byte, 100))
				}
				c.Close()
			}
		})
	}
	for range 100 {
		c, p := net.Conn(nil), error(nil)
		if c, p = n.a.mux.Dial(context.Background(), 80); p == nil {
			c.Close()
		}
	}
	n.a.mux.Close(nil)
	wg.Wait() // all of them end
	n.b.mux.Close(nil)
}

func TestPipeBothWays(t *testing.T) {
	a, b := newNetwork(t).pipe(t)
	want := pattern(1 << 20)
	got := async(func() []byte {
		b, err := io.ReadAll(b)
		if err != nil {
			t.Error(err)
		}
		return b
	})
	if _, err := a.Write(want); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if !bytes.Equal(<-got, want) {
		t.Error("data differs")
	}
}

// BenchmarkRoundTrip is a question and its answer of 64 bytes each, through
// both devices, with a goroutine for the vCPU of either.
func BenchmarkRoundTrip(b *testing.B) {
	client, server := newNetwork(b).pipe(b)
	go func() {
		var buf [64]byte
		for {
			if _, err := io.ReadFull(server, buf[:]); err != nil {
				return
			}
			server.Write(buf[:])
		}
	}()
	var buf [64]byte
	b.ReportAllocs()
	for b.Loop() {
		client.Write(buf[:])
		if _, err := io.ReadFull(client, buf[:]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGuestAnswers is the same without a second machine: the guest's
// driver answers by itself.
func BenchmarkGuestAnswers(b *testing.B) {
	g := newGuest(b)
	conn, p := g.connect(1 << 20)
	stop, stopped := make(chan struct{}), make(chan struct{})
	answer := string(make([]byte, 64))
	go func() {
		defer close(stopped)
		for {
			select {
			case <-g.d.Posted():
			case <-stop:
				return
			}
			for g.run(); len(g.inbox) > 0; g.run() {
				if d := g.inbox[0]; d.Op == virtio.OpData {
					p.fwd += d.Size
					p.send(virtio.OpData, answer)
				}
				g.inbox = g.inbox[1:]
			}
		}
	}()
	var buf [64]byte
	b.ReportAllocs()
	for b.Loop() {
		conn.Write(buf[:])
		if _, err := io.ReadFull(conn, buf[:]); err != nil {
			b.Fatal(err)
		}
	}
	close(stop)
	<-stopped
}

func BenchmarkThroughput(b *testing.B) {
	client, server := newNetwork(b).pipe(b)
	const size = 64 << 10
	done := async(func() error {
		_, err := io.CopyN(io.Discard, struct{ io.Reader }{server}, int64(b.N)*size)
		return err
	})
	buf := make([]byte, size)
	b.SetBytes(size)
	for range b.N {
		if _, err := client.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
