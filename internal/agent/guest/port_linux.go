package guest

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// dialPatience is how long a port may take to accept a connection: its queue is full, or its program is very busy.
const dialPatience = 10 * time.Second

// dial connects the client to a TCP port: OK, then raw bytes both ways, of which each can end alone.
func (s *session) dial(req wire.DialRequest) error {
	if req.Port == 0 {
		return wire.Errorf(wire.CodeBadRequest, "port", "there is no port 0")
	}
	port, err := quiet.DialLoopback(req.Port, dialPatience)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return wire.Errorf(wire.CodeRefused, "port", "nothing listens on port %d", req.Port)
	case err != nil:
		return wire.Errorf(wire.CodeExhausted, "port", "connecting to port %d: %v", req.Port, err)
	}
	defer port.Close()
	if err := s.out.Frame(wire.TypeOK, nil); err != nil {
		return nil // the client is gone
	}
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		port.Relay(s.conn)
	}()
	early, _ := s.buffer.Peek(s.buffer.Buffered()) // cannot fail
	if _, err := port.Write(early); err == nil {
		s.conn.Relay(port)
	}
	<-answers
	return nil
}
