package inside

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/vsock"
)

// streams are a daemon's connections into guests. What a guest sends goes to the daemon on
// the goroutine of the vCPU that has sent it, and what the daemon sends is with the
// machine before the next frame is looked at: there are no goroutines but the one that
// receives.
//
// Lock order: the locks of a machine's sockets, streams.mu, the link's.
type streams struct {
	server *Server
	link   *wire.Link

	mu   sync.Mutex
	open map[uint32]*stream // guarded by mu
}

// stream is a connection into a guest. It is the vsock.Receiver of what the guest does.
type stream struct {
	of     *streams
	number uint32
	vm     *vm
	relay  *vsock.Relay // of the goroutine that receives
	wait   bool         // the daemon is to be told when the guest has taken it
	taken  int          // bytes that the guest has taken and the daemon was not told of; of the Receiver
}

// serveStreams carries a daemon's connections until it is gone. One that connects takes
// the place of the one before; there is called then.
func (s *Server) serveStreams(c *net.UnixConn, there func()) {
	link, err := wire.NewLink(c)
	if err != nil {
		c.Close()
		return
	}
	all := &streams{server: s, link: link, open: make(map[uint32]*stream)}
	s.mu.Lock()
	former := s.streams
	s.streams = all
	s.mu.Unlock()
	there()
	if former != nil {
		former.link.Close()
	}
	err = link.Receive(all.take)
	link.Close()
	s.mu.Lock()
	if s.streams == all {
		s.streams = nil
	}
	s.mu.Unlock()
	all.close()
	if errors.Is(err, wire.ErrMalformed) {
		fmt.Fprintln(os.Stderr, "forkd cell: the daemon:", err)
	}
}

// close ends all connections. Nothing is received any more.
func (a *streams) close() {
	a.mu.Lock()
	open := slices.Collect(maps.Values(a.open))
	clear(a.open)
	a.mu.Unlock()
	for _, st := range open {
		st.relay.Close()
	}
}

// take takes a frame. One of a stream that is not there any more has crossed the news of
// that.
func (a *streams) take(f wire.Frame) error {
	if f.Type == wire.TypeOpen {
		o, err := wire.ParseOpen(f.Payload)
		if err == nil {
			err = a.connect(f.Stream, o)
		}
		return err
	}
	a.mu.Lock()
	st := a.open[f.Stream]
	if f.Type == wire.TypeClose {
		delete(a.open, f.Stream)
	}
	a.mu.Unlock()
	if st == nil {
		return nil
	}
	switch f.Type {
	case wire.TypeData:
		a.server.touch(st.vm)
		return st.relay.Write(f.Payload)
	case wire.TypeCredit:
		n, err := wire.ParseCredit(f.Payload)
		if err != nil {
			return err
		}
		st.relay.Consumed(n)
	case wire.TypeEnd:
		st.relay.CloseWrite()
	case wire.TypeClose:
		st.relay.Close()
		st.answered()
	default:
		return fmt.Errorf("%w: a frame of type %d from a daemon", wire.ErrMalformed, f.Type)
	}
	return nil
}

// connect opens a stream. That it cannot be is for the daemon to know.
func (a *streams) connect(number uint32, o wire.Open) error {
	st := &stream{of: a, number: number, wait: o.Wait}
	a.mu.Lock()
	_, taken := a.open[number]
	if !taken {
		a.open[number] = st
	}
	a.mu.Unlock()
	if taken {
		return fmt.Errorf("%w: stream %d is open", wire.ErrMalformed, number)
	}
	if err := st.connect(o); err != nil {
		st.Ended(err)
	}
	return nil
}

func (st *stream) connect(o wire.Open) (err error) {
	if st.vm, err = st.of.server.get(o.VM); err != nil {
		return err
	}
	st.of.server.touch(st.vm)
	if st.relay, err = st.vm.machine.Relay(o.Port, vsock.RelayOptions{Wait: o.Wait, Line: o.Line}, st); err == nil {
		st.begin(o.Start)
	}
	return err
}

// begin has the machine be started by its first stream, if it is to be, as of then. It may
// have to wait for others, and more streams may come meanwhile.
func (st *stream) begin(then int64) {
	v := st.vm
	b := v.first.Load()
	if b == nil && then != 0 {
		b = &beginner{of: &st.of.server.beginners, vm: v, run: func() error { return v.start(time.Unix(0, then)) }, at: v.atFirstSteps}
		v.first.Store(b)
		defer b.add()
	}
	if b != nil {
		b.asked(st)
	}
}

// answered notes that the guest has said something, or that nobody waits for that any
// more.
func (st *stream) answered() {
	if b := st.vm.first.Load(); b != nil {
		b.answered(st)
	}
}

// send tells the daemon. One that is gone need not be told.
func (st *stream) send(kind wire.Type, payload []byte) {
	_ = st.of.link.Send(wire.Frame{Type: kind, Stream: st.number, Payload: payload})
}

// Opened implements vsock.Receiver.
func (st *stream) Opened() {
	if st.wait {
		st.send(wire.TypeOpened, nil)
	}
}

// Data implements vsock.Receiver.
func (st *stream) Data(b []byte) {
	st.send(wire.TypeData, b)
	st.answered()
}

// Taken implements vsock.Receiver. What a daemon does not wait for it is told later, or
// never.
func (st *stream) Taken(n int) {
	if st.taken += n; st.taken >= wire.WindowIn/2 {
		_ = st.of.link.Send(wire.Credit(st.number, st.taken)) // as with send
		st.taken = 0
	}
}

// EOF implements vsock.Receiver.
func (st *stream) EOF() { st.send(wire.TypeEnd, nil) }

// Ended implements vsock.Receiver.
func (st *stream) Ended(err error) {
	st.of.mu.Lock()
	_, open := st.of.open[st.number]
	delete(st.of.open, st.number)
	st.of.mu.Unlock()
	if open {
		st.send(wire.TypeReset, wire.ToError(err).Encode())
	}
	if st.vm != nil {
		st.answered()
	}
}

var _ vsock.Receiver = (*stream)(nil)
