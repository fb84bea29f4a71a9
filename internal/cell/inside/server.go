package inside

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/page"
)

// Config is what a cell is given by who starts it.
type Config struct {
	Name     string
	Listener *net.UnixListener
	// NewEngine makes an engine. Machines with one vCPU and those with several get
	// one each, since code for the latter has to order its accesses to memory.
	NewEngine func() engine.Engine
	// Scratch is the file for the pages of scratch disks, without a name.
	Scratch *os.File
	// Reserve is how many pages are kept ready for machines, once there is something to
	// fork them from.
	Reserve int
	// Idle is how long the cell waits for a daemon while it has no machine, and Alone
	// how long while it has some, before it ends. Zero is for ever.
	Idle, Alone time.Duration
	// Jail is what the cell could not be kept from, in words, for the daemon to tell.
	Jail []string
}

// Server is a cell.
type Server struct {
	cfg           Config
	single, multi func() engine.Engine
	memory        *page.Arena // pages of guest RAM
	scratch       *page.Arena // pages of scratch disks
	quit          chan struct{}
	quitOnce      sync.Once
	trims         delayed
	tidies        delayed
	layout        sync.RWMutex  // see tidy.go
	arranging     sync.Mutex    // see tidy.go
	whole         []*page.Layer // see tidy.go; guarded by arranging
	cuts          atomic.Bool   // a machine was cut
	reserve       sync.Once     // memory for machines
	beginners     beginners

	mu      sync.Mutex
	layers  *registry
	sources map[uint64]*source // guarded by mu
	vms     map[uint64]*vm     // guarded by mu
	control *session           // nil: no daemon is there; guarded by mu
	pins    map[uint64]int     // how often its daemon needs machines unpacked; guarded by mu
	streams *streams           // nil: no daemon is there; guarded by mu
	alone   *time.Timer        // ends the cell; guarded by mu
}

// New returns a cell that Serve runs.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg: cfg, single: sync.OnceValue(cfg.NewEngine), multi: sync.OnceValue(cfg.NewEngine),
		quit: make(chan struct{}), layers: newRegistry(), sources: make(map[uint64]*source), vms: make(map[uint64]*vm),
	}
	var err error
	if s.memory, err = s.single().NewArena(); err != nil {
		return nil, fmt.Errorf("making room for guest memory: %w", err)
	}
	s.scratch = page.UseFileArena(cfg.Scratch)
	return s, nil
}

// engine returns the engine for machines with that many vCPUs.
func (s *Server) engine(vcpus int) engine.Engine {
	if vcpus > 1 {
		return s.multi()
	}
	return s.single()
}

