package inside

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
)

// newServer returns a cell that listens to nobody; see connect.
func newServer(t *testing.T) *Server {
	t.Helper()
	scratch, err := os.Create(t.TempDir() + "/scratch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { scratch.Close() })
	s, err := New(Config{Name: "a", NewEngine: func() engine.Engine { return soft.New(0) }, Scratch: scratch})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// addMachine makes a machine that counts when it is started.
func addMachine(t *testing.T, s *Server, id uint64) *vm {
	t.Helper()
	ram, disk := page.NewStack(board.MinRAMBytes/page.Size), page.NewStack(16)
	defer ram.Release()
	defer disk.Release()
	v := &vm{id: id}
	err := s.make(v, machine.Config{
		Engine: s.engine(1), VCPUs: 1, Memory: page.NewOverlay(ram, s.memory, 0), Root: disk, Scratch: page.NewOverlay(disk, s.scratch, 0),
		Console: io.Discard, Boot: &machine.Boot{Kernel: machinetest.Kernel(machinetest.Count)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// pair returns the two ends of a connection.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

// daemon is the other end of a control connection.
type daemon struct {
	*wire.Conn
	t    *testing.T
	last uint64
}

func connect(t *testing.T, s *Server) *daemon {
	t.Helper()
	ours, theirs := pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serveControl(wire.NewConn(theirs), func() {})
	}()
	t.Cleanup(func() {
		ours.Close()
		<-done
	})
	return greeted(t, ours)
}

// greeted returns the daemon at the end of a connection that the cell serves.
func greeted(t *testing.T, c *net.UnixConn) *daemon {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &daemon{Conn: wire.NewConn(c), t: t}
}

// ask sends a request and returns its number.
func (d *daemon) ask(op wire.Op, body any) uint64 {
	d.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		d.t.Fatal(err)
	}
	d.last++
	if err := d.Send(&wire.Message{ID: d.last, Op: op, Body: b}); err != nil {
		d.t.Fatal(err)
	}
	return d.last
}

// answer returns the next answer.
func (d *daemon) answer() *wire.Message {
	d.t.Helper()
	m, err := d.Receive()
	if err != nil {
		d.t.Fatal(err)
	}
	return m
}
