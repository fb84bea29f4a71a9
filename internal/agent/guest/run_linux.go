package guest

import (
	"errors"

	"github.com/forkd-dev/forkd/internal/agent/warm"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// runCode runs code in a runtime without a port of its own: OK, output and Display frames, RunEnd. If the runtime's process
// ends, so does the connection, as it would be if the runtime had one.
func (s *session) runCode(req wire.RelayedRun) error {
	if err := s.warm.Runs(req); err != nil {
		return err
	}
	if err := s.out.Frame(wire.TypeOK, nil); err != nil {
		return nil // the client has left
	}
	err := s.warm.Run(req, s.out, s.disconnected())
	if errors.Is(err, warm.ErrLost) {
		return nil
	}
	return err
}
