package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
)

// VM is a machine in a cell. Its methods may be called from any goroutine.
type VM struct {
	cell    *Cell
	id      uint64
	source  uint64        // that it was forked from; 0: it was booted
	common  digest        // of the note that it has in common with others
	printed io.Writer     // takes what a booted guest prints; nil: nobody does
	age     time.Duration // the guest's time counter when the machine was made
	zero    atomic.Int64  // see wire.Started
	starts  atomic.Int64  // as of when the next Open starts it, see wire.Open; 0: it does not
	done    chan struct{}
	ending  machine.Ending // written before done is closed
	endOnce sync.Once
	untold  bool // see Untold

	mu     sync.Mutex
	size   extent    // guarded by mu
	stat   wire.Stat // as it was when somebody asked last; guarded by mu
	closed bool      // guarded by mu
	onEnd  func()    // see OnEnd; guarded by mu
}

// Bygone returns a machine of which is only known that it has ended, and the number of the
// process that it lived in.
func Bygone(pid int, e machine.Ending) *VM {
	c := &Cell{PID: pid, gone: make(chan struct{}), why: fmt.Errorf("%w: process %d is of an earlier daemon", ErrLost, pid)}
	close(c.gone)
	v := &VM{cell: c, done: make(chan struct{}), closed: true}
	v.end(e)
	return v
}

// Untold returns a machine in place of one that the cell is yet to tell of. Nothing can be asked of it;
// it is there until it is closed, which the cell does not hear of, or the cell is gone.
func (c *Cell) Untold() *VM { return c.add(&VM{id: c.number(), untold: true}) }

// extent returns how many pages the machine has.
func (v *VM) extent() extent {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.size
}

// Cell returns the cell that the machine is in.
func (v *VM) Cell() *Cell { return v.cell }

// Started reports whether the machine has ever run.
func (v *VM) Started() bool { return v.zero.Load() != 0 }

// end takes note that the machine has ended by itself.
func (v *VM) end(e machine.Ending) {
	v.endOnce.Do(func() {
		v.ending = e
		v.mu.Lock()
		defer v.mu.Unlock()
		close(v.done)
		if v.onEnd != nil && !v.closed {
			go v.onEnd()
		}
	})
}

// OnEnd has fn called once, on a goroutine of its own, when the machine ends by itself, or
// has done so already; not if it has been closed. It is for who is ready for that: a machine
// may have ended before it is known to whom it belongs.
func (v *VM) OnEnd(fn func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed:
	case v.ended():
		go fn()
	default:
		v.onEnd = fn
	}
}

// Done is closed when the machine ends by itself.
func (v *VM) Done() <-chan struct{} { return v.done }

// Ending tells why the machine ended. It may be called once Done is closed.
func (v *VM) Ending() machine.Ending { return v.ending }

func (v *VM) ended() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

// ask asks the cell for something about this machine.
func (v *VM) ask(op wire.Op, body, result any) error {
	if v.untold {
		return v.cell.errSilent()
	}
	_, err := v.cell.call(context.Background(), request{op: op, body: body}, result)
	return err
}

// Start runs the machine; see machine.Machine.Start.
func (v *VM) Start() error {
	var s wire.Started
	if err := v.ask(wire.OpStart, wire.Ref{ID: v.id}, &s); err != nil {
		return err
	}
	v.zero.Store(s.Zero)
	return nil
}

// GoOn is Start for a machine that has been started, and perhaps paused since: the cell may take as
// long as it likes.
func (v *VM) GoOn(ctx context.Context) error {
	_, err := v.cell.call(ctx, request{op: wire.OpStart, body: wire.Ref{ID: v.id}, within: forever}, nil)
	return err
}

// StartByOpen has the machine, which has never run, be started by the next Open, as of
// now: so that who talks to it first does not have to wait for two answers. If it cannot
// be started, the connection breaks.
func (v *VM) StartByOpen() {
	now := time.Now()
	v.zero.Store(now.Add(-v.age).UnixNano())
	v.starts.Store(now.UnixNano())
}

// ClockZero is that of machine.Machine, for one that has been started.
func (v *VM) ClockZero() time.Time { return wire.Time(v.zero.Load()) }

// Pause stops the machine and returns when it executes nothing.
func (v *VM) Pause() {
	_ = v.ask(wire.OpPause, wire.Ref{ID: v.id}, nil) // one that is gone executes nothing
}

// Suspend is Pause for a machine that is to go on if ctx ends first, or the cell does not answer.
func (v *VM) Suspend(ctx context.Context) error {
	goOn := func() { _ = v.cell.tell(wire.OpStart, wire.Ref{ID: v.id}, nil) } // one that is gone does not
	_, err := v.cell.call(ctx, request{op: wire.OpPause, body: wire.Ref{ID: v.id}, undo: goOn}, nil)
	return err
}

// Freeze makes a machine that is paused, as it is, into a Cut. It stays paused.
func (v *VM) Freeze(ctx context.Context) (*Cut, error) { return v.cut(ctx, false) }

// Branch is Freeze for a machine that runs, and goes on whatever happens.
func (v *VM) Branch(ctx context.Context) (*Cut, error) { return v.cut(ctx, true) }

// Pin has the machine be unpacked and stay so until unpin is called, which may be
// called after an error, too.
func (v *VM) Pin() (unpin func(), err error) {
	err = v.ask(wire.OpPin, wire.Pin{VM: v.id, Pin: true}, nil)
	return func() {
		_ = v.cell.tell(wire.OpPin, wire.Pin{VM: v.id}, nil) // one that is gone is not packed
	}, err
}

