package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/forkd-dev/forkd/client"
)

// leaveKey is Ctrl-], which leaves a terminal in a sandbox.
const leaveKey = 0x1d

// The size of a terminal in a sandbox when there is none here.
const (
	plainCols = 80
	plainRows = 24
)

// errLeft ends a session in which the user has left.
var errLeft = errors.New("left")

// session joins our streams with those of a process in a sandbox.
type session struct {
	io      *Streams
	client  *client.Client
	id      string
	process *client.Attachment
	ends    bool // end the process if we are ended
}

func (s *session) ref() client.ProcessRef { return client.ProcessRef{PID: s.process.Process.PID} }

// run passes input and output on until the process ends, and gives its exit status as
// an error.
func (s *session) run(ctx context.Context, input bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	keyboard := input && s.io.InTTY && s.process.Process.TTY
	restore := func() {}
	if keyboard {
		var err error
		if restore, err = s.takeOver(ctx); err != nil {
			return err
		}
	}
	defer restore()
	if input {
		go func() {
			if err := s.feed(ctx, keyboard); err != nil {
				cancel(err)
			}
		}()
	}
	stop := context.AfterFunc(ctx, func() { s.process.Close() })
	defer stop()
	exit, err := s.process.Wait(s.io.Out, s.io.Err)
	switch cause := context.Cause(ctx); {
	case err == nil:
		return exitStatus(exit.ExitCode, exit.TimedOut)
	case errors.Is(cause, errLeft):
		restore()
		fmt.Fprintf(s.io.Err, "forkd: left process %[1]d, which goes on; `forkd attach -c %[2]s %[1]d` comes back\n", s.process.Process.PID, s.id)
		return nil
	case s.ends:
		s.hangUp(ctx)
		return cmp.Or(cause, err)
	default:
		return cmp.Or(cause, err)
	}
}

// hangUp does what the end of a terminal does to its processes.
func (s *session) hangUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	if err := s.client.SignalProcess(ctx, s.id, s.ref(), "SIGHUP"); err != nil && !client.IsCode(err, "not_found") {
		fmt.Fprintf(s.io.Err, "forkd: ending process %d: %v\n", s.process.Process.PID, err)
	}
}

// takeOver makes our terminal the screen and keyboard of the one in the sandbox.
func (s *session) takeOver(ctx context.Context) (restore func(), err error) {
	file, ok := s.io.In.(*os.File)
	if !ok {
		return func() {}, nil
	}
	fd := int(file.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("taking over the terminal: %w", err)
	}
	resized := resizes(ctx)
	go func() {
		for range resized {
			if cols, rows, err := term.GetSize(fd); err == nil && cols > 0 && rows > 0 {
				s.client.ResizeProcess(ctx, s.id, s.ref(), client.TTY{Cols: cols, Rows: rows})
			}
		}
	}()
	return sync.OnceFunc(func() { term.Restore(fd, before) }), nil
}

// feed passes our input on. Its end is that of the process's input; on a terminal it
// is the key that stands for that.
func (s *session) feed(ctx context.Context, keyboard bool) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.io.In.Read(buf)
		data := buf[:n]
		left := false
		if keyboard {
			data, _, left = bytes.Cut(data, []byte{leaveKey})
		}
		if len(data) > 0 {
			if err := s.client.WriteProcess(ctx, s.id, s.ref(), data); err != nil {
				return ended(err)
			}
		}
		switch {
		case left:
			return errLeft
		case err == io.EOF && s.process.Process.TTY:
			return ended(s.client.WriteProcess(ctx, s.id, s.ref(), []byte{4}))
		case err == io.EOF:
			return ended(s.client.CloseProcessInput(ctx, s.id, s.ref()))
		case err != nil:
			return fmt.Errorf("reading standard input: %w", err)
		}
	}
}

// ended forgives input for a process that does not read any, or has ended: how is
// told by its stream.
func ended(err error) error {
	if client.IsCode(err, "failed_precondition") || client.IsCode(err, "not_found") {
		return nil
	}
	return err
}

// collect prints the outcome and the output as JSON at the end.
func (s *session) collect() error {
	var stdout, stderr collector
	exit, err := s.process.Wait(&stdout, &stderr)
	if err != nil {
		return err
	}
	out := struct {
		client.Process
		Stdout    string `json:"stdout"`
		StdoutB64 []byte `json:"stdout_b64,omitempty"`
		Stderr    string `json:"stderr"`
		StderrB64 []byte `json:"stderr_b64,omitempty"`
	}{Process: s.process.Process}
	out.Exit = exit
	out.Stdout, out.StdoutB64 = stdout.text()
	out.Stderr, out.StderrB64 = stderr.text()
	if err := s.io.json(out); err != nil {
		return err
	}
	return exitStatus(exit.ExitCode, exit.TimedOut)
}

// size is that of our terminal, or a usual one.
func (s *Streams) size() client.TTY {
	for _, stream := range []any{s.In, s.Out} {
		if file, ok := stream.(*os.File); ok {
			if cols, rows, err := term.GetSize(int(file.Fd())); err == nil && cols > 0 && rows > 0 {
				return client.TTY{Cols: cols, Rows: rows}
			}
		}
	}
	return client.TTY{Cols: plainCols, Rows: plainRows}
}
