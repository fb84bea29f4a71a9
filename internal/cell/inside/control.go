package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/page"
)

// result is what a handler returns: the body and the blob of an answer, and files. rest is
// what else there is to do before the answer, beside what follows on the connection; nil:
// nothing.
type result struct {
	body  any
	blob  []byte
	files []*os.File
	rest  func() error
}

// handler does what one op asks for. beside tells that it may take time and does not
// have to come ahead of what follows it on the connection.
type handler struct {
	do     func(s *Server, c *session, m *wire.Message) (*result, error)
	beside bool
}

// handlers are all that a daemon may ask for. Notices are taken up in order.
var handlers = map[wire.Op]handler{
	wire.OpHello:  {do: with((*Server).hello)},
	wire.OpList:   {do: with((*Server).list)},
	wire.OpLayer:  {do: with((*Server).addLayer)},
	wire.OpForget: {do: with((*Server).forgetLayer)},
	wire.OpSource: {do: with((*Server).addSource)},
	wire.OpDrop:   {do: with((*Server).dropSource)},
	wire.OpFork:   {do: with((*Server).fork), beside: true},
	wire.OpBoot:   {do: with((*Server).boot), beside: true},
	wire.OpStart:  {do: with((*Server).start), beside: true},
	wire.OpPause:  {do: with((*Server).pause), beside: true},
	wire.OpCut:    {do: with((*Server).cut), beside: true},
	wire.OpStacks: {do: with((*Server).stacksOf)},
	wire.OpFiles:  {do: with((*Server).files), beside: true},
	wire.OpFetch:  {do: with((*Server).fetch), beside: true},
	wire.OpReturn: {do: with((*Server).stateOf)},
	wire.OpFile:   {do: with((*Server).fileOf)},
	wire.OpPin:    {do: pin},
	wire.OpNote:   {do: with((*Server).note)},
	wire.OpStats:  {do: with((*Server).stats), beside: true},
	wire.OpClose:  {do: with((*Server).closeVM), beside: true},
	wire.OpQuit:   {do: func(s *Server, _ *session, _ *wire.Message) (*result, error) { s.Quit(); return nil, nil }},
}

// with decodes the body of a message for a handler, and closes the files that the
// handler leaves in it. A page that the handler cannot read is an error of the request.
func with[B any](do func(*Server, *wire.Message, B) (*result, error)) func(*Server, *session, *wire.Message) (*result, error) {
	return func(s *Server, _ *session, m *wire.Message) (*result, error) {
		defer func() { closeFiles(m.Files) }()
		var body B
		if err := json.Unmarshal(m.Body, &body); err != nil {
			return nil, fmt.Errorf("malformed body of %s: %w", m.Op, err)
		}
		var r *result
		err := page.Guard(func() (err error) {
			r, err = do(s, m, body)
			return err
		})
		return r, err
	}
}

// take returns the i-th file of a message, which is the caller's from now on.
func take(m *wire.Message, i int) (*os.File, error) {
	if i >= len(m.Files) || m.Files[i] == nil {
		return nil, errors.New("a file is missing")
	}
	f := m.Files[i]
	m.Files[i] = nil
	return f, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// answer answers a request. A notice that failed shows in what builds upon it.
func (s *Server) answer(c *wire.Conn, m *wire.Message, r *result, err error) {
	if m.ID == 0 {
		if err != nil {
			fmt.Fprintf(os.Stderr, "forkd cell: %s: %v\n", m.Op, err)
		}
		return
	}
	reply := &wire.Message{ID: m.ID, Err: wire.ToError(err)}
	if err == nil && r != nil {
		reply.Blob, reply.Files = r.blob, r.files
		if reply.Body, err = json.Marshal(r.body); err != nil {
			reply.Err = wire.ToError(err)
		}
	}
	err = c.Send(reply)
	if errors.Is(err, wire.ErrTooLong) {
		err = c.Send(&wire.Message{ID: m.ID, Err: wire.ToError(err)})
	}
	unsent(c, err)
}

// send tells the daemon something, if there is one.
func (s *Server) send(m *wire.Message) {
	s.mu.Lock()
	c := s.control
	s.mu.Unlock()
	if c == nil {
		return
	}
	if err := c.Send(m); m.Op != wire.OpConsole || !errors.Is(err, wire.ErrBehind) {
		unsent(c.Conn, err)
	}
}

// unsent ends a connection on which something could not be sent. If it is the daemon that has
// ended it, what it has said before is to be done all the same, and then its end is seen.
func unsent(c *wire.Conn, err error) {
	if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		c.Close()
	}
}
