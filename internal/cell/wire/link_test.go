package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/machine"
)

// cell is the other end of a link.
type cell struct {
	*wire.Link
	unix   *net.UnixConn
	frames chan wire.Frame
}

// guests returns a daemon's end of a link and a cell's, which shows the frames that
// come.
func guests(t testing.TB) (*wire.Guests, *cell) {
	t.Helper()
	x, y := pair(t)
	a, errA := wire.NewLink(x)
	b, errB := wire.NewLink(y)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	g := wire.NewGuests(a)
	c := &cell{b, y, make(chan wire.Frame, 1000)}
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve() })
	running.Go(func() {
		_ = b.Receive(func(f wire.Frame) error {
			f.Payload = bytes.Clone(f.Payload)
			c.frames <- f
			return nil
		})
		close(c.frames)
	})
	t.Cleanup(func() {
		x.Close()
		y.Close()
		running.Wait()
	})
	return g, c
}

func stream(t testing.TB, g *wire.Guests) *wire.Stream {
	t.Helper()
	s, err := g.Open(wire.Open{VM: 7, Port: 1024})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// expect returns the next frame, which must be of a type.
func (c *cell) expect(t testing.TB, kind wire.Type) wire.Frame {
	t.Helper()
	f := <-c.frames
	if f.Type != kind {
		t.Fatalf("a frame of type %d instead of %d", f.Type, kind)
	}
	return f
}

func (c *cell) send(t testing.TB, kind wire.Type, stream uint32, payload string) {
	t.Helper()
	if err := c.Send(wire.Frame{Type: kind, Stream: stream, Payload: []byte(payload)}); err != nil {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	for _, want := range []wire.Open{{VM: 1<<63 + 5, Port: 1 << 31}, {VM: 3, Port: 52, Wait: true}, {VM: 3, Port: 52, Line: true}, {VM: 3, Port: 52, Start: 1 << 60}} {
		if got, err := wire.ParseOpen(want.Encode()); err != nil || got != want {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
	}
	good := wire.Open{VM: 3}.Encode()
	strange := bytes.Clone(good)
	strange[20] = 4
	for _, b := range [][]byte{nil, good[1:], append(bytes.Clone(good), 0), strange} {
		if o, err := wire.ParseOpen(b); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%x is %+v, %v", b, o, err)
		}
	}
}

// TestStreamsCarryBytes has a cell send back, in pieces of its own and giving credit as it
// goes, what comes on several streams at once.
func TestStreamsCarryBytes(t *testing.T) {
	g, c := guests(t)
	go func() {
		random := rand.New(rand.NewPCG(1, 2))
		for f := range c.frames {
			switch f.Type {
			case wire.TypeData:
				_ = c.Send(wire.Credit(f.Stream, len(f.Payload)))
				for rest := f.Payload; len(rest) > 0; {
					n := 1 + random.IntN(len(rest))
					_ = c.Send(wire.Frame{Type: wire.TypeData, Stream: f.Stream, Payload: rest[:n]})
					rest = rest[n:]
				}
			case wire.TypeEnd:
				_ = c.Send(wire.Frame{Type: wire.TypeEnd, Stream: f.Stream})
			}
		}
	}()
	var all sync.WaitGroup
	for k := range 8 {
		s := stream(t, g)
		want := make([]byte, 200<<10+k)
		random := rand.New(rand.NewPCG(3, uint64(k)))
		for i := range want {
			want[i] = byte(random.Uint32())
		}
		all.Go(func() {
			for rest := want; len(rest) > 0; {
				n := min(len(rest), random.IntN(100_000))
				if _, err := s.Write(rest[:n]); err != nil {
					t.Error(err)
				}
				rest = rest[n:]
			}
			s.CloseWrite()
			if _, err := s.Write([]byte("x")); err == nil {
				t.Error("written after CloseWrite")
			}
		})
		all.Go(func() {
			got, err := io.ReadAll(s)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
			}
			s.Close()
		})
	}
	all.Wait()
}

// TestWindows: who does not consume is not sent more than a window, and holds nobody up.
func TestWindows(t *testing.T) {
	g, c := guests(t)
	slow, other := stream(t, g), stream(t, g)
	slow.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	n, err := slow.Write(make([]byte, 2*wire.WindowIn))
	if n != wire.WindowIn || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes were taken, %v", n, err)
	}
	if _, err := other.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	first := c.expect(t, wire.TypeOpen).Stream
	got := 0
	for got < wire.WindowIn {
		got += len(c.expect(t, wire.TypeData).Payload)
	}
	second := c.expect(t, wire.TypeOpen).Stream
	c.expect(t, wire.TypeData)
	// A guest's bytes wait for whoever reads, as many as the window is.
	for range wire.WindowOut / (32 << 10) {
		c.send(t, wire.TypeData, first, string(make([]byte, 32<<10)))
	}
	c.send(t, wire.TypeData, second, "y")
	if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(slow, make([]byte, 100<<10)); err != nil {
		t.Error(err)
	}
	credit := 0
	for credit < 64<<10 {
		n, err := wire.ParseCredit(c.expect(t, wire.TypeCredit).Payload)
		if err != nil {
			t.Fatal(err)
		}
		credit += n
	}
}

