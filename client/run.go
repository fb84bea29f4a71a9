package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/forkd-dev/forkd/api"
)

const (
	linesType = "application/x-ndjson"
	maxLine   = 1 << 20
	// maxPiece is how much standard input one line carries; base64 and JSON
	// escapes keep it well under maxLine.
	maxPiece = 32 << 10
)

// Command is a command with streams.
type Command struct {
	Args        []string
	Env         map[string]string
	Cwd         string
	User        string        // a name or uid[:gid]; empty: root
	Timeout     time.Duration // zero: none
	OutputLimit int64         // bytes per stream; zero: none
	Stdin       io.Reader     // nil: empty
	Stdout      io.Writer     // nil: dropped
	Stderr      io.Writer     // nil: dropped
}

// Run runs a command, passing its input and output on as they come, and returns
// how it ended. Its exit code is part of the answer, not an error. When ctx ends
// or a writer fails, the command and all its processes are killed.
//
// A Read of Stdin that blocks outlives Run; whoever needs it back must make it
// return.
func (c *Client) Run(ctx context.Context, id string, cmd Command) (*ExecExit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := newCommandBody(ctx, &cmd)
	if err != nil {
		return nil, err
	}
	resp, err := c.rest.ExecSandboxStreamWithBody(ctx, id, linesType, body.reader())
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, errors.Join(body.failure(), err)
	}
	defer resp.Body.Close()
	lines := newLineReader(resp.Body)
	for {
		var event api.ExecEvent
		if err := lines.next(&event); err != nil {
			return nil, errors.Join(body.failure(), fmt.Errorf("running the command: %w", c.transportError(err)))
		}
		switch {
		case event.Error != nil:
			return nil, fromBody(0, event.Error)
		case event.Exit != nil:
			drain(resp)
			return event.Exit, nil
		}
		if err := deliver(&event, &cmd); err != nil {
			return nil, err
		}
	}
}

// deliver writes the output in an event.
func deliver(event *api.ExecEvent, cmd *Command) error {
	for _, part := range []struct {
		w     io.Writer
		text  string
		bytes []byte
	}{
		{cmd.Stdout, event.Stdout, event.StdoutB64},
		{cmd.Stderr, event.Stderr, event.StderrB64},
	} {
		data := part.bytes
		if data == nil {
			data = []byte(part.text)
		}
		if part.w == nil || len(data) == 0 {
			continue
		}
		if _, err := part.w.Write(data); err != nil {
			return fmt.Errorf("passing the command's output on: %w", err)
		}
	}
	return nil
}

// commandBody is the body of a streaming request: the command on the first
// line, then its standard input. The transport reads it while the answer flows.
type commandBody struct {
	ctx    context.Context
	line   bytes.Buffer  // encoded, not read yet
	pieces <-chan []byte // standard input; nil for none, closed at its end
	failed error         // set before pieces is closed
}

func newCommandBody(ctx context.Context, cmd *Command) (*commandBody, error) {
	req := api.ExecRequest{Args: cmd.Args, Env: cmd.Env, Cwd: cmd.Cwd, User: cmd.User}
	if cmd.Timeout != 0 {
		req.TimeoutSecs = Ptr(cmd.Timeout.Seconds())
	}
	if cmd.OutputLimit != 0 {
		req.OutputLimitBytes = &cmd.OutputLimit
	}
	b := &commandBody{ctx: ctx}
	if err := json.NewEncoder(&b.line).Encode(req); err != nil {
		return nil, err
	}
	if cmd.Stdin != nil {
		pieces := make(chan []byte)
		b.pieces = pieces
		go b.readInput(cmd.Stdin, pieces)
	}
	return b, nil
}

// readInput reads standard input in a goroutine of its own: a terminal's Read
// cannot be ended, and the transport waits for a Read of the body to return.
//
// Two buffers suffice: when one piece has been received, the one before it has
// been used up.
func (b *commandBody) readInput(stdin io.Reader, pieces chan<- []byte) {
	defer close(pieces)
	var bufs [2][maxPiece]byte
	for i := 0; ; i ^= 1 {
		n, err := stdin.Read(bufs[i][:])
		if n > 0 {
			select {
			case pieces <- bufs[i][:n]:
			case <-b.ctx.Done():
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				b.failed = fmt.Errorf("reading the command's input: %w", err)
			}
			return
		}
	}
}

// reader gives the body a known length if it has one.
func (b *commandBody) reader() io.Reader {
	if b.pieces == nil {
		return &b.line
	}
	return b
}

func (b *commandBody) Read(p []byte) (int, error) {
	for b.line.Len() == 0 {
		select {
		case piece, more := <-b.pieces:
			if !more {
				return 0, cmp.Or(b.failed, io.EOF)
			}
			if err := b.encode(piece); err != nil {
				return 0, err
			}
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	return b.line.Read(p)
}

func (b *commandBody) encode(piece []byte) error {
	input := api.ExecInput{StdinB64: piece}
	if utf8.Valid(piece) {
		input = api.ExecInput{Stdin: string(piece)}
	}
	return json.NewEncoder(&b.line).Encode(input)
}

// failure returns the error of the command's input, which is the cause when the
// request breaks.
func (b *commandBody) failure() error {
	select {
	case _, more := <-b.pieces:
		if !more {
			return b.failed
		}
	default:
	}
	return nil
}

// lineReader reads JSON objects, one a line, skipping empty lines.
type lineReader struct {
	in  *bufio.Reader
	max int // bytes of a line
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{bufio.NewReaderSize(r, 64<<10), maxLine}
}

func (l *lineReader) next(v any) error {
	for {
		line, err := l.take()
		if err != nil {
			return err
		}
		if len(line) > 0 {
			return json.Unmarshal(line, v)
		}
	}
}

// take returns a line without its newline; it is valid until the next call. A
// line that is cut short counts as none.
func (l *lineReader) take() ([]byte, error) {
	line, err := l.in.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		line = bytes.Clone(line)
	}
	for err == bufio.ErrBufferFull {
		if len(line) > l.max {
			return nil, fmt.Errorf("a line of the answer is over %d bytes", l.max)
		}
		var part []byte
		part, err = l.in.ReadSlice('\n')
		line = append(line, part...)
	}
	if err != nil {
		return nil, err
	}
	return line[:len(line)-1], nil
}
