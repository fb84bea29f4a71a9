package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/files"
	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/warm"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Version is the agent's version, set by the linker in releases.
var Version = "dev"

// Kernel is what a refresh changes in the kernel.
type Kernel interface {
	// Reseed mixes entropy, at most 64 bytes, into the random generator and gives it a new key.
	Reseed(entropy []byte) error
	// SetClock steps the wall clock, given its value in nanoseconds since 1970 at which the machine's time counter was 0.
	SetClock(zero int64) error
	SetHostname(name string) error
}

// Config is what a Server needs.
type Config struct {
	Root     string                                // of the file operations and the account files; commands run in the agent's own
	Cgroups  string                                // cgroup v2 directory for user processes; empty when there are no cgroups
	Listen   func(port uint32) (fd int, err error) // opens a listening socket
	Dir      string                                // for the runtimes' scripts; users can read it
	Capture  string                                // for the runtimes' output; its file system limits how much there can be
	Env      []string                              // default environment of commands, KEY=VALUE
	Kernel   Kernel
	Identity *Identity     // nil: a refresh changes no files
	Quotas   Quotas        // how user code is limited
	PowerOff func()        // called after a power-off request was answered
	Patience time.Duration // how long processes may take to be held, and runtimes to confirm a refresh; default 5 s
}

// Server answers the host.
type Server struct {
	cfg      Config
	root     *files.Root
	accounts proc.Accounts
	table    *proc.Table
	users    *proc.Cgroup // commands, one cgroup each
	runtimes *proc.Cgroup
	spares   *proc.Cgroup // of interpreters that are frozen until a context is made of them
	warm     *warm.Manager
	keeper   keeper
	names    nameCache
	listener *quiet.Conn

	held sync.Mutex // guards what follows, and is held while something is answered that came while quiesced
	// heldSession serves it; it is made ahead.
	heldSession *session
	retired     io.Closer    // connection that was answered; closed when the next one comes
	first       [512]byte    // what a connection begins with; holds a refresh
	request     wire.Refresh // the last one

	seeds warm.Stream // of the last refresh, for the runtimes; guarded by state

	sessions sync.WaitGroup // connections that are being served, but for those while quiesced
	served   chan struct{}  // closed when Serve has returned

	state     sync.Mutex // serialises quiesce, branch, resume and refresh
	calledOff uint64     // number of the last branch that is over; guarded by state
	limiter   limiter    // guarded by state

	mu         sync.Mutex // guards what follows
	conns      map[*quiet.Conn]struct{}
	generation uint64
	how        holding
	running    chan struct{} // closed while user code is not held
	failed     error         // of a refresh that cannot be tried again
	execs      uint64
	emptying   []*proc.Cgroup // of commands that left processes behind
}

// New prepares a server. It does not listen yet.
func New(cfg Config) (*Server, error) {
	if cfg.Patience == 0 {
		cfg.Patience = 5 * time.Second
	}
	root, err := files.OpenRoot(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("opening root: %w", err)
	}
	s := &Server{
		cfg:      cfg,
		root:     root,
		accounts: proc.Accounts{Open: root.OpenAccounts},
		table:    proc.Children(),
		running:  make(chan struct{}),
		served:   make(chan struct{}),
		conns:    make(map[*quiet.Conn]struct{}),
		limiter:  limiter{files: cfg.Quotas, root: cfg.Root},
	}
	close(s.running)
	if err := s.makeCgroups(); err != nil {
		root.Close()
		return nil, err
	}
	s.warm = warm.New(warm.Config{
		Table: s.table, Cgroup: s.runtimes, Spares: s.spares, Accounts: s.accounts, Env: cfg.Env,
		Listen: s.listenFile, Dir: cfg.Dir, Capture: cfg.Capture, Patience: cfg.Patience, Kinds: warm.Kinds(),
	})
	s.heldSession = s.session(nil)
	s.table.OnOrphan(s.sweep)
	return s, nil
}

