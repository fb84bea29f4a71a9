package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/jsonbody"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// ExecSandboxStream runs a command with its input and output streamed: the
// request's body carries the former while the answer carries the latter.
//
// Three goroutines work for it: this one runs the command, one feeds its
// standard input, one keeps the answer alive. The command is cancelled when
// either direction of the connection breaks. All three have ended when this
// returns.
func (s *Server) ExecSandboxStream(w http.ResponseWriter, r *http.Request, id api.ID) {
	in := bufio.NewReaderSize(r.Body, 16<<10)
	cmd, err := s.beginStream(w, r, in)
	if err != nil {
		w.Header().Set("Connection", "close") // input may follow that nobody reads
		s.fail(w, r, err)
		return
	}
	noteCommand(w, &cmd)

	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stdin, feed := io.Pipe()
	input := feedStdin(in, feed, cancel)
	events := newEventWriter(w, cancel)
	events.begin = func() { input.announce(w) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, events.stdout(), events.stderr()
	stopKeepAlive := events.keepAlive(s.keepAlive)

	start := time.Now()
	res, err := s.m.Exec(ctx, id, cmd)
	stopKeepAlive()
	stdin.CloseWithError(io.ErrClosedPipe)
	switch {
	case err == nil:
		s.metrics.exec.Observe(time.Since(start).Seconds())
		exit := execExit(res)
		events.send(api.ExecEvent{Exit: &exit})
	case events.started():
		body := describe(ctx, err)
		note(w, slog.String("error", body.Error))
		events.send(api.ExecEvent{Error: body})
	default:
		input.announce(w)
		s.fail(w, r, &refusal{describe(ctx, err)})
	}
	input.end(w)
}

// beginStream reads the command from the first line.
func (s *Server) beginStream(w http.ResponseWriter, r *http.Request, in *bufio.Reader) (cmd sandbox.Command, err error) {
	if err := wantType(r, ndjsonType); err != nil {
		return cmd, err
	}
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil {
		return cmd, refuse(api.ErrorCodeUnsupported, "use HTTP/1.1", "streaming over this connection: %v", err)
	}
	var req api.ExecRequest
	rc.SetReadDeadline(time.Now().Add(jsonbody.Time))
	err = readLine(in, &req)
	rc.SetReadDeadline(time.Time{})
	var refused *refusal
	switch {
	case err == io.EOF:
		return cmd, invalid("", "the body is empty; its first line must be a JSON object")
	case err != nil && !errors.As(err, &refused):
		return cmd, invalid("", "reading the first line: %v", err)
	case err != nil:
		return cmd, err
	case req.Stdin != "" || req.StdinB64 != nil:
		return cmd, invalid("send it in lines of its own", "stdin: not part of the first line")
	}
	return command(&req, streamOutput)
}

// input is the goroutine that reads the rest of a request's body.
type input struct{ done chan struct{} }

// feedStdin starts to pass input on. An error in it cancels the command.
func feedStdin(in *bufio.Reader, stdin *io.PipeWriter, cancel context.CancelCauseFunc) *input {
	i := &input{done: make(chan struct{})}
	go func() {
		defer close(i.done)
		if err := copyInput(in, stdin); err != nil {
			cancel(err)
		}
	}()
	return i
}

func (i *input) ended() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// announce says, before the answer begins, that the connection ends with it
// unless the input has ended already: see end.
func (i *input) announce(w http.ResponseWriter) {
	if !i.ended() {
		w.Header().Set("Connection", "close")
	}
}

// end waits until the goroutine has ended, as nobody may read a body once its
// handler has returned. While the client holds its end open only a deadline
// that has passed can make the read return, and that spoils the connection for
// a further request.
func (i *input) end(w http.ResponseWriter) {
	if i.ended() {
		return
	}
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now())
	<-i.done
	if rc.Flush() == nil {
		linger(rc, w.Header().Get("Content-Length") == "")
	}
}

// lingerTime is how long a client may take to notice that its command has ended.
const lingerTime = time.Second

// linger completes an answer, which may be in chunks, to a client that is still
// sending input. If the connection were closed with some of that unread, the client
// would find it broken, perhaps before it has read the answer.
func linger(rc *http.ResponseController, chunked bool) {
	conn, _, err := rc.Hijack()
	if err != nil {
		return
	}
	if chunked {
		_, err = io.WriteString(conn, "0\r\n\r\n")
	}
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok || err != nil || half.CloseWrite() != nil {
		conn.Close()
		return
	}
	conn.SetReadDeadline(time.Now().Add(lingerTime))
	go func() {
		io.Copy(io.Discard, conn)
		conn.Close()
	}()
}

// copyInput passes the lines of input on until the body ends. When the command
// no longer reads, it goes on reading the body, to notice the client's leaving.
// The error says why the command must be cancelled.
func copyInput(in *bufio.Reader, stdin *io.PipeWriter) error {
	open := true
	for {
		var line api.ExecInput
		err := readLine(in, &line)
		if err == io.EOF {
			return stdin.Close()
		}
		if err == nil && line.Stdin != "" && line.StdinB64 != nil {
			err = invalid("", "stdin_b64: given together with stdin")
		}
		if err != nil {
			stdin.CloseWithError(err)
			return err
		}
		data := line.StdinB64
		if data == nil {
			data = []byte(line.Stdin)
		}
		if open && len(data) > 0 {
			_, err := stdin.Write(data)
			open = err == nil
		}
	}
}

// readLine decodes the next line that is not empty. io.EOF means that there is
// none and the body is complete.
func readLine(in *bufio.Reader, v any) error {
	for {
		line, err := takeLine(in)
		if err != nil {
			return err
		}
		if len(line) > 0 {
			return decodeJSON(line, v)
		}
	}
}

// takeLine reads up to and without the next newline, or the end of the body.
func takeLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxStreamLine {
			return nil, tooLarge(maxStreamLine)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case err == io.EOF && len(line) > 0:
			return line, nil
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}
