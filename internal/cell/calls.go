package cell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// AnswerTime is how long a cell may take for what takes it a moment. One that the host
// has stopped does not answer, and may go on later.
const AnswerTime = 20 * time.Second

// request is what a cell is asked for.
type request struct {
	op    wire.Op
	body  any
	blob  []byte
	files []*os.File // stay the caller's

	// within is how long the cell may take; 0: AnswerTime, and below that as long as it likes: forever.
	within time.Duration
	// undo takes back what is done although nobody waits for it any more. It may not wait for
	// anything.
	undo func()
}

// forever is how long a cell may take that is waited for as long as it is there.
const forever = -1

// call is a request that has no answer yet.
type call struct {
	answer chan *wire.Message // gets one; nil: the cell is gone
	undo   func()
	left   bool // nobody waits any more; guarded by Cell.mu
}

// tell sends a notice. It does not wait for the cell; one that is told far more than it takes
// up is given up.
func (c *Cell) tell(op wire.Op, body any, blob []byte, files ...*os.File) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.send(&wire.Message{Op: op, Body: b, Blob: blob, Files: files})
}

func (c *Cell) send(m *wire.Message) error {
	err := c.conn.Send(m)
	behind := errors.Is(err, wire.ErrBehind)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, wire.ErrTooLong):
		return fmt.Errorf("telling cell %s: %w", c.Name, err)
	case behind && m.ID != 0:
		return fmt.Errorf("%w: %w", c.errSilent(), err)
	case behind:
		c.breaks(fmt.Errorf("%w: %w", errEnded, err))
	}
	c.conn.Close()
	return c.lost()
}

// lost is the error of whoever needs a cell that is gone: how the connection to it broke is nobody's
// concern.
func (c *Cell) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != nil {
		return c.why
	}
	return fmt.Errorf("%w: process %d has ended", ErrLost, c.PID)
}

// Gone tells why the cell is gone; nil: it is there.
func (c *Cell) Gone() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// call asks for something, waits for the answer and decodes it into result, which
// may be nil. It returns the blob.
func (c *Cell) call(ctx context.Context, r request, result any) ([]byte, error) {
	m, err := c.ask(ctx, r)
	if err != nil {
		return nil, err
	}
	closeAll(m.Files)
	if err := decode(m, result); err != nil {
		return nil, err
	}
	return m.Blob, nil
}

func decode(m *wire.Message, result any) error {
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(m.Body, result); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	return nil
}

// ask is call for somebody who wants the whole answer.
func (c *Cell) ask(ctx context.Context, r request) (*wire.Message, error) {
	b, err := json.Marshal(r.body)
	if err != nil {
		return nil, err
	}
	if within := cmp.Or(r.within, AnswerTime); within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, within, c.errSilent())
		defer cancel()
	}
	id, w := c.number(), &call{answer: make(chan *wire.Message, 1), undo: r.undo}
	c.mu.Lock()
	if c.calls == nil {
		defer c.mu.Unlock()
		return nil, c.why
	}
	c.calls[id] = w
	c.mu.Unlock()
	err = c.send(&wire.Message{ID: id, Op: r.op, Body: b, Blob: r.blob, Files: r.files})
	if err != nil && !errors.Is(err, ErrLost) { // a lost one is known to be in a moment, with the reason
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.calls, id)
		return nil, err
	}
	var m *wire.Message
	select {
	case m = <-w.answer:
	case <-ctx.Done():
		if c.giveUp(id) {
			return nil, context.Cause(ctx)
		}
		m = <-w.answer // it has come at the same time
	}
	switch {
	case m == nil:
		return nil, c.lost()
	case m.Err != nil:
		closeAll(m.Files)
		return nil, m.Err
	}
	return m, nil
}

// giveUp notes that nobody waits for an answer any more, unless it has come.
func (c *Cell) giveUp(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.calls[id]
	if w == nil {
		return false
	}
	if w.left = true; w.undo == nil {
		delete(c.calls, id)
	}
	return true
}

// answered takes an answer.
func (c *Cell) answered(m *wire.Message) {
	c.mu.Lock()
	w := c.calls[m.ID]
	delete(c.calls, m.ID)
	left := w != nil && w.left
	c.mu.Unlock()
	switch {
	case w != nil && !left:
		w.answer <- m
		return
	case left && m.Err == nil:
		w.undo()
	}
	closeAll(m.Files)
}