// SetNote has the cell keep what a later daemon is to know of the machine.
func (v *VM) SetNote(note json.RawMessage) error {
	note, err := v.cell.seal.close(v.subject(), note)
	if err != nil {
		return err
	}
	return v.cell.tell(wire.OpNote, wire.Note{VM: v.id, Note: note}, nil)
}

// Dial connects to a vsock port of the guest, and waits until it answers.
func (v *VM) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	return v.dial(ctx, wire.Open{VM: v.id, Port: port, Wait: true})
}

// DialLine is Dial for a connection that goes on in machines that are made of this one, see vsock.Mux.
func (v *VM) DialLine(ctx context.Context, port uint32) (net.Conn, error) {
	return v.dial(ctx, wire.Open{VM: v.id, Port: port, Wait: true, Line: true})
}

func (v *VM) dial(ctx context.Context, o wire.Open) (net.Conn, error) {
	s, err := v.stream(o)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	if err = s.Flush(); err == nil {
		err = s.Opened()
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.Close()
		return nil, v.dialError(o.Port, err)
	}
	return s, nil
}

// Open is Dial for one of our own services in the guest, without waiting for its
// answer.
func (v *VM) Open(_ context.Context, port uint32) (net.Conn, error) {
	return v.stream(wire.Open{VM: v.id, Port: port, Start: v.starts.Swap(0)})
}

// OpenLine is Open for a connection that may have been there before the machine was, see DialLine.
func (v *VM) OpenLine(_ context.Context, port uint32) (net.Conn, error) {
	return v.stream(wire.Open{VM: v.id, Port: port, Start: v.starts.Swap(0), Line: true})
}

// stream makes a connection into the guest. Of that the cell hears with the first
// bytes.
func (v *VM) stream(o wire.Open) (*wire.Stream, error) {
	if v.untold {
		return nil, v.cell.errSilent()
	}
	if err := v.cell.Gone(); err != nil {
		return nil, v.dialError(o.Port, err)
	}
	s, err := v.cell.guests.Open(o)
	if err != nil {
		return nil, v.dialError(o.Port, err)
	}
	return s, nil
}

func (v *VM) dialError(port uint32, err error) error {
	if v.ended() {
		return fmt.Errorf("%w: %s", machine.ErrEnded, v.ending)
	}
	if errors.Is(err, net.ErrClosed) {
		err = v.cell.lost()
	}
	return fmt.Errorf("connecting to port %d of the guest: %w", port, err)
}

// PrivateBytes returns how much host memory the machine had to itself when somebody
// refreshed its figures last, with what it took to execute its own code.
func (v *VM) PrivateBytes() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stat.PrivateBytes + v.stat.CodeBytes
}

// PageBytes returns how much of PrivateBytes was pages of RAM and disk.
func (v *VM) PageBytes() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stat.PrivateBytes
}

// MemoryBytes returns how much of PrivateBytes was not disk.
func (v *VM) MemoryBytes() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stat.MemoryBytes + v.stat.CodeBytes
}

// Counters returns what the machine had done then.
func (v *VM) Counters() engine.Counters {
	v.mu.Lock()
	defer v.mu.Unlock()
	return engine.Counters{Instructions: v.stat.Instructions, Translated: v.stat.Translated, Busy: time.Duration(v.stat.BusyNS)}
}

// Sleep returns for how long the machine had nothing to do then; zero if that is not known.
func (v *VM) Sleep() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Duration(v.stat.SleepNS)
}

// Refresh asks for the figures of the machine.
func (v *VM) Refresh() { v.cell.Refresh(v) }

// maxCode is more than any machine has for code: see interp.maxPrivate.
const maxCode = 128 << 20

// told takes note of figures. A machine has no more pages to itself than it has pages, and
// a bounded amount of memory for code.
func (v *VM) told(st wire.Stat) {
	v.mu.Lock()
	defer v.mu.Unlock()
	memory := int64(v.size.memory) * page.Size
	all := memory + int64(v.size.scratch)*page.Size
	st.MemoryBytes = min(max(st.MemoryBytes, 0), memory)
	st.PrivateBytes = min(max(st.PrivateBytes, 0), all)
	st.CodeBytes = min(max(st.CodeBytes, 0), maxCode)
	v.stat = st
}

// Close ends the machine, and returns when its memory is free. A cell that does not answer has been
// told to free it, and nobody waits until it has.
func (v *VM) Close() {
	v.mu.Lock()
	again := v.closed
	v.closed = true
	v.mu.Unlock()
	if again {
		return
	}
	if v.untold {
		v.cell.remove(v)
		return
	}
	if v.cell.Silent() || errors.Is(v.closeNow(), wire.ErrBehind) {
		v.cell.closeAll([]*VM{v}) // it has not been asked
	}
	v.cell.remove(v)
}

// closeNow asks the cell to end the machine, and takes note of the last figures.
func (v *VM) closeNow() error {
	ctx, stop := v.cell.Watch(context.Background(), lateTime)
	defer stop()
	var last []wire.Stat
	_, err := v.cell.call(ctx, request{op: wire.OpClose, body: wire.Ref{ID: v.id}}, &last)
	if err == nil && len(last) == 1 { // one that is gone is closed
		v.told(last[0])
	}
	return err
}
