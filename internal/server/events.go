package server

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/forkd-dev/forkd/api"
)

// maxChunk is how much output one event carries.
const maxChunk = 32 << 10

// maxHeld is how much is held of lines that go together, before they go.
const maxHeld = 32 << 10

// eventWriter streams JSON objects, one a line, each on its way at once unless
// lines go together. When the client is gone it says so through cancel and drops
// the rest.
type eventWriter struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	cancel context.CancelCauseFunc
	begin  func() // called once, before the status line

	mu   sync.Mutex
	hold time.Duration // see together; guarded by mu
	due  bool          // what is held will be sent; guarded by mu
	buf  bytes.Buffer  // lines that were not sent yet; guarded by mu
	last time.Time     // when something was sent, zero before that; guarded by mu
	err  error         // that ended the stream; guarded by mu
}

func newEventWriter(w http.ResponseWriter, cancel context.CancelCauseFunc) *eventWriter {
	return &eventWriter{w: w, rc: http.NewResponseController(w), cancel: cancel, begin: func() {}}
}

// started reports whether the status line is out, so that errors have to
// travel as events.
func (e *eventWriter) started() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.last.IsZero()
}

// announce sends the status line ahead of the first event.
func (e *eventWriter) announce() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flush()
}

// send writes one event.
func (e *eventWriter) send(event any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	if err := encode(&e.buf, event); err != nil {
		return err
	}
	if e.hold == 0 || e.buf.Len() >= maxHeld {
		return e.flush()
	}
	if !e.due {
		e.due = true
		time.AfterFunc(e.hold, e.flushDue)
	}
	return nil
}

// together has lines wait for others, for so long at most, and go with them: each by
// itself costs a system call, and wakes the client up. The function that it returns
// sends what is left, with the end of the answer: nothing may be sent after it.
func (e *eventWriter) together(hold time.Duration) (end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold = hold
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.hold = 0
		e.write()
	}
}

// flushDue sends what is held, unless the answer has ended meanwhile.
func (e *eventWriter) flushDue() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.due = false; e.hold > 0 && e.buf.Len() > 0 {
		e.flush()
	}
}

// flush sends the lines that there are. The caller holds mu.
func (e *eventWriter) flush() error {
	if e.write(); e.err == nil {
		e.failed(e.rc.Flush())
	}
	return e.err
}

// write has the lines that there are be sent with what comes next, or the end of the
// answer. The caller holds mu.
func (e *eventWriter) write() {
	defer e.buf.Reset()
	if e.err != nil {
		return
	}
	if e.last.IsZero() {
		e.begin()
		e.w.Header().Set("Content-Type", ndjsonType)
		e.w.Header().Set("Cache-Control", "no-store")
		e.w.WriteHeader(http.StatusOK)
	}
	e.last = time.Now()
	_, err := e.w.Write(e.buf.Bytes())
	e.failed(err)
}

// failed ends the stream if it has broken. The caller holds mu.
func (e *eventWriter) failed(err error) {
	if err != nil {
		e.err = err
		e.cancel(err)
	}
}

// keepAlive writes an empty line whenever nothing else was written for a while.
// It keeps proxies from closing a silent stream, and it is how a client that
// vanished is noticed while nothing is read from it. The function it returns
// ends it and waits.
func (e *eventWriter) keepAlive(every time.Duration) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				e.mu.Lock()
				if time.Since(e.last) >= every {
					e.buf.WriteByte('\n')
					e.flush()
				}
				e.mu.Unlock()
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// output turns one stream of a command into events.
type output struct {
	events *eventWriter
	wrap   func(text string, bytes []byte) any
}

func (e *eventWriter) stdout() *output {
	return &output{e, func(t string, b []byte) any { return api.ExecEvent{Stdout: t, StdoutB64: b} }}
}

func (e *eventWriter) stderr() *output {
	return &output{e, func(t string, b []byte) any { return api.ExecEvent{Stderr: t, StderrB64: b} }}
}

// Write sends b as text if it is text, else as base64; a character that two
// writes share is not text in either.
func (o *output) Write(b []byte) (n int, err error) {
	for n < len(b) {
		chunk := b[n:min(n+maxChunk, len(b))]
		event := o.wrap("", chunk)
		if utf8.Valid(chunk) {
			event = o.wrap(string(chunk), nil)
		}
		if err := o.events.send(event); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}