// Serve does as the daemon says, until it says Quit or the cell has been alone for too
// long. Then it ends all machines.
func (s *Server) Serve() error {
	s.watch()
	go func() {
		<-s.quit
		s.cfg.Listener.Close()
	}()
	before := make(chan struct{})
	close(before)
	for {
		c, err := s.cfg.Listener.AcceptUnix()
		if scarce(err) {
			time.Sleep(scarceTime) // what there is goes on without another daemon
			continue
		}
		if err != nil {
			s.end()
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		there := make(chan struct{})
		go s.accept(c, before, sync.OnceFunc(func() { close(there) }))
		before = there
	}
}

// scarceTime is how long the cell waits for what its host lacks.
const scarceTime = 100 * time.Millisecond

// scarce reports whether an error is one of a host that lacks descriptors or memory now.
func scarce(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Quit has Serve return.
func (s *Server) Quit() { s.quitOnce.Do(func() { close(s.quit) }) }

// end ends the control connection and all machines.
func (s *Server) end() {
	s.mu.Lock()
	control, streams, vms := s.control, s.streams, s.vms
	s.control, s.streams, s.vms = nil, nil, make(map[uint64]*vm)
	if s.alone != nil {
		s.alone.Stop()
	}
	s.mu.Unlock()
	if control != nil {
		control.Close()
	}
	if streams != nil {
		streams.link.Close()
	}
	for _, v := range vms {
		v.close()
	}
}

// openTime is how long a peer may take to say what it wants.
const openTime = 10 * time.Second

// accept hears what a connection is for, and serves it. One that was made later does not come before it:
// several daemons may have come and gone while the process was stopped. It waits for before, and
// calls there when it is in its place, or is for nothing.
func (s *Server) accept(c *net.UnixConn, before <-chan struct{}, there func()) {
	defer there()
	var b [wire.OpeningSize]byte
	c.SetDeadline(time.Now().Add(openTime))
	_, err := io.ReadFull(c, b[:])
	c.SetDeadline(time.Time{})
	<-before
	if err != nil {
		c.Close()
		return
	}
	purpose, err := wire.ParseOpening(b)
	switch {
	case err != nil:
		c.Close()
	case purpose == wire.Control:
		s.serveControl(wire.NewConn(c), there)
	default:
		s.serveStreams(c, there)
	}
}

// watch has the cell end if it stays alone. The caller must not hold s.mu.
func (s *Server) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchLocked()
}

func (s *Server) watchLocked() {
	if s.alone != nil {
		s.alone.Stop()
		s.alone = nil
	}
	patience := s.cfg.Alone
	if len(s.vms) == 0 {
		patience = s.cfg.Idle
	}
	if s.control == nil && patience > 0 {
		s.alone = time.AfterFunc(patience, s.lonely)
	}
}

// lastCall is how long a cell that has been alone for too long hears those who have come meanwhile: the
// process may have been stopped all the time.
const lastCall = time.Second

// lonely ends the cell in a moment, unless a daemon is there by then.
func (s *Server) lonely() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control == nil {
		s.alone = time.AfterFunc(lastCall, s.Quit)
	}
}

// session is the control connection of one daemon.
type session struct {
	*wire.Conn
	beside sync.WaitGroup // requests that are being done
	over   chan struct{}  // closed when all that it has asked for is done
}

// formerTime is how long what an earlier daemon has said may take to be done.
const formerTime = 5 * time.Second

// finish returns when all is done that a daemon has asked for which is gone: it may have been told
// already that it is.
func (c *session) finish() {
	_ = c.ReadUntil(time.Now().Add(formerTime)) // one that is closed is not read
	select {
	case <-c.over:
	case <-time.After(2 * formerTime):
		c.Close()
	}
}

// serveControl does what one daemon asks for. One that connects takes the place of
// the one before; there is called then.
func (s *Server) serveControl(conn *wire.Conn, there func()) {
	c := &session{Conn: conn, over: make(chan struct{})}
	s.mu.Lock()
	former := s.control
	s.control, s.pins = c, make(map[uint64]int)
	s.watchLocked()
	s.mu.Unlock()
	there()
	if former != nil {
		former.finish()
	}
	s.tidySoon()
	err := s.receive(c)
	c.Close()
	c.beside.Wait() // whoever comes next finishes it until then
	s.mu.Lock()
	if s.control == c {
		s.control, s.pins = nil, nil
		s.watchLocked()
		s.tidySoon()
		if !errors.Is(err, io.EOF) && errors.Is(err, wire.ErrMalformed) {
			fmt.Fprintln(os.Stderr, "forkd cell: the daemon:", err)
		}
	}
	s.mu.Unlock()
	close(c.over)
}

// receive takes up requests in their order. What takes time is done beside it.
func (s *Server) receive(c *session) error {
	for {
		m, err := c.Receive()
		if err != nil {
			return err
		}
		h, ok := handlers[m.Op]
		if !ok {
			closeFiles(m.Files)
			s.answer(c.Conn, m, nil, fmt.Errorf("cells do not know %q", m.Op))
			continue
		}
		do := func() {
			r, err := h.do(s, c, m)
			if err != nil || r == nil || r.rest == nil {
				s.answer(c.Conn, m, r, err)
				return
			}
			c.beside.Go(func() { s.answer(c.Conn, m, r, r.rest()) })
		}
		if h.beside {
			c.beside.Go(do)
		} else {
			do()
		}
	}
}