func TestStreamReset(t *testing.T) {
	g, c := guests(t)
	s := stream(t, g)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	n := c.expect(t, wire.TypeOpen).Stream
	c.send(t, wire.TypeData, n, "before")
	c.send(t, wire.TypeReset, n, string((&wire.Error{Code: wire.CodeEnded, Text: "it is over"}).Encode()))
	got, err := io.ReadAll(s)
	if string(got) != "before" || !errors.Is(err, machine.ErrEnded) || err.Error() != "it is over" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.Write([]byte("x")); !errors.Is(err, machine.ErrEnded) {
		t.Errorf("written: %v", err)
	}
	s.Close()
}

// TestLastWords: a guest may have left before it was sent all; what it has said is read.
func TestLastWords(t *testing.T) {
	g, c := guests(t)
	s := stream(t, g)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	n := c.expect(t, wire.TypeOpen).Stream
	c.send(t, wire.TypeData, n, "bye")
	c.send(t, wire.TypeEnd, n, "")
	c.send(t, wire.TypeReset, n, string((&wire.Error{Code: wire.CodeReset, Text: "reset"}).Encode()))
	if got, err := io.ReadAll(s); string(got) != "bye" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if n, err := s.Write(make([]byte, 1<<20)); n != 1<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestStreamWaitsForTheGuest(t *testing.T) {
	g, c := guests(t)
	for _, refused := range []bool{false, true} {
		s, err := g.Open(wire.Open{VM: 7, Port: 80, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		n := c.expect(t, wire.TypeOpen).Stream
		if refused {
			c.send(t, wire.TypeReset, n, string((&wire.Error{Code: wire.CodeRefused, Text: "nobody"}).Encode()))
			if err := s.Opened(); err == nil || err.Error() != "nobody" {
				t.Errorf("refused: %v", err)
			}
			continue
		}
		c.send(t, wire.TypeOpened, n, "")
		if err := s.Opened(); err != nil {
			t.Error(err)
		}
		go s.Close()
		if f := c.expect(t, wire.TypeClose); f.Stream != n {
			t.Errorf("stream %d was closed, not %d", f.Stream, n)
		}
	}
	s := stream(t, g)
	time.AfterFunc(time.Millisecond, func() { s.Close() })
	if err := s.Opened(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestStreamDeadline: a read that was cut short takes nothing away.
func TestStreamDeadline(t *testing.T) {
	g, c := guests(t)
	s := stream(t, g)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	n := c.expect(t, wire.TypeOpen).Stream
	frame := binary.LittleEndian.AppendUint32(nil, uint32(wire.TypeData)<<24|4)
	frame = append(binary.LittleEndian.AppendUint32(frame, n), "abcd"...)
	if _, err := c.unix.Write(frame[:10]); err != nil {
		t.Fatal(err)
	}
	s.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := s.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	s.SetReadDeadline(time.Time{})
	if _, err := c.unix.Write(frame[10:]); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	if n, err := s.Read(buf); err != nil || string(buf[:n]) != "abcd" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

// TestLinkBreaks: with the link all streams break, and there are no new ones.
func TestLinkBreaks(t *testing.T) {
	g, c := guests(t)
	s := stream(t, g)
	time.AfterFunc(time.Millisecond, func() { c.Close() })
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read: %v", err)
	}
	if _, err := s.Write(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("written: %v", err)
	}
	if s, err := g.Open(wire.Open{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("opened: %v, %v", s, err)
	}
}

// TestSendDoesNotWait: what a socket does not take is kept, and arrives in order.
func TestSendDoesNotWait(t *testing.T) {
	x, y := pair(t)
	a, errA := wire.NewLink(x)
	b, errB := wire.NewLink(y)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	const count = 100
	for i := range uint32(count) {
		if err := a.Send(wire.Frame{Type: wire.TypeData, Stream: i, Payload: make([]byte, 60_000)}); err != nil {
			t.Fatal(err)
		}
	}
	next := uint32(0)
	done := errors.New("done")
	err := b.Receive(func(f wire.Frame) error {
		if f.Stream != next || len(f.Payload) != 60_000 {
			return fmt.Errorf("frame %d with %d bytes after %d", f.Stream, len(f.Payload), next)
		}
		if next++; next == count {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Error(err)
	}
}

// TestManySend: what many send at once, small and large, to somebody who is slow at times, arrives
// whole and in the order in which each has sent it.
func TestManySend(t *testing.T) {
	x, y := pair(t)
	a, errA := wire.NewLink(x)
	b, errB := wire.NewLink(y)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	const senders, count = 16, 400
	var all sync.WaitGroup
	for k := range uint32(senders) {
		all.Go(func() {
			payload := make([]byte, 4, 40_000)
			for i := range uint32(count) {
				binary.LittleEndian.PutUint32(payload, i)
				size := 4
				if i%50 == k {
					size = cap(payload)
				}
				if err := a.Send(wire.Frame{Type: wire.TypeData, Stream: k, Payload: payload[:size]}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var next [senders]uint32
	left, done := senders*count, errors.New("done")
	err := b.Receive(func(f wire.Frame) error {
		if got := binary.LittleEndian.Uint32(f.Payload); f.Stream >= senders || got != next[f.Stream] {
			return fmt.Errorf("frame %d of sender %d after %d", got, f.Stream, next[f.Stream])
		}
		next[f.Stream]++
		if left--; left == 0 {
			return done
		}
		if left%1000 == 0 {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Error(err)
	}
	all.Wait()
}

// TestMalformedFrames: a cell that says what none says is not listened to any more.
func TestMalformedFrames(t *testing.T) {
	window := make([]byte, 60<<10)
	for name, frames := range map[string][]wire.Frame{
		"data beyond the window":    {{Type: wire.TypeData, Payload: window}, {Type: wire.TypeData, Payload: window}, {Type: wire.TypeData, Payload: window}, {Type: wire.TypeData, Payload: window}, {Type: wire.TypeData, Payload: window}},
		"data after the end":        {{Type: wire.TypeEnd}, {Type: wire.TypeData, Payload: []byte("x")}},
		"credit for nothing":        {wire.Credit(0, 1)},
		"credit without a number":   {{Type: wire.TypeCredit}},
		"what daemons say":          {{Type: wire.TypeClose}},
		"a type that there is not":  {{Type: 99}},
		"a frame that is too large": {{Type: wire.TypeData, Payload: make([]byte, 1<<20)}},
	} {
		x, y := pair(t)
		a, errA := wire.NewLink(x)
		b, errB := wire.NewLink(y)
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		g := wire.NewGuests(a)
		if err := stream(t, g).Flush(); err != nil {
			t.Fatal(err)
		}
		for i := range frames {
			frames[i].Stream = 1
		}
		if err := b.Send(frames...); err != nil {
			t.Fatal(err)
		}
		if err := g.Serve(); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		b.Close()
	}
}

func FuzzGuests(f *testing.F) {
	for _, kind := range []wire.Type{wire.TypeData, wire.TypeEnd, wire.TypeReset, wire.TypeCredit, wire.TypeOpened} {
		b := binary.LittleEndian.AppendUint32(nil, uint32(kind)<<24|4)
		f.Add(append(binary.LittleEndian.AppendUint32(b, 1), "abcd"...))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		x, y := pair(t)
		go func() {
			x.Write(b)
			x.Close()
		}()
		l, err := wire.NewLink(y)
		if err != nil {
			t.Fatal(err)
		}
		g := wire.NewGuests(l)
		s, err := g.Open(wire.Open{})
		if err != nil {
			t.Fatal(err)
		}
		go g.Serve()
		if n, err := io.Copy(io.Discard, s); n > int64(len(b)) {
			t.Errorf("%d bytes out of %d, %v", n, len(b), err)
		}
	})
}

// TestStreamsToNobody: streams that are opened, written to and closed again do not pile up for a
// cell that takes up nothing.
func TestStreamsToNobody(t *testing.T) {
	x, _ := pair(t)
	link, err := wire.NewLink(x)
	if err != nil {
		t.Fatal(err)
	}
	g := wire.NewGuests(link)
	const streams = 1000
	b := make([]byte, wire.WindowIn)
	for i := range streams {
		s, err := g.Open(wire.Open{VM: 7, Port: 1024})
		if errors.Is(err, wire.ErrBehind) && i > 0 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(b); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	t.Errorf("%d streams were opened", streams)
}
