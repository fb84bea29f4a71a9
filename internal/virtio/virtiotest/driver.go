// Package virtiotest is the driver's side of virtio, for tests: a Driver
// negotiates with a device over its registers, lays rings in guest memory,
// adds chains, kicks, and reads what came back. Run is the suite that every
// device passes, and Fuzz the body of every device's fuzz target.
//
// It is imported by tests only.
package virtiotest

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
)

// Device is a virtio device as its board sees it.
type Device interface {
	bus.Device
	Save(*state.Writer)
}

// The registers, by their offsets, and the status and feature bits that tests
// need by name.
const (
	RegMagic           = 0x000
	RegVersion         = 0x004
	RegDeviceID        = 0x008
	RegDeviceFeatures  = 0x010
	RegDeviceSelect    = 0x014
	RegDriverFeatures  = 0x020
	RegDriverSelect    = 0x024
	RegQueueSelect     = 0x030
	RegQueueMax        = 0x034
	RegQueueSize       = 0x038
	RegQueueReady      = 0x044
	RegQueueNotify     = 0x050
	RegInterruptStatus = 0x060
	RegInterruptAck    = 0x064
	RegStatus          = 0x070
	RegQueueDesc       = 0x080
	RegQueueAvail      = 0x090
	RegQueueUsed       = 0x0a0
	RegConfig          = 0x100

	StatusSetup      = 1 | 2 // acknowledged, has a driver
	StatusDriverOK   = 4
	StatusFeaturesOK = 8
	StatusNeedsReset = 64

	InterruptQueue  = 1
	InterruptConfig = 2

	FeatureIndirect = 1 << 28
	FeatureEventIdx = 1 << 29
	FeatureVersion1 = 1 << 32
	// Features are those that every device offers.
	Features = FeatureVersion1 | FeatureIndirect | FeatureEventIdx
)

// The guest's memory: rings first, then buffers.
const (
	RAMBase   = 0x8000_0000
	RAMPages  = 2048
	RAMEnd    = RAMBase + RAMPages*page.Size
	ringSpace = 0x4000 // for each queue
	bufBase   = RAMBase + 0x10_0000
)

// arena is shared by all tests of a process, as an arena keeps its memory.
var arena = sync.OnceValue(page.NewArena)

// NewOverlay returns an empty overlay of the given number of pages, to serve as
// RAM or as a disk. quota is as in page.NewOverlay.
func NewOverlay(tb testing.TB, pages page.Number, quota int) *page.Overlay {
	stack := page.NewStack(pages)
	o := page.NewOverlay(stack, arena(), quota)
	stack.Release()
	tb.Cleanup(o.Close)
	return o
}

// Line is an interrupt line that remembers.
type Line struct {
	mu    sync.Mutex
	high  bool
	rises int
}

// Set implements irq.Line.
func (l *Line) Set(high bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if high && !l.high {
		l.rises++
	}
	l.high = high
}

// High returns the level, and Rises how often it went from low to high.
func (l *Line) High() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.high
}

// Rises returns how often the line went from low to high.
func (l *Line) Rises() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rises
}

// Driver drives one device. It stands for the guest and for the engine, so it
// must be used by one goroutine, except for Post.
type Driver struct {
	TB     testing.TB
	Mem    *memory.Space
	RAM    *page.Overlay // behind Mem
	Dev    Device
	Line   *Line
	Queues []*Queue // set up by Start

	open func(mmio.Slot) (Device, error)
	free uint64 // next address for a buffer

	mu     sync.Mutex
	posted []func()      // guarded by mu
	bell   chan struct{} // has an element if posted is not empty
}

// NewDriver makes the device that open opens, and a driver for it.
func NewDriver(tb testing.TB, open func(mmio.Slot) (Device, error)) *Driver {
	tb.Helper()
	ram := NewOverlay(tb, RAMPages, 0)
	mem, err := memory.NewSpace(memory.Slot{Base: RAMBase, Pages: ram})
	if err != nil {
		tb.Fatal(err)
	}
	d := &Driver{TB: tb, Mem: mem, RAM: ram, Line: new(Line), open: open, free: bufBase, bell: make(chan struct{}, 1)}
	if d.Dev, err = open(d.slot(nil)); err != nil {
		tb.Fatal(err)
	}
	return d
}

func (d *Driver) slot(r *state.Reader) mmio.Slot {
	return mmio.Slot{Index: 3, Memory: d.Mem, Line: d.Line, Post: d.Post, State: r}
}

// Post queues fn for RunPosted. It may be called from any goroutine.
func (d *Driver) Post(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.posted = append(d.posted, fn)
	select {
	case d.bell <- struct{}{}:
	default:
	}
}

// Posted returns a channel that is ready when there may be something for
// RunPosted to run.
func (d *Driver) Posted() <-chan struct{} { return d.bell }

