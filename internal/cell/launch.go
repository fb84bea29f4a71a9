package cell

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/inside"
	"github.com/forkd-dev/forkd/internal/engine"
)

// Descriptors that the process of a cell begins with, besides its standard streams.
const (
	ListenerFD = 3
	ScratchFD  = 4
)

// Program starts cells as processes: `Path Args... NAME`, with the descriptors above.
type Program struct {
	Path string
	Args []string
	// Env is all that the process has as its environment: tokens above all are no business
	// of a cell's.
	Env []string
	// Log takes what cells have to say; nil discards it.
	Log *os.File
}

// Launch starts a process (Launcher).
func (p *Program) Launch(name string, l *net.UnixListener, scratch *os.File) (*process, error) {
	socket, err := l.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	cmd := exec.Command(p.Path, append(p.Args, name)...)
	cmd.ExtraFiles = []*os.File{socket, scratch}
	cmd.Stderr = p.Log
	cmd.Env = append([]string{}, p.Env...) // nil would be everything
	cmd.Dir = "/"
	// A session of its own: what ends the daemon does not end it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	started := &process{started: cmd.Process}
	started.watch()
	if started.identity, err = identify(cmd.Process.Pid); err != nil {
		return nil, fmt.Errorf("identifying process %d: %w", cmd.Process.Pid, err)
	}
	return started, nil
}

// Within runs cells in this process: for tests, which want no other.
type Within struct {
	NewEngine func() engine.Engine
}

// Launch runs a cell (Launcher).
func (w *Within) Launch(name string, l *net.UnixListener, scratch *os.File) (*process, error) {
	socket, err := l.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	again, err := net.FileListener(socket)
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Dup(int(scratch.Fd()))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	s, err := inside.New(inside.Config{
		Name: name, Listener: again.(*net.UnixListener), NewEngine: w.NewEngine, Scratch: os.NewFile(uintptr(fd), scratch.Name()),
		Idle: time.Minute, Alone: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	p := &process{inside: true, exited: make(chan struct{})}
	if p.identity, err = identify(os.Getpid()); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		_ = s.Serve() // ends with the test
	}()
	return p, nil
}
