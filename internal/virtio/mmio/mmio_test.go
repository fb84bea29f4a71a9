package mmio_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

// echo is a model that answers each request with what it got, on queue 0, and
// counts what is asked of it.
type echo struct {
	notified, resets int
	count            uint64 // requests; saved
	during           func() // called in Notify, if not nil
}

var errNothing = errors.New("empty request")

func (m *echo) Notify(queues []virtq.Queue, kicked int) error {
	m.notified++
	if m.during != nil {
		m.during()
	}
	q := &queues[0]
	for {
		c, err := q.Pop()
		if c == nil || err != nil {
			return err
		}
		if c.Readable.Len() == 0 {
			return errNothing
		}
		n := 0
		for {
			src, err := c.Readable.Next(c.Writable.Len())
			if len(src) == 0 || err != nil {
				break
			}
			n += len(src)
			if err := c.Writable.WriteFull(src); err != nil {
				return err
			}
		}
		m.count++
		if err := q.Push(c, n); err != nil {
			return err
		}
	}
}

func (m *echo) Reset()                { m.resets++; m.count = 0 }
func (m *echo) Save(e *state.Encoder) { e.U64(m.count) }
func (m *echo) Load(d *state.Decoder) { m.count = d.U64() }

var spec = mmio.Spec{
	Name: "echo", ID: 42, Version: 7, Features: 1 << 5,
	Queues: []uint16{256, 16}, Config: []byte{1, 2, 3, 4, 5, 6, 7},
}

func newEcho(tb testing.TB) (*virtiotest.Driver, *echo) {
	var m *echo
	d := virtiotest.NewDriver(tb, func(slot mmio.Slot) (virtiotest.Device, error) {
		m = new(echo)
		return mmio.New(slot, spec, m)
	})
	return d, m
}

func TestConformance(t *testing.T) {
	virtiotest.Run(t, virtiotest.Subject{
		New: func(_ testing.TB, slot mmio.Slot) (virtiotest.Device, error) {
			return mmio.New(slot, spec, new(echo))
		},
		ID:      42,
		Request: []virtiotest.Buffer{virtiotest.Out([]byte("hello")), virtiotest.In(8)},
		Short:   [][]virtiotest.Buffer{{virtiotest.In(8)}},
	})
}

func TestConfigurationSpace(t *testing.T) {
	d, _ := newEcho(t)
	for _, c := range []struct {
		off   uint64
		width int
		want  uint64
	}{
		{0, 1, 1}, {3, 1, 4}, {1, 2, 0x0302}, {0, 4, 0x04030201}, {0, 8, 0x0007060504030201},
		{4, 4, 0x00070605}, {7, 1, 0}, {0xeff, 1, 0},
	} {
		if got := d.Dev.Read(virtiotest.RegConfig+c.off, c.width); got != c.want {
			t.Errorf("%d bytes at %d: %#x, want %#x", c.width, c.off, got, c.want)
		}
	}
	d.Dev.Write(virtiotest.RegConfig, 4, 99)
	if got := d.Dev.Read(virtiotest.RegConfig, 1); got != 1 {
		t.Errorf("the configuration space was written: %d", got)
	}
}

func TestKicksOnlyReachALiveModel(t *testing.T) {
	d, m := newEcho(t)
	dev := d.Dev.(*mmio.Device)
	kick := func() {
		d.Set(virtiotest.RegQueueNotify, 0)
		dev.Kick(1)
		d.RunPosted()
	}
	kick()
	d.Negotiate(virtiotest.FeatureVersion1)
	kick()
	if m.notified != 0 {
		t.Error("the model was notified without a driver")
	}
	d.Start(0, 8)
	if kick(); m.notified != 2 {
		t.Errorf("the model was notified %d times, want 2", m.notified)
	}
	d.Queues[0].SetAvail(1000)
	kick()
	if kick(); m.notified != 3 {
		t.Errorf("a broken model was notified: %d times, want 3", m.notified)
	}
}

func TestFaults(t *testing.T) {
	d, m := newEcho(t)
	dev := d.Dev.(*mmio.Device)
	if n, err := dev.Faults(); n != 0 || err != nil {
		t.Fatalf("a new device has %d faults: %v", n, err)
	}
	d.Start(0, 8)
	before := m.resets
	d.Queues[0].Add(virtiotest.In(8))
	d.Queues[0].Kick()
	if n, err := dev.Faults(); n != 1 || !errors.Is(err, errNothing) {
		t.Errorf("%d faults, the last %v", n, err)
	}
	if m.resets != before+1 {
		t.Error("the model was not told that its driver broke the device")
	}
	d.Queues[0].Kick()
	if n, _ := dev.Faults(); n != 1 {
		t.Errorf("one fault counts as %d", n)
	}
}