// RunPosted runs what was posted, and what that posts, and returns how many
// functions that were.
func (d *Driver) RunPosted() (n int) {
	for {
		d.mu.Lock()
		fns := d.posted
		d.posted = nil
		d.mu.Unlock()
		if len(fns) == 0 {
			return n
		}
		for _, fn := range fns {
			fn()
			n++
		}
	}
}

// State returns the device's saved state.
func (d *Driver) State() []byte {
	var w state.Writer
	d.Dev.Save(&w)
	return w.Bytes()
}

// Restore replaces the device by one that was made from saved state. Functions
// that the old one has posted are lost.
func (d *Driver) Restore(saved []byte) {
	d.TB.Helper()
	if err := d.TryRestore(saved); err != nil {
		d.TB.Fatal(err)
	}
}

// TryRestore is Restore for state that may be refused.
func (d *Driver) TryRestore(saved []byte) error {
	r, err := state.Parse(saved)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.posted = nil
	d.mu.Unlock()
	dev, err := d.open(d.slot(r))
	if err != nil {
		return err
	}
	d.Dev = dev
	return r.Done()
}

// Get and Set access a register.
func (d *Driver) Get(reg uint64) uint32      { return uint32(d.Dev.Read(reg, 4)) }
func (d *Driver) Set(reg uint64, v uint32)   { d.Dev.Write(reg, 4, uint64(v)) }
func (d *Driver) set64(reg uint64, v uint64) { d.Set(reg, uint32(v)); d.Set(reg+4, uint32(v>>32)) }

// Offered returns the features that the device offers.
func (d *Driver) Offered() uint64 {
	d.Set(RegDeviceSelect, 0)
	low := d.Get(RegDeviceFeatures)
	d.Set(RegDeviceSelect, 1)
	return uint64(d.Get(RegDeviceFeatures))<<32 | uint64(low)
}

// Negotiate resets the device and asks for features. It reports whether the
// device accepts them.
func (d *Driver) Negotiate(features uint64) bool {
	d.Set(RegStatus, 0)
	d.Set(RegStatus, StatusSetup)
	d.Set(RegDriverSelect, 0)
	d.Set(RegDriverFeatures, uint32(features))
	d.Set(RegDriverSelect, 1)
	d.Set(RegDriverFeatures, uint32(features>>32))
	d.Set(RegStatus, StatusSetup|StatusFeaturesOK)
	return d.Get(RegStatus)&StatusFeaturesOK != 0
}

// Start negotiates features on top of FeatureVersion1, sets all queues up with
// the given number of entries, or the most that the device has, and reports to
// be ready.
func (d *Driver) Start(features uint64, size uint16) {
	d.TB.Helper()
	features |= FeatureVersion1
	if !d.Negotiate(features) {
		d.TB.Fatalf("device refuses features %#x", features)
	}
	d.Queues = nil
	for i := range uint32(8) {
		d.Set(RegQueueSelect, i)
		most := uint16(d.Get(RegQueueMax))
		if most == 0 {
			break
		}
		q := newQueue(d, i, min(size, most), features)
		q.Clear()
		q.Configure()
		d.Set(RegQueueReady, 1)
		d.Queues = append(d.Queues, q)
	}
	d.Set(RegStatus, StatusSetup|StatusFeaturesOK|StatusDriverOK)
	if got := d.Get(RegStatus); got != StatusSetup|StatusFeaturesOK|StatusDriverOK {
		d.TB.Fatalf("device has status %#x after its set-up", got)
	}
}

// Broken reports whether the device asks for a reset.
func (d *Driver) Broken() bool { return d.Get(RegStatus)&StatusNeedsReset != 0 }

// Interrupt returns and acknowledges the interrupt's causes.
func (d *Driver) Interrupt() uint32 {
	causes := d.Get(RegInterruptStatus)
	d.Set(RegInterruptAck, causes)
	return causes
}

// Alloc returns room for a buffer in guest memory. Room is used again after a
// while.
func (d *Driver) Alloc(size int) uint64 {
	if d.free+uint64(size) > RAMEnd {
		d.free = bufBase
	}
	at := d.free
	d.free += uint64(size)
	return at
}

// Bytes returns size bytes of guest memory.
func (d *Driver) Bytes(gpa uint64, size int) []byte {
	d.TB.Helper()
	b := make([]byte, size)
	if err := d.Mem.Read(gpa, b); err != nil {
		d.TB.Fatal(err)
	}
	return b
}

// Fill writes b to guest memory.
func (d *Driver) Fill(gpa uint64, b []byte) {
	d.TB.Helper()
	if err := d.Mem.Write(gpa, b); err != nil {
		d.TB.Fatal(err)
	}
}

func (d *Driver) get16(gpa uint64) uint16 { return binary.LittleEndian.Uint16(d.Bytes(gpa, 2)) }
func (d *Driver) put16(gpa uint64, v uint16) {
	d.Fill(gpa, binary.LittleEndian.AppendUint16(nil, v))
}
