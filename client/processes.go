package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/forkd-dev/forkd/api"
)

// ProcessRef names a process of a sandbox: by its PID or, if that is zero, by its
// tag. Of several with a tag it is the youngest.
type ProcessRef struct {
	PID int
	Tag string
}

func (r ProcessRef) String() string {
	if r.PID != 0 {
		return strconv.Itoa(r.PID)
	}
	return "@" + r.Tag
}

// OutputKind tells where output comes from.
type OutputKind int

// The kinds of output.
const (
	Stdout OutputKind = iota + 1
	Stderr
	Terminal
)

// Output is a piece of what a process writes. It may end within a character.
type Output struct {
	Kind OutputKind
	Data []byte
}

// StartProcess starts a process that lives on its own, and listens to it from its
// first output. It survives the end of ctx, which ends the listening only.
func (c *Client) StartProcess(ctx context.Context, id string, req ProcessRequest) (*Attachment, error) {
	req.Detach = false
	resp, err := c.rest.StartProcess(ctx, id, req)
	return c.attachment(resp, err)
}

// SpawnProcess starts a process and does not listen to it.
func (c *Client) SpawnProcess(ctx context.Context, id string, req ProcessRequest) (*Process, error) {
	req.Detach = true
	var out Process
	resp, err := c.rest.StartProcess(ctx, id, req)
	if err := c.decode(&out, resp, err, http.StatusCreated); err != nil {
		return nil, err
	}
	return &out, nil
}

// AttachProcess listens to a process from now on. Of one that has ended some minutes
// ago at most, Recv returns io.EOF at once.
func (c *Client) AttachProcess(ctx context.Context, id string, ref ProcessRef) (*Attachment, error) {
	resp, err := c.rest.AttachProcess(ctx, id, ref.String())
	return c.attachment(resp, err)
}

// Processes lists the processes that were started to live on their own, running
// ones first.
func (c *Client) Processes(ctx context.Context, id string) ([]Process, error) {
	var out []Process
	resp, err := c.rest.ListProcesses(ctx, id)
	return out, c.decode(&out, resp, err, http.StatusOK)
}

// maxStart is how long the line of an event may be. The first one has the
// arguments and the environment of the process.
const maxStart = 16 << 20

// maxInput is how much input one request carries.
const maxInput = 1 << 20

// WriteProcess writes to the standard input or the terminal of a process.
func (c *Client) WriteProcess(ctx context.Context, id string, ref ProcessRef, data []byte) error {
	for {
		n := min(len(data), maxInput)
		err := c.done(c.rest.WriteProcessWithBody(ctx, id, ref.String(), bytesType, bytes.NewReader(data[:n])))
		if data = data[n:]; err != nil || len(data) == 0 {
			return err
		}
	}
}

// CloseProcessInput ends the standard input of a process.
func (c *Client) CloseProcessInput(ctx context.Context, id string, ref ProcessRef) error {
	return c.done(c.rest.CloseProcessInput(ctx, id, ref.String()))
}

// SignalProcess sends a signal, by its name or number, to a process and what it has
// started.
func (c *Client) SignalProcess(ctx context.Context, id string, ref ProcessRef, signal string) error {
	return c.done(c.rest.SignalProcess(ctx, id, ref.String(), api.SignalRequest{Signal: signal}))
}

// ResizeProcess changes the size of a process's terminal.
func (c *Client) ResizeProcess(ctx context.Context, id string, ref ProcessRef, size TTY) error {
	return c.done(c.rest.ResizeProcess(ctx, id, ref.String(), size))
}

// Attachment is somebody who listens to a process. Close it. Its methods but Close
// belong to one goroutine.
type Attachment struct {
	Process Process // as it was when this began

	client *Client
	resp   *http.Response
	lines  *lineReader
	exit   *ProcessExit
}

// attachment reads the first event of a stream.
func (c *Client) attachment(resp *http.Response, err error) (*Attachment, error) {
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	a := &Attachment{client: c, resp: resp, lines: newLineReader(resp.Body)}
	a.lines.max = maxStart
	event, err := a.next()
	if err == nil && event.Start == nil {
		err = errors.New("the daemon's stream does not begin with the process")
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	a.Process = *event.Start
	return a, nil
}

func (a *Attachment) next() (*api.ProcessEvent, error) {
	event := new(api.ProcessEvent)
	if err := a.lines.next(event); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("listening to the process: %w", a.client.transportError(err))
	}
	if event.Error != nil {
		return nil, fromBody(0, event.Error)
	}
	return event, nil
}

// Recv returns the next output; io.EOF when the process has ended and Exit is known.
func (a *Attachment) Recv() (Output, error) {
	for a.exit == nil {
		event, err := a.next()
		if err != nil {
			return Output{}, err
		}
		if a.exit = event.Exit; a.exit != nil {
			drain(a.resp) // the connection can be used again
		}
		for kind, part := range map[OutputKind]struct {
			text  string
			bytes []byte
		}{
			Stdout:   {event.Stdout, event.StdoutB64},
			Stderr:   {event.Stderr, event.StderrB64},
			Terminal: {event.Terminal, event.TerminalB64},
		} {
			if part.bytes != nil {
				return Output{kind, part.bytes}, nil
			}
			if part.text != "" {
				return Output{kind, []byte(part.text)}, nil
			}
		}
	}
	return Output{}, io.EOF
}

// Exit returns how the process ended; nil before Recv has returned io.EOF.
func (a *Attachment) Exit() *ProcessExit { return a.exit }

// Wait writes the output, a terminal's to stdout, until the process has ended.
// Either may be nil.
func (a *Attachment) Wait(stdout, stderr io.Writer) (*ProcessExit, error) {
	for {
		out, err := a.Recv()
		if err == io.EOF {
			return a.exit, nil
		}
		if err != nil {
			return nil, err
		}
		w := stdout
		if out.Kind == Stderr {
			w = stderr
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(out.Data); err != nil {
			return nil, fmt.Errorf("passing the process's output on: %w", err)
		}
	}
}

// Close stops listening. The process goes on.
func (a *Attachment) Close() error { return a.resp.Body.Close() }