func (s *Server) makeCgroups() (err error) {
	if s.cfg.Cgroups == "" {
		return nil
	}
	top, err := proc.OpenCgroup(s.cfg.Cgroups)
	if err != nil {
		return err
	}
	for name, cgroup := range map[string]**proc.Cgroup{"user": &s.users, "runtime": &s.runtimes, "spare": &s.spares} {
		if *cgroup, err = proc.NewCgroup(top, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) listenFile(port uint32) (*os.File, error) {
	fd, err := s.cfg.Listen(port)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "listener"), nil
}

// Listen opens the agent's port.
func (s *Server) Listen() error {
	fd, err := s.cfg.Listen(wire.AgentPort)
	if err != nil {
		return err
	}
	s.listener, err = quiet.NewConn(fd, "listener")
	return err
}

// Serve answers connections until Close. Precondition: Listen.
func (s *Server) Serve() error {
	defer close(s.served)
	for {
		fresh, err := s.listener.Accept()
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
				time.Sleep(10 * time.Millisecond) // the connection stays in the backlog until something is freed
				continue
			}
			if errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ECONNRESET) {
				continue
			}
			return fmt.Errorf("accepting: %w", err)
		}
		if s.holding() == quiesced {
			s.serveHeld(fresh)
			continue
		}
		s.held.Lock()
		s.retire(nil)
		s.held.Unlock()
		if conn, err := fresh.Conn(); err == nil {
			s.sessions.Go(func() { s.serve(conn) })
		}
	}
}

// serveHeld answers one connection while quiesced, with no system call that wakes the runtime's monitor thread.
func (s *Server) serveHeld(fresh quiet.Fresh) {
	s.held.Lock()
	defer s.held.Unlock()
	if s.refreshed(fresh, s.begin(fresh), s.refresh) {
		s.retire(fresh) // shutting it down would make the client answer
		return
	}
	if conn, err := fresh.Conn(); err == nil {
		s.serveSlowly(conn)
	}
}

// serveSlowly answers what is no whole refresh. The caller holds s.held.
func (s *Server) serveSlowly(conn *quiet.Conn) {
	// A peer that says nothing must not keep the refresh out for ever.
	_ = conn.SetReadDeadline(time.Now().Add(s.cfg.Patience))
	s.heldSession.reuse(conn).run()
	_ = conn.Shutdown()
	s.retire(conn)
}

// serveLine waits for the refresh on a connection that was made for that before the snapshot, so that a child need not accept one.
// It reports whether the connection is retired: not if user code goes on before anything comes.
func (s *Server) serveLine(conn *quiet.Conn) bool {
	conn.Await()
	s.held.Lock()
	defer s.held.Unlock()
	if s.holding() != quiesced {
		return false
	}
	if !s.refreshed(conn.Fresh(), s.begin(conn.Fresh()), s.refresh) {
		s.serveSlowly(conn)
	} else {
		s.retire(conn)
	}
	return true
}

// begin looks at what the client of a connection has sent already.
func (s *Server) begin(fresh quiet.Fresh) []byte {
	n, _ := fresh.PeekNow(s.first[:]) // what is wrong shows again
	return s.first[:n]
}

// retire closes the connection that was retired before and keeps conn instead. The caller holds s.held.
func (s *Server) retire(conn io.Closer) {
	if s.retired != nil {
		s.retired.Close()
	}
	s.retired = conn
}

func (s *Server) serve(conn *quiet.Conn) {
	s.mu.Lock()
	s.conns[conn] = struct{}{}
	s.mu.Unlock()
	session := s.session(conn)
	session.run()
	retired := session.line && s.serveLine(conn)
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
	if !retired {
		conn.Close()
	}
}

// Close ends everything: runtimes, commands in cgroups, connections. It returns when Serve and every operation have.
// Precondition: Serve has been called.
func (s *Server) Close() {
	s.warm.Close()
	_ = s.users.Kill()
	s.keeper.killAll()
	s.table.Release(false)
	s.setHolding(released)
	if s.listener != nil {
		s.listener.Close()
	}
	<-s.served
	s.mu.Lock()
	for conn := range s.conns {
		_ = conn.Shutdown()
	}
	s.mu.Unlock()
	s.sessions.Wait()
	s.held.Lock()
	s.retire(nil)
	s.held.Unlock()
	s.sweep()
	s.root.Close()
}

// sweep removes the cgroups of commands whose last processes have ended.
func (s *Server) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.emptying[:0]
	for _, c := range s.emptying {
		if !c.Close() {
			kept = append(kept, c)
		}
	}
	clear(s.emptying[len(kept):])
	s.emptying = kept
}

func (s *Server) info() wire.Info {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	s.mu.Lock()
	info := wire.Info{
		Agent:      Version,
		Protocol:   wire.Version,
		Generation: s.generation,
		Quiesced:   s.how != released,
		UptimeNS:   now.Nano(),
		Cgroups:    s.users.Real(),
	}
	s.mu.Unlock()
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil && len(b) >= 36 {
		info.BootID = string(b[:36])
	}
	info.Runtimes = s.warm.List()
	return info
}
