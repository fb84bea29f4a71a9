package cell

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/inside"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/jail"
)

// Descriptors that the process of a cell begins with, besides its standard streams.
const (
	ListenerFD = 3
	ScratchFD  = 4
	DeviceFD   = 5 // if there is one; see Program.Device
)

// Program starts cells as processes: this program, with arguments and a name.
type Program struct {
	// Jail is what they are confined by; nil: by nothing.
	Jail *jail.Jailer
	Args []string // the first is the program's own name
	// Env is all that the process has as its environment: tokens above all are no business
	// of a cell's.
	Env []string
	// Device is what machines run on, opened; nil: nothing of the host's.
	Device *os.File
	// Log takes what cells have to say; nil discards it. It must not be a pipe.
	Log *os.File
}

// Launch starts a process (Launcher).
func (p *Program) Launch(name string, l *net.UnixListener, scratch *os.File) (*process, error) {
	socket, err := l.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	cmd := exec.Command(jail.Self)
	cmd.Args = append(slices.Clone(p.Args), name)
	cmd.ExtraFiles = []*os.File{socket, scratch}
	if p.Device != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, p.Device)
	}
	if p.Log != nil {
		cmd.Stderr = p.Log
	}
	cmd.Env = append([]string{}, p.Env...) // nil would be everything
	started := new(process)
	if p.Jail != nil {
		started.inmate, err = p.Jail.Start(cmd, jail.Spec{Name: name})
	} else {
		// A session of its own: what ends the daemon does not end it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	started.started = cmd.Process
	started.watch()
	if started.identity, err = identify(cmd.Process.Pid); err != nil {
		return nil, fmt.Errorf("identifying process %d: %w", cmd.Process.Pid, err)
	}
	return started, nil
}

// Confines is that of Launcher.
func (p *Program) Confines() bool { return p.Jail != nil }

// Close is that of Launcher.
func (p *Program) Close() {
	if p.Jail != nil {
		p.Jail.Close()
	}
}

// Recover takes over processes that an earlier daemon has started, and ends those that
// are not known by their names (Launcher).
func (p *Program) Recover(ctx context.Context, known []*jail.Process) error {
	if p.Jail == nil {
		return nil
	}
	names := make(map[string]bool)
	for _, inmate := range known {
		p.Jail.Adopt(inmate)
		names[inmate.Name] = true
	}
	_, err := p.Jail.Sweep(ctx, func(name string) bool { return names[name] })
	return err
}

// Within runs cells in this process: for tests, which want no other.
type Within struct {
	NewEngine func() engine.Engine
}

// Recover, Confines and Close have nothing to do (Launcher).
func (*Within) Recover(context.Context, []*jail.Process) error { return nil }
func (*Within) Confines() bool                                 { return false }
func (*Within) Close()                                         {}

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
