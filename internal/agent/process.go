package agent

import (
	"context"
	"io"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Attachment is somebody who listens to a kept process. The process waits for whoever listens to it and does not call Recv.
// Recv and Exit belong to one goroutine; Close may be called by another. Closing it, or ending its context, does nothing to
// the process.
type Attachment struct {
	Info wire.ProcessInfo // as it was when this began

	call *call
	exit *wire.Exit
}

// StartProcess starts a kept process and attaches to it from the first byte. The context is for the attachment.
func (c *Client) StartProcess(ctx context.Context, req wire.ExecRequest) (*Attachment, error) {
	req.Keep = true
	call, err := c.openLong(ctx, wire.OpExec, req)
	if err != nil {
		return nil, err
	}
	started, err := decode[wire.ExecStarted](call.reply)
	if err != nil {
		call.close()
		return nil, err
	}
	return &Attachment{call: call, Info: wire.ProcessInfo{
		PID: started.PID, Tag: req.Tag, Argv: req.Argv, Env: req.Env, Cwd: started.Cwd, User: req.User, TTY: req.TTY, Stdin: req.Stdin || req.TTY != nil,
		StartedNS: started.StartedNS,
	}}, nil
}

// AttachProcess attaches to a kept process, from now on. Of one that has ended, Recv returns io.EOF at once. The context is
// for the attachment.
func (c *Client) AttachProcess(ctx context.Context, ref wire.ProcessRef) (*Attachment, error) {
	call, err := c.openLong(ctx, wire.OpAttach, ref)
	if err != nil {
		return nil, err
	}
	info, err := decode[wire.ProcessInfo](call.reply)
	if err != nil {
		call.close()
		return nil, err
	}
	return &Attachment{Info: info, call: call}, nil
}

// Recv returns the next piece of output, or io.EOF when the process has ended and Exit is known.
func (a *Attachment) Recv() (Chunk, error) {
	if a.exit != nil {
		return Chunk{}, io.EOF
	}
	kind, payload, err := a.call.next()
	if err != nil {
		return Chunk{}, err
	}
	if stream, ok := streams[kind]; ok {
		return Chunk{stream, payload}, nil
	}
	if kind != wire.TypeExit {
		return Chunk{}, a.call.unexpected(kind)
	}
	exit, err := decode[wire.Exit](payload)
	if err != nil {
		return Chunk{}, err
	}
	a.exit = &exit
	a.call.close()
	return Chunk{}, io.EOF
}

// Exit returns how the process ended. Precondition: Recv has returned io.EOF.
func (a *Attachment) Exit() wire.Exit {
	if a.exit == nil {
		panic("BUG: the process has not ended")
	}
	return *a.exit
}

// Close stops listening. The process goes on.
func (a *Attachment) Close() error {
	a.call.close()
	return nil
}

// Limits of what Processes takes from a guest.
const (
	maxProcesses     = 1 << 16
	maxProcessesSize = 64 << 20 // bytes of JSON
)

// Processes returns the kept processes: those that run by PID, then those that have ended, the last one first.
func (c *Client) Processes(ctx context.Context) ([]wire.ProcessInfo, error) {
	call, err := c.open(ctx, wire.OpProcesses, nil)
	if err != nil {
		return nil, err
	}
	defer call.close()
	return collect[wire.ProcessInfo](call, wire.TypeProcesses, maxProcesses, maxProcessesSize)
}

// WriteProcess writes to the standard input, or the terminal, of a kept process. It returns when the guest has taken all of
// it, which the process need not have read yet. The error has code CodeClosed if the input has ended.
func (c *Client) WriteProcess(ctx context.Context, ref wire.ProcessRef, data []byte) error {
	for {
		n := min(len(data), wire.StdinWindow)
		if err := c.input(ctx, ref, data[:n], wire.TypeEnd); err != nil {
			return err
		}
		if data = data[n:]; len(data) == 0 {
			return nil
		}
	}
}

// CloseProcessInput ends the standard input of a kept process. That of a terminal cannot be ended.
func (c *Client) CloseProcessInput(ctx context.Context, ref wire.ProcessRef) error {
	return c.input(ctx, ref, nil, wire.TypeStdinEnd)
}

// input sends data, at most a window of it, and then a frame of type end.
func (c *Client) input(ctx context.Context, ref wire.ProcessRef, data []byte, end wire.Type) error {
	payload, err := wire.EncodeRequest(wire.OpInput, ref)
	if err != nil {
		return err
	}
	frames := wire.AppendFrame(nil, wire.TypeRequest, payload)
	for len(data) > 0 {
		n := min(len(data), wire.MaxData)
		frames = wire.AppendFrame(frames, wire.TypeStdin, data[:n])
		data = data[n:]
	}
	call, err := c.send(ctx, wire.AppendFrame(frames, end, nil))
	if err != nil {
		return err
	}
	call.close()
	return nil
}

// SignalProcess sends a signal to the process group of a kept process; SIGKILL (9) to everything that it started.
func (c *Client) SignalProcess(ctx context.Context, ref wire.ProcessRef, signal int) error {
	return c.order(ctx, wire.OpSignal, wire.ProcessSignal{ProcessRef: ref, SignalRequest: wire.SignalRequest{Signal: signal}})
}

// ResizeProcess gives the terminal of a kept process another size.
func (c *Client) ResizeProcess(ctx context.Context, ref wire.ProcessRef, size wire.TTY) error {
	return c.order(ctx, wire.OpResize, wire.ResizeRequest{ProcessRef: ref, TTY: size})
}
