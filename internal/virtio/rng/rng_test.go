package rng_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/rng"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
)

// counter is a source whose bytes tell how many were read.
type counter struct{ n byte }

func (c *counter) Read(b []byte) (int, error) {
	for i := range b {
		c.n++
		b[i] = c.n
	}
	return len(b), nil
}

func subject(source io.Reader) virtiotest.Subject {
	return virtiotest.Subject{
		New: func(_ testing.TB, slot mmio.Slot) (virtiotest.Device, error) {
			return rng.New(slot, source)
		},
		ID:      4,
		Request: []virtiotest.Buffer{virtiotest.In(64)},
		Short:   [][]virtiotest.Buffer{{virtiotest.Out([]byte("no room"))}},
	}
}

func TestConformance(t *testing.T) { virtiotest.Run(t, subject(new(counter))) }

func FuzzDevice(f *testing.F) { virtiotest.Fuzz(f, subject(new(counter))) }

func start(t *testing.T, source io.Reader) (*virtiotest.Driver, *virtiotest.Queue) {
	d := virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
		return rng.New(slot, source)
	})
	d.Start(virtiotest.Features, 8)
	return d, d.Queues[0]
}

func TestBytesComeFromTheSource(t *testing.T) {
	_, q := start(t, new(counter))
	if got, want := q.Do(virtiotest.In(3), virtiotest.In(2)), []byte{1, 2, 3, 4, 5}; !bytes.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := q.Do(virtiotest.In(1)), []byte{6}; !bytes.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRequestIsBounded(t *testing.T) {
	_, q := start(t, new(counter))
	if got := q.Do(virtiotest.In(1 << 20)); len(got) != 4096 {
		t.Errorf("a request for 1 MiB gave %d bytes", len(got))
	}
}

func TestFailingSourceBreaksTheDevice(t *testing.T) {
	d, q := start(t, iotest.ErrReader(errors.New("no entropy")))
	q.Add(virtiotest.In(16))
	q.Kick()
	if !d.Broken() || len(q.Take()) != 0 {
		t.Error("a request was answered without entropy")
	}
}
