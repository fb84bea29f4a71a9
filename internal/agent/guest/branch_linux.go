package guest

import (
	"errors"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// branch stops user processes and runtimes for a branch: OK, then the client's Release, then OK with Released. In between the
// host takes its snapshot, so that this is where a restored child finds itself, with the connection broken. It waits for a
// Refresh. In the source the host sends a resume if it cannot use this connection any more.
func (s *session) branch(req wire.BranchRequest) error {
	start := time.Now()
	if err := s.pause(req.Number); err != nil {
		return err
	}
	if err := s.out.Frame(wire.TypeOK, nil); err != nil {
		return s.resume(req.Number) // nobody has seen it
	}
	kind, _, err := s.in.Next()
	if err != nil {
		return nil
	}
	if kind != wire.TypeRelease {
		return wire.Errorf(wire.CodeUnknownFrame, "", "frame type %d has no place in a branch", kind)
	}
	if err := s.resume(req.Number); err != nil {
		return err
	}
	s.done(wire.Released{HeldNS: time.Since(start).Nanoseconds()}, nil)
	return nil
}

// pause makes all user code stand still where it is. It waits for nothing: from the moment of the order no instruction of
// user code is executed, which is what counts, while a process that has asked the kernel for something big may take long
// to come to rest. Everybody else would have to wait for that.
func (s *Server) pause(number uint64) error {
	s.state.Lock()
	defer s.state.Unlock()
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed != nil {
		return failed
	}
	if number <= s.calledOff {
		return wire.Errorf(wire.CodeBadRequest, "number", "branch %d has been called off", number)
	}
	s.table.Delay()
	s.setHolding(paused)
	err := s.users.Stop()
	if err == nil {
		err = s.runtimes.Stop()
	}
	if err != nil {
		return errors.Join(err, s.letGo(nil))
	}
	return nil
}
