package sandbox

import (
	"context"
	"net"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// actor plays the agent of a machine in which nothing runs, for tests of what a guest may do. It
// has an answer for each operation that it understands, after which it closes the connection.
type actor map[wire.Op]func(in *wire.Reader, out *wire.Writer)

// play makes a sandbox of a bare snapshot one that is awake and has the actor as its agent.
func (a actor) play(t *testing.T, b *box) {
	t.Helper()
	b.wakeOnce.Do(func() {
		b.agent = agent.NewClient(func(context.Context, uint32) (net.Conn, error) {
			host, guest := net.Pipe()
			go a.answer(guest)
			return host, nil
		})
		close(b.called)
		close(b.awake)
	})
}

func (a actor) answer(c net.Conn) {
	defer c.Close()
	in, out := wire.NewReader(c), wire.NewWriter(c)
	_, payload, err := in.Next()
	if err != nil {
		return
	}
	if r, err := wire.DecodeRequest(payload); err == nil && a[r.Op] != nil {
		a[r.Op](in, out)
	}
}

// agree is the answer of a guest that does what it is asked for.
func agree(_ *wire.Reader, out *wire.Writer) { out.Frame(wire.TypeOK, nil) }

// standStill is the answer to OpBranch of a guest that does what it is asked for.
func standStill(in *wire.Reader, out *wire.Writer) {
	out.Frame(wire.TypeOK, nil)
	if kind, _, err := in.Next(); err == nil && kind == wire.TypeRelease {
		out.JSON(wire.TypeOK, wire.Released{HeldNS: 1})
	}
}
