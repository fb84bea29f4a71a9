package cell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// ErrLost reports a cell that is gone, and with it its machines.
var ErrLost = errors.New("the process that it lived in is gone")

// Cell is one cell.
type Cell struct {
	host *Host
	Name string
	PID  int
	// Jail tells, in words, what it could not be kept from.
	Jail []string

	proc   *process
	seal   seal // of its notes
	conn   *wire.Conn
	guests *wire.Guests
	last   atomic.Uint64 // number that was given to something
	gone   chan struct{} // closed when the connection has ended

	sending sync.Mutex // held while a layer is sent

	mu      sync.Mutex
	calls   map[uint64]*call               // requests without an answer; nil: it is gone; guarded by mu
	vms     map[uint64]*VM                 // guarded by mu
	layers  map[uint64]*held               // layers that were sent; guarded by mu
	numbers map[*page.Layer]uint64         // of those; guarded by mu
	sources map[*snapshot.Snapshot]*source // guarded by mu
	saved   written                        // layers of its own that have a file; guarded by mu
	broken  error                          // why its connections are closed here; guarded by mu
	why     error                          // it is gone; guarded by mu
	asked   *round                         // for figures that are on their way; guarded by mu
	next    *round                         // for who asks meanwhile; guarded by mu
	needs   int                            // cuts that somebody has, and forks under way; guarded by mu
	idle    *time.Timer                    // ends it; guarded by mu
	quits   bool                           // it was told to; guarded by mu
	left    bool                           // it is another daemon's; guarded by mu

	former *record // of an earlier daemon that has started it; nil: this one has, or it was taken over
}

// held is a layer that was sent to a cell.
type held struct {
	layer *page.Layer // a reference
	uses  int         // sources and cuts that it is part of
}

// connect connects to a cell, which need not answer for that.
func connect(h *Host, name, socket string, p *process) (*Cell, error) {
	control, guests, err := dial(socket)
	if err != nil {
		return nil, fmt.Errorf("connecting to cell %s: %w", name, err)
	}
	c := &Cell{
		host: h, Name: name, PID: p.PID, proc: p, conn: control, guests: guests, gone: make(chan struct{}),
		calls: make(map[uint64]*call), vms: make(map[uint64]*VM),
		layers: make(map[uint64]*held), numbers: make(map[*page.Layer]uint64),
		sources: make(map[*snapshot.Snapshot]*source),
	}
	// Numbers of an earlier daemon are smaller.
	c.last.Store(uint64(time.Now().UnixNano()))
	go c.receive()
	go c.serveGuests()
	return c, nil
}

// greet has the cell tell who it is, within a time as that of a request.
func (c *Cell) greet(ctx context.Context, within time.Duration) error {
	var w wire.Welcome
	hello := request{op: wire.OpHello, body: wire.Hello{Cell: c.Name}, within: within}
	if _, err := c.call(ctx, hello, &w); err != nil {
		return fmt.Errorf("greeting cell %s: %w", c.Name, err)
	}
	c.Jail = w.Jail
	return nil
}

// dial makes the two connections to a cell.
func dial(socket string) (*wire.Conn, *wire.Guests, error) {
	control, err := dialFor(socket, wire.Control)
	if err != nil {
		return nil, nil, err
	}
	streams, err := dialFor(socket, wire.Streams)
	if err != nil {
		control.Close()
		return nil, nil, err
	}
	link, err := wire.NewLink(streams)
	if err != nil {
		control.Close()
		streams.Close()
		return nil, nil, err
	}
	return wire.NewConn(control), wire.NewGuests(link), nil
}

