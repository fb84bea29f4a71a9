// Package rng is the virtio entropy device (virtio 5.4). It hands the guest
// bytes from a source that the host chooses, straight into the guest's
// buffers, at most maxRequest per request: the driver takes what it gets and
// asks again.
package rng

import (
	"fmt"
	"io"

	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

const (
	deviceID     = 4
	stateVersion = 1
	queueSize    = 8
	maxRequest   = 4096
)

// New makes a device that reads from source, on vCPU goroutines: source must
// not block. A source that fails breaks the device.
func New(slot mmio.Slot, source io.Reader) (*mmio.Device, error) {
	return mmio.New(slot, mmio.Spec{
		Name:    "rng",
		ID:      deviceID,
		Version: stateVersion,
		Queues:  []uint16{queueSize},
	}, &model{source})
}

type model struct{ source io.Reader }

// Notify fills the buffers that the driver offers.
func (m *model) Notify(queues []virtq.Queue, _ int) error {
	q := &queues[0]
	for {
		c, err := q.Pop()
		if c == nil || err != nil {
			return err
		}
		written, err := m.fill(&c.Writable)
		if err != nil {
			return err
		}
		if err := q.Push(c, written); err != nil {
			return err
		}
	}
}

func (m *model) fill(w *virtq.Writer) (int, error) {
	if w.Len() == 0 {
		return 0, fmt.Errorf("%w: entropy request without a buffer for it", virtq.ErrMalformed)
	}
	w.Truncate(maxRequest)
	size := w.Len()
	for w.Len() > 0 {
		piece, err := w.Next(maxRequest)
		if err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(m.source, piece); err != nil {
			return 0, fmt.Errorf("reading entropy: %w", err)
		}
	}
	return size, nil
}

// Reset, Save and Load have nothing to do: the device has no state.
func (m *model) Reset()              {}
func (m *model) Save(*state.Encoder) {}
func (m *model) Load(*state.Decoder) {}
