package virtiotest

import (
	"bytes"
	"testing"

	"github.com/forkd-dev/forkd/internal/virtio/mmio"
)

// Subject is a kind of device under test.
type Subject struct {
	// New makes a device with a fresh back end.
	New func(testing.TB, mmio.Slot) (Device, error)
	// ID is the virtio device type.
	ID uint32
	// Queue is one that the device serves as soon as it is kicked, Request a
	// request there that it completes, and Short are requests there that are
	// too short to have an answer.
	Queue   int
	Request []Buffer
	Short   [][]Buffer
}

func (s Subject) driver(tb testing.TB) *Driver {
	tb.Helper()
	return NewDriver(tb, func(slot mmio.Slot) (Device, error) { return s.New(tb, slot) })
}

// started returns a driver with the device set up, and its queue.
func (s Subject) started(tb testing.TB, features uint64) (*Driver, *Queue) {
	tb.Helper()
	d := s.driver(tb)
	d.Start(features, 16)
	return d, d.Queues[s.Queue]
}

// works checks that the device can be set up and serves a request.
func (s Subject) works(d *Driver) {
	d.TB.Helper()
	d.Start(Features, 16)
	d.Queues[s.Queue].Do(s.Request...)
	if d.Broken() {
		d.TB.Fatal("a good request broke the device")
	}
}

// Run is the suite that every device passes.
func Run(t *testing.T, s Subject) {
	t.Run("identity", s.identity)
	t.Run("unknown registers are inert", s.inert)
	t.Run("negotiation", s.negotiation)
	t.Run("bad queue set-up", s.badSetup)
	t.Run("malformed rings", s.malformed)
	t.Run("short requests", s.short)
	t.Run("entries changed after submission", s.changed)
	t.Run("used ring and interrupts", s.interrupts)
	t.Run("indexes wrap", s.wrap)
	t.Run("indirect", s.indirect)
	t.Run("reset", s.reset)
	t.Run("reset during work", s.resetDuringWork)
	t.Run("save and load", s.saveLoad)
	t.Run("every change is saved", s.everyChange)
	t.Run("work left at the save", s.leftWork)
	t.Run("damaged state", s.damaged)
}

func (s Subject) identity(t *testing.T) {
	d := s.driver(t)
	for reg, want := range map[uint64]uint32{
		RegMagic: 0x74726976, RegVersion: 2, RegDeviceID: s.ID, RegStatus: 0, RegInterruptStatus: 0,
		0x0fc: 0, // configuration generation
		0x0b0: 0xffff_ffff, 0x0b4: 0xffff_ffff,
	} {
		if got := d.Get(reg); got != want {
			t.Errorf("register %#x is %#x, want %#x", reg, got, want)
		}
	}
	if got := d.Offered(); got&Features != Features {
		t.Errorf("offers %#x, which lacks some of %#x", got, uint64(Features))
	}
	d.Set(RegQueueSelect, 100)
	if got := d.Get(RegQueueMax); got != 0 {
		t.Errorf("queue 100 has %d entries", got)
	}
}

func (s Subject) inert(t *testing.T) {
	d, _ := s.started(t, Features)
	known := map[uint64]bool{
		RegDeviceSelect: true, RegDriverSelect: true, RegQueueSelect: true, RegQueueReady: true, RegStatus: true,
	}
	before := d.State()
	for off := uint64(0); off < mmio.Size; off++ {
		for _, width := range []int{1, 2, 4, 8} {
			if off+uint64(width) > mmio.Size {
				continue
			}
			got := d.Dev.Read(off, width)
			if width < 8 && got>>(8*width) != 0 {
				t.Fatalf("reading %d bytes at %#x gave %#x", width, off, got)
			}
			if width == 4 && known[off] {
				continue
			}
			d.Dev.Write(off, width, ^uint64(0))
		}
	}
	if d.RunPosted(); !bytes.Equal(before, d.State()) {
		t.Error("writing unknown registers changed the device's state")
	}
	s.works(d)
}

