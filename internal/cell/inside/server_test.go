package inside

import (
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
	dir, err := os.MkdirTemp("", "cell") // the name of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"}
	if s.cfg.Listener, err = net.ListenUnix("unix", name); err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUnix("unix", nil, name)
	if err != nil {
		t.Fatal(err)
	}
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
