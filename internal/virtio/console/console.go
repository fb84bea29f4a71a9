// Package console is the virtio console (virtio 5.3) with a single port and
// neither size nor multiport support: bytes out, bytes in.
package console

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

const (
	deviceID     = 3
	stateVersion = 1
	// The driver keeps a page of its memory in every entry of the receive
	// queue, so the queues are short.
	queueSize = 16

	queueReceive  = 0 // host to guest
	queueTransmit = 1 // guest to host

	// maxInput bounds the input that waits for the guest, in bytes.
	maxInput = 4096
)

// ErrFull reports that the guest does not read its console.
var ErrFull = errors.New("console input is full: the guest does not read it")

// Device is a console on a bus.
//
// Lock order: the lock of mmio.Device, then mu.
type Device struct {
	*mmio.Device
	model *model
}

// New makes a console that writes the guest's output to sink, on vCPU
// goroutines: sink must not block, and bounds what it keeps. What it refuses
// is lost.
func New(slot mmio.Slot, sink io.Writer) (*Device, error) {
	m := &model{sink: sink}
	d, err := mmio.New(slot, mmio.Spec{
		Name:    "console",
		ID:      deviceID,
		Version: stateVersion,
		Queues:  []uint16{queueSize, queueSize},
	}, m)
	if err != nil {
		return nil, err
	}
	return &Device{Device: d, model: m}, nil
}

// Input types b on the guest's console: all of it, or nothing and ErrFull. It
// may be called from any goroutine.
func (d *Device) Input(b []byte) error {
	d.model.mu.Lock()
	full := len(d.model.input)+len(b) > maxInput
	if !full {
		d.model.input = append(d.model.input, b...)
	}
	d.model.mu.Unlock()
	if full {
		return ErrFull
	}
	d.Kick(queueReceive)
	return nil
}

type model struct {
	sink io.Writer

	mu    sync.Mutex
	input []byte // waits for the guest; guarded by mu
}

// Notify passes output on and delivers input.
func (m *model) Notify(queues []virtq.Queue, kicked int) error {
	if kicked == queueTransmit {
		return m.transmit(&queues[queueTransmit])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.receive(&queues[queueReceive])
}

func (m *model) transmit(q *virtq.Queue) error {
	for {
		c, err := q.Pop()
		if c == nil || err != nil {
			return err
		}
		for c.Readable.Len() > 0 {
			piece, err := c.Readable.Next(c.Readable.Len())
			if err != nil {
				return err
			}
			// The console is best effort: the guest must not stall because
			// nobody can take its output.
			_, _ = m.sink.Write(piece)
		}
		if err := q.Push(c, 0); err != nil {
			return err
		}
	}
}

func (m *model) receive(q *virtq.Queue) error {
	for len(m.input) > 0 {
		c, err := q.Pop()
		if c == nil || err != nil {
			return err
		}
		n := min(len(m.input), c.Writable.Len())
		if n == 0 {
			return fmt.Errorf("%w: console input without a buffer for it", virtq.ErrMalformed)
		}
		if err := c.Writable.WriteFull(m.input[:n]); err != nil {
			return err
		}
		if err := q.Push(c, n); err != nil {
			return err
		}
		m.input = m.input[n:]
	}
	m.input = nil
	return nil
}

// Reset drops input that was meant for the driver that is gone.
func (m *model) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.input = nil
}

// Save keeps the input that the guest has not read yet.
func (m *model) Save(e *state.Encoder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.Bytes(m.input)
}

// Load reads what Save wrote.
func (m *model) Load(d *state.Decoder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := d.Bytes()
	if len(b) > maxInput {
		d.Fail("more console input than fits")
		return
	}
	m.input = append(m.input, b...)
}
