package guest

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/warm"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// quiesce holds everything that runs user code, so that the host can take a snapshot. When it fails, everything goes on.
// Asking again while held only counts again.
func (s *Server) quiesce() (wire.QuiesceReply, error) {
	s.state.Lock()
	defer s.state.Unlock()
	switch s.holding() {
	case quiesced:
		return s.count()
	case paused:
		return wire.QuiesceReply{}, wire.Errorf(wire.CodeQuiesced, "", "user processes stand still for a branch: resume first")
	}
	if err := s.hold(); err != nil {
		return wire.QuiesceReply{}, err
	}
	reply, err := s.count()
	if err != nil {
		return reply, errors.Join(err, s.letGo(nil))
	}
	unix.Sync()
	if err := s.settle(); err != nil {
		return reply, errors.Join(err, s.letGo(nil))
	}
	return reply, nil
}

// hold stops the runtimes at a safe point, then freezes all processes.
func (s *Server) hold() error {
	s.table.Hold()
	if err := s.warm.Hold(); err != nil {
		s.table.Release(false)
		return err
	}
	s.setHolding(quiesced)
	// Nobody can enter an empty cgroup now, nor wake who rests, and to thaw would cost every child its share of a refresh.
	var err error
	if !s.warm.Rests() {
		err = s.runtimes.Freeze(s.cfg.Patience)
	}
	if err == nil && s.users.Populated() {
		err = s.users.Freeze(s.cfg.Patience)
	}
	if err != nil {
		return errors.Join(err, s.letGo(nil))
	}
	return nil
}

// letGo lets runtimes and user processes go on. If the machine is another one now, of which there are seeds, user processes
// do so only after the generators of every runtime are new.
func (s *Server) letGo(seeds *warm.Stream) error {
	another := seeds != nil
	if s.cfg.Identity != nil {
		s.cfg.Identity.LetGo()
	}
	var err error
	switch {
	case s.holding() == quiesced:
		err = s.warm.Order(seeds)
	case another:
		err = s.warm.Renew()
	}
	if err != nil {
		return err
	}
	if err := s.runtimes.Thaw(); err != nil {
		return err
	}
	if err := s.warm.Await(); err != nil {
		return err
	}
	if err := s.users.Thaw(); err != nil {
		return err
	}
	s.table.Release(another)
	s.setHolding(released)
	return nil
}

// holding is how far user code is kept from running.
type holding int

const (
	released holding = iota
	paused           // for a branch: it stands still where it was
	quiesced         // for a snapshot to start from: runtimes are at a safe point, everything is at rest and written
)

func (s *Server) holding() holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.how
}

func (s *Server) setHolding(how holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case how != released && s.how == released:
		s.running = make(chan struct{})
	case how == released && s.how != released:
		close(s.running)
	}
	s.how = how
}

func (s *Server) count() (wire.QuiesceReply, error) {
	pids, err := s.users.PIDs()
	if err != nil {
		return wire.QuiesceReply{}, err
	}
	extra, err := s.warm.Processes()
	return wire.QuiesceReply{Processes: len(pids) + extra}, err
}

// settle puts the agent's own memory in the state that restored children find cheapest: the garbage is collected, and what a
// refresh allocates lies ready. Free memory is kept, because a page that is given back costs a fault and a clearing when it
// is needed again.
func (s *Server) settle() error {
	proc.YieldAll()
	runtime.GC()
	if s.cfg.Identity != nil {
		if err := s.cfg.Identity.Settle(); err != nil {
			return err
		}
	}
	for range rehearsals {
		if err := s.rehearse(); err != nil {
			return fmt.Errorf("rehearsing a refresh: %w", err)
		}
	}
	return nil
}

// rehearsals is how often a refresh is rehearsed: the allocator settles with the second.
const rehearsals = 2

