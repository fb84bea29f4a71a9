package inside

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// TestNoDescriptorForADaemon: a cell whose process has no descriptor left for a daemon goes on
// with what it has, and hears the daemon when it has one.
func TestNoDescriptorForADaemon(t *testing.T) {
	s := newServer(t)
	c := listening(t, s)()
	restore := noDescriptors(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	select {
	case err := <-served:
		restore()
		t.Fatalf("it has ended: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	restore()
	if _, err := c.Write(wire.Opening(wire.Control)); err != nil {
		t.Fatal(err)
	}
	d := greeted(t, c)
	d.ask(wire.OpHello, wire.Hello{Cell: "a"})
	if m := d.answer(); m.Err != nil {
		t.Error(m.Err)
	}
	c.Close()
	s.Quit()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// listening has a cell listen, and returns what connects to it.
func listening(t *testing.T, s *Server) (dial func() *net.UnixConn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cell") // the name of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	name := &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"}
	if s.cfg.Listener, err = net.ListenUnix("unix", name); err != nil {
		t.Fatal(err)
	}
	return func() *net.UnixConn {
		c, err := net.DialUnix("unix", nil, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// TestDaemonsHaveTheirOrder: a daemon that has come later is not put out by one that came before and is
// only heard now, as several are that have come and gone while the process was stopped.
func TestDaemonsHaveTheirOrder(t *testing.T) {
	s := newServer(t)
	dial := listening(t, s)
	first, last := dial(), dial()
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	d := greeted(t, last)
	if _, err := last.Write(wire.Opening(wire.Control)); err != nil {
		t.Fatal(err)
	}
	d.ask(wire.OpHello, wire.Hello{Cell: "a"})
	time.Sleep(10 * time.Millisecond) // in which it would be heard
	if _, err := first.Write(wire.Opening(wire.Control)); err != nil {
		t.Fatal(err)
	}
	if err := first.CloseWrite(); err != nil { // as one that has ended
		t.Fatal(err)
	}
	if m := d.answer(); m.Err != nil {
		t.Error(m.Err)
	}
	// The other one is put out, and this one is not.
	first.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the first one hears %v", err)
	}
	d.ask(wire.OpHello, wire.Hello{Cell: "a"})
	if m := d.answer(); m.Err != nil {
		t.Error(m.Err)
	}
	last.Close()
	s.Quit()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestLastCall: a cell that was alone for too long hears a daemon that has come meanwhile: its process may
// have been stopped. If there is none it ends.
func TestLastCall(t *testing.T) {
	s := newServer(t)
	dial := listening(t, s)
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	c := dial()
	s.lonely()
	if _, err := c.Write(wire.Opening(wire.Control)); err != nil {
		t.Fatal(err)
	}
	d := greeted(t, c)
	for range 2 {
		d.ask(wire.OpHello, wire.Hello{Cell: "a"})
		if m := d.answer(); m.Err != nil {
			t.Error(m.Err)
		}
		time.Sleep(lastCall * 3 / 2)
	}
	c.Close()
	for s.attended() {
		time.Sleep(time.Millisecond)
	}
	s.lonely()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// attended reports whether a daemon is there.
func (s *Server) attended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.control != nil
}

// noDescriptors takes this process the right to more descriptors than it has, until restore
// is called.
func noDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	next, err := unix.Open("/dev/null", unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(next)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}
}

// TestToldBeforeItLists: what a daemon that is gone has told is done before the next one hears what there is, also if
// that comes when the end of the first one has been seen.
func TestToldBeforeItLists(t *testing.T) {
	s := newServer(t)
	addMachine(t, s, 7)
	usual := handlers[wire.OpClose]
	begun, goOn := make(chan struct{}), make(chan struct{})
	handlers[wire.OpClose] = handler{beside: true, do: func(s *Server, c *session, m *wire.Message) (*result, error) {
		close(begun)
		<-goOn
		return usual.do(s, c, m)
	}}
	defer func() { handlers[wire.OpClose] = usual }()
	first := connect(t, s)
	body, err := json.Marshal(wire.Ref{ID: 7})
	if err == nil {
		err = first.Send(&wire.Message{Op: wire.OpClose, Body: body})
	}
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	first.Close()
	time.Sleep(50 * time.Millisecond) // the end is seen
	time.AfterFunc(100*time.Millisecond, func() { close(goOn) })
	next := connect(t, s)
	next.ask(wire.OpList, wire.List{})
	var state wire.State
	if err := json.Unmarshal(next.answer().Body, &state); err != nil {
		t.Fatal(err)
	}
	if len(state.VMs) != 0 {
		t.Errorf("it tells of %d machines that it was told to close", len(state.VMs))
	}
}