func (s Subject) negotiation(t *testing.T) {
	d := s.driver(t)
	unknown := uint64(1) << 63
	for _, features := range []uint64{0, FeatureEventIdx, FeatureVersion1 | unknown, ^uint64(0)} {
		if d.Offered()&unknown == 0 && d.Negotiate(features) {
			t.Errorf("device accepts features %#x", features)
		}
	}
	// Not ready for work without FEATURES_OK, and frozen with it.
	d.Set(RegStatus, 0)
	d.Set(RegStatus, StatusSetup|StatusDriverOK)
	if d.Get(RegStatus)&StatusDriverOK != 0 {
		t.Error("DRIVER_OK without FEATURES_OK")
	}
	if !d.Negotiate(FeatureVersion1) {
		t.Fatal("device refuses VERSION_1 alone")
	}
	before := d.State()
	d.Set(RegDriverSelect, 1)
	d.Set(RegDriverFeatures, 0)
	if !bytes.Equal(before, d.State()) {
		t.Error("features changed after FEATURES_OK")
	}
	// Bits do not go off singly.
	d.Set(RegStatus, 1)
	if got := d.Get(RegStatus); got != StatusSetup|StatusFeaturesOK {
		t.Errorf("status went back to %#x", got)
	}
	s.works(d)
}

func (s Subject) badSetup(t *testing.T) {
	for name, spoil := range map[string]func(*Queue){
		"size 0":             func(q *Queue) { q.Size = 0 },
		"size 3":             func(q *Queue) { q.Size = 3 },
		"size 32768":         func(q *Queue) { q.Size = 32768 },
		"descriptors odd":    func(q *Queue) { q.Desc += 8 },
		"available odd":      func(q *Queue) { q.Avail++ },
		"used odd":           func(q *Queue) { q.Used += 2 },
		"descriptors no RAM": func(q *Queue) { q.Desc = 0x1000 },
		"available past end": func(q *Queue) { q.Avail = RAMEnd - 2 },
		"used past end":      func(q *Queue) { q.Used = RAMEnd - 16 },
		"used wraps":         func(q *Queue) { q.Used = ^uint64(3) },
		"descriptors wrap":   func(q *Queue) { q.Desc = ^uint64(15) },
		"used on available":  func(q *Queue) { q.Used = q.Avail &^ 3 },
		"all on one place":   func(q *Queue) { q.Avail, q.Used = q.Desc, q.Desc },
	} {
		t.Run(name, func(t *testing.T) {
			d := s.driver(t)
			if !d.Negotiate(Features) {
				t.Fatal("device refuses the common features")
			}
			q := newQueue(d, uint32(s.Queue), 4, Features)
			spoil(q)
			q.Configure()
			d.Set(RegQueueReady, 1)
			if d.Get(RegQueueReady) != 0 || !d.Broken() || d.Line.High() {
				t.Errorf("ready %d, status %#x, line %t", d.Get(RegQueueReady), d.Get(RegStatus), d.Line.High())
			}
			d.Set(RegStatus, StatusSetup|StatusFeaturesOK|StatusDriverOK)
			q.Kick()
			if d.RunPosted(); d.Line.High() && d.Get(RegInterruptStatus) == 0 {
				t.Error("interrupt without a cause")
			}
			s.works(d)
		})
	}
	t.Run("sizes beyond 16 bits", func(t *testing.T) {
		d := s.driver(t)
		d.Negotiate(Features)
		q := newQueue(d, uint32(s.Queue), 4, Features)
		q.Configure()
		d.Set(RegQueueSize, 1<<16|4)
		d.Set(RegQueueReady, 1)
		if !d.Broken() {
			t.Error("size 0x10004 was taken for 4")
		}
	})
	t.Run("fixed while ready", func(t *testing.T) {
		d, q := s.started(t, Features)
		q.Configure()
		before := d.State()
		q.Desc, q.Size = 0, 3
		q.Configure()
		if d.Set(RegQueueReady, 1); !bytes.Equal(before, d.State()) {
			t.Error("a ready queue was changed")
		}
	})
}

func (s Subject) reset(t *testing.T) {
	d := s.driver(t)
	fresh := d.State()
	d.Start(Features, 16)
	d.Queues[s.Queue].Do(s.Request...)
	for range 2 {
		d.Set(RegStatus, 0)
		if d.Line.High() || !bytes.Equal(fresh, d.State()) {
			t.Error("a reset device differs from a new one")
		}
	}
	s.works(d)
}

// resetDuringWork resets the device while a posted function is on its way to
// serve the queues.
func (s Subject) resetDuringWork(t *testing.T) {
	d, q := s.started(t, Features)
	q.Add(s.Request...)
	d.Restore(d.State()) // posts a look at the queues
	d.Set(RegStatus, 0)
	if d.RunPosted() == 0 {
		t.Fatal("nothing was posted")
	}
	if len(q.Take()) != 0 || d.Line.High() {
		t.Error("a reset device served its queue")
	}
	s.works(d)
	// The same with a new set of queues in place already.
	d.Restore(d.State())
	d.Start(Features, 8)
	d.RunPosted()
	d.Queues[s.Queue].Do(s.Request...)
}