// rehearse goes through a refresh that changes nothing: a connection, the request and its answer, the identity files.
func (s *Server) rehearse() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	server, client := quiet.FreshOf(fds[0]), quiet.FreshOf(fds[1])
	defer server.Close()
	defer client.Close()
	payload, err := rehearsal.AppendBinary(nil)
	if err != nil {
		return err
	}
	if _, err := client.WriteNow(wire.AppendFrame(nil, wire.TypeRefresh, payload)); err != nil {
		return err
	}
	if !s.refreshed(server, s.begin(server), s.pretend) {
		return errors.New("the request was not understood")
	}
	answer := make([]byte, len(s.first))
	n, err := client.ReadNow(answer)
	if kind, payload, _ := wire.WholeFrame(answer[:n]); err == nil && kind != wire.TypeOK {
		err = wire.DecodeError(payload)
	}
	return err
}

// rehearsal is the request of a rehearsal.
var rehearsal = wire.Refresh{
	Generation: 1, WallNS: 1, Hostname: "rehearsal",
	MachineID: "00000000000000000000000000000000", BootID: "00000000-0000-0000-0000-000000000000",
}

// pretend is refresh without an effect.
func (s *Server) pretend(*wire.Refresh) error {
	if s.cfg.Identity == nil {
		return nil
	}
	return s.cfg.Identity.rewrite()
}

// resume lets everything go on under the old identity: the host has its snapshot, or has given it up, and branch is then the
// number of its request.
func (s *Server) resume(branch uint64) error {
	s.state.Lock()
	defer s.state.Unlock()
	s.calledOff = max(s.calledOff, branch)
	switch {
	case s.failed != nil:
		return s.failed
	case s.holding() == released:
		return nil
	}
	return s.letGo(nil)
}

// refresh turns a restored machine into a machine of its own. It is the only thing that runs in every child, so it makes no
// goroutine and no system call but those that it is for. A generation that is in force already is confirmed, not repeated.
func (s *Server) refresh(r *wire.Refresh) error {
	s.state.Lock()
	defer s.state.Unlock()
	s.mu.Lock()
	generation, how, failed := s.generation, s.how, s.failed
	s.mu.Unlock()
	switch {
	case failed != nil:
		return failed
	case r.Generation < generation:
		return wire.Errorf(wire.CodeBadRequest, "generation", "generation %d is older than %d, which is in force", r.Generation, generation)
	case r.Generation == generation && how == released:
		return nil
	}
	if how == released {
		// A machine that was booted, not restored, is given its identity in the same way.
		if err := s.hold(); err != nil {
			return err
		}
	}
	if err := s.renew(r); err != nil {
		return err
	}
	s.mu.Lock()
	s.generation = r.Generation
	s.mu.Unlock()
	s.seeds = warm.NewStream((*[warm.StreamSize]byte)(r.Entropy[kernelEntropy:]))
	if err := s.letGo(&s.seeds); err != nil {
		return s.giveUp(err)
	}
	return nil
}

// kernelEntropy is how much of a refresh's entropy is the kernel's. The rest is for what is no secret.
const kernelEntropy = wire.EntropySize - warm.StreamSize

// renew does what concerns the kernel, the identity files and limits. It can be tried again after a failure.
func (s *Server) renew(r *wire.Refresh) error {
	if err := s.cfg.Kernel.Reseed(r.Entropy[:kernelEntropy]); err != nil {
		return stepFailed("random", err)
	}
	if err := s.cfg.Kernel.SetClock(r.WallNS); err != nil {
		return stepFailed("clock", err)
	}
	if err := s.cfg.Kernel.SetHostname(r.Hostname); err != nil {
		return stepFailed("hostname", err)
	}
	if s.cfg.Identity != nil {
		if err := s.cfg.Identity.Write(r); err != nil {
			return stepFailed("identity", err)
		}
	}
	if err := s.limiter.apply(r.Limits); err != nil {
		return stepFailed("limits", err)
	}
	return nil
}

// giveUp freezes the runtimes again, one of which may have gone on without being reseeded, and refuses every later
// attempt: what has run cannot be taken back.
func (s *Server) giveUp(cause error) error {
	err := stepFailed("release", cause)
	if e := wire.AsError(cause); e.Field != "" {
		err.Field = e.Field
	}
	_ = s.runtimes.Freeze(s.cfg.Patience)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	return err
}

func stepFailed(step string, err error) *wire.Error {
	return wire.Errorf(wire.CodeRefreshFailed, step, "refresh failed at %s: %v; user processes stay held", step, err)
}
