package inside

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// serveStream joins a connection with one into a guest.
func (s *Server) serveStream(c *net.UnixConn, o wire.Opening) {
	stream, err := wire.NewStream(c, nil)
	if err != nil {
		c.Close()
		return
	}
	guest, v, err := s.connect(c, o)
	switch {
	case err != nil && o.Wait:
		_ = stream.Send(wire.TypeRefused, wire.ToError(err).Encode())
		stream.Close()
		return
	case err != nil:
		stream.Reset(wire.ToError(err))
		return
	case o.Wait:
		if stream.Send(wire.TypeOpen, nil) != nil {
			guest.Close()
			stream.Close()
			return
		}
	}
	s.join(stream, guest, v)
}

// connect connects to a port of a guest. If the peer leaves before the guest has
// answered, it gives up.
func (s *Server) connect(c *net.UnixConn, o wire.Opening) (net.Conn, *vm, error) {
	v, err := s.get(o.VM)
	if err != nil {
		return nil, nil, err
	}
	s.touch(v)
	if o.Start != 0 {
		if err := v.start(time.Unix(0, o.Start)); err != nil {
			return nil, nil, err
		}
	}
	if !o.Wait {
		guest, err := v.machine.Open(context.Background(), o.Port)
		return guest, v, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Nobody sends anything before the answer, so a read ends when the peer leaves.
	go func() {
		waitGone(c)
		cancel()
	}()
	guest, err := v.machine.Dial(ctx, o.Port)
	return guest, v, err
}

// halfCloser is a connection of which one direction can be closed.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// join carries bytes both ways until both are done, or one end is gone.
func (s *Server) join(stream *wire.Stream, guest net.Conn, v *vm) {
	var wg sync.WaitGroup
	wg.Go(func() {
		to := &used{Conn: guest, server: s, vm: v}
		_, err := stream.WriteTo(to)
		if to.deaf {
			// What the guest has said before it stopped listening is still to be carried, so
			// the peer is heard to its end.
			_, err = io.Copy(io.Discard, stream)
		}
		if half, ok := guest.(halfCloser); ok && err == nil {
			_ = half.CloseWrite() // a guest that is gone need not be told
		} else {
			guest.Close() // the peer is gone
		}
	})
	wg.Go(func() { s.carry(stream, guest) })
	wg.Wait()
	guest.Close()
	stream.Close()
}

// used is a connection that notes that a machine is used whenever something is
// written to it.
type used struct {
	net.Conn
	server *Server
	vm     *vm
	deaf   bool // the guest does not take any more
}

func (u *used) Write(b []byte) (int, error) {
	u.server.touch(u.vm)
	n, err := u.Conn.Write(b)
	u.deaf = err != nil
	return n, err
}

var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// carry carries what the guest sends to the peer. While nothing comes it holds little
// memory.
func (s *Server) carry(stream *wire.Stream, guest net.Conn) {
	var first [512]byte
	for {
		n, err := guest.Read(first[:])
		if n > 0 {
			if err := carryBurst(stream, guest, first[:n], n == len(first)); err != nil {
				guest.Close()
				stream.Close()
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			_ = stream.CloseWrite() // who is gone need not be told
			return
		default:
			stream.Reset(wire.ToError(err))
			return
		}
	}
}

// carryBurst carries what has come, and more if there is.
func carryBurst(stream *wire.Stream, guest net.Conn, got []byte, more bool) error {
	if !more {
		_, err := stream.Write(got)
		return err
	}
	buf := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buf)
	n := copy(buf[:], got)
	for more {
		k := 0
		// What is there already; the connection is asked for no more than that.
		if p, ok := guest.(interface{ Buffered() int }); ok && p.Buffered() > 0 {
			var err error
			if k, err = guest.Read(buf[n:]); err != nil && k == 0 {
				more = false // the next Read of the caller tells
			}
		} else {
			more = false
		}
		if _, err := stream.Write(buf[:n+k]); err != nil {
			return err
		}
		n = 0
	}
	return nil
}