// dialFor connects to a cell's socket and says what for.
func dialFor(socket string, p wire.Purpose) (*net.UnixConn, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(wire.Opening(p)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// serveGuests carries connections into guests until one of the two connections to the
// cell ends, and the other with it.
func (c *Cell) serveGuests() {
	err := c.guests.Serve()
	if errors.Is(err, wire.ErrMalformed) {
		c.breaks(err)
	}
	c.guests.Close() // not before: the cell may end of it
	c.conn.Close()
}

// breaks notes why the connections to the cell are about to be closed here.
func (c *Cell) breaks(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = cmp.Or(c.broken, err)
}

func (c *Cell) number() uint64 { return c.last.Add(1) }

// receive takes answers and events until the connection ends.
func (c *Cell) receive() {
	var err error
	for {
		var m *wire.Message
		if m, err = c.conn.Receive(); err != nil {
			break
		}
		switch {
		case m.ID != 0:
			c.answered(m)
		default:
			closeAll(m.Files)
			c.event(m)
		}
	}
	c.conn.Close()
	c.guests.Close()
	c.end(err)
}

// event takes note of what a cell tells unasked.
func (c *Cell) event(m *wire.Message) {
	switch m.Op {
	case wire.OpEnded:
		var e wire.Ended
		if json.Unmarshal(m.Body, &e) == nil {
			c.ended(&e)
		}
	case wire.OpConsole:
		var r wire.Ref
		if json.Unmarshal(m.Body, &r) == nil {
			c.console(r.ID, m.Blob)
		}
	}
}

func (c *Cell) vm(id uint64) *VM {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.vms[id]
}

func (c *Cell) ended(e *wire.Ended) {
	if v := c.vm(e.ID); v != nil {
		v.end(machine.Ending{Exit: engine.Exit(e.Exit), Err: e.Err.Failure()})
	}
}

func (c *Cell) console(id uint64, b []byte) {
	if v := c.vm(id); v != nil && v.printed != nil {
		_, _ = v.printed.Write(b) // for people; nobody waits for it
	}
}

// end takes note that the cell is gone: all that it had has ended.
func (c *Cell) end(err error) {
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	reason := errors.New("is left to another daemon")
	if !left {
		state := c.proc.await()
		c.mu.Lock()
		err = cmp.Or(c.broken, err)
		c.mu.Unlock()
		reason = c.proc.reason(state, err)
	}
	c.mu.Lock()
	calls, vms := c.calls, c.vms
	c.calls, c.vms = nil, nil
	c.why = fmt.Errorf("%w: process %d %w", ErrLost, c.PID, reason)
	why := c.why
	layers := c.layers
	c.layers, c.numbers, c.sources = nil, nil, nil
	if c.idle != nil {
		c.idle.Stop()
	}
	c.mu.Unlock()
	for _, w := range calls {
		w.answer <- nil
	}
	for _, l := range layers {
		l.layer.Release()
	}
	if !left {
		for _, v := range vms {
			v.end(machine.Ending{Err: why})
		}
		c.host.forget(c)
	}
	close(c.gone)
}

// leave lets go of the cell, which goes on for another daemon. What it was told before it is
// told first, if it listens.
func (c *Cell) leave() {
	c.mu.Lock()
	c.left = true
	c.mu.Unlock()
	c.conn.Finish(endTime / 2)
}

// Limit bounds what the process of the cell takes of the host. The error wraps
// engine.ErrNoQuota if the host offers no means to that.
func (c *Cell) Limit(l jail.Limits) error {
	if c.proc.inmate == nil {
		return engine.ErrNoQuota
	}
	if err := c.proc.inmate.Limit(l); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrNoQuota, err)
	}
	return nil
}

// quitTime is how long a cell may take to end what lives in it.
var quitTime = 10 * time.Second // tests make it shorter

var errStubborn = errors.New("it did not end when it was told to")

// Quit ends the cell and all that lives in it. One that does not do so when it is told to is
// ended from outside.
func (c *Cell) Quit() {
	c.mu.Lock()
	again := c.quits
	c.quits = true
	c.mu.Unlock()
	if again {
		return
	}
	_ = c.tell(wire.OpQuit, struct{}{}, nil) // if it is gone all the better
	late := time.AfterFunc(quitTime, func() { c.End(errStubborn) })
	go func() {
		<-c.gone
		late.Stop()
	}()
}

// End ends the process of the cell from outside, for a reason. It does not wait until that is
// done.
func (c *Cell) End(why error) {
	c.breaks(fmt.Errorf("%w: %w", errEnded, why))
	if err := c.proc.kill(); err != nil {
		c.host.opts.Log.Warn("ending a cell", "cell", c.Name, "error", err)
	}
	c.conn.Close()
}

// dead reports whether the cell is gone.
func (c *Cell) dead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls == nil
}

// need has the cell stay although nothing may live in it, until unneed is called.
func (c *Cell) need() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.needs++
	c.wakeLocked()
}

func (c *Cell) unneed() {
	c.mu.Lock()
	c.needs--
	c.mu.Unlock()
	c.rest()
}

// wake stops the clock of a cell that nobody needs, and rest starts it if that is so.
func (c *Cell) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked()
}

func (c *Cell) wakeLocked() {
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
}

func (c *Cell) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.emptyLocked() && c.idle == nil {
		c.idle = time.AfterFunc(c.host.patience(), func() { c.host.retire(c) })
	}
}

// emptyLocked reports whether nobody needs the cell, which is there. The caller holds c.mu.
func (c *Cell) emptyLocked() bool { return len(c.vms) == 0 && c.needs == 0 && c.calls != nil }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
