package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Stream is one of a command's output streams.
type Stream int

// The streams.
const (
	Stdout   Stream = 1
	Stderr   Stream = 2
	Terminal Stream = 3 // of a process that has a terminal; both of the others
)

var streams = map[wire.Type]Stream{wire.TypeStdout: Stdout, wire.TypeStderr: Stderr, wire.TypeTerminal: Terminal}

// Chunk is a piece of output as it was produced. It may end in the middle of a character.
type Chunk struct {
	Stream Stream
	Data   []byte // valid until the next Recv
}

// Process is a command in the guest. Recv, or Wait, must be called until the end; the other methods may be called by other
// goroutines meanwhile. Closing it, or ending its context, kills the command and all that it started.
type Process struct {
	ID  uint64
	PID int

	call *call
	exit *wire.Exit

	mu     sync.Mutex // guards what follows
	change sync.Cond
	window int  // bytes of standard input that may be sent
	closed bool // standard input has ended
}

// Exec starts a command.
func (c *Client) Exec(ctx context.Context, req wire.ExecRequest) (*Process, error) {
	call, err := c.openLong(ctx, wire.OpExec, req)
	if err != nil {
		return nil, err
	}
	started, err := decode[wire.ExecStarted](call.reply)
	if err != nil {
		call.close()
		return nil, err
	}
	p := &Process{ID: started.ID, PID: started.PID, call: call, window: wire.StdinWindow, closed: !req.Stdin}
	p.change.L = &p.mu
	return p, nil
}

// Recv returns the next piece of output, or io.EOF when the command has ended and Exit is known.
func (p *Process) Recv() (Chunk, error) {
	for p.exit == nil {
		kind, payload, err := p.call.next()
		if err != nil {
			p.endStdin()
			return Chunk{}, err
		}
		switch kind {
		case wire.TypeStdout:
			return Chunk{Stdout, payload}, nil
		case wire.TypeStderr:
			return Chunk{Stderr, payload}, nil
		case wire.TypeCredit:
			err = p.credit(payload)
		case wire.TypeExit:
			var exit wire.Exit
			if exit, err = decode[wire.Exit](payload); err == nil {
				p.exit = &exit
				p.endStdin()
				p.call.close()
			}
		default:
			err = p.call.unexpected(kind)
		}
		if err != nil {
			p.endStdin()
			return Chunk{}, err
		}
	}
	return Chunk{}, io.EOF
}

// Exit returns how the command ended. Precondition: Recv has returned io.EOF.
func (p *Process) Exit() wire.Exit {
	if p.exit == nil {
		panic("BUG: the command has not ended")
	}
	return *p.exit
}

// Wait passes output on to the writers, either of which may be nil, until the command ends. A writer that fails ends it.
func (p *Process) Wait(stdout, stderr io.Writer) (wire.Exit, error) {
	defer p.Close()
	for {
		chunk, err := p.Recv()
		if err == io.EOF {
			return p.Exit(), nil
		}
		if err != nil {
			return wire.Exit{}, err
		}
		w := stdout
		if chunk.Stream == Stderr {
			w = stderr
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(chunk.Data); err != nil {
			return wire.Exit{}, err
		}
	}
}

// Write sends standard input. It waits while the command does not read, and needs Recv to be called meanwhile. After
// CloseStdin, or the end of the command, it returns io.ErrClosedPipe.
func (p *Process) Write(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		n, err := p.reserve(min(len(b)-sent, wire.MaxData))
		if err != nil {
			return sent, err
		}
		if err := p.call.out.Frame(wire.TypeStdin, b[sent:sent+n]); err != nil {
			return sent, lost(p.call.ctx, err)
		}
		sent += n
	}
	return sent, nil
}

// CloseStdin ends standard input.
func (p *Process) CloseStdin() error {
	if !p.endStdin() {
		return io.ErrClosedPipe
	}
	if err := p.call.out.Frame(wire.TypeStdinEnd, nil); err != nil {
		return lost(p.call.ctx, err)
	}
	return nil
}

// Signal sends a signal to the command's process group; SIGKILL (9) to everything that it started.
func (p *Process) Signal(number int) error {
	if err := p.call.out.JSON(wire.TypeSignal, wire.SignalRequest{Signal: number}); err != nil {
		return lost(p.call.ctx, err)
	}
	return nil
}

// Close gives the command up.
func (p *Process) Close() error {
	p.endStdin()
	p.call.close()
	return nil
}

func (p *Process) endStdin() (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first = !p.closed
	p.closed = true
	p.change.Broadcast()
	return first
}

// reserve waits until something may be sent and takes at most n bytes from the window.
func (p *Process) reserve(n int) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.window == 0 && !p.closed {
		p.change.Wait()
	}
	if p.closed {
		return 0, io.ErrClosedPipe
	}
	n = min(n, p.window)
	p.window -= n
	return n, nil
}

func (p *Process) credit(payload []byte) error {
	if len(payload) != 4 {
		return p.call.unexpected(wire.TypeCredit)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := binary.LittleEndian.Uint32(payload)
	if uint64(n) > uint64(wire.StdinWindow-p.window) {
		return p.call.unexpected(wire.TypeCredit)
	}
	p.window += int(n)
	p.change.Broadcast()
	return nil
}

// Streams are the host's ends of a command's standard streams; each may be nil.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Run runs a command to its end. It does not wait for a Stdin that has more to say than the command wants to hear.
func (c *Client) Run(ctx context.Context, req wire.ExecRequest, streams Streams) (wire.Exit, error) {
	req.Stdin = streams.Stdin != nil
	p, err := c.Exec(ctx, req)
	if err != nil {
		return wire.Exit{}, err
	}
	if !req.Stdin {
		return p.Wait(streams.Stdout, streams.Stderr)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{p}, streams.Stdin, make([]byte, wire.MaxData))
		if err != nil && !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, ErrLost) {
			failed <- err // reading from the caller's stdin failed: the command must not take what came as all there is
			p.Close()
			return
		}
		_ = p.CloseStdin()
	}()
	exit, err := p.Wait(streams.Stdout, streams.Stderr)
	select {
	case cause := <-failed:
		if err != nil {
			return exit, cause
		}
	default:
	}
	return exit, err
}
