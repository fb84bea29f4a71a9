package console_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/virtio/console"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
)

func subject() virtiotest.Subject {
	return virtiotest.Subject{
		New: func(_ testing.TB, slot mmio.Slot) (virtiotest.Device, error) {
			return console.New(slot, io.Discard)
		},
		ID:      3,
		Queue:   1,
		Request: []virtiotest.Buffer{virtiotest.Out([]byte("hello\n"))},
	}
}

func TestConformance(t *testing.T) { virtiotest.Run(t, subject()) }

func FuzzDevice(f *testing.F) { virtiotest.Fuzz(f, subject()) }

func start(t *testing.T, sink io.Writer) (*virtiotest.Driver, *console.Device) {
	d := virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
		return console.New(slot, sink)
	})
	d.Start(virtiotest.Features, 16)
	return d, d.Dev.(*console.Device)
}

func TestOutput(t *testing.T) {
	var out bytes.Buffer
	d, _ := start(t, &out)
	d.Queues[1].Do(virtiotest.Out([]byte("first ")), virtiotest.Out([]byte("line\n")))
	long := bytes.Repeat([]byte("x"), 10000)
	d.Queues[1].Do(virtiotest.Out(long))
	if want := "first line\n" + string(long); out.String() != want {
		t.Errorf("sink got %d bytes, want %d", out.Len(), len(want))
	}
}

// A guest that floods its console costs the time that it takes to look at its output, in
// portions after which others have their turn, and no memory.
func TestFlood(t *testing.T) {
	d, _ := start(t, io.Discard)
	q := d.Queues[1]
	large := bytes.Repeat([]byte("x"), 256<<10)
	for range 8 {
		q.Add(virtiotest.Out(large))
	}
	q.Kick()
	if n := len(q.Take()); n == 0 || n == 8 {
		t.Errorf("%d of 8 chains of %d bytes at once", n, len(large))
	}
	if d.RunPosted(); len(q.Take()) == 0 || d.Broken() {
		t.Error("the rest is not taken")
	}
	b := virtiotest.Out([]byte("a line\n"))
	placed := q.Place([]virtiotest.Buffer{b})
	for i := range q.Size {
		q.Put(i, virtiotest.Desc{GPA: placed[0].GPA, Size: uint32(placed[0].Size)})
	}
	flood := func() {
		q.SetAvail(q.AvailIndex() + q.Size)
		q.Kick()
		d.Set(virtiotest.RegInterruptAck, 3)
	}
	flooding := testing.AllocsPerRun(100, flood)
	driver := testing.AllocsPerRun(100, func() { q.SetAvail(q.AvailIndex()) })
	if flooding > driver || d.Broken() {
		t.Errorf("%.0f allocations for %d lines", flooding-driver, q.Size)
	}
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestOutputThatNobodyTakesIsLost(t *testing.T) {
	d, _ := start(t, refusing{})
	d.Queues[1].Do(virtiotest.Out([]byte("x")))
	if d.Broken() {
		t.Error("a full sink broke the device")
	}
}

func input(t *testing.T, dev *console.Device, s string) {
	t.Helper()
	if err := dev.Input([]byte(s)); err != nil {
		t.Fatal(err)
	}
}

// received returns what the guest was sent.
func received(d *virtiotest.Driver) string {
	var s strings.Builder
	for _, u := range d.Queues[0].Take() {
		s.Write(d.Queues[0].Written(u.Head, int(u.Size)))
	}
	return s.String()
}

func TestInput(t *testing.T) {
	d, dev := start(t, io.Discard)
	rx := d.Queues[0]
	input(t, dev, "before there is room")
	if d.RunPosted(); received(d) != "" {
		t.Fatal("input without a buffer")
	}
	rx.Add(virtiotest.In(6))
	rx.Add(virtiotest.In(100))
	rx.Kick()
	if got := received(d); got != "before there is room" {
		t.Errorf("guest got %q", got)
	}
	rx.Add(virtiotest.In(100))
	rx.Kick()
	input(t, dev, "a")
	input(t, dev, "b")
	if d.RunPosted(); received(d) != "ab" {
		t.Error("two inputs before the guest looked did not arrive as one")
	}
}

func TestInputIsBounded(t *testing.T) {
	_, dev := start(t, io.Discard)
	input(t, dev, strings.Repeat("x", 4000))
	if err := dev.Input(make([]byte, 97)); !errors.Is(err, console.ErrFull) {
		t.Errorf("too much input: %v", err)
	}
	input(t, dev, strings.Repeat("x", 96))
}

func TestInputSurvivesTheSave(t *testing.T) {
	d, dev := start(t, io.Discard)
	input(t, dev, "typed ahead")
	d.RunPosted()
	d.Queues[0].Add(virtiotest.In(32))
	d.Restore(d.State())
	if d.RunPosted(); received(d) != "typed ahead" {
		t.Error("input that waited at the save is lost")
	}
}

func TestInputNeedsAWritableBuffer(t *testing.T) {
	d, dev := start(t, io.Discard)
	d.Queues[0].Add(virtiotest.Out([]byte("wrong way")))
	input(t, dev, "x")
	if d.RunPosted(); !d.Broken() {
		t.Error("a readable buffer on the receive queue was taken")
	}
}

func TestInputFromManyGoroutines(t *testing.T) {
	d, dev := start(t, io.Discard)
	for range 16 {
		d.Queues[0].Add(virtiotest.In(512))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if err := dev.Input([]byte("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if d.RunPosted(); len(received(d)) != 800 {
		t.Error("input was lost")
	}
}