// A queue with more work than its quota goes on at later boundaries, and a
// reset in between ends that.
func TestMuchWorkIsSpread(t *testing.T) {
	big := virtiotest.Out(make([]byte, 300<<10))
	d, m := newEcho(t)
	d.Start(virtiotest.Features, 256)
	q := d.Queues[0]
	for range 10 {
		q.Add(big)
	}
	q.Kick()
	if n := len(q.Take()); n == 0 || n == 10 {
		t.Fatalf("%d of 10 requests at once", n)
	}
	if d.RunPosted() < 2 {
		t.Error("the rest was done at once")
	}
	if d.RunPosted(); m.count != 10 {
		t.Errorf("%d of 10 requests were served", m.count)
	}
	for range 10 {
		q.Add(big)
	}
	q.Kick()
	d.Set(virtiotest.RegStatus, 0)
	notified := m.notified
	if d.RunPosted(); m.notified != notified {
		t.Error("work went on after a reset")
	}
}

// What the guest can have a device do for ever is continued, and what the host has for the guest
// is posted, also while something is to be continued.
func TestWhatGoesOnIsContinued(t *testing.T) {
	var continued []func()
	m := new(echo)
	d := virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
		slot.Continue = func(fn func()) { continued = append(continued, fn) }
		return mmio.New(slot, spec, m)
	})
	dev := d.Dev.(*mmio.Device)
	d.Start(virtiotest.Features, 256)
	q := d.Queues[0]
	for range 20 {
		q.Add(virtiotest.Out(make([]byte, 300<<10)))
	}
	expect := func(what string, posted, waiting int) {
		t.Helper()
		if n := d.RunPosted(); n != posted || len(continued) != waiting {
			t.Fatalf("%s: %d functions were posted and %d are to be continued, want %d and %d", what, n, len(continued), posted, waiting)
		}
	}
	goOn := func() {
		fn := continued[0]
		continued = continued[1:]
		fn()
	}
	q.Kick()
	expect("the queue was kicked by the guest", 0, 1)
	before := m.count
	dev.Kick(0)
	expect("it was kicked by the host", 1, 1)
	if m.count == before {
		t.Error("the host's kick had to wait")
	}
	m.during = func() { m.during = nil; dev.Kick(1) }
	goOn()
	expect("another queue was kicked by what the device does", 0, 1)
	for len(continued) > 0 {
		goOn()
	}
	expect("all was done", 0, 0)
	if m.count != 20 {
		t.Errorf("%d of 20 requests were served", m.count)
	}
}

func TestKickFromManyGoroutines(t *testing.T) {
	d, m := newEcho(t)
	dev := d.Dev.(*mmio.Device)
	d.Start(virtiotest.Features, 8)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				dev.Kick(0)
			}
		})
	}
	stop := make(chan struct{})
	go func() { wg.Wait(); close(stop) }()
	for done := false; !done; {
		select {
		case <-stop:
			done = true
		case <-d.Posted():
		}
		d.Queues[0].Add(virtiotest.Out([]byte{1}), virtiotest.In(1))
		dev.Kick(0)
		if d.RunPosted(); len(d.Queues[0].Take()) != 1 {
			t.Fatal("a kick was lost")
		}
	}
	if m.notified > 2000 {
		t.Errorf("notified %d times", m.notified)
	}
}

func TestRestoreRefuses(t *testing.T) {
	d, _ := newEcho(t)
	if !d.Negotiate(virtiotest.Features | 1<<5) {
		t.Fatal("device refuses its own feature")
	}
	saved := d.State()
	restore := func(s mmio.Spec) error {
		r, err := state.Parse(saved)
		if err != nil {
			t.Fatal(err)
		}
		_, err = mmio.New(mmio.Slot{Index: 3, Memory: d.Mem, Line: d.Line, Post: d.Post, State: r}, s, new(echo))
		return err
	}
	if err := restore(spec); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*mmio.Spec){
		"other name":      func(s *mmio.Spec) { s.Name = "other" },
		"other version":   func(s *mmio.Spec) { s.Version++ },
		"fewer features":  func(s *mmio.Spec) { s.Features = 0 },
		"another queue":   func(s *mmio.Spec) { s.Queues = []uint16{256, 16, 16} },
		"no second queue": func(s *mmio.Spec) { s.Queues = s.Queues[:1] },
	} {
		other := spec
		change(&other)
		if err := restore(other); !errors.Is(err, state.ErrCorrupt) || !strings.Contains(err.Error(), "virtio-"+other.Name+"/3") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStateNamesTheSlot(t *testing.T) {
	d, _ := newEcho(t)
	if !bytes.Contains(d.State(), []byte("virtio-echo/3")) {
		t.Error("the section is not named virtio-echo/3")
	}
}

func FuzzDevice(f *testing.F) {
	virtiotest.Fuzz(f, virtiotest.Subject{
		New: func(_ testing.TB, slot mmio.Slot) (virtiotest.Device, error) {
			return mmio.New(slot, spec, new(echo))
		},
		Request: []virtiotest.Buffer{virtiotest.Out([]byte("hello")), virtiotest.In(8)},
	})
}
